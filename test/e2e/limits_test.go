package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

func loopback(s *v1alpha1.ToolSpec) { s.Isolation.Network.Loopback = true }

func gvisor(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = "gvisor" }

// readyWords are what a Tool that is Ready says of its sandboxes.
func readyWords(tool *v1alpha1.Tool) string {
	return apimeta.FindStatusCondition(tool.Status.Conditions, v1alpha1.ConditionReady).Message
}

// A policy of somebody else that opens the API server to the sandboxes of a Tool
// stands for a cluster that does not enforce: the tool never starts, and the call
// says why.
func TestNetworkPolicyNotInForce(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "opened", "echo ran", text, loopback, func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 12 })
	opened := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "opened"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelToolUID: string(tool.UID)}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{}},
		},
	}
	if err := admin.Create(ctx, opened); err != nil {
		t.Fatal(err)
	}
	call := callOf(ctx, t, tool, "")
	failed(t, call, v1alpha1.ErrorToolUnavailable, true, "the tool was not started", "network policy was not in force", "enforces NetworkPolicies")
	for _, a := range call.Status.Attempts {
		if a.Outcome != v1alpha1.OutcomeNeverStarted {
			t.Errorf("attempt %d: %s: %s", a.Number, a.Outcome, a.Message)
		}
	}
	if len(call.Status.Attempts) == 0 {
		t.Error("no sandbox was tried")
	}
	// Once it is gone, the same Tool works.
	if err := admin.Delete(ctx, opened); err != nil {
		t.Fatal(err)
	}
	tool = shell(ctx, t, "closed-again", "echo ran", text, loopback)
	if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != "ran\n" {
		t.Errorf("got %q", data)
	}
}

// Where the egress includes the API server, there is no proof, the Tool says so,
// and its calls work.
func TestEgressWithTheAPIServer(t *testing.T) {
	ctx := start(t)
	api := apiService(t)
	tool := shell(ctx, t, "egress-all", connectSoon(api), text, timeout(30),
		func(s *v1alpha1.ToolSpec) { s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{}} })
	if words := readyWords(tool); !strings.Contains(words, "not proven") || !strings.Contains(words, "egress rule 0") {
		t.Errorf("Ready says %q", words)
	}
	if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != "connected\n" {
		t.Errorf("got %q", data)
	}
}

// Sandboxes of tools with sockets take no call before their policy is in force;
// the test shows what that costs.
func TestProbeInForce(t *testing.T) {
	ctx := start(t)
	without := shell(ctx, t, "unprobed", "echo", text)
	with := shell(ctx, t, "probed", connect(apiService(t)), text, loopback)
	withGVisor := shell(ctx, t, "probed-gvisor", connect(apiService(t)), text, loopback, gvisor)
	for _, tool := range []*v1alpha1.Tool{without, with, withGVisor} {
		var took []time.Duration
		for range 5 {
			call := callOf(ctx, t, tool, "")
			data := unquote(t, succeeded(t, call))
			if tool != without && data != "refused\n" {
				t.Errorf("%s: got %q", tool.Name, data)
			}
			took = append(took, call.Status.Attempts[0].StartTime.Sub(call.Status.StartingTime.Time))
		}
		slices.Sort(took)
		t.Logf("%s: from the decision to the tool's exec %v", tool.Name, took)
	}
}

// A tool has limits of its own, and cannot take the runner's.
func TestLimitsOfProcesses(t *testing.T) {
	const limits = "ulimit -Hn; ulimit -Hc; ulimit -c 0 || echo refused; grep 'Max file size' /proc/self/limits | tr -s ' '; renice 19 -p 1 2>&1 | grep -o 'Operation not permitted'"
	for _, tc := range []struct {
		name string
		mods []func(*v1alpha1.ToolSpec)
	}{{"limits", nil}, {"limits-gvisor", []func(*v1alpha1.ToolSpec){gvisor}}, {"limits-sockets", []func(*v1alpha1.ToolSpec){loopback}}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := start(t)
			mods := append([]func(*v1alpha1.ToolSpec){text, timeout(20)}, tc.mods...)
			tool := shell(ctx, t, tc.name, limits, mods...)
			if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != "1024\n0\nMax file size 68157440 68157440 bytes \nOperation not permitted\n" {
				t.Errorf("got %q", data)
			}
			tool = shell(ctx, t, tc.name+"-file", "exec truncate -s 1099511627776 /tmp/file", mods...)
			failed(t, callOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "SIGXFSZ", "a file grew past 68157440 bytes")
		})
	}
	t.Run("limits-forks", func(t *testing.T) {
		ctx := start(t)
		tool := shell(ctx, t, "limits-forks", "i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; echo all", text, timeout(60))
		failed(t, callOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "fork")
	})
}
