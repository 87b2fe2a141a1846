package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/audit"
)

// A condition decides by arguments, and each decision and end is recorded in
// the audit log, without an argument.
func TestConditionAndAudit(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "refund", "echo '{\"refunded\":true}'", func(s *v1alpha1.ToolSpec) {
		s.InputSchema = raw(`{"type":"object","properties":{"amount":{"type":"integer"},"note":{"type":"string"}},"required":["amount"]}`)
	})
	limit := &v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "refunds"}, Spec: v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "system:authenticated"}},
		Rules: []v1alpha1.PolicyRule{{Name: "big", Effect: v1alpha1.EffectDeny, When: "args.amount > 100",
			Tools: v1alpha1.ToolSelector{Names: []string{"refund"}}, Message: "ask finance"}},
	}}
	if err := admin.Create(ctx, limit); err != nil {
		t.Fatal(err)
	}
	waitFor(ctx, t, limit, &v1alpha1.ToolPolicyList{}, func(p *v1alpha1.ToolPolicy) bool { return p.Status.ObservedGeneration == p.Generation },
		func(p *v1alpha1.ToolPolicy) string { return jsonOf(t, p.Status) })

	small := callOf(ctx, t, tool, `{"amount":100,"note":"audit-marker"}`)
	big := callOf(ctx, t, tool, `{"amount":101,"note":"audit-marker"}`)
	wrong := callOf(ctx, t, tool, `{"amount":"101"}`)
	succeeded(t, small)
	failed(t, big, v1alpha1.ErrorToolNotAllowed, false, `ToolPolicy `+toolsNS+`/refunds, rule "big"`, "ask finance")
	failed(t, wrong, v1alpha1.ErrorInvalidArguments, false, "/amount")

	records := auditOf(t, string(small.UID), string(big.UID))
	if got := types(records[string(small.UID)]); got != "Decision End" {
		t.Errorf("records of the allowed call: %s", got)
	}
	if got := types(records[string(big.UID)]); got != "Decision End" {
		t.Errorf("records of the refused call: %s", got)
	}
	if text := jsonOf(t, records); strings.Contains(text, "audit-marker") || !strings.Contains(text, `"rule":"big"`) {
		t.Errorf("the audit log has an argument, or lacks the rule: %s", text)
	}
}

func types(records []audit.Record) string {
	var out []string
	for _, r := range records {
		out = append(out, string(r.Type))
	}
	return strings.Join(out, " ")
}

// auditOf follows the controller's standard output until the ends of the calls
// are there, and returns all records about them.
func auditOf(t *testing.T, uids ...string) map[string][]audit.Record {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pod := controllerPod(ctx, t)
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	out := map[string][]audit.Record{}
	missing := len(uids)
	for lines := bufio.NewScanner(stream); missing > 0 && lines.Scan(); {
		var r audit.Record
		if json.Unmarshal(lines.Bytes(), &r) != nil || r.Logger != "audit" {
			continue
		}
		for _, uid := range uids {
			if r.Call.UID == uid {
				out[uid] = append(out[uid], r)
				if r.Type == audit.End {
					missing--
				}
			}
		}
	}
	return out
}
