package sandbox

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"
)

// Differs compares a live pod with the pod we render, before a call is sent to
// it: an admission webhook or a person may have changed it on its way. It
// returns what differs, or "". Fields that the API server and the scheduler
// fill in are not compared.
func Differs(pod *corev1.Pod, template corev1.PodTemplateSpec) string {
	got, want := pod.Spec, template.Spec
	for i, c := range got.InitContainers {
		return fmt.Sprintf("spec.initContainers[%d] %q was added", i, c.Name)
	}
	for i, c := range got.EphemeralContainers {
		return fmt.Sprintf("spec.ephemeralContainers[%d] %q was added", i, c.Name)
	}
	for i, c := range got.Containers {
		if c.Name != Container && len(got.Containers) > 1 {
			return fmt.Sprintf("spec.containers[%d] %q was added", i, c.Name)
		}
	}
	if len(got.Containers) != 1 {
		return fmt.Sprintf("spec.containers has %d containers, expected 1", len(got.Containers))
	}
	for _, label := range slices.Sorted(maps.Keys(template.Labels)) {
		// Its NetworkPolicy knows it by them.
		if pod.Labels[label] != template.Labels[label] {
			return "metadata.labels[" + label + "] is not what Callgate asked for"
		}
	}
	c, w := &got.Containers[0], &want.Containers[0]
	for _, f := range []struct {
		field string
		equal bool
	}{
		{"spec.containers[0].name", c.Name == w.Name},
		{"spec.containers[0].image", c.Image == w.Image},
		{"spec.containers[0].command", equality.Semantic.DeepEqual(c.Command, w.Command)},
		{"spec.containers[0].args", len(c.Args) == 0},
		{"spec.containers[0].workingDir", c.WorkingDir == ""},
		{"spec.containers[0].env", equality.Semantic.DeepEqual(c.Env, w.Env)},
		{"spec.containers[0].envFrom", len(c.EnvFrom) == 0},
		{"spec.containers[0].stdin", c.Stdin && c.StdinOnce && !c.TTY},
		{"spec.containers[0].securityContext", equality.Semantic.DeepEqual(c.SecurityContext, w.SecurityContext)},
		{"spec.containers[0].volumeMounts", equality.Semantic.DeepEqual(c.VolumeMounts, w.VolumeMounts)},
		{"spec.containers[0].volumeDevices", len(c.VolumeDevices) == 0},
		{"spec.containers[0].ports", len(c.Ports) == 0},
		{"spec.containers[0].restartPolicy", c.RestartPolicy == nil && len(c.RestartPolicyRules) == 0},
		{"spec.containers[0].lifecycle", c.Lifecycle == nil && c.LivenessProbe == nil && c.StartupProbe == nil && c.ReadinessProbe == nil},
		{"spec.volumes", equality.Semantic.DeepEqual(got.Volumes, want.Volumes)},
		{"spec.securityContext", equality.Semantic.DeepEqual(got.SecurityContext, want.SecurityContext)},
		{"spec.resourceClaims", len(got.ResourceClaims) == 0},
		{"spec.hostNetwork", !got.HostNetwork},
		{"spec.hostPID", !got.HostPID},
		{"spec.hostIPC", !got.HostIPC},
		{"spec.hostUsers", ptr.Equal(got.HostUsers, want.HostUsers)},
		{"spec.runtimeClassName", ptr.Equal(got.RuntimeClassName, want.RuntimeClassName)},
		{"spec.serviceAccountName", orDefault(got.ServiceAccountName, "default") == orDefault(want.ServiceAccountName, "default")},
		{"spec.dnsPolicy", got.DNSPolicy == orDefault(want.DNSPolicy, corev1.DNSClusterFirst)},
		{"spec.dnsConfig", equality.Semantic.DeepEqual(got.DNSConfig, want.DNSConfig)},
		{"spec.hostAliases", len(got.HostAliases) == 0},
		{"spec.automountServiceAccountToken", ptr.Equal(got.AutomountServiceAccountToken, want.AutomountServiceAccountToken)},
		{"spec.restartPolicy", got.RestartPolicy == want.RestartPolicy},
		{"spec.shareProcessNamespace", !ptr.Deref(got.ShareProcessNamespace, false)},
	} {
		if !f.equal {
			return f.field + " is not what Callgate asked for"
		}
	}
	return ""
}
