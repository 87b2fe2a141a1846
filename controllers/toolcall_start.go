package controllers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

// nextAttempt is the number of the attempt after those that were sent.
func nextAttempt(call *v1alpha1.ToolCall) int32 {
	if n := len(call.Status.Attempts); n > 0 {
		return call.Status.Attempts[n-1].Number + 1
	}
	return 1
}

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
	if v := gate.Rest(l.call, s.Tool, s.Now); !v.Passed() {
		return v, nil
	}
	probe, _, err := r.api.probe(ctx, s.Tool)
	if err != nil {
		return gate.Verdict{}, err
	}
	is, refused, err := isolationOf(ctx, r.Client, r.RuntimeClasses, s.Tool)
	if err != nil {
		return gate.Verdict{}, err
	}
	if refused.reason != "" {
		// The Tool does not say so yet: its class was deleted just now, or this
		// controller was told other rules than the one before.
		return gate.Verdict{Result: gate.Failure(v1alpha1.ErrorToolUnavailable, false,
			fmt.Sprintf("Tool %s/%s cannot run: %s: %s", s.Tool.Namespace, s.Tool.Name, refused.reason, refused.message))}, nil
	}
	s.Want = sandbox.Job(sandbox.Input{
		Tool: s.Tool, Install: r.Install, RunnerImage: r.RunnerImage, Probe: probe,
		CallUID: s.Call.UID, Call: client.ObjectKeyFromObject(s.Call), Attempt: nextAttempt(s.Call),
		DefaultRuntimeClass: r.RuntimeClasses.Default, NoUserNamespace: !is.userNamespace,
	})
	job := &batchv1.Job{}
	switch err := r.Get(ctx, client.ObjectKeyFromObject(s.Want), job); {
	case err == nil:
		s.Job = job
	case !apierrors.IsNotFound(err):
		return gate.Verdict{}, err
	}
	s.Since = l.startingSince(s.Job, s.Now)
	verdict, err := r.lookAtSandbox(ctx, &s)
	if err != nil {
		return gate.Verdict{}, err
	}
	if verdict.Act == gate.ActCreateSandbox {
		if s.Pod, err = r.takeWarm(ctx, &s); err != nil {
			return gate.Verdict{}, err
		} else if s.Pod != nil {
			verdict = gate.Verdict{Act: gate.ActDispatch, Reason: v1alpha1.ReasonRunning}
		}
	}
	switch verdict.Act {
	case gate.ActCreateSandbox:
		return r.create(ctx, &s, verdict)
	case gate.ActDeleteSandbox:
		return verdict, r.deleteJob(ctx, l.call, s.Job)
	case gate.ActDispatch:
		plan := r.plan(l.call, l.admitted, s.Pod)
		if plan.target.Key, err = r.results.of(ctx, plan.target); err != nil {
			return gate.Unstored(s.Call, s.Tool, s.Since, s.Now, err.Error()), nil
		}
		l.plan = plan
	}
	return verdict, nil
}

// startingSince is when the call was allowed to start. Before it is written, a
// sandbox tells, which may be from before a restart.
func (l *look) startingSince(job *batchv1.Job, now time.Time) time.Time {
	if l.status.StartingTime == nil {
		l.status.StartingTime = ptr.To(metav1.NewMicroTime(now))
		if job != nil && job.CreationTimestamp.Time.Before(now) {
			l.status.StartingTime.Time = job.CreationTimestamp.Time
		}
	}
	return l.status.StartingTime.Time
}

// deleteJob deletes a sandbox that never got its call.
func (r *ToolCallReconciler) deleteJob(ctx context.Context, call *v1alpha1.ToolCall, job *batchv1.Job) error {
	if err := r.sameAttempts(ctx, call); err != nil {
		return err
	}
	return client.IgnoreNotFound(r.Delete(ctx, job, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: &job.UID}))
}

// sameAttempts fails with a conflict if the call was sent meanwhile, by this
// process or by another one that takes itself for the leader: that a call was
// not sent is no proof in a cache, which may be behind.
func (r *ToolCallReconciler) sameAttempts(ctx context.Context, call *v1alpha1.ToolCall) error {
	now := &v1alpha1.ToolCall{}
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(call), now); err != nil {
		return err
	}
	if now.UID != call.UID || !equality.Semantic.DeepEqual(now.Status.Attempts, call.Status.Attempts) {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("toolcalls").GroupResource(), call.Name, errors.New("its attempts have changed"))
	}
	return nil
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
	s.State = sandbox.Observe(s.Job, pod, nil)
	age := s.Now.Sub(s.Job.CreationTimestamp.Time)
	if s.State.Unexplained && age > quiet {
		about := s.Job.UID
		if pod != nil {
			about = pod.UID
		}
		if warnings, err := r.warnings(ctx, s.Job.Namespace, about); err != nil {
			// They only explain the wait; without them it ends at its deadline all the same.
			log.FromContext(ctx).Error(err, "Why a sandbox does not start is not known")
		} else {
			s.State = sandbox.Observe(s.Job, pod, warnings)
		}
	}
	verdict := gate.Start(*s)
	if s.State.Unexplained && !verdict.Ended() {
		// Events are not watched. The longer it waits, the rarer the looks: many
		// sandboxes may wait for one large image.
		verdict.After = min(verdict.After, max(2*quiet, age/5))
	}
	return verdict, nil
}

func (r *ToolCallReconciler) create(ctx context.Context, s *gate.Starting, verdict gate.Verdict) (gate.Verdict, error) {
	err := r.Create(ctx, s.Want)
	fault.At("sandbox-created")
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
	return gate.Unstored(s.Call, s.Tool, s.Since, s.Now, "the sandbox cannot be created: "+err.Error()), nil
}

// plan makes the attempt's entry and the frame for a pod that runs.
func (r *ToolCallReconciler) plan(call *v1alpha1.ToolCall, admitted gate.Admitted, pod *corev1.Pod) *dispatchPlan {
	now := metav1.NowMicro()
	timeout := timeoutSeconds(call, admitted.Tool, now.Time)
	attempt := v1alpha1.Attempt{
		Number: nextAttempt(call), Sandbox: metav1.GetControllerOf(pod).Name, Namespace: pod.Namespace,
		Pod: pod.Name, PodUID: pod.UID, TimeoutSeconds: timeout, SendTime: now, Node: pod.Spec.NodeName,
	}
	return &dispatchPlan{
		attempt: attempt,
		target:  target(call, &attempt),
		call:    frame(call, admitted.Tool, admitted.Command, timeout, pod),
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

func frame(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, command []string, timeout int32, pod *corev1.Pod) wire.Call {
	c := wire.Call{
		Argv: command,
		// Stable over all attempts of a call, for tools that hand it on.
		Env:            []wire.EnvVar{{Name: "CALLGATE_IDEMPOTENCY_KEY", Value: string(call.UID)}},
		MaxStdoutBytes: maxBytes(tool),
		TimeoutMillis:  int64(timeout) * 1000,
		AllowSockets:   sandbox.AllowSockets(tool),
		StdoutIsJSON:   sandbox.OutputRules(tool).Format == result.FormatJSON,
		SecretEnv:      sandbox.SecretEnv(tool),
		SecretPaths:    sandbox.SecretPaths(tool),
		MaxFileBytes:   sandbox.MaxFileBytes(pod),
		MaxProcesses:   sandbox.MaxProcesses(pod),
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

// warnings are the Warning events about an object, oldest first.
func (r *ToolCallReconciler) warnings(ctx context.Context, namespace string, about types.UID) ([]corev1.Event, error) {
	list, err := r.Events.Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector:  fields.Set{"involvedObject.uid": string(about), "type": corev1.EventTypeWarning}.String(),
		Limit:          50,
		TimeoutSeconds: ptr.To(int64(apiTimeout / time.Second)),
	})
	if err != nil {
		return nil, fmt.Errorf("read the events of a sandbox in namespace %s: %w", namespace, err)
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int {
		if c := a.LastTimestamp.Compare(b.LastTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items, nil
}
