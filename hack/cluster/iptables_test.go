package main

import (
	"strings"
	"testing"
)

func TestRemoval(t *testing.T) {
	tests := []struct {
		reason, saved string
		want          []string // lines of the script
	}{
		{reason: "nothing of ours: nothing to do", saved: `*filter
:INPUT ACCEPT [0:0]
:DOCKER - [0:0]
-A FORWARD -o docker0 -j DOCKER
COMMIT
`},
		{reason: "chains of ours and what jumps to them go, the host's rules stay", saved: `*filter
:INPUT ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -o docker0 -j DOCKER
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`, want: []string{"*filter", "-D INPUT -j KUBE-FIREWALL", `-D FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`,
			"-F KUBE-FIREWALL", "-F KUBE-FORWARD", "-X KUBE-FIREWALL", "-X KUBE-FORWARD", "COMMIT"}},
		{reason: "each table is a transaction of its own", saved: `*mangle
:KUBE-A - [0:0]
COMMIT
*nat
:KUBE-B - [0:0]
COMMIT
`, want: []string{"*mangle", "-F KUBE-A", "-X KUBE-A", "COMMIT", "*nat", "-F KUBE-B", "-X KUBE-B", "COMMIT"}},
		{reason: "a CNI chain is ours by the network's name in the rule that jumps to it", saved: `*nat
:CNI-aaaa - [0:0]
:CNI-bbbb - [0:0]
-A POSTROUTING -s 10.244.0.2/32 -m comment --comment "name: \"callgate\" id: \"1\"" -j CNI-aaaa
-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \"podman\" id: \"2\"" -j CNI-bbbb
-A CNI-bbbb -d 10.88.0.0/16 -m comment --comment "name: \"podman\" id: \"2\"" -j ACCEPT
COMMIT
`, want: []string{"*nat", `-D POSTROUTING -s 10.244.0.2/32 -m comment --comment "name: \"callgate\" id: \"1\"" -j CNI-aaaa`,
			"-F CNI-aaaa", "-X CNI-aaaa", "COMMIT"}},
		{reason: "the port-mapping chains go when only our network is in them", saved: `*nat
:CNI-DN-aaaa - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"callgate\" id: \"1\"" -j CNI-DN-aaaa
COMMIT
`, want: []string{"*nat", "-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
			"-F CNI-DN-aaaa", "-F CNI-HOSTPORT-DNAT", "-X CNI-DN-aaaa", "-X CNI-HOSTPORT-DNAT", "COMMIT"}},
		{reason: "and stay when another network's mapping is", saved: `*nat
:CNI-DN-aaaa - [0:0]
:CNI-DN-bbbb - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"callgate\" id: \"1\"" -j CNI-DN-aaaa
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"podman\" id: \"2\"" -j CNI-DN-bbbb
COMMIT
`, want: []string{"*nat", `-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"callgate\" id: \"1\"" -j CNI-DN-aaaa`,
			"-F CNI-DN-aaaa", "-X CNI-DN-aaaa", "COMMIT"}},
		{reason: "kube-router's accepting rule names no chain", saved: `*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -m mark --mark 0x20000/0x20000 -j ACCEPT
-A FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
COMMIT
`, want: []string{"*filter", `-D FORWARD -m comment --comment "rule to explicitly ACCEPT traffic that comply to network policies" -m mark --mark 0x20000/0x20000 -j ACCEPT`, "COMMIT"}},
		{reason: "a comment that mentions a jump to our chain is a comment", saved: `*filter
:KUBE-X - [0:0]
-A INPUT -m comment --comment "was: -j KUBE-X" -j ACCEPT
COMMIT
`, want: []string{"*filter", "-F KUBE-X", "-X KUBE-X", "COMMIT"}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			got := strings.TrimSuffix(removal(test.saved), "\n")
			if want := strings.Join(test.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestOurIPSet(t *testing.T) {
	for name, want := range map[string]bool{
		"KUBE-SRC-ABC": true, "inet6:KUBE-DST-ABC": true, "kube-router-local-ips": true, "inet6:kube-router-svip": true,
		"docker-set": false, "inet6:mine": false, "blocklist-KUBE-": false,
	} {
		if got := ourIPSet(name); got != want {
			t.Errorf("%s: got %t, want %t", name, got, want)
		}
	}
}
