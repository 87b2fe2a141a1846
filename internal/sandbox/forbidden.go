package sandbox

import (
	"net/netip"
	"slices"
)

// forbidden are the ranges that no tool may reach whatever its egress says:
// the addresses where clouds serve metadata and credentials, and their forms
// in IPv6 that a gateway on the way turns back into IPv4.
var forbidden = slices.Concat(metadata4, metadata6, translated(metadata4))

var metadata4 = []netip.Prefix{
	// Link-local: AWS, Google Cloud, Azure, OpenStack and most others; credentials
	// of ECS tasks (.170.2) and EKS pods (.170.23), Tencent Cloud, Scaleway.
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure's WireServer
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle Cloud
	netip.MustParsePrefix("100.96.0.96/32"),     // Volcano Engine
	netip.MustParsePrefix("100.80.80.80/32"),    // UCloud
}

var metadata6 = []netip.Prefix{
	netip.MustParsePrefix("fe80::/10"),              // link-local: OpenStack, Akamai
	netip.MustParsePrefix("fd00:ec2::/32"),          // AWS: metadata (::254), credentials of EKS pods (::23)
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google Cloud
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle Cloud
	netip.MustParsePrefix("fd00:100::100:200/128"),  // Alibaba Cloud
	netip.MustParsePrefix("fd00:42::42/128"),        // Scaleway
	netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"),  // Akamai
	// Forms of IPv4 addresses that cannot be told apart by range, or that nobody
	// needs. IPv4-mapped (::ffff:a.b.c.d), IPv4-compatible (::a.b.c.d) and
	// IPv4-translated (::ffff:0:a.b.c.d): nothing else is in this range. It is
	// also the one way to write them that no API server reads as IPv4.
	netip.MustParsePrefix("::/64"),
	// NAT64 of an operator's own (RFC 8215): where in it the IPv4 address stands
	// is the operator's choice.
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/32"), // Teredo: the IPv4 address is scrambled
}

// translated returns the IPv6 forms of IPv4 ranges that share their prefix
// with what a tool may need, so that only the ranges themselves are cut out:
// NAT64 (64:ff9b::a.b.c.d) and 6to4 (2002:aabb:ccdd::).
func translated(ranges []netip.Prefix) (out []netip.Prefix) {
	for _, form := range []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("2002::/16")} {
		for _, r := range ranges {
			addr, v4 := form.Addr().As16(), r.Addr().As4()
			copy(addr[form.Bits()/8:], v4[:])
			out = append(out, netip.PrefixFrom(netip.AddrFrom16(addr), form.Bits()+r.Bits()))
		}
	}
	return out
}
