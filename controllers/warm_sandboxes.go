package controllers

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/warm"
	"callgate.dev/callgate/internal/wire"
)

// warmPools is what the controllers of calls, sandboxes and pools know together
// about the sandboxes that were made before their calls.
type warmPools struct {
	client.Client
	pods   typedcorev1.PodsGetter
	claims claims
	// woken brings a Tool's pool back when a sandbox was taken.
	woken func(tool types.NamespacedName)
	trust trusted
}

// sandboxes are those that were made before their calls for a Tool of a name, as
// the call with the UID forCall sees them: what that one has claimed and not got
// is free. They are shared with the cache and must not be changed.
func (w *warmPools) sandboxes(ctx context.Context, tool types.NamespacedName, forCall types.UID) ([]warm.Sandbox, error) {
	var jobs batchv1.JobList
	if err := w.List(ctx, &jobs, client.InNamespace(tool.Namespace), client.MatchingFields{indexPoolOf: tool.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := make([]warm.Sandbox, 0, len(jobs.Items))
	for i := range jobs.Items {
		s, err := w.sandbox(ctx, &jobs.Items[i], forCall)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (w *warmPools) sandbox(ctx context.Context, job *batchv1.Job, forCall types.UID) (warm.Sandbox, error) {
	s := warm.Sandbox{Job: job, Unproven: !w.trust.has(client.ObjectKeyFromObject(job))}
	var pods corev1.PodList
	if err := w.List(ctx, &pods, client.InNamespace(job.Namespace), client.MatchingFields{indexJob: job.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return s, err
	}
	for i := range pods.Items {
		// One that is being deleted says least about a Job that has two.
		if p := &pods.Items[i]; metav1.IsControlledBy(p, job) && (s.Pod == nil || s.Pod.DeletionTimestamp != nil) {
			s.Pod = p
		}
	}
	if s.Pod != nil && s.Pod.Spec.NodeName != "" {
		node := &corev1.Node{}
		err := w.Get(ctx, client.ObjectKey{Name: s.Pod.Spec.NodeName}, node)
		if client.IgnoreNotFound(err) != nil {
			return s, err
		}
		s.NodeLeft = err != nil || node.Spec.Unschedulable
	}
	if have, ok := w.claims.get(client.ObjectKeyFromObject(job)); ok && (have.sent || have.uid != forCall) {
		s.Taken, s.TakeTime = true, have.at
		if have.uid == removal {
			s.TakeTime = time.Time{}
		}
		return s, nil
	}
	calls, err := w.callsIn(ctx, client.ObjectKeyFromObject(job))
	if err != nil {
		return s, err
	}
	s.Taken = len(calls) > 0 || job.Labels[v1alpha1.LabelCallUID] != ""
	return s, nil
}

// callsIn are the calls whose status names a sandbox. There is more than one if
// two wanted it, of which one got it. They are shared with the cache.
func (w *warmPools) callsIn(ctx context.Context, sandbox types.NamespacedName) ([]v1alpha1.ToolCall, error) {
	var calls v1alpha1.ToolCallList
	err := w.List(ctx, &calls, client.MatchingFields{indexSandbox: sandbox.String()}, client.UnsafeDisableDeepCopy)
	return calls.Items, err
}

// owner is the call that a sandbox was made for, or that has got it; nothing if
// it waits.
func (w *warmPools) owner(ctx context.Context, job *batchv1.Job) (key types.NamespacedName, uid types.UID, err error) {
	if key, ok := callKey(job); ok {
		return key, types.UID(job.Labels[v1alpha1.LabelCallUID]), nil
	}
	if !sandbox.IsWarm(job.Name) {
		return key, "", nil
	}
	name := client.ObjectKeyFromObject(job)
	calls, err := w.callsIn(ctx, name)
	if err != nil {
		return key, "", err
	}
	if i := slices.IndexFunc(calls, func(c v1alpha1.ToolCall) bool {
		a := openAttempt(&c)
		return a != nil && a.Sandbox == job.Name
	}); i >= 0 {
		// Not that of another one, which found it taken.
		return client.ObjectKeyFromObject(&calls[i]), calls[i].UID, nil
	}
	if len(calls) > 0 {
		return client.ObjectKeyFromObject(&calls[0]), calls[0].UID, nil
	}
	if have, ok := w.claims.get(name); ok && have.sent {
		return have.call, have.uid, nil
	}
	return key, "", nil
}

// runs says whether a container of a call runs in a sandbox that was made before it.
func (w *warmPools) runs(ctx context.Context, callUID types.UID) (bool, error) {
	for _, name := range w.claims.held(callUID) {
		var pods corev1.PodList
		if err := w.List(ctx, &pods, client.InNamespace(name.Namespace), client.MatchingFields{indexJob: name.Name}, client.UnsafeDisableDeepCopy); err != nil {
			return false, err
		}
		if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }) {
			return true, nil
		}
	}
	return false, nil
}

// template is a waiting sandbox of a Tool as it is now, made of that of a call;
// nil if its RuntimeClass is not there.
func (w *warmPools) template(ctx context.Context, cold *batchv1.Job, tool *v1alpha1.Tool) (*batchv1.Job, error) {
	name := cold.Spec.Template.Spec.RuntimeClassName
	if name == nil {
		return sandbox.Warm(cold, tool, nil), nil
	}
	class := &nodev1.RuntimeClass{}
	if err := w.Get(ctx, client.ObjectKey{Name: *name}, class); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read RuntimeClass %s: %w", *name, err)
	}
	return sandbox.Warm(cold, tool, class), nil
}

// proofTimeout bounds the read of one sandbox's log.
const proofTimeout = 2 * time.Second

// prove reads the log of a sandbox that an earlier process has made. That may have
// sent a call to it, and have ended before anything but the sandbox's own log said
// so; if the call was deleted, too, nothing else does. It clears Unproven, or sets
// Used; if the log does not show its first line yet, neither.
func (w *warmPools) prove(ctx context.Context, s *warm.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	// No more is read than shows a call that was accepted.
	const most = 2 * wire.MaxLineBytes
	stream, err := w.pods.Pods(s.Pod.Namespace).GetLogs(s.Pod.Name, &corev1.PodLogOptions{Container: sandbox.Container, LimitBytes: ptr.To[int64](most)}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log of a sandbox that waits: %w", err)
	}
	defer stream.Close()
	var transcript wire.Transcript
	if _, err := io.Copy(&transcript, io.LimitReader(stream, most)); err != nil {
		return fmt.Errorf("read the log of a sandbox that waits: %w", err)
	}
	switch state := transcript.Snapshot(); {
	case state.Accepted != nil:
		s.Used = true
	case state.Ready:
		w.trust.add(client.ObjectKeyFromObject(s.Job))
		s.Unproven = false
	}
	return nil
}

// trusted are the waiting sandboxes of which this process knows that no call was
// ever accepted in them: those that it has made itself, and those of an earlier
// process whose log says so.
type trusted struct {
	mu   sync.Mutex
	jobs map[types.NamespacedName]struct{}
}

func (t *trusted) add(job types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.jobs == nil {
		t.jobs = map[types.NamespacedName]struct{}{}
	}
	t.jobs[job] = struct{}{}
}

func (t *trusted) has(job types.NamespacedName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.jobs[job]
	return ok
}

func (t *trusted) drop(job types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.jobs, job)
}

// gone forgets a sandbox that is not there any more.
func (w *warmPools) gone(job types.NamespacedName) {
	w.claims.drop(job)
	w.trust.drop(job)
}
