package sandbox

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// never are addresses that no egress may open. They are written down here once
// more: a range that goes missing in the code must not go missing here.
var never = map[string]string{
	"169.254.169.254":            "metadata of most clouds",
	"169.254.170.2":              "credentials of an ECS task",
	"169.254.170.23":             "credentials of an EKS pod",
	"169.254.169.123":            "AWS time; any link-local address",
	"169.254.20.10":              "NodeLocal DNSCache, on the node",
	"169.254.0.23":               "Tencent Cloud",
	"169.254.42.42":              "Scaleway",
	"169.254.0.0":                "the first link-local address",
	"169.254.255.255":            "the last link-local address",
	"100.100.100.200":            "Alibaba Cloud",
	"168.63.129.16":              "Azure's WireServer",
	"192.0.0.192":                "Oracle Cloud",
	"100.96.0.96":                "Volcano Engine",
	"100.80.80.80":               "UCloud",
	"fe80::a9fe:a9fe":            "OpenStack",
	"febf:ffff::1":               "the end of the link-local range",
	"fd00:ec2::254":              "AWS metadata",
	"fd00:ec2::23":               "credentials of an EKS pod",
	"fd20:ce::254":               "Google Cloud",
	"fd00:c1::a9fe:a9fe":         "Oracle Cloud",
	"fd00:100::100:200":          "Alibaba Cloud",
	"fd00:42::42":                "Scaleway",
	"fd00:a9fe:a9fe::1":          "Akamai",
	"::ffff:169.254.169.254":     "IPv4-mapped",
	"::ffff:100.100.100.200":     "IPv4-mapped, not link-local",
	"::169.254.169.254":          "IPv4-compatible",
	"::ffff:0:169.254.169.254":   "IPv4-translated",
	"64:ff9b::169.254.169.254":   "NAT64",
	"64:ff9b::168.63.129.16":     "NAT64, not link-local",
	"64:ff9b:1:a9fe:a9:fe00::":   "NAT64 of the operator's own, a /48",
	"64:ff9b:1::169.254.169.254": "NAT64 of the operator's own, a /96",
	"2002:a9fe:a9fe::1":          "6to4",
	"2002:6464:64c8::1":          "6to4, not link-local",
	"2001:0:a9fe:a9fe::1":        "Teredo, the server",
	"2001::5601:5601":            "Teredo, 169.254.169.254 with its bits turned over",
}

// fine are addresses beside them and elsewhere: nothing is taken from a tool
// that it was given.
var fine = []string{"10.1.2.3", "8.8.8.8", "169.253.255.255", "169.255.0.0", "100.100.100.199", "100.100.100.201", "168.63.129.17", "192.0.0.191",
	"100.64.0.1", "2001:db8::1", "2606:4700::1111", "fd00:ec3::1", "fd00:ec1:ffff::1", "fd20:ce::253", "fec0::1", "64:ff9b::808:808",
	"64:ff9b::a9fd:ffff", "64:ff9b:2::1", "2002:808:808::1", "2001:1::1", "fd12:3456::1"}

// opens says whether a rule lets a packet to addr through, by the addresses
// alone, and for each way to read an address that is IPv4 and IPv6 in one.
func opens(rules []egress, addr netip.Addr) bool {
	in := func(text string) bool {
		p, err := parseCIDR(text)
		return err == nil && (p.Contains(addr) || p.Contains(addr.Unmap()))
	}
	return slices.ContainsFunc(rules, func(r egress) bool {
		return len(r.To) == 0 || slices.ContainsFunc(r.To, func(p peer) bool {
			return p.IPBlock != nil && in(p.IPBlock.CIDR) && !slices.ContainsFunc(p.IPBlock.Except, in)
		})
	})
}

// valid is the API server's rule for exceptions; a policy that breaks it is
// refused, and the Tool is not Ready.
func valid(rules []egress) bool {
	for _, r := range rules {
		for _, p := range r.To {
			if p.IPBlock == nil {
				continue
			}
			outer, err := parseCIDR(p.IPBlock.CIDR)
			for _, e := range p.IPBlock.Except {
				inner, err2 := parseCIDR(e)
				if err != nil || err2 != nil || !covers(outer, inner) || outer == inner {
					return false
				}
			}
		}
	}
	return true
}

// anyEgress makes rules that come close to the addresses.
func anyEgress(r *rand.Rand, addrs []netip.Addr) []egress {
	// cidr is a range around one of the addresses, written in one of the ways it can be.
	cidr := func(least int) string {
		a := addrs[r.IntN(len(addrs))]
		bits := min(least, a.BitLen()) + r.IntN(a.BitLen()-min(least, a.BitLen())+1)
		switch {
		case a.Is4() && r.IntN(4) == 0:
			return fmt.Sprintf("::ffff:%s/%d", a, 96+bits)
		case r.IntN(2) == 0:
			return fmt.Sprintf("%s/%d", a, bits) // bits behind the mask
		}
		return netip.PrefixFrom(a, bits).Masked().String()
	}
	port := func() networkingv1.NetworkPolicyPort {
		switch r.IntN(4) {
		case 0:
			return networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.ProtocolUDP)}
		case 1:
			return networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromString("http"))}
		case 2:
			return networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(1)), EndPort: ptr.To[int32](65535)}
		}
		return networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(80))}
	}
	var rules []egress
	for range r.IntN(4) {
		var rule egress
		for range r.IntN(3) {
			rule.Ports = append(rule.Ports, port())
		}
		for range r.IntN(4) {
			switch r.IntN(5) {
			case 0:
				rule.To = append(rule.To, peer{NamespaceSelector: &metav1.LabelSelector{}})
			case 1:
				rule.To = append(rule.To, peer{PodSelector: &metav1.LabelSelector{}})
			default:
				b := &block{CIDR: cidr(0)}
				for range r.IntN(3) {
					b.Except = append(b.Except, cidr(r.IntN(40)))
				}
				rule.To = append(rule.To, peer{IPBlock: b})
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func TestNoEgressReachesMetadata(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 25))
	var addrs []netip.Addr
	for text := range never {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	slices.SortFunc(addrs, netip.Addr.Compare) // for the same rules in every run
	for _, text := range fine {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	open := 0
	for i := range 20000 {
		declared := anyEgress(r, addrs)
		rules := render(declared...).Spec.Egress
		for text, reason := range never {
			if opens(rules, netip.MustParseAddr(text)) {
				t.Fatalf("rules %d: %s can be reached (%s):\n%s\nbecame\n%s", i, text, reason, mustJSON(declared), mustJSON(rules))
			}
		}
		if !valid(declared) {
			continue
		}
		if !valid(rules) {
			t.Fatalf("rules %d: the API server took\n%s\nand refuses\n%s", i, mustJSON(declared), mustJSON(rules))
		}
		for _, text := range fine {
			a := netip.MustParseAddr(text)
			was := opens(declared, a)
			if got := opens(rules, a); got != was {
				t.Fatalf("rules %d: %s is reached: %v, declared: %v:\n%s\nbecame\n%s", i, text, got, was, mustJSON(declared), mustJSON(rules))
			}
			if was {
				open++
			}
		}
		for _, rule := range rules {
			if !slices.ContainsFunc(declared, func(d egress) bool { return equality.Semantic.DeepEqual(d.Ports, rule.Ports) }) {
				t.Fatalf("rules %d: these ports were not declared: %s", i, mustJSON(rule))
			}
		}
	}
	if open == 0 {
		t.Error("no rule opened anything: this test shows nothing")
	}
}

// No range is written in a way that an API server which is strict about
// addresses refuses, or that another reader takes for IPv4.
func TestForbiddenRangesAreCanonical(t *testing.T) {
	for _, f := range forbidden {
		if f != f.Masked() || f.Addr().Is4In6() || strings.Contains(f.String(), "::ffff:0:0") {
			t.Errorf("%s", f)
		}
	}
}

func TestNetworkPolicyDNS(t *testing.T) {
	with := func(mode v1alpha1.DNSMode, rules ...egress) []egress {
		return NetworkPolicy(testTool(func(t *v1alpha1.Tool) {
			t.Spec.Isolation.Network = v1alpha1.ToolNetwork{DNS: mode, Egress: rules}
		}), testInstall).Spec.Egress
	}
	want := egress{
		To: []peer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{
			{Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(53))},
			{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(53))},
		},
	}
	own := egress{To: []peer{{IPBlock: &block{CIDR: "10.0.0.1/32"}}}}
	for _, tc := range []struct {
		reason    string
		got, want []egress
	}{
		{"dns alone opens the cluster's DNS and nothing else", with(v1alpha1.DNSCluster), []egress{want}},
		{"beside what is declared", with(v1alpha1.DNSCluster, own), []egress{own, want}},
		{"not asked for", with(v1alpha1.DNSNone, own), []egress{own}},
		{"an object from before the default", with("", own), []egress{own}},
	} {
		if !equality.Semantic.DeepEqual(tc.got, tc.want) {
			t.Errorf("%s: egress is\n%s, want\n%s", tc.reason, mustJSON(tc.got), mustJSON(tc.want))
		}
	}
}
