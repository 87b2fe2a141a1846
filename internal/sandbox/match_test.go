package sandbox

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func richTool() *v1alpha1.Tool {
	return testTool(func(t *v1alpha1.Tool) {
		t.Spec.Container.Env = []v1alpha1.EnvVar{
			{Name: "MODE", Value: ptr.To("$5")},
			{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "orders", Key: "token"}}},
		}
		t.Spec.Container.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		t.Spec.Isolation.ScratchSizeLimit = ptr.To(resource.MustParse("65536Ki")) // comes back as 64Mi
	})
}

// livePod is what the API server, its admission plugins, the scheduler and the
// kubelet make of a sandbox's pod template: the defaults of
// pkg/apis/core/v1/defaults.go and of the plugins ServiceAccount, Priority and
// DefaultTolerationSeconds, Kubernetes 1.37.
func livePod(t *testing.T, template corev1.PodTemplateSpec) *corev1.Pod {
	t.Helper()
	raw, err := json.Marshal(corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := json.Unmarshal(raw, pod); err != nil {
		t.Fatal(err)
	}
	pod.Namespace, pod.Name, pod.UID = "tools", "callgate-x-1-abcde", "p0d"
	spec := &pod.Spec
	spec.ServiceAccountName, spec.DeprecatedServiceAccount = "default", "default"
	spec.SchedulerName, spec.NodeName = corev1.DefaultSchedulerName, "node-1"
	spec.Priority, spec.PreemptionPolicy = ptr.To[int32](0), ptr.To(corev1.PreemptLowerPriority)
	for _, key := range []string{"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)})
	}
	c := &spec.Containers[0]
	c.ImagePullPolicy = corev1.PullIfNotPresent
	c.TerminationMessagePath, c.TerminationMessagePolicy = corev1.TerminationMessagePathDefault, corev1.TerminationMessageReadFile
	return pod
}

func TestDefaultsAreNoDifference(t *testing.T) {
	for _, tc := range []struct {
		reason string
		change func(*corev1.Pod)
	}{
		{"the API server's defaults", func(*corev1.Pod) {}},
		{"what RuntimeClass admission adds", func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"sandbox": "yes"}
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("120Mi")}
		}},
		{"another label, which is no power", func(p *corev1.Pod) { p.Labels["a"] = "b" }},
		{"what LimitRanger fills in", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceEphemeralStorage] = resource.MustParse("1Gi")
		}},
	} {
		template := Job(testInput(richTool())).Spec.Template
		pod := livePod(t, template)
		tc.change(pod)
		if diff := Differs(pod, Job(testInput(richTool())).Spec.Template); diff != "" {
			t.Errorf("%s: %s", tc.reason, diff)
		}
	}
}

func TestEveryChangeOfPowerIsADifference(t *testing.T) {
	type C = corev1.Container
	type S = corev1.PodSpec
	in := func(change func(*C)) func(*S) { return func(s *S) { change(&s.Containers[0]) } }
	for _, tc := range []struct {
		field  string // what the message names
		change func(*S)
	}{
		{`spec.initContainers[0] "mesh" was added`, func(s *S) { s.InitContainers = []C{{Name: "mesh"}} }},
		{"spec.ephemeralContainers[0]", func(s *S) { s.EphemeralContainers = []corev1.EphemeralContainer{{}} }},
		{`spec.containers[1] "sidecar" was added`, func(s *S) { s.Containers = append(s.Containers, C{Name: "sidecar"}) }},
		{"0 containers", func(s *S) { s.Containers = nil }},
		{"containers[0].name", in(func(c *C) { c.Name = "other" })},
		{"containers[0].image", in(func(c *C) { c.Image = "mirror.example/echo:1" })},
		{"containers[0].command", in(func(c *C) { c.Command = []string{"sh"} })},
		{"containers[0].args", in(func(c *C) { c.Args = []string{"-x"} })},
		{"containers[0].workingDir", in(func(c *C) { c.WorkingDir = "/proc" })},
		{"containers[0].env", in(func(c *C) { c.Env = append(c.Env, corev1.EnvVar{Name: "PROXY"}) })},
		{"containers[0].env", in(func(c *C) { c.Env = c.Env[1:] })},
		{"containers[0].env", in(func(c *C) { c.Env[2].Value = "$(TOKEN)" })},
		{"containers[0].env", in(func(c *C) { c.Env[3].ValueFrom.SecretKeyRef.Name = "other" })},
		{"containers[0].envFrom", in(func(c *C) { c.EnvFrom = []corev1.EnvFromSource{{}} })},
		{"containers[0].stdin", in(func(c *C) { c.Stdin = false })},
		{"containers[0].stdin", in(func(c *C) { c.StdinOnce = false })},
		{"containers[0].stdin", in(func(c *C) { c.TTY = true })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext = nil })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext.Privileged = ptr.To(true) })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"} })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext.ReadOnlyRootFilesystem = ptr.To(false) })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext.RunAsUser = ptr.To[int64](0) })},
		{"containers[0].securityContext", in(func(c *C) { c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: "Unconfined"} })},
		{"containers[0].volumeMounts", in(func(c *C) { c.VolumeMounts[0].MountPath = "/bin" })},
		{"containers[0].volumeMounts", in(func(c *C) { c.VolumeMounts[0].ReadOnly = false })},
		{"containers[0].volumeMounts", in(func(c *C) { c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access"}) })},
		{"containers[0].volumeDevices", in(func(c *C) { c.VolumeDevices = []corev1.VolumeDevice{{}} })},
		{"containers[0].ports", in(func(c *C) { c.Ports = []corev1.ContainerPort{{HostPort: 80}} })},
		{"containers[0].restartPolicy", in(func(c *C) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) })},
		{"containers[0].restartPolicy", in(func(c *C) { c.RestartPolicyRules = []corev1.ContainerRestartRule{{}} })},
		{"containers[0].lifecycle", in(func(c *C) { c.Lifecycle = &corev1.Lifecycle{} })},
		{"containers[0].lifecycle", in(func(c *C) {
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}}
		})},
		{"containers[0].lifecycle", in(func(c *C) { c.StartupProbe = &corev1.Probe{} })},
		{"containers[0].lifecycle", in(func(c *C) { c.ReadinessProbe = &corev1.Probe{} })},
		{"volumes", func(s *S) { s.Volumes[0].Image.Reference = "mirror.example/runner" }},
		{"volumes", func(s *S) { s.Volumes[2].EmptyDir.SizeLimit = nil }},
		{"volumes", func(s *S) { s.Volumes = append(s.Volumes, corev1.Volume{Name: "host"}) }},
		{"spec.securityContext", func(s *S) { s.SecurityContext.RunAsUser = ptr.To[int64](1) }},
		{"spec.securityContext", func(s *S) { s.SecurityContext.SeccompProfile = nil }},
		{"spec.securityContext", func(s *S) { s.SecurityContext.SupplementalGroups = []int64{0} }},
		{"hostNetwork", func(s *S) { s.HostNetwork = true }},
		{"hostPID", func(s *S) { s.HostPID = true }},
		{"hostIPC", func(s *S) { s.HostIPC = true }},
		{"hostUsers", func(s *S) { s.HostUsers = nil }},
		{"hostUsers", func(s *S) { s.HostUsers = ptr.To(true) }},
		{"runtimeClassName", func(s *S) { s.RuntimeClassName = ptr.To("kata") }},
		{"automountServiceAccountToken", func(s *S) { s.AutomountServiceAccountToken = ptr.To(true) }},
		{"restartPolicy", func(s *S) { s.RestartPolicy = corev1.RestartPolicyOnFailure }},
		{"shareProcessNamespace", func(s *S) { s.ShareProcessNamespace = ptr.To(true) }},
		{"serviceAccountName", func(s *S) { s.ServiceAccountName = "deployer" }},
		{"dnsPolicy", func(s *S) { s.DNSPolicy = corev1.DNSClusterFirst }},
		{"dnsConfig", func(s *S) { s.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}} }},
		{"hostAliases", func(s *S) { s.HostAliases = []corev1.HostAlias{{IP: "192.0.2.1"}} }},
		{"resourceClaims", func(s *S) { s.ResourceClaims = []corev1.PodResourceClaim{{}} }},
	} {
		job := Job(testInput(richTool()))
		pod := livePod(t, job.Spec.Template)
		tc.change(&pod.Spec)
		if diff := Differs(pod, job.Spec.Template); !strings.Contains(diff, tc.field) {
			t.Errorf("%s changed, Differs says %q", tc.field, diff)
		}
	}
	job := Job(testInput(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.RuntimeClassName = "gvisor" })))
	pod := livePod(t, job.Spec.Template)
	pod.Spec.RuntimeClassName = nil
	if diff := Differs(pod, job.Spec.Template); !strings.Contains(diff, "runtimeClassName") {
		t.Errorf("the RuntimeClass was removed, Differs says %q", diff)
	}
	pod = livePod(t, job.Spec.Template)
	delete(pod.Labels, v1alpha1.LabelToolUID)
	if diff := Differs(pod, job.Spec.Template); !strings.Contains(diff, "labels[callgate.dev/tool-uid]") {
		t.Errorf("the label of its NetworkPolicy was removed, Differs says %q", diff)
	}
	if diff := Differs(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "empty"}}, job.Spec.Template); diff == "" {
		t.Error("an empty pod is taken for a sandbox")
	}
}
