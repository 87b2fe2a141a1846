package controllers_test

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// An admission webhook that is down refuses every Job with an error of no usual
// kind: the call says so while it waits, and ends in time.
func TestSandboxCannotBeCreated(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 6 })
	create(t, absentWebhook(tools, "batch", "jobs", admissionregistrationv1.Create))
	// The API server takes a moment to follow: until a Job is refused.
	eventually(t, "a Job refused", func() (bool, any) {
		err := admin.Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: tools, GenerateName: "probe-"}, Spec: batchv1.JobSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}}, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "down.callgate.dev"), err
	})
	call := newCall(t, tools, "tool")
	waitForReason(t, call, v1alpha1.ReasonStarting)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{"startDeadlineSeconds (6)", "down.callgate.dev"}}.check(t, call)
	if took := call.Status.CompletionTime.Sub(call.CreationTimestamp.Time); took > 15*time.Second {
		t.Errorf("the end came after %s, startDeadlineSeconds is 6", took)
	}
}

// absentWebhook is a webhook that is down, for a kind of objects of a namespace.
func absentWebhook(namespace, group, resource string, operations ...admissionregistrationv1.OperationType) *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "down-" + namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "down.callgate.dev",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "absent"}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](1),
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: operations,
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}},
			}},
		}},
	}
}

// The same for the Leases of keys: no call waits for ever because its key cannot
// be stored, and none keeps its answer to itself because of that.
func TestKeyCannotBeStored(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 8 })
	tool, release := blocked(t)
	running := newCall(t, tools, "tool", withKey("running"))
	startPod(t, running, tool)
	eventually(t, "the call taken by the runner", func() (bool, any) { return attachedTo(waitForSend(t, running)) == 1, nil })
	starting := newCall(t, tools, "tool", withKey("starting"))
	pod := podOf(t, starting)

	create(t, absentWebhook(tools, coordinationv1.GroupName, "leases", admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete))
	eventually(t, "a Lease refused", func() (bool, any) {
		err := admin.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: tools, GenerateName: "probe-"}}, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "down.callgate.dev"), err
	})
	runPod(t, pod, prints("1", 0))
	late := newCall(t, tools, "tool", withKey("late"))
	if message := waitForReason(t, late, v1alpha1.ReasonStarting); !contains(message, "key cannot be stored") || !contains(message, "down.callgate.dev") {
		t.Errorf("it waits with the message %q", message)
	}
	release()
	want{}.check(t, waitForEnd(t, running))
	for _, call := range []*v1alpha1.ToolCall{late, starting} {
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{"startDeadlineSeconds (8)", "down.callgate.dev"}}.check(t, call)
		if took := call.Status.CompletionTime.Sub(call.CreationTimestamp.Time); took > 50*time.Second {
			t.Errorf("the end came after %s", took)
		}
		if len(call.Status.Attempts) > 0 {
			t.Errorf("sent although it could not be noted: %s", show(call.Status.Attempts))
		}
	}
	// The answer is given to whoever asks for it again.
	duplicate := newCall(t, tools, "tool", withKey("running"))
	if duplicate = waitForEnd(t, duplicate); duplicate.Status.DuplicateOfRef == nil || duplicate.Status.DuplicateOfRef.UID != running.UID {
		t.Errorf("a duplicate got %s", show(duplicate.Status))
	}
}
