package doctor

import (
	"fmt"
	"strings"
)

// The places that a trial pod tries to reach.
const (
	targetServer = "another pod"
	targetAPI    = "the API server"
	targetDenied = "the denied pod"
)

// dialed is what came of trying to reach one place again and again.
type dialed struct {
	Name     string `json:"name"`
	Attempts int    `json:"attempts"`
	// Successes are the attempts that connected; LastMS is when the last of them
	// did, in milliseconds since the process was made.
	Successes int   `json:"successes"`
	LastMS    int64 `json:"lastMS"`
	// Quiet: the last attempts, over a time that was set before, all failed.
	Quiet bool `json:"quiet"`
	// LastError of an attempt that failed.
	LastError string `json:"lastError"`
}

// dialing is the report of one trial pod.
type dialing struct {
	// Failure says why there is no report.
	Failure string `json:"-"`
	// BeginMS is when the first attempt was made, in milliseconds since the
	// process was.
	BeginMS int64    `json:"beginMS"`
	Targets []dialed `json:"targets"`
}

// target is what came of one place; nothing if it was not tried, which is not quiet.
func (d dialing) target(name string) dialed {
	for _, t := range d.Targets {
		if t.Name == name {
			return t
		}
	}
	return dialed{}
}

// network is what was seen of NetworkPolicies.
type network struct {
	// Denied is the report of the pod that a deny-all policy holds for, Open that
	// of a pod without any.
	Denied, Open dialing
}

const doNetwork = "Install a network plugin that enforces NetworkPolicy, or see why it does not for namespace callgate-doctor: without one, tools with egress or loopback do not run"

func judgeEgress(n network) Row {
	return judgeReach("NetworkPolicy, egress", n, func() (bad []string) {
		for _, name := range []string{targetServer, targetAPI} {
			open := n.Open.target(name)
			denied := n.Denied.target(name)
			if open.Successes == 0 {
				bad = append(bad, fmt.Sprintf("without a policy %s cannot be reached either (%s), so nothing is proven", name, or(open.LastError, "no attempt")))
			}
			if !denied.Quiet {
				bad = append(bad, fmt.Sprintf("%s can be reached in spite of a deny-all policy, still %d ms after its process was made", name, denied.LastMS))
			}
		}
		return bad
	}, "a deny-all pod cannot reach another pod nor the API server; without the policy it can")
}

func judgeIngress(n network) Row {
	return judgeReach("NetworkPolicy, ingress", n, func() (bad []string) {
		server := n.Open.target(targetServer)
		denied := n.Open.target(targetDenied)
		if server.Successes == 0 {
			bad = append(bad, fmt.Sprintf("a pod without a policy cannot be reached either (%s), so nothing is proven", or(server.LastError, "no attempt")))
		}
		if !denied.Quiet || denied.Successes > 0 {
			bad = append(bad, "a deny-all pod can be reached from another pod")
		}
		return bad
	}, "a deny-all pod cannot be reached from another pod; a pod without the policy can")
}

func judgeReach(check string, n network, bad func() []string, good string) Row {
	if failure := or(n.Denied.Failure, n.Open.Failure); failure != "" {
		return Row{check, Failed, failure, doNetwork}
	}
	if list := bad(); len(list) > 0 {
		return Row{check, Failed, strings.Join(list, "; "), doNetwork}
	}
	return Row{check, OK, good, ""}
}

// judgeWindow says how long after its start a pod could still send.
func judgeWindow(n network) Row {
	r := Row{Check: "NetworkPolicy, from the start", Result: OK}
	if n.Denied.Failure != "" {
		r.Result, r.Seen = Skipped, "the deny-all pod gave no report, see above"
		return r
	}
	var late []string
	for _, t := range n.Denied.Targets {
		switch {
		case !t.Quiet:
			r.Result, r.Seen = Skipped, "the policy is not enforced at all, see above"
			return r
		case t.Successes > 0:
			late = append(late, fmt.Sprintf("%s until %d ms", t.Name, t.LastMS))
		}
	}
	first := fmt.Sprintf("it first tried %d ms after the container's process was made", n.Denied.BeginMS)
	r.Seen = "no connection of the deny-all pod passed; " + first
	if len(late) > 0 {
		r.Result, r.Seen = Warning, fmt.Sprintf("a deny-all pod still reached %s after the container's process was made; %s", strings.Join(late, ", "), first)
		r.Do = "Nothing, if tools without network are all you have: those have no sockets from their first instruction. Tools with egress or loopback " +
			"wait in the runner until the policy is in force"
	}
	return r
}
