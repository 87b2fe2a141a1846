package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// patience bounds every wait that has no tighter bound.
const patience = 2 * time.Minute

// world is what a watching client sees of the namespaces of this run, and when
// it saw it first. All waits look at it, so that nothing is polled while
// something is measured.
type world struct {
	mu      sync.Mutex
	calls   map[string]*v1alpha1.ToolCall
	jobs    map[string]*batchv1.Job
	pods    map[string]*corev1.Pod
	first   map[string]time.Time // "job/NAME", "pod/NAME", "pod/NAME/scheduled" and so on
	changed chan struct{}        // closed at the next event
	broken  error
}

// watchWorld begins to watch, the calls as the agent does.
func watchWorld(ctx context.Context) (*world, error) {
	w := &world{
		calls: map[string]*v1alpha1.ToolCall{}, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{},
		first: map[string]time.Time{}, changed: make(chan struct{}),
	}
	for _, of := range []struct {
		who       client.WithWatch
		list      client.ObjectList
		namespace string
	}{
		{cluster.Agent, &v1alpha1.ToolCallList{}, cluster.AgentsNS},
		{cluster.Admin, &batchv1.JobList{}, cluster.ToolsNS},
		{cluster.Admin, &corev1.PodList{}, cluster.ToolsNS},
	} {
		var watcher watch.Interface
		if err := poll(ctx, func() (is bool, err error) {
			watcher, err = of.who.Watch(ctx, of.list, client.InNamespace(of.namespace))
			if apierrors.IsForbidden(err) {
				return false, nil // the authorizer does not have the new binding yet
			}
			return err == nil, err
		}); err != nil {
			return nil, fmt.Errorf("watch %T in %s: %w", of.list, of.namespace, err)
		}
		go func() {
			for event := range watcher.ResultChan() {
				w.see(event)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.broken = fmt.Errorf("the watch of %T ended", of.list)
			w.wake()
		}()
	}
	return w, nil
}

// wake wants w.mu held.
func (w *world) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) see(event watch.Event) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.wake()
	gone := event.Type == watch.Deleted
	mark := func(what string, is bool) {
		if _, seen := w.first[what]; is && !seen {
			w.first[what] = now
		}
	}
	switch o := event.Object.(type) {
	case *v1alpha1.ToolCall:
		keep(w.calls, o.Name, o, gone)
	case *batchv1.Job:
		keep(w.jobs, o.Name, o, gone)
		mark("job/"+o.Name, true)
	case *corev1.Pod:
		keep(w.pods, o.Name, o, gone)
		key := "pod/" + o.Name
		mark(key, true)
		mark(key+"/scheduled", o.Spec.NodeName != "")
		mark(key+"/network", podIs(o, corev1.PodReadyToStartContainers))
		mark(key+"/running", hasStarted(o))
	default:
		w.broken = fmt.Errorf("a watch says %s: %+v", event.Type, event.Object)
	}
}

func keep[T any](m map[string]T, name string, o T, gone bool) {
	if gone {
		delete(m, name)
	} else {
		m[name] = o
	}
}

// until waits, at most for patience, until done says so. done is called with w.mu held,
// at each event; what names the wait in the error.
func (w *world) until(ctx context.Context, what string, done func() bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		w.mu.Lock()
		is, changed, broken := done(), w.changed, w.broken
		w.mu.Unlock()
		now := time.Now()
		switch {
		case is:
			return now, nil
		case broken != nil:
			return now, fmt.Errorf("waiting for %s: %w", what, broken)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return now, fmt.Errorf("waiting for %s, at most %s: %w", what, patience, ctx.Err())
		}
	}
}

// since is how long after start something was seen first; false if it was not.
func (w *world) since(start time.Time, what string) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.first[what]
	return at.Sub(start), ok
}

func complete(c *v1alpha1.ToolCall) bool {
	return c != nil && apimeta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionComplete)
}

func jobComplete(j *batchv1.Job) bool {
	if j == nil {
		return false
	}
	for _, c := range j.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

func podIs(p *corev1.Pod, condition corev1.PodConditionType) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == condition && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// hasStarted says whether the container of a pod runs, or has run.
func hasStarted(p *corev1.Pod) bool {
	for _, s := range p.Status.ContainerStatuses {
		if s.Name == sandbox.Container && (s.State.Running != nil || s.State.Terminated != nil) {
			return true
		}
	}
	return false
}

// busy are the sandboxes, raw Jobs and pods that are there, without those that
// wait in a pool and those of kept calls. It wants w.mu held.
func (w *world) busy(kept func(labels map[string]string) bool) int {
	n := 0
	for _, j := range w.jobs {
		if !waits(j.Labels, j.Name, w) && !kept(j.Labels) {
			n++
		}
	}
	for _, p := range w.pods {
		if !waits(p.Labels, p.Labels["batch.kubernetes.io/job-name"], w) && !kept(p.Labels) {
			n++
		}
	}
	return n
}

// waits says whether a sandbox is one of a pool that no call has got.
func waits(labels map[string]string, job string, w *world) bool {
	if labels[v1alpha1.LabelPool] == "" {
		return false
	}
	_, used := w.first["used/"+job]
	return !used
}

// ready is how many sandboxes of a Tool wait. It wants w.mu held.
func (w *world) ready(tool *v1alpha1.Tool) int {
	n := 0
	for _, p := range w.pods {
		if p.Labels[v1alpha1.LabelToolUID] == string(tool.UID) && p.DeletionTimestamp == nil && podIs(p, corev1.PodReady) &&
			waits(p.Labels, p.Labels["batch.kubernetes.io/job-name"], w) {
			n++
		}
	}
	return n
}

// use notes that a sandbox of a pool has got a call.
func (w *world) use(job string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first["used/"+job] = time.Now()
}
