package sandbox

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// NetworkPolicyName is the name of the NetworkPolicy of what a Tool may reach.
func NetworkPolicyName(toolUID types.UID) string { return "callgate-" + string(toolUID) }

// NetworkPolicies renders what is in force for all sandboxes of a Tool: nothing
// in, and out only what the Tool declares. They are two, because kube-router
// (and so k3s) reads one policy for both directions as a single list of rules:
// a sandbox that may reach all pods would then reach its siblings.
func NetworkPolicies(t *v1alpha1.Tool, install string) []*networkingv1.NetworkPolicy {
	out := NetworkPolicy(t, install)
	in := out.DeepCopy()
	in.Name += "-ingress"
	in.Spec.PolicyTypes, in.Spec.Egress = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, nil
	return []*networkingv1.NetworkPolicy{in, out}
}

// NetworkPolicy renders the policy of what the sandboxes of a Tool may reach:
// what the Tool declares, never the forbidden ranges. It has no
// ownerReference, because it must outlive a deleted Tool until its last
// sandbox is gone.
func NetworkPolicy(t *v1alpha1.Tool, install string) *networkingv1.NetworkPolicy {
	np := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   t.Namespace,
			Name:        NetworkPolicyName(t.UID),
			Labels:      map[string]string{v1alpha1.LabelInstall: install, v1alpha1.LabelToolUID: string(t.UID)},
			Annotations: map[string]string{v1alpha1.AnnotationTool: t.Name},
		},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{
				v1alpha1.LabelInstall: install, v1alpha1.LabelToolUID: string(t.UID)}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
	for _, rule := range t.Spec.Isolation.Network.Egress {
		if rule, ok := cut(*rule.DeepCopy()); ok {
			np.Spec.Egress = append(np.Spec.Egress, rule)
		}
	}
	if t.Spec.Isolation.Network.DNS == v1alpha1.DNSCluster {
		np.Spec.Egress = append(np.Spec.Egress, dnsRule())
	}
	return np
}

// dnsRule lets a sandbox ask the cluster's DNS: the pods that every usual
// installation of CoreDNS or kube-dns labels so, never an address.
func dnsRule() networkingv1.NetworkPolicyEgressRule {
	port := intstr.FromInt32(53)
	return networkingv1.NetworkPolicyEgressRule{
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: metav1.NamespaceSystem}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{
			{Protocol: ptr.To(corev1.ProtocolUDP), Port: &port},
			{Protocol: ptr.To(corev1.ProtocolTCP), Port: &port},
		},
	}
}

// cut takes the forbidden ranges out of a rule. A rule without destinations
// means all of them, which is all pods and every address with the exceptions;
// so a rule that has none left is no rule, and cut returns false.
func cut(rule networkingv1.NetworkPolicyEgressRule) (networkingv1.NetworkPolicyEgressRule, bool) {
	if len(rule.To) == 0 {
		rule.To = []networkingv1.NetworkPolicyPeer{
			{NamespaceSelector: &metav1.LabelSelector{}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}},
		}
	}
	peers := rule.To[:0]
	for _, peer := range rule.To {
		if peer.IPBlock == nil || cutBlock(peer.IPBlock) {
			peers = append(peers, peer)
		}
	}
	rule.To = peers
	return rule, len(peers) > 0
}

// cutBlock adds the forbidden ranges to the exceptions of a block. It returns
// false if nothing of the block is left.
func cutBlock(block *networkingv1.IPBlock) bool {
	p, err := parseCIDR(block.CIDR)
	if err != nil {
		// The API server refuses it with its own words when the policy is written.
		return true
	}
	// In the one form that everybody who enforces the policy reads the same way.
	block.CIDR = p.String()
	var except []netip.Prefix
	for i, text := range block.Except {
		if e, err := parseCIDR(text); err == nil {
			if covers(e, p) {
				// An IPv4 block with an exception in IPv6 notation: the API server compares
				// the lengths of the two as written, and takes one that is all of the block.
				return false
			}
			except = append(except, e)
			block.Except[i] = e.String()
		}
	}
	for _, f := range forbidden {
		switch {
		case covers(p, f) && p != f:
			if !slices.ContainsFunc(except, func(e netip.Prefix) bool { return covers(e, f) }) {
				block.Except = append(block.Except, f.String())
			}
		case covers(f, p):
			return false
		}
	}
	return true
}

// covers says whether every address of inner is in outer.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// parseCIDR reads a range as the API server and the network plugins do: with
// leading zeros, with bits set behind the mask, and an IPv4 range in IPv6
// notation (::ffff:169.254.0.0/112) as what it is.
func parseCIDR(text string) (netip.Prefix, error) {
	_, ipnet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	addr, ok := netip.AddrFromSlice(ipnet.IP)
	ones, bits := ipnet.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, fmt.Errorf("%q is no range of addresses", text)
	}
	if addr.Is4In6() && ones >= 96 {
		addr, ones = addr.Unmap(), ones-96
	}
	return addr.Prefix(ones)
}
