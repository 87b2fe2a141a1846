package controllers

import (
	"fmt"
	"testing"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/policy"
)

// A call that waits while rules come and go keeps the counts of those that match
// it now, and never more than its status holds.
func TestCountsOfRulesThatCameAndWent(t *testing.T) {
	rule := func(i int) policy.Limit {
		return policy.Limit{Rule: v1alpha1.RuleReference{Policy: "tools/p", Rule: fmt.Sprint("r", i)}}
	}
	l := &look{status: &v1alpha1.ToolCallStatus{}}
	for i := range 3 * maxCounts {
		l.admitted = gate.Admitted{Limits: []policy.Limit{rule(0), rule(i)}}
		l.counted(rule(0), time.Unix(1, 0))
		l.counted(rule(i), time.Unix(1, 0))
		counts := map[string]int{}
		for _, c := range l.status.Limits {
			counts[c.Rule]++
		}
		if len(l.status.Limits) > maxCounts || counts["r0"] != 1 || counts[fmt.Sprint("r", i)] != 1 {
			t.Fatalf("after rule %d: %v", i, counts)
		}
	}
}
