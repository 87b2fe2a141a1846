package sandbox

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestProbeVerdict(t *testing.T) {
	known := APIServer{Known: true, Addresses: []netip.AddrPort{
		netip.MustParseAddrPort("10.96.0.1:443"), netip.MustParseAddrPort("192.168.1.10:6443"), netip.MustParseAddrPort("[fd00::10]:6443")}}
	pods := peer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "orders"}}}
	everywhere := peer{NamespaceSelector: &metav1.LabelSelector{}}
	cidr := func(cidr string, except ...string) peer { return peer{IPBlock: &block{CIDR: cidr, Except: except}} }
	port := func(n int32) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(n))}
	}
	to := func(p peer, ports ...networkingv1.NetworkPolicyPort) egress {
		return egress{To: []peer{p}, Ports: ports}
	}
	udp := networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.ProtocolUDP)}
	for _, tc := range []struct {
		reason  string
		network v1alpha1.ToolNetwork
		api     APIServer
		off     bool
		probe   bool
		words   string
	}{
		{reason: "no sockets, no probe, and no word about it", api: known},
		{reason: "loopback: nothing may be reached", network: v1alpha1.ToolNetwork{Loopback: true}, api: known, probe: true},
		{reason: "… wherever the API server is", network: v1alpha1.ToolNetwork{Loopback: true}, probe: true},
		{reason: "switched off", network: v1alpha1.ToolNetwork{Loopback: true}, api: known, off: true, words: "--require-network-isolation=false"},
		{reason: "switched off, without sockets: the filter needs no proof", api: known, off: true},
		{reason: "another port of pods", network: reaching(to(pods, port(8080))), api: known, probe: true},
		{reason: "pods on the Service's port", network: reaching(to(pods, port(443))), api: known, words: "egress rule 0 of the NetworkPolicy may include the API server: it selects pods on port 443"},
		{reason: "pods on the endpoint's port", network: reaching(to(pods, port(6443))), api: known, words: "port 6443"},
		{reason: "pods on all ports", network: reaching(to(everywhere)), api: known, words: "it selects pods"},
		{reason: "a named port is what a pod says", network: reaching(to(pods, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("https"))})), api: known, words: "it selects pods"},
		{reason: "a range of ports around it", network: reaching(to(pods, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(6000)), EndPort: ptr.To[int32](6443)})), api: known, words: "port 6443"},
		{reason: "a range of ports below it", network: reaching(to(pods, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(444)), EndPort: ptr.To[int32](6442)})), api: known, probe: true},
		{reason: "UDP only, as for DNS", network: reaching(to(everywhere, udp)), api: known, probe: true},
		{reason: "a block elsewhere", network: reaching(to(cidr("203.0.113.0/24"))), api: known, probe: true},
		{reason: "a block with the endpoint in it", network: reaching(to(cidr("192.168.0.0/16"))), api: known, words: "192.168.1.10:6443 is in 192.168.0.0/16"},
		{reason: "a block with the Service in it, on its port", network: reaching(to(cidr("10.0.0.0/8"), port(443))), api: known, words: "10.96.0.1:443 is in 10.0.0.0/8"},
		{reason: "a block with the Service in it, on another port", network: reaching(to(cidr("10.0.0.0/8"), port(5432))), api: known, probe: true},
		{reason: "an exception that is the endpoint", network: reaching(to(cidr("192.168.0.0/16", "192.168.1.0/24"))), api: known, probe: true},
		{reason: "an IPv6 block", network: reaching(to(cidr("fd00::/8"))), api: known, words: "[fd00::10]:6443 is in fd00::/8"},
		{reason: "a block in IPv6 notation", network: reaching(to(cidr("::ffff:192.168.0.0/112"))), api: known, words: "192.168.1.10:6443"},
		{reason: "everywhere", network: reaching(egress{}), api: known, words: "may include the API server"},
		{reason: "everywhere, on another port", network: reaching(egress{Ports: []networkingv1.NetworkPolicyPort{port(5432)}}), api: known, probe: true},
		{reason: "the second rule", network: reaching(to(pods, port(8080)), to(cidr("0.0.0.0/0"))), api: known, words: "egress rule 1"},
		{reason: "the API server is not known: any address may be its", network: reaching(to(cidr("203.0.113.0/24"))), words: "could not be found out"},
		{reason: "… but not by UDP", network: reaching(to(cidr("203.0.113.0/24"), udp)), probe: true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tool := testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.Network = tc.network })
			proof, words := Probe(tool, !tc.off, tc.api)
			want := NoProof
			switch {
			case tc.probe:
				want = ProveRefusal
			case tc.words != "" && !tc.off:
				want = AwaitPlugin
			}
			if proof != want || !strings.Contains(words, tc.words) || words == "" != (tc.words == "") {
				t.Errorf("proof %q, %q; want %q, %q", proof, words, want, tc.words)
			}
		})
	}
}

func reaching(rules ...egress) v1alpha1.ToolNetwork { return v1alpha1.ToolNetwork{Egress: rules} }

func TestProbeVariable(t *testing.T) {
	of := func(proof Proof) []corev1.EnvVar {
		in := testInput(testTool(func(t *v1alpha1.Tool) {
			t.Spec.Container.Env = []v1alpha1.EnvVar{{Name: probeVariable, Value: ptr.To("")}, {Name: "A", Value: ptr.To("b")}}
		}))
		in.Probe = proof
		return slices.DeleteFunc(Job(in).Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name != probeVariable })
	}
	if env := of(ProveRefusal); len(env) != 1 || env[0].Value != "refusal" {
		t.Errorf("with the probe the variable is %v", env)
	}
	if env := of(NoProof); len(env) != 0 {
		t.Errorf("without it the variable is %v", env)
	}
	// A sandbox that was made without the probe is made again.
	in := testInput(testTool())
	without := Job(in)
	in.Probe = ProveRefusal
	if SameTemplate(without, Job(in)) {
		t.Error("a sandbox without the probe is taken for one with it")
	}
}

func TestLimitsOfAPod(t *testing.T) {
	pod := func(change ...func(*corev1.PodSpec)) *corev1.Pod {
		spec := Job(testInput(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.ScratchSizeLimit = ptr.To(resource.MustParse("1Mi")) }))).Spec.Template.Spec
		for _, c := range change {
			c(&spec)
		}
		return &corev1.Pod{Spec: spec}
	}
	mount := func(readOnly bool, source corev1.VolumeSource) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.Volumes = append(s.Volumes, corev1.Volume{Name: "data", VolumeSource: source})
			s.Containers[0].VolumeMounts = append(s.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: "/data", ReadOnly: readOnly})
		}
	}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}
	for _, tc := range []struct {
		reason               string
		pod                  *corev1.Pod
		fileBytes, processes int64
	}{
		{"/tmp and a little more; a user namespace", pod(), 2 << 20, maxProcesses},
		{"without a user namespace others of the same user would count", pod(func(s *corev1.PodSpec) { s.HostUsers = nil }), 2 << 20, 0},
		{"a volume that can be written has a size of its own", pod(mount(false, claim)), 0, maxProcesses},
		{"one that cannot be written does not count", pod(mount(true, claim)), 2 << 20, maxProcesses},
		{"a Secret cannot be written", pod(mount(false, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}})), 2 << 20, maxProcesses},
		{"an emptyDir without a size", pod(mount(false, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), 0, maxProcesses},
		{"no pod", nil, 0, 0},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			if got := MaxFileBytes(tc.pod); got != tc.fileBytes {
				t.Errorf("files: %d, want %d", got, tc.fileBytes)
			}
			if got := MaxProcesses(tc.pod); got != tc.processes {
				t.Errorf("processes: %d, want %d", got, tc.processes)
			}
		})
	}
}
