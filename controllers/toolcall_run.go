package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/template"
	"callgate.dev/callgate/internal/wire"
)

// run looks at a call that was sent, or was about to be.
func (r *ToolCallReconciler) run(ctx context.Context, call *v1alpha1.ToolCall, attempt *v1alpha1.Attempt) (time.Duration, error) {
	tool, err := r.toolOf(ctx, call)
	if err != nil {
		return 0, err
	}
	output, err := r.outputSpec(ctx, call, attempt, tool)
	if err != nil {
		return 0, err
	}
	pod, err := r.podIn(ctx, r.Client, attempt)
	if err == nil && pod == nil {
		pod, err = r.podPastCache(ctx, attempt)
	}
	if err != nil {
		return 0, err
	}
	output.MaxFileBytes = sandbox.MaxFileBytes(pod)
	running := gate.Running{
		Now: time.Now(), Call: call, Attempt: attempt, Output: output, Pod: pod,
		State: sandbox.Observe(nil, pod, nil), CanResend: tool != nil,
	}
	session, known := r.dispatcher.Get(call.UID, attempt.Number)
	if known {
		running.Session = &session
	}
	verdict := gate.Run(running)
	switch verdict.Act {
	case gate.ActFollow:
		t := target(call, attempt)
		// Without the key for good, the log still says how the sandbox ended.
		if t.Key, err = r.results.of(ctx, t); err != nil && !lasting(err) {
			return 0, err
		}
		r.dispatcher.Follow(t, running.State.Ended())
	case gate.ActResend:
		command, err := template.Expand(tool.Spec.Container.Command, gate.Args(call))
		if err != nil {
			return 0, fmt.Errorf("make the call's frame again: %w", err)
		}
		t := target(call, attempt)
		if t.Key, err = r.results.of(ctx, t); err != nil {
			return 0, err
		}
		r.dispatcher.Send(t, frame(call, tool, command, attempt.TimeoutSeconds, pod))
	case gate.ActStop:
		fault.At("stop")
		// Never 0: a forced deletion would forget a container that still runs.
		err := r.Delete(ctx, pod, client.GracePeriodSeconds(1), client.Preconditions{UID: &pod.UID})
		if apierrors.IsForbidden(err) {
			verdict = gate.Unstopped(running, err.Error())
		} else if client.IgnoreNotFound(err) != nil {
			return 0, fmt.Errorf("stop the sandbox: %w", err)
		}
	}
	status := call.Status.DeepCopy()
	if verdict.Ended() {
		finish(&status.Attempts[len(status.Attempts)-1], verdict, pod, running.Session, running.Now)
		if verdict, err = r.retry(ctx, call, status, verdict, running.Now); err != nil {
			return 0, err
		}
	}
	pause := r.adopt(ctx, running, tool, verdict)
	next, err := r.write(ctx, call, status, verdict)
	if err == nil && pause > 0 && (next == 0 || pause < next) {
		next = pause
	}
	return next, err
}

// retry makes of the end of an attempt a wait for the next one, if there is to
// be one.
func (r *ToolCallReconciler) retry(ctx context.Context, call *v1alpha1.ToolCall, status *v1alpha1.ToolCallStatus, ended gate.Verdict, now time.Time) (gate.Verdict, error) {
	tool, err := r.toolWithUID(ctx, status.ToolUID)
	if err != nil {
		return ended, err
	}
	verdict := gate.Retry(gate.Retrying{Now: now, Call: call, Status: status, Tool: tool, End: ended})
	if !verdict.Ended() && ended.Outcome != v1alpha1.OutcomeNeverStarted {
		status.StartingTime = nil // another start, with a deadline of its own
	}
	return verdict, nil
}

// podPastCache reads the pod of an attempt from the API server itself: that a
// sandbox is gone costs its answer, and a cache that has just begun may be behind.
func (r *ToolCallReconciler) podPastCache(ctx context.Context, a *v1alpha1.Attempt) (*corev1.Pod, error) {
	return r.podIn(ctx, r.APIReader, a)
}

// podIn reads the pod of an attempt; nil if it is not there, or another one is.
func (r *ToolCallReconciler) podIn(ctx context.Context, reader client.Reader, a *v1alpha1.Attempt) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := reader.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Pod}, pod)
	if err != nil || pod.UID != a.PodUID {
		return nil, client.IgnoreNotFound(err)
	}
	return pod, nil
}

// finish completes the attempt's record.
func finish(a *v1alpha1.Attempt, v gate.Verdict, pod *corev1.Pod, session *dispatch.Snapshot, now time.Time) {
	gate.Close(a, v, now)
	if pod != nil {
		for _, s := range pod.Status.ContainerStatuses {
			if s.Name == sandbox.Container {
				a.ImageID = s.ImageID
			}
		}
	}
	if session == nil || session.Result == nil || v.Outcome != v1alpha1.OutcomeReported {
		return
	}
	res := session.Result
	a.StartTime, a.FinishTime = ptr.To(metav1.NewMicroTime(res.Start)), ptr.To(metav1.NewMicroTime(res.End))
	if code := res.ExitCode; res.Signal == "" && res.StartErrorKind == "" && code >= 0 && code <= 255 {
		a.ExitCode = ptr.To(int32(code))
	}
}

// toolOf is the Tool that the call was decided with, in that generation; nil
// if it has changed or is gone.
func (r *ToolCallReconciler) toolOf(ctx context.Context, call *v1alpha1.ToolCall) (*v1alpha1.Tool, error) {
	tool, err := r.toolWithUID(ctx, call.Status.ToolUID)
	if err != nil || tool == nil || tool.Generation != call.Status.ToolGeneration {
		return nil, err
	}
	return tool, nil
}

// toolWithUID is the Tool as it is now; nil if it is gone.
func (r *ToolCallReconciler) toolWithUID(ctx context.Context, uid types.UID) (*v1alpha1.Tool, error) {
	var tools v1alpha1.ToolList
	if err := r.List(ctx, &tools, client.MatchingFields{indexUID: string(uid)}); err != nil || len(tools.Items) == 0 {
		return nil, err
	}
	return &tools.Items[0], nil
}

// outputSpec says how the tool's answer is read. A Tool that has changed or is
// gone does not change how a running call ends: the rules stand on its Job. The
// outputSchema stands there not, for its size; it is applied as long as this
// process knows it.
func (r *ToolCallReconciler) outputSpec(ctx context.Context, call *v1alpha1.ToolCall, a *v1alpha1.Attempt, tool *v1alpha1.Tool) (result.Spec, error) {
	timeout := time.Duration(a.TimeoutSeconds) * time.Second
	if tool != nil {
		rules := sandbox.OutputRules(tool)
		return result.Spec{Format: rules.Format, MaxBytes: rules.MaxBytes, SideEffects: rules.SideEffects,
			Schema: r.schemas.of(tool).output, Timeout: timeout}, nil
	}
	spec := result.Spec{Timeout: timeout}
	job := &batchv1.Job{}
	if err := r.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Sandbox}, job); err != nil {
		return spec, client.IgnoreNotFound(err)
	}
	var rules sandbox.Output
	if err := json.Unmarshal([]byte(job.Annotations[sandbox.AnnotationOutput]), &rules); err == nil {
		spec.Format, spec.MaxBytes, spec.SideEffects = rules.Format, rules.MaxBytes, rules.SideEffects
	}
	name := client.ObjectKey{Namespace: a.Namespace, Name: job.Annotations[v1alpha1.AnnotationTool]}
	if known, ok := r.schemas.lookup(name, call.Status.ToolUID, call.Status.ToolGeneration); ok {
		spec.Schema = known.output
	}
	return spec, nil
}

func maxBytes(t *v1alpha1.Tool) int64 {
	return min(sandbox.OutputRules(t).MaxBytes, wire.MaxStdoutBytes)
}
