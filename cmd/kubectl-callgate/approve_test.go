package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
)

// A call can be decided as long as it is not with a sandbox, also between two
// attempts: if its Tool changed meanwhile, people are asked again.
func TestInVain(t *testing.T) {
	ended, running := v1alpha1.Attempt{Number: 1, Outcome: v1alpha1.OutcomeReported}, v1alpha1.Attempt{Number: 2}
	for _, tc := range []struct {
		reason        string
		attempts      []v1alpha1.Attempt
		approved      metav1.ConditionStatus
		approve, deny string // a part of why not; empty if it can
	}{
		{reason: "it waits for the first time", approved: metav1.ConditionUnknown},
		{reason: "it runs", attempts: []v1alpha1.Attempt{running}, approved: metav1.ConditionTrue, approve: "was sent", deny: "was sent"},
		{reason: "an attempt is over, and it waits again", attempts: []v1alpha1.Attempt{ended}, approved: metav1.ConditionUnknown},
		{reason: "an attempt is over, and the next one needs nobody", attempts: []v1alpha1.Attempt{ended}, approved: metav1.ConditionTrue, approve: "has its approvals"},
		{reason: "the second one runs", attempts: []v1alpha1.Attempt{ended, running}, approved: metav1.ConditionTrue, approve: "was sent", deny: "was sent"},
	} {
		call := &v1alpha1.ToolCall{Status: v1alpha1.ToolCallStatus{
			Attempts: tc.attempts, ApprovalDigest: "digest", Approvals: []v1alpha1.ApprovalStatus{{Policy: "p", Rule: "r", RequiredApprovals: 1}},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionApproved, Status: tc.approved}},
		}}
		for decision, want := range map[v1alpha1.ApprovalDecision]string{v1alpha1.DecisionApprove: tc.approve, v1alpha1.DecisionDeny: tc.deny} {
			err := inVain(call, decision)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %s: %v, want %q", tc.reason, decision, err, want)
			}
		}
	}
}
