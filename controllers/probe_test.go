package controllers_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func probes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "CALLGATE_PROBE_NETWORK" && e.Value == "refusal" })
}

// Whether a sandbox proves that its NetworkPolicy is in force is decided by the
// egress of its Tool and by where the API server is, and the Tool says so.
func TestProbeOfTheNetworkPolicy(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	slice := &discoveryv1.EndpointSlice{}
	if !get(t, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, slice) {
		t.Fatal("the API server has no EndpointSlice")
	}
	endpoint := slice.Endpoints[0].Addresses[0]
	egress := func(rule networkingv1.NetworkPolicyEgressRule) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) {
			s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{rule}
		}
	}
	block := func(cidr string, port int32) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{
			To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(port))}},
		}
	}
	for _, tc := range []struct {
		name, reason string
		change       func(*v1alpha1.ToolSpec)
		probe        bool
		words        string
	}{
		{"none", "no sockets: its runner refuses them, and nothing is said", func(*v1alpha1.ToolSpec) {}, false, ""},
		{"loopback", "nothing may be reached", func(s *v1alpha1.ToolSpec) { s.Isolation.Network.Loopback = true }, true, ""},
		{"elsewhere", "another range", egress(block("203.0.113.0/24", 443)), true, ""},
		{"service", "the Service's address", egress(block("10.0.0.0/24", 443)), false, apiServerAddress + " is in 10.0.0.0/24"},
		{"endpoint", "the address behind the Service, which network plugins see", egress(block(endpoint+"/32", *slice.Ports[0].Port)), false, "is in " + endpoint + "/32"},
		{"other-port", "another port there", egress(block(endpoint+"/32", 5432)), true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tool := newTool(t, tools, tc.name, tc.change)
			message := waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
			if tc.words == "" == contains(message, "not proven") || !contains(message, tc.words) {
				t.Errorf("%s: Ready says %q", tc.reason, message)
			}
			call := newCall(t, tools, tc.name)
			pod := startPod(t, call, prints(`1`, 0))
			if probes(pod) != tc.probe {
				t.Errorf("%s: the runner is told to probe: %v, want %v", tc.reason, !tc.probe, tc.probe)
			}
			want{}.check(t, waitForEnd(t, call))
		})
	}
}

// The limits of a call follow from its pod.
func TestLimitsInTheFrame(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.Isolation.ScratchSizeLimit = ptr.To(resource.MustParse("3Mi")) })
	call := newCall(t, tools, "tool")
	var got toolCall
	startPod(t, call, func(c toolCall) toolResult {
		got = c
		r := prints("", -1)(c)
		r.Signal = "SIGXFSZ"
		return r
	})
	want{code: v1alpha1.ErrorToolFailed, message: []string{"a file grew past 4194304 bytes"}}.check(t, waitForEnd(t, call))
	if got.MaxFileBytes != 4<<20 || got.MaxProcesses != 256 {
		t.Errorf("the limits are %d bytes and %d processes", got.MaxFileBytes, got.MaxProcesses)
	}
}

// On a cluster that does not enforce NetworkPolicies every sandbox ends with 67;
// the call ends at its start deadline, says why, and its tool never started.
func TestNetworkPolicyNotInForce(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) {
		s.Isolation.Network.Loopback = true
		s.StartDeadlineSeconds = 2
	})
	call := newCall(t, tools, "tool")
	exits(67)(t, call, 1)
	call = waitForCall(t, call, "the end of the call, or of its first attempt", func(c *v1alpha1.ToolCall) bool {
		return complete(c) || len(c.Status.Attempts) > 0 && c.Status.Attempts[0].Outcome != ""
	})
	if o := call.Status.Attempts[0].Outcome; o != v1alpha1.OutcomeNeverStarted {
		t.Errorf("the outcome is %s", o)
	}
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{
		"not started", "network policy was not in force", "a network plugin that enforces NetworkPolicies"}}.check(t, waitForEnd(t, call))
}
