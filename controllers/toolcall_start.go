package controllers

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

// firstAttempt is the only one in this version.
const firstAttempt = 1

// dispatchPlan is a call that is about to be sent.
type dispatchPlan struct {
	attempt v1alpha1.Attempt
	target  dispatch.Target
	call    wire.Call
	overdue time.Time
}

// start looks at the sandbox of a call that may run, and makes it if need be.
func (r *ToolCallReconciler) start(ctx context.Context, l *look) (gate.Verdict, error) {
	s := gate.Starting{Now: time.Now(), Call: l.call, Tool: l.admitted.Tool}
	s.Want = sandbox.Job(sandbox.Input{
		Tool: s.Tool, Install: r.Install, RunnerImage: r.RunnerImage,
		CallUID: s.Call.UID, Call: client.ObjectKeyFromObject(s.Call), Attempt: firstAttempt,
	})
	job := &batchv1.Job{}
	switch err := r.Get(ctx, client.ObjectKeyFromObject(s.Want), job); {
	case err == nil:
		s.Job = job
	case !apierrors.IsNotFound(err):
		return gate.Verdict{}, err
	}
	verdict, err := r.lookAtSandbox(ctx, &s)
	if err != nil {
		return gate.Verdict{}, err
	}
	switch verdict.Act {
	case gate.ActCreateSandbox:
		return r.create(ctx, &s, verdict)
	case gate.ActDeleteSandbox:
		return verdict, r.deleteJob(ctx, s.Job)
	case gate.ActDispatch:
		l.plan = r.plan(l.call, l.admitted, s.Pod)
	}
	return verdict, nil
}

// deleteJob deletes a sandbox that never got its call.
func (r *ToolCallReconciler) deleteJob(ctx context.Context, job *batchv1.Job) error {
	return client.IgnoreNotFound(r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &job.UID}))
}

func (r *ToolCallReconciler) lookAtSandbox(ctx context.Context, s *gate.Starting) (gate.Verdict, error) {
	if s.Job == nil {
		return gate.Start(*s), nil
	}
	pod, err := r.podOf(ctx, s.Job.Namespace, s.Call.UID, func(p *corev1.Pod) bool { return metav1.IsControlledBy(p, s.Job) })
	if err != nil {
		return gate.Verdict{}, err
	}
	s.Pod = pod
	var warnings []corev1.Event
	if pod == nil && s.Now.Sub(s.Job.CreationTimestamp.Time) > quiet {
		// Why a Job has no pod stands in its events only.
		if warnings, err = r.warnings(ctx, s.Job); err != nil {
			return gate.Verdict{}, err
		}
	}
	s.State = sandbox.Observe(s.Job, pod, warnings)
	verdict := gate.Start(*s)
	if pod == nil && !verdict.Ended() {
		verdict.After = min(verdict.After, 2*quiet) // events are not watched
	}
	return verdict, nil
}

func (r *ToolCallReconciler) create(ctx context.Context, s *gate.Starting, verdict gate.Verdict) (gate.Verdict, error) {
	err := r.Create(ctx, s.Want)
	switch {
	case err == nil:
		return verdict, nil
	case apierrors.IsAlreadyExists(err):
		// Ours and not in the cache yet, or somebody else's, which never will be.
		s.Job = &batchv1.Job{}
		if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.Want), s.Job); err != nil {
			return verdict, client.IgnoreNotFound(err) // gone again: the next look makes it
		}
		verdict, err := r.lookAtSandbox(ctx, s)
		if verdict.Act == gate.ActDispatch || verdict.Act == gate.ActDeleteSandbox {
			// Left to the next look, which has it from the cache.
			verdict.Act, verdict.After = gate.ActNone, quiet
		}
		return verdict, err
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return gate.Verdict{Result: gate.Failure(v1alpha1.ErrorToolUnavailable, false, "the API server refused the sandbox's Job: "+err.Error())}, nil
	}
	// A quota, a webhook that is down, a missing right, an API server that is
	// slow: time may cure it, within the call's bounds.
	return gate.Uncreated(*s, "the sandbox cannot be created: "+err.Error()), nil
}

// plan makes the attempt's entry and the frame for a pod that runs.
func (r *ToolCallReconciler) plan(call *v1alpha1.ToolCall, admitted gate.Admitted, pod *corev1.Pod) *dispatchPlan {
	now := metav1.NowMicro()
	timeout := timeoutSeconds(call, admitted.Tool, now.Time)
	attempt := v1alpha1.Attempt{
		Number: firstAttempt, Sandbox: sandbox.JobName(call.UID, firstAttempt), Namespace: pod.Namespace,
		Pod: pod.Name, PodUID: pod.UID, TimeoutSeconds: timeout, SendTime: now, Node: pod.Spec.NodeName,
	}
	return &dispatchPlan{
		attempt: attempt,
		target:  target(call, &attempt),
		call:    frame(call, admitted.Tool, admitted.Command, timeout),
		overdue: now.Add(time.Duration(timeout+sandbox.GraceSeconds) * time.Second),
	}
}

// timeoutSeconds is the tool's time limit in this attempt: the Tool's, which
// the call may shorten, and never past the call's own deadline.
func timeoutSeconds(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, now time.Time) int32 {
	limit := sandbox.TimeoutSeconds(tool)
	if t := call.Spec.TimeoutSeconds; t > 0 {
		limit = min(limit, t)
	}
	if d := call.Spec.DeadlineSeconds; d > 0 {
		left := call.CreationTimestamp.Add(time.Duration(d) * time.Second).Sub(now).Seconds()
		limit = min(limit, int32(math.Ceil(max(left, 1))))
	}
	return limit
}

func frame(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, command []string, timeout int32) wire.Call {
	c := wire.Call{
		Argv: command,
		// Stable over all attempts of a call, for tools that hand it on.
		Env:            []wire.EnvVar{{Name: "CALLGATE_IDEMPOTENCY_KEY", Value: string(call.UID)}},
		MaxStdoutBytes: maxBytes(tool),
		TimeoutMillis:  int64(timeout) * 1000,
		AllowSockets:   sandbox.AllowSockets(tool),
	}
	if tool.Spec.Container.Stdin == v1alpha1.StdinNone {
		c.DevNullStdin = true
	} else {
		c.Stdin = gate.Args(call)
	}
	return c
}

func target(call *v1alpha1.ToolCall, a *v1alpha1.Attempt) dispatch.Target {
	return dispatch.Target{
		Call: client.ObjectKeyFromObject(call), CallUID: call.UID, Attempt: a.Number,
		Namespace: a.Namespace, Pod: a.Pod, PodUID: a.PodUID,
		Timeout: time.Duration(a.TimeoutSeconds) * time.Second,
	}
}

// podOf is the pod of a call that is wanted, in the namespace of its sandbox;
// nil if it is not there. Labels alone prove nothing: anybody can set them on a
// pod of another namespace.
func (r *ToolCallReconciler) podOf(ctx context.Context, namespace string, callUID types.UID, wanted func(*corev1.Pod) bool) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(namespace), client.MatchingFields{indexCallUID: string(callUID)}); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if wanted(&pods.Items[i]) {
			return &pods.Items[i], nil
		}
	}
	return nil, nil
}

// warnings are the Warning events of a Job, oldest first.
func (r *ToolCallReconciler) warnings(ctx context.Context, job *batchv1.Job) ([]corev1.Event, error) {
	list, err := r.Events.Events(job.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector:  fields.Set{"involvedObject.uid": string(job.UID), "type": corev1.EventTypeWarning}.String(),
		Limit:          50,
		TimeoutSeconds: ptr.To(int64(apiTimeout / time.Second)),
	})
	if err != nil {
		return nil, fmt.Errorf("read the events of Job %s/%s: %w", job.Namespace, job.Name, err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		if c := a.LastTimestamp.Compare(b.LastTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items, nil
}
