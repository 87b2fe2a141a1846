package gate

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
)

// anyApproving is a call of which anything may be true.
func anyApproving(r *rand.Rand) Approving {
	a := approving()
	a.Now = created.Add(time.Duration(r.IntN(5400)) * time.Second)
	a.Tool.Generation = pick[int64](r, 1, 1, 2)
	a.Tool.CreationTimestamp = metav1.NewTime(created.Add(time.Duration(r.IntN(120)-100) * time.Second))
	a.StampedSince = created.Add(time.Duration(r.IntN(60)-55) * time.Second)
	a.Rules = nil
	for i := range 1 + r.IntN(4) {
		rule := approvalRule(fmt.Sprint("r", i), int32(1+r.IntN(2)), userSubject(pick(r, "ann", "bea", "dan")), groupSubject(pick(r, "finance", "security")))
		rule.Rule.Policy = pick(r, "tools/a", "tools/b", "c")
		rule.ExpireAfter = time.Duration(1+r.IntN(3600)) * time.Second
		a.Rules = append(a.Rules, rule)
	}
	if maybe(r) {
		askedBefore(&a)
	}
	for i := range r.IntN(8) {
		a.Approvals = append(a.Approvals, anyApproval(r, a, i))
	}
	return a
}

func anyApproval(r *rand.Rand, a Approving, i int) v1alpha1.ToolCallApproval {
	p := approvalBy(fmt.Sprint("a", i), pick(r, "ann", "bea", "dan", "eve", requesterName), pick(r, "finance", "security", "staff"))
	p.CreationTimestamp = metav1.NewTime(created.Add(time.Duration(r.IntN(5400)) * time.Second))
	if r.IntN(12) == 0 {
		p.Spec.Decision = v1alpha1.DecisionDeny
	}
	p.Spec.ToolCallRef.UID = pick[types.UID](r, "call-uid", "call-uid", "call-uid", "call-uid", "old-uid")
	if r.IntN(10) == 0 {
		p.Spec.Approver = nil
	}
	p.Spec.ToolCallRef.ApprovalDigest = pick(r, "", ApprovalDigest(a.Call, a.ArgsDigest, a.Tool), "another")
	return p
}

func TestApproveProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	seen := map[string]int{}
	for range 5000 {
		a := anyApproving(r)
		out := Approve(a)
		checkApproved(t, a, out)
		switch {
		case out.Met:
			seen["met"]++
		case out.Ended():
			seen[string(out.Result.ErrorCode)]++
		default:
			seen["waits"]++
		}

		mixed := a
		mixed.Rules, mixed.Approvals = slices.Clone(a.Rules), slices.Clone(a.Approvals)
		r.Shuffle(len(mixed.Rules), func(i, j int) { mixed.Rules[i], mixed.Rules[j] = mixed.Rules[j], mixed.Rules[i] })
		r.Shuffle(len(mixed.Approvals), func(i, j int) { mixed.Approvals[i], mixed.Approvals[j] = mixed.Approvals[j], mixed.Approvals[i] })
		if got := Approve(mixed); !reflect.DeepEqual(got, out) {
			t.Fatalf("the order changes something:\n%+v\n%+v", out, got)
		}

		more := a
		who := pick(r, requesterName, "eve")
		group := "staff"
		if who == requesterName {
			group = pick(r, "finance", "security")
		}
		p := anyApproval(r, a, 100)
		p.Spec.Approver = &v1alpha1.Requester{Username: who, Groups: []string{group}}
		p.Spec.Decision = pick(r, v1alpha1.DecisionApprove, v1alpha1.DecisionDeny)
		more.Approvals = append(slices.Clone(a.Approvals), p)
		if got := Approve(more); !sameButWords(got, out) {
			t.Fatalf("%s of %s, who has no say, changes something:\n%+v\n%+v", p.Spec.Decision, who, out, got)
		}

		// Without one of them: never more approved than with it.
		for i := range a.Approvals {
			less := a
			less.Approvals = slices.Delete(slices.Clone(a.Approvals), i, i+1)
			got := Approve(less)
			denied := out.Ended() && out.Result.ErrorCode == v1alpha1.ErrorApprovalDenied
			if got.Met && !out.Met && !denied {
				t.Fatalf("met without %+v, and not with it", a.Approvals[i].Spec)
			}
			for j := range got.Status {
				for _, name := range got.Status[j].Granted {
					if !slices.Contains(out.Status[j].Granted, name) {
						t.Fatalf("%s is granted only without %+v", name, a.Approvals[i].Spec)
					}
				}
			}
		}
		if t.Failed() {
			return
		}
	}
	for _, what := range []string{"met", "waits", "approval_denied", "approval_expired"} {
		if seen[what] < 100 {
			t.Errorf("%s came %d times only: the test proves little", what, seen[what])
		}
	}
}

// sameButWords compares what decides, not what is told of what does not count.
func sameButWords(x, y Approved) bool {
	x.Message, y.Message = "", ""
	for _, a := range []*Approved{&x, &y} {
		if a.Result != nil && a.Result.ErrorCode == v1alpha1.ErrorApprovalExpired {
			a.Result = Failure(a.Result.ErrorCode, *a.Result.Retryable, "")
		}
	}
	return reflect.DeepEqual(x, y)
}
