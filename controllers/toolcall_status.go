package controllers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/audit"
	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/jsonvalue"
)

// maxStoredBytes bounds arguments and result of one call together: an object
// of more than about 1.5 MiB would not be stored at all.
const maxStoredBytes = 512 << 10

const (
	// maxNote is what the API server takes as the note of an Event, in bytes.
	maxNote = 1000
	// maxNoted bounds the rules that an Event names beside the decisive one.
	maxNoted = 5
)

// write brings the verdict into the status with one Update, which fails if the
// call has changed since it was read. It returns when to look again.
func (r *ToolCallReconciler) write(ctx context.Context, call *v1alpha1.ToolCall, status *v1alpha1.ToolCallStatus, v gate.Verdict) (time.Duration, error) {
	now := metav1.Now()
	if v.Ended() {
		bound(call, &v)
		status.Result = v.Result
		if err := r.settleKeys(ctx, call, status); err != nil {
			return 0, err
		}
		fault.At("keys-settled")
	}
	attempts := !equality.Semantic.DeepEqual(status.Attempts, call.Status.Attempts)
	if age := now.Sub(call.CreationTimestamp.Time); !v.Ended() && !attempts && age < quiet && v.Reason != v1alpha1.ReasonAwaitingApproval {
		// Most waits end before anybody could read of them; a person must.
		return min(v.After, quiet-age), nil
	}
	status.ObservedGeneration = call.Generation
	if status.StartTime == nil {
		status.StartTime = &now
	}
	setConditions(status, v, now)
	if equality.Semantic.DeepEqual(&call.Status, status) {
		return v.After, nil
	}
	// Not a patch: a merge patch would drop the nulls in a result.
	updated := call.DeepCopy()
	updated.Status = *status
	err := r.Status().Update(ctx, updated)
	if v.Ended() && refusedForSize(err) {
		v.Result = tooLarge("the API server refused to store it: " + err.Error())
		setConditions(&updated.Status, v, now)
		err = r.Status().Update(ctx, updated)
	}
	if err != nil {
		return 0, fmt.Errorf("write the call's status: %w", err)
	}
	for _, record := range audit.Records(&call.Status, updated, now.Time) {
		if err := r.Audit.Write(record); err != nil {
			// The call has its answer; a log that cannot be written must be seen.
			auditFailures.Inc()
			log.FromContext(ctx).Error(err, "An audit record is lost", "type", record.Type)
		}
	}
	if v.Ended() {
		fault.At("result-written")
		// Who sees the end and proposes the next call finds the place free.
		r.wakeAll(r.queue.Release(call.UID))
		r.record(updated, v)
		return 0, nil
	}
	return v.After, nil
}

// observe says on a finished call that its last change was seen: a cancel that
// came too late changes the generation, and whoever waits for Complete compares
// the two.
func (r *ToolCallReconciler) observe(ctx context.Context, call *v1alpha1.ToolCall) error {
	if call.Status.ObservedGeneration == call.Generation {
		return nil
	}
	updated := call.DeepCopy()
	updated.Status.ObservedGeneration = call.Generation
	for i := range updated.Status.Conditions {
		updated.Status.Conditions[i].ObservedGeneration = call.Generation
	}
	return r.Status().Update(ctx, updated)
}

func bound(call *v1alpha1.ToolCall, v *gate.Verdict) {
	if v.Result.Data == nil {
		return
	}
	if n := storedBytes(gate.Args(call)) + storedBytes(v.Result.Data.Raw); n > maxStoredBytes {
		v.Result = tooLarge(fmt.Sprintf("arguments and result are %d bytes of JSON together, at most %d are stored: ask for less", n, maxStoredBytes))
	}
}

// storedBytes is the size of JSON as the API server stores it, with <, > and &
// as escapes of six bytes.
func storedBytes(raw []byte) int {
	var b bytes.Buffer
	json.HTMLEscape(&b, raw)
	return b.Len()
}

func tooLarge(message string) *v1alpha1.Result {
	return gate.Failure(v1alpha1.ErrorOutputTooLarge, false, message)
}

func refusedForSize(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err) ||
		err != nil && strings.Contains(err.Error(), "request is too large")
}

// setConditions maps a verdict to the conditions, in this one place.
func setConditions(status *v1alpha1.ToolCallStatus, v gate.Verdict, now metav1.Time) {
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		apimeta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: kind, Status: value, Reason: reason, Message: message,
			ObservedGeneration: status.ObservedGeneration, LastTransitionTime: now,
		})
	}
	setApproved(status, v, set)
	if !v.Ended() {
		set(v1alpha1.ConditionSucceeded, metav1.ConditionUnknown, v.Reason, v.Message)
		set(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v.Reason, v.Message)
		return
	}
	reason, message := ending(status, v)
	status.Result, status.CompletionTime = v.Result, &now
	if !v.RetryTime.IsZero() {
		status.RetryTime = ptr.To(metav1.NewTime(v.RetryTime.Add(time.Second - 1).Truncate(time.Second)))
	}
	apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionReconciling)
	if *v.Result.OK {
		set(v1alpha1.ConditionSucceeded, metav1.ConditionTrue, reason, message)
	} else {
		set(v1alpha1.ConditionSucceeded, metav1.ConditionFalse, reason, message)
		set(v1alpha1.ConditionStalled, metav1.ConditionTrue, reason, message)
	}
	set(v1alpha1.ConditionComplete, metav1.ConditionTrue, reason, message)
}

// setApproved says whether the call has its approvals, if it needs any.
func setApproved(status *v1alpha1.ToolCallStatus, v gate.Verdict, set func(kind string, value metav1.ConditionStatus, reason, message string)) {
	missing := slices.ContainsFunc(status.Approvals, func(a v1alpha1.ApprovalStatus) bool { return len(a.Granted) < int(a.RequiredApprovals) })
	switch {
	case len(status.Approvals) == 0:
		apimeta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionApproved)
	case v.Ended() && (missing || v.Result.ErrorCode == v1alpha1.ErrorApprovalDenied):
		reason, message := ending(status, v)
		set(v1alpha1.ConditionApproved, metav1.ConditionFalse, reason, message)
	case missing:
		set(v1alpha1.ConditionApproved, metav1.ConditionUnknown, v1alpha1.ReasonAwaitingApproval, "see status.approvals")
	default:
		set(v1alpha1.ConditionApproved, metav1.ConditionTrue, v1alpha1.ReasonApproved, "every rule has its approvals: see status.approvals")
	}
}

// ending is the reason and message for conditions and events. What a tool
// printed and what a caller passed stands in status.result only.
func ending(status *v1alpha1.ToolCallStatus, v gate.Verdict) (reason, message string) {
	if *v.Result.OK {
		return v1alpha1.ReasonSucceeded, "the answer is in status.result.data"
	}
	message = string(v.Result.ErrorCode)
	if n := len(status.Attempts); n > 0 {
		a := &status.Attempts[n-1]
		switch {
		case v.Result.ErrorCode == v1alpha1.ErrorToolTimeout:
			message += fmt.Sprintf(" (limit %ds)", a.TimeoutSeconds)
		case a.ExitCode != nil && *a.ExitCode != 0:
			message += fmt.Sprintf(" (exit code %d)", *a.ExitCode)
		}
	}
	return v.Result.ErrorCode.Reason(), message + ": see status.result.message"
}

// record says once, after the status was written, how a call ended.
func (r *ToolCallReconciler) record(call *v1alpha1.ToolCall, v gate.Verdict) {
	reason, message := ending(&call.Status, v)
	kind, code := corev1.EventTypeNormal, "ok"
	if !*v.Result.OK {
		kind, code = corev1.EventTypeWarning, string(v.Result.ErrorCode)
	}
	callsTotal.WithLabelValues(code).Inc()
	r.Recorder.Eventf(call, nil, kind, reason, "Complete", "%s", jsonvalue.Cut(message+decisionWords(call.Status.Decision), maxNote))
}

// decisionWords say in an event which rule decided, and which matched beside it.
func decisionWords(d *v1alpha1.PolicyDecision) string {
	if d == nil {
		return ""
	}
	words := "; no rule allows it"
	if d.DecisiveRule != nil {
		words = "; decided by " + ruleWords(*d.DecisiveRule)
	}
	var others []string
	for _, m := range d.MatchedRules {
		if d.DecisiveRule == nil || m != *d.DecisiveRule {
			others = append(others, ruleWords(m))
		}
	}
	if more := len(others) - maxNoted; more > 0 {
		others = append(others[:maxNoted], fmt.Sprintf("and %d more", more))
	}
	if len(others) > 0 {
		words += "; matched, too: " + strings.Join(others, ", ")
	}
	return words
}

func ruleWords(r v1alpha1.RuleReference) string {
	return fmt.Sprintf("rule %s of policy %s (%s)", r.Rule, r.Policy, r.Effect)
}
