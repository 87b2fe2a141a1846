package controllers

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// A sandbox goes when its attempt is over; one whose tool has answered stays as
// long as KeepSandboxes says, and no longer.
func TestSandboxOfAnAttemptThatIsOver(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	const keep = time.Minute
	attempt := func(outcome v1alpha1.AttemptOutcome, ago time.Duration) v1alpha1.Attempt {
		a := v1alpha1.Attempt{Outcome: outcome}
		if outcome != "" {
			a.EndTime = ptr.To(metav1.NewMicroTime(time.Now().Add(-ago)))
		}
		return a
	}
	for _, tc := range []struct {
		reason   string
		attempts []v1alpha1.Attempt // numbered from 1; the Job is that of number 1
		complete bool
		keep     time.Duration
		stays    bool
		after    bool // it is looked at again
	}{
		{reason: "it works", attempts: []v1alpha1.Attempt{attempt("", 0)}, keep: keep, stays: true},
		{reason: "it is prepared for an attempt that was not sent yet", keep: keep, stays: true},
		{reason: "the call ended before it was sent", complete: true, keep: keep},
		{reason: "its tool has answered a moment ago", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, time.Second)}, complete: true, keep: keep, stays: true, after: true},
		{reason: "long enough ago", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, keep)}, complete: true, keep: keep},
		{reason: "nothing is kept", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, 0)}, complete: true},
		{reason: "its clock was ahead: it stays, and is looked at in time", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, -time.Hour)}, complete: true, keep: keep, stays: true, after: true},
		{reason: "its answer is lost: it may still work", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeUnknown, 0)}, complete: true, keep: keep},
		{reason: "it never started", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeNeverStarted, 0)}, keep: keep},
		{reason: "it failed, and the next one works", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeFailed, time.Second), attempt("", 0)}, keep: keep},
		{reason: "it answered with exit code 75, and the next one works", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, time.Second), attempt("", 0)}, keep: keep, stays: true, after: true},
		{reason: "and was kept long enough", attempts: []v1alpha1.Attempt{attempt(v1alpha1.OutcomeReported, keep), attempt("", 0)}, keep: keep},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "call", UID: "u"}}
			for i, a := range tc.attempts {
				a.Number = int32(i) + 1
				a.Sandbox = sandbox.JobName(call.UID, a.Number)
				call.Status.Attempts = append(call.Status.Attempts, a)
			}
			if tc.complete {
				apimeta.SetStatusCondition(&call.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue})
			}
			labels := map[string]string{v1alpha1.LabelCallUID: "u"}
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: sandbox.JobName(call.UID, 1), UID: "j", Labels: labels,
				Annotations: map[string]string{v1alpha1.AnnotationCall: "agents/call"}}}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "p", UID: "p", Labels: labels,
				OwnerReferences: []metav1.OwnerReference{{UID: "j", Controller: ptr.To(true)}}}}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(call, job, pod).
				WithIndex(&corev1.Pod{}, indexJob, func(client.Object) []string { return []string{job.Name} }).Build()
			r := &SandboxReconciler{Client: c, APIReader: c, Options: Options{KeepSandboxes: tc.keep}}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(job)})
			if err != nil {
				t.Fatal(err)
			}
			if (result.RequeueAfter > 0) != tc.after || result.RequeueAfter > tc.keep {
				t.Errorf("looked at again after %s", result.RequeueAfter)
			}
			err = c.Get(t.Context(), client.ObjectKeyFromObject(job), job)
			if client.IgnoreNotFound(err) != nil || apierrors.IsNotFound(err) == tc.stays {
				t.Errorf("the Job: %v; want it to stay: %v", err, tc.stays)
			}
		})
	}
}
