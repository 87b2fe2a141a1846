package main

import (
	"fmt"
	"slices"
	"strings"
)

// cniComment marks the rules the CNI plugins make for our network.
const cniComment = `name: \"` + cniNetwork + `\" id:`

// acceptComment marks the one rule of kube-router that neither lies in a chain
// of its own nor jumps to one.
const acceptComment = "rule to explicitly ACCEPT traffic that comply to network policies"

// ourIPSet tells kube-router's ipsets by their names.
func ourIPSet(name string) bool {
	name = strings.TrimPrefix(name, "inet6:")
	return strings.HasPrefix(name, "KUBE-") || strings.HasPrefix(name, "kube-router-")
}

// A rule is one -A line of iptables-save, and the parts of it that matter here.
type rule struct{ line, chain, target string }

// removal turns the output of iptables-save into the input for
// iptables-restore --noflush that removes our chains and rules and leaves every
// other one as it is. It is empty when there is nothing of ours.
//
// Ours are the chains KUBE-* (kubelet, kube-proxy, kube-router), the CNI
// plugins' chains for our network, every rule in these, and every rule
// elsewhere that jumps to one of them or is marked as ours.
func removal(saved string) string {
	var script strings.Builder
	for _, table := range strings.Split(saved, "\nCOMMIT") {
		name, chains, rules := parseTable(table)
		ours := ourChains(chains, rules)
		var lines []string
		for _, r := range rules {
			if !slices.Contains(ours, r.chain) && (slices.Contains(ours, r.target) || marked(r)) {
				lines = append(lines, "-D"+strings.TrimPrefix(r.line, "-A"))
			}
		}
		// A chain can only be removed when no other one jumps to it: empty all first.
		for _, chain := range ours {
			lines = append(lines, "-F "+chain)
		}
		for _, chain := range ours {
			lines = append(lines, "-X "+chain)
		}
		if len(lines) > 0 {
			fmt.Fprintf(&script, "*%s\n%s\nCOMMIT\n", name, strings.Join(lines, "\n"))
		}
	}
	return script.String()
}

func parseTable(text string) (name string, chains []string, rules []rule) {
	for _, line := range strings.Split(text, "\n") {
		switch f := strings.Fields(line); {
		case len(f) == 0:
		case strings.HasPrefix(line, "*"):
			name = line[1:]
		case strings.HasPrefix(line, ":"):
			chains = append(chains, f[0][1:])
		case f[0] == "-A" && len(f) > 1:
			rules = append(rules, rule{line: line, chain: f[1], target: target(line)})
		}
	}
	return name, chains, rules
}

// target returns the chain or target a rule jumps or goes to. A comment may
// hold anything, so what is in quotes is left out.
func target(line string) string {
	var bare strings.Builder
	quoted, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			escaped = false
		case r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case !quoted:
			bare.WriteRune(r)
		}
	}
	f := strings.Fields(bare.String())
	for i := 0; i+1 < len(f); i++ {
		if f[i] == "-j" || f[i] == "-g" {
			return f[i+1]
		}
	}
	return ""
}

func marked(r rule) bool {
	return strings.Contains(r.line, cniComment) || strings.Contains(r.line, `"`+acceptComment+`"`)
}

func ourChains(chains []string, rules []rule) []string {
	var ours []string
	for _, chain := range chains {
		isOurs := strings.HasPrefix(chain, "KUBE-")
		if strings.HasPrefix(chain, "CNI-") && !sharedCNIChain(chain) {
			isOurs = slices.ContainsFunc(rules, func(r rule) bool {
				return (r.chain == chain || r.target == chain) && strings.Contains(r.line, cniComment)
			})
		}
		if isOurs {
			ours = append(ours, chain)
		}
	}
	// The port-mapping plugin has chains that all networks of a host share: they
	// stay as soon as there is a sign of another network.
	foreign := slices.ContainsFunc(chains, func(chain string) bool {
		return strings.HasPrefix(chain, "CNI-") && !sharedCNIChain(chain) && !slices.Contains(ours, chain)
	}) || slices.ContainsFunc(rules, func(r rule) bool {
		return r.chain == "CNI-HOSTPORT-DNAT" && !strings.Contains(r.line, cniComment)
	})
	if !foreign {
		for _, chain := range chains {
			if sharedCNIChain(chain) {
				ours = append(ours, chain)
			}
		}
	}
	return ours
}

func sharedCNIChain(chain string) bool { return strings.HasPrefix(chain, "CNI-HOSTPORT-") }
