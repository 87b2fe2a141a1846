package sandbox

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"callgate.dev/callgate/api/v1alpha1"
)

// probeVariable tells the runner to prove, before it takes a call, that the
// NetworkPolicy is in force; the tool does not get it.
const probeVariable = "CALLGATE_PROBE_NETWORK"

// APIServer is where pods find the API server.
type APIServer struct {
	// Addresses of its Service, which pods ask, and of the endpoints behind it,
	// which network plugins see.
	Addresses []netip.AddrPort
	// Known: the list is complete. Otherwise any address may be the API server's.
	Known bool
}

// Proof is what a runner does about the NetworkPolicy of its Tool before it takes a
// call, and the value of probeVariable.
type Proof string

const (
	// NoProof is nothing at all.
	NoProof Proof = ""
	// ProveRefusal is to prove that the policy is in force by failing to reach the
	// API server.
	ProveRefusal Proof = "refusal"
	// AwaitPlugin is to give the network plugin a second, where nothing can be
	// proven.
	AwaitPlugin Proof = "pause"
)

// Probe says what the runner of a Tool has to do. Unless that is a proof, words say
// why there is none; they are empty for a Tool that needs none.
func Probe(t *v1alpha1.Tool, required bool, api APIServer) (proof Proof, words string) {
	if !AllowSockets(t) {
		return NoProof, "" // its runner refuses sockets by itself
	}
	const unproven = "that the NetworkPolicy is in force is not proven: "
	if !required {
		return NoProof, unproven + "the controller runs with --require-network-isolation=false"
	}
	for i, rule := range NetworkPolicy(t, "").Spec.Egress {
		if why := mayReach(rule, api); why != "" {
			return AwaitPlugin, fmt.Sprintf("%segress rule %d of the NetworkPolicy may include the API server: %s", unproven, i, why)
		}
	}
	return ProveRefusal, ""
}

// mayReach says why a rule may include the API server, or "". Selectors select
// no API server that uses its node's network, but do select one that is a pod.
func mayReach(rule networkingv1.NetworkPolicyEgressRule, api APIServer) string {
	for _, peer := range rule.To {
		if !api.Known && slices.ContainsFunc(anyPort(rule.Ports), mayBeTCP) {
			return "where the API server is could not be found out"
		}
		for _, address := range api.Addresses {
			if !slices.ContainsFunc(anyPort(rule.Ports), func(p networkingv1.NetworkPolicyPort) bool { return hasPort(p, address.Port()) }) {
				continue
			}
			if peer.IPBlock == nil {
				return fmt.Sprintf("it selects pods on port %d", address.Port())
			}
			if blockHas(peer.IPBlock, address.Addr()) {
				return fmt.Sprintf("%s is in %s", address, peer.IPBlock.CIDR)
			}
		}
	}
	return ""
}

// anyPort is a list of ports in which an empty one stands for all.
func anyPort(ports []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
	if len(ports) == 0 {
		return []networkingv1.NetworkPolicyPort{{}}
	}
	return ports
}

func mayBeTCP(p networkingv1.NetworkPolicyPort) bool {
	return p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP
}

func hasPort(p networkingv1.NetworkPolicyPort, port uint16) bool {
	switch {
	case !mayBeTCP(p):
		return false
	case p.Port == nil || p.Port.Type == intstr.String: // a name is what a pod makes of it
		return true
	case p.EndPort != nil:
		return p.Port.IntVal <= int32(port) && int32(port) <= *p.EndPort
	}
	return p.Port.IntVal == int32(port)
}

func blockHas(block *networkingv1.IPBlock, addr netip.Addr) bool {
	in := func(cidr string) (within, readable bool) {
		p, err := parseCIDR(cidr)
		return err == nil && p.Contains(addr.Unmap()), err == nil
	}
	within, readable := in(block.CIDR)
	return !readable || within && !slices.ContainsFunc(block.Except, func(e string) bool {
		excepted, _ := in(e)
		return excepted
	})
}
