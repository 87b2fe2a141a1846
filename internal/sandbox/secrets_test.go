package sandbox

import (
	"slices"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestSecretEnvIsWhatComesFromSecrets(t *testing.T) {
	tool := &v1alpha1.Tool{}
	if got := SecretEnv(tool); got != nil {
		t.Errorf("no variables: %v", got)
	}
	value := "plain"
	tool.Spec.Container.Env = []v1alpha1.EnvVar{
		{Name: "PLAIN", Value: &value},
		{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "orders", Key: "token"}}},
		{Name: "LEVEL", ValueFrom: &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "orders", Key: "level"}}},
		{Name: "KEY", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "orders", Key: "key"}}},
	}
	if got := SecretEnv(tool); !slices.Equal(got, []string{"TOKEN", "KEY"}) {
		t.Errorf("got %v", got)
	}
}

// TestLogCollectorsAreAskedToLeave: what each of them documents, on the pod, and
// without a difference to what was rendered.
func TestLogCollectorsAreAskedToLeave(t *testing.T) {
	job := Job(testInput(testTool()))
	for name, value := range map[string]string{
		"fluentbit.io/exclude": "true", "co.elastic.logs/enabled": "false", "ad.datadoghq.com/logs_exclude": "true",
		"vector.dev/exclude-containers": "tool", "splunk.com/exclude": "true", "sumologic.com/exclude": "true",
	} {
		if got := job.Spec.Template.Annotations[name]; got != value {
			t.Errorf("%s is %q, want %q", name, got, value)
		}
	}
	// A Job of the version before, without them, is the same sandbox.
	before := job.DeepCopy()
	for name := range noCollection() {
		delete(before.Spec.Template.Annotations, name)
	}
	if !SameTemplate(before, job) {
		t.Error("a sandbox without the annotations counts as one of another Tool")
	}
}
