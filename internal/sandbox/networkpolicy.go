package sandbox

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
)

// forbidden are the ranges that no tool may reach whatever its egress says:
// link-local addresses, where clouds serve metadata and credentials, the
// IPv6 metadata address of AWS, and Alibaba's metadata address.
var forbidden = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("100.100.100.200/32"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:ec2::254/128"),
}

// NetworkPolicyName is the name of the NetworkPolicy of a Tool.
func NetworkPolicyName(toolUID types.UID) string { return "callgate-" + string(toolUID) }

// NetworkPolicy renders the policy for all sandboxes of a Tool: nothing in,
// and out only what the Tool declares, never the forbidden ranges. It has no
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
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	for _, rule := range t.Spec.Isolation.Network.Egress {
		np.Spec.Egress = append(np.Spec.Egress, cut(*rule.DeepCopy()))
	}
	return np
}

// cut takes the forbidden ranges out of a rule. A rule without destinations
// means all of them, which is all pods and every address with the exceptions.
func cut(rule networkingv1.NetworkPolicyEgressRule) networkingv1.NetworkPolicyEgressRule {
	if len(rule.To) == 0 {
		rule.To = []networkingv1.NetworkPolicyPeer{
			{NamespaceSelector: &metav1.LabelSelector{}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}},
		}
	}
	peers := rule.To[:0]
	for _, peer := range rule.To {
		if peer.IPBlock == nil {
			peers = append(peers, peer)
			continue
		}
		block, err := netip.ParsePrefix(peer.IPBlock.CIDR)
		if err != nil {
			// The API server refuses it with its own words when the policy is written.
			peers = append(peers, peer)
			continue
		}
		inside := false
		for _, f := range forbidden {
			switch {
			case f.Bits() <= block.Bits() && f.Contains(block.Addr()):
				inside = true
			case block.Overlaps(f):
				peer.IPBlock.Except = append(peer.IPBlock.Except, f.String())
			}
		}
		if !inside {
			peers = append(peers, peer)
		}
	}
	if len(peers) == 0 {
		// An empty list would mean every destination: name one that matches nothing.
		peers = append(peers, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{v1alpha1.LabelInstall: "none"}}})
	}
	rule.To = peers
	return rule
}
