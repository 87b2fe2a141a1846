package sandbox

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

type (
	egress = networkingv1.NetworkPolicyEgressRule
	peer   = networkingv1.NetworkPolicyPeer
	block  = networkingv1.IPBlock
)

func render(rules ...egress) *networkingv1.NetworkPolicy {
	return NetworkPolicy(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.Network.Egress = rules }), testInstall)
}

func TestNetworkPolicyDeniesByDefault(t *testing.T) {
	policies := NetworkPolicies(testTool(), testInstall)
	var types []networkingv1.PolicyType
	for _, np := range policies {
		types = append(types, np.Spec.PolicyTypes...)
		deniesByDefault(t, np)
	}
	if want := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}; !slices.Equal(types, want) || len(policies) != 2 {
		t.Errorf("policyTypes of %d policies are %v: a type that is not named is not denied, and one policy of both is read wrongly by kube-router", len(policies), types)
	}
	if policies[0].Name == policies[1].Name {
		t.Errorf("both have the name %s", policies[0].Name)
	}
	all := NetworkPolicies(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.Network.Egress = []egress{{}} }), testInstall)
	if len(all[0].Spec.Ingress)+len(all[0].Spec.Egress) > 0 || len(all[1].Spec.Egress) != 1 {
		t.Errorf("a Tool with egress: %s", mustJSON(all))
	}
}

func deniesByDefault(t *testing.T, np *networkingv1.NetworkPolicy) {
	t.Helper()
	if np.Namespace != "tools" || !strings.HasPrefix(np.Name, "callgate-"+string(testToolUID)) || len(np.OwnerReferences) > 0 {
		t.Errorf("the policy is %s/%s, owned by %v", np.Namespace, np.Name, np.OwnerReferences)
	}
	if len(np.Spec.Egress)+len(np.Spec.Ingress) > 0 {
		t.Errorf("something is allowed: %+v", np.Spec)
	}
	selector, err := metav1.LabelSelectorAsSelector(&np.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	pod := Job(testInput(testTool())).Spec.Template.Labels
	if !selector.Matches(labelSet(pod)) {
		t.Errorf("the policy does not select the Tool's sandboxes: %v, %v", selector, pod)
	}
	pod[v1alpha1.LabelToolUID] = "another"
	if selector.Matches(labelSet(pod)) {
		t.Error("the policy selects the sandboxes of another Tool")
	}
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool              { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string            { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) { v, ok := l[k]; return v, ok }

func TestNetworkPolicyCutsForbiddenRanges(t *testing.T) {
	all4 := []string{"169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "100.96.0.96/32", "100.80.80.80/32"}
	nat64 := []string{"64:ff9b::a9fe:0/112", "64:ff9b::6464:64c8/128", "64:ff9b::a83f:8110/128", "64:ff9b::c000:c0/128", "64:ff9b::6460:60/128", "64:ff9b::6450:5050/128"}
	sixToFour := []string{"2002:a9fe::/32", "2002:6464:64c8::/48", "2002:a83f:8110::/48", "2002:c000:c0::/48", "2002:6460:60::/48", "2002:6450:5050::/48"}
	all6 := slices.Concat([]string{"fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128", "fd00:c1::a9fe:a9fe/128", "fd00:100::100:200/128",
		"fd00:42::42/128", "fd00:a9fe:a9fe::1/128", "::/64", "64:ff9b:1::/48", "2001::/32"}, nat64, sixToFour)
	ip := func(cidr string, except ...string) peer { return peer{IPBlock: &block{CIDR: cidr, Except: except}} }
	pods := peer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "orders"}}}
	for _, tc := range []struct {
		reason string
		to     []peer
		want   []peer // nil: no rule is left
	}{
		{"nothing forbidden in it: as it is", []peer{ip("10.96.0.0/12")}, []peer{ip("10.96.0.0/12")}},
		{"every IPv4 address", []peer{ip("0.0.0.0/0")}, []peer{ip("0.0.0.0/0", all4...)}},
		{"every IPv6 address", []peer{ip("::/0")}, []peer{ip("::/0", all6...)}},
		{"an empty `to` means everything, so it is spelled out",
			nil, []peer{{NamespaceSelector: &metav1.LabelSelector{}}, ip("0.0.0.0/0", all4...), ip("::/0", all6...)}},
		{"a forbidden range inside the block", []peer{ip("169.0.0.0/8")}, []peer{ip("169.0.0.0/8", "169.254.0.0/16")}},
		{"the block is a forbidden range: nothing is left, and an empty `to` would allow all", []peer{ip("169.254.0.0/16")}, nil},
		{"the block is inside a forbidden range", []peer{ip("169.254.169.254/32")}, nil},
		{"all of several blocks are forbidden", []peer{ip("169.254.0.0/17"), ip("fe80::1/128"), ip("fd00:ec2::254/128")}, nil},
		{"one of several blocks is forbidden", []peer{ip("169.254.0.0/17"), ip("10.0.0.0/8")}, []peer{ip("10.0.0.0/8")}},
		{"the Tool's own exceptions stay", []peer{ip("169.0.0.0/8", "169.1.0.0/16")}, []peer{ip("169.0.0.0/8", "169.1.0.0/16", "169.254.0.0/16")}},
		{"an exception that is there already", []peer{ip("169.0.0.0/8", "169.254.0.0/16")}, []peer{ip("169.0.0.0/8", "169.254.0.0/16")}},
		{"all IPv4 addresses behind NAT64, which a tool on an IPv6 cluster needs", []peer{ip("64:ff9b::/96")}, []peer{ip("64:ff9b::/96", nat64...)}},
		{"a metadata address behind NAT64", []peer{ip("64:ff9b::a9fe:a9fe/128")}, nil},
		{"the operator's own NAT64", []peer{ip("64:ff9b:1:fffe::/96")}, nil},
		{"6to4", []peer{ip("2002::/16")}, []peer{ip("2002::/16", sixToFour...)}},
		{"IPv4-compatible", []peer{ip("::169.254.0.0/112")}, nil},
		{"IPv4-translated", []peer{ip("::ffff:0:169.254.0.0/112")}, nil},
		{"more than the mapped addresses, so not read as IPv4", []peer{ip("::fffe:0:0/95")}, nil},
		{"Teredo", []peer{ip("2001:0:a9fe:a9fe::/64")}, nil},
		{"the global addresses keep what is beside Teredo", []peer{ip("2001::/16")}, []peer{ip("2001::/16", "2001::/32")}},
		{"an exception that is more than the block: nothing is left, and the API server would refuse it", []peer{ip("169.0.0.0/8", "168.0.0.0/7")}, nil},
		{"an exception that has the range in it", []peer{ip("128.0.0.0/1", "168.0.0.0/7")}, []peer{ip("128.0.0.0/1", "168.0.0.0/7", "192.0.0.192/32")}},
		{"an exception for a part of the range is not enough", []peer{ip("169.0.0.0/8", "169.254.1.0/24")},
			[]peer{ip("169.0.0.0/8", "169.254.1.0/24", "169.254.0.0/16")}},
		{"link-local IPv6 inside the block", []peer{ip("fe80::/9")}, []peer{ip("fe80::/9", "fe80::/10")}},
		{"IPv4 in IPv6 notation, forbidden", []peer{ip("::ffff:169.254.0.0/112")}, nil},
		{"IPv4 in IPv6 notation, one address", []peer{ip("::ffff:a9fe:a9fe/128")}, nil},
		{"IPv4 in IPv6 notation, a forbidden range inside", []peer{ip("::ffff:169.0.0.0/104", "::ffff:169.1.0.0/112")},
			[]peer{ip("169.0.0.0/8", "169.1.0.0/16", "169.254.0.0/16")}},
		{"every IPv4 address in IPv6 notation", []peer{ip("::ffff:0:0/96")}, []peer{ip("0.0.0.0/0", all4...)}},
		{"leading zeros, which the API server reads as decimal", []peer{ip("169.254.169.0254/32")}, nil},
		{"leading zeros, a forbidden range inside", []peer{ip("169.000.0.0/8")}, []peer{ip("169.0.0.0/8", "169.254.0.0/16")}},
		{"bits behind the mask", []peer{ip("169.255.1.1/15")}, []peer{ip("169.254.0.0/15", "169.254.0.0/16")}},
		{"pods are no addresses", []peer{pods}, []peer{pods}},
		{"pods stay where the addresses are forbidden", []peer{ip("169.254.1.1/32"), pods}, []peer{pods}},
		{"what is no range is left to the API server's own words", []peer{ip("internet")}, []peer{ip("internet")}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			port := []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(443))}}
			declared := egress{Ports: port, To: tc.to}
			before := declared.DeepCopy()
			np := render(declared)
			if !equality.Semantic.DeepEqual(&declared, before) {
				t.Errorf("the Tool itself was changed, and it stands in a cache: %+v", declared)
			}
			var want []egress
			if tc.want != nil {
				want = []egress{{Ports: port, To: tc.want}}
			}
			if !equality.Semantic.DeepEqual(np.Spec.Egress, want) {
				t.Errorf("egress is\n%s, want\n%s", mustJSON(np.Spec.Egress), mustJSON(want))
			}
		})
	}
}

func TestNetworkPolicyKeepsOtherRules(t *testing.T) {
	np := render(
		egress{To: []peer{{IPBlock: &block{CIDR: "169.254.1.1/32"}}}},
		egress{To: []peer{{IPBlock: &block{CIDR: "10.0.0.1/32"}}}},
	)
	if len(np.Spec.Egress) != 1 || np.Spec.Egress[0].To[0].IPBlock.CIDR != "10.0.0.1/32" {
		t.Errorf("egress is %s, want the second rule only", mustJSON(np.Spec.Egress))
	}
}

// allowed reads peers as a network plugin does, by the addresses alone.
func allowed(t *testing.T, peers []peer, addr netip.Addr) bool {
	t.Helper()
	in := func(cidr string) bool {
		_, n, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatalf("%q, which a plugin has to read: %v", cidr, err)
		}
		return n.Contains(addr.AsSlice())
	}
	return slices.ContainsFunc(peers, func(p peer) bool {
		return p.IPBlock != nil && in(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, in)
	})
}

func FuzzNetworkPolicyCut(f *testing.F) {
	for _, s := range [][2]string{
		{"0.0.0.0/0", "10.0.0.0/8"}, {"::/0", "2001:db8::/32"}, {"169.254.0.0/16", ""}, {"169.254.128.0/17", "169.254.200.0/24"},
		{"::ffff:169.254.0.0/112", "::ffff:169.254.1.0/120"}, {"::ffff:0:0/95", ""}, {"169.254.169.0254/32", "01.1.1.1/32"},
		{"168.0.0.0/7", "169.254.0.0/16"}, {"fe80::/9", "fe80::/10"}, {"fd00::/8", "fd00:ec2::254/128"}, {"100.64.0.0/10", ""}, {"1.2.3.4/0", "x"},
		{"169.200.0.0/20", "::ffff:169.200.0.0/110"}, {"10.0.0.0/16", "::ffff:10.0.0.0/112"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, cidr, except string) {
		declared := egress{To: []peer{{IPBlock: &block{CIDR: cidr}}}}
		if except != "" {
			declared.To[0].IPBlock.Except = []string{except}
		}
		_, original, err := netutils.ParseCIDRSloppy(cidr)
		if err != nil {
			return // refused by the API server
		}
		_, originalExcept, err := netutils.ParseCIDRSloppy(except)
		if except != "" && (err != nil || !strictlyIn(original, originalExcept)) {
			return // refused by the API server
		}
		rules := render(declared).Spec.Egress
		var peers []peer
		for _, rule := range rules {
			if len(rule.To) == 0 {
				t.Fatalf("%q except %q became a rule without destinations, which allows all", cidr, except)
			}
			peers = append(peers, rule.To...)
		}
		for _, p := range peers {
			_, outer, err := net.ParseCIDR(p.IPBlock.CIDR)
			if err != nil {
				t.Fatalf("cidr %q cannot be read strictly: %v", p.IPBlock.CIDR, err)
			}
			for _, e := range p.IPBlock.Except {
				if _, inner, err := net.ParseCIDR(e); err != nil || !strictlyIn(outer, inner) {
					t.Errorf("except %q is no strict subset of %q: the API server refuses it", e, p.IPBlock.CIDR)
				}
			}
		}
		var samples []netip.Addr
		for _, p := range forbidden {
			first, last := p.Addr(), lastAddr(p)
			for _, a := range []netip.Addr{first, last} {
				if allowed(t, peers, a) {
					t.Errorf("%q except %q allows %s, which is forbidden", cidr, except, a)
				}
			}
			samples = append(samples, first.Prev(), last.Next())
		}
		base, _ := netip.AddrFromSlice(original.IP)
		samples = append(samples, base.Unmap(), base.Unmap().Next(), netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("2001:db8::1"))
		for _, a := range samples {
			if !a.IsValid() || slices.ContainsFunc(forbidden, func(f netip.Prefix) bool { return f.Contains(a) }) {
				continue
			}
			was := original.Contains(a.AsSlice()) && (except == "" || !originalExcept.Contains(a.AsSlice()))
			if got := allowed(t, peers, a); got != was {
				t.Errorf("%q except %q: %s allowed is %v, was %v", cidr, except, a, got, was)
			}
		}
	})
}

// strictlyIn is the API server's rule for except.
func strictlyIn(outer, inner *net.IPNet) bool {
	o, _ := outer.Mask.Size()
	i, _ := inner.Mask.Size()
	return outer.Contains(inner.IP) && o < i
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
