package controllers_test

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
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
	create(t, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "down-" + tools},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "down.callgate.dev",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: tools, Name: "absent"}},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](1),
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: tools}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}},
			}},
		}},
	})
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
