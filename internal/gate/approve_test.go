package gate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/policy"
)

const (
	testArgsDigest = "args-digest"
	requesterName  = "system:serviceaccount:agents:assistant"
)

// approvalRule is a rule that waits for an hour.
func approvalRule(name string, required int32, approvers ...v1alpha1.Subject) policy.Approval {
	return policy.Approval{
		Rule:      v1alpha1.RuleReference{Policy: "tools/support", Rule: name, Effect: v1alpha1.EffectRequireApproval},
		Approvers: approvers, Required: required, ExpireAfter: time.Hour,
	}
}

func userSubject(name string) v1alpha1.Subject {
	return v1alpha1.Subject{Kind: v1alpha1.SubjectUser, Name: name}
}

func groupSubject(name string) v1alpha1.Subject {
	return v1alpha1.Subject{Kind: v1alpha1.SubjectGroup, Name: name}
}

// approvalBy is a digest-less approval, a minute younger than the call.
func approvalBy(name, who string, groups ...string) v1alpha1.ToolCallApproval {
	return v1alpha1.ToolCallApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: name, CreationTimestamp: metav1.NewTime(created.Add(time.Minute))},
		Spec: v1alpha1.ToolCallApprovalSpec{
			ToolCallRef: v1alpha1.ApprovedCallReference{Name: "say-hello", UID: "call-uid"},
			Decision:    v1alpha1.DecisionApprove,
			Approver:    &v1alpha1.Requester{Username: who, Groups: groups},
		},
	}
}

func denialBy(name, who, why string) v1alpha1.ToolCallApproval {
	d := approvalBy(name, who)
	d.Spec.Decision, d.Spec.Reason = v1alpha1.DecisionDeny, why
	return d
}

// approving is a call that one of finance, or boss, must approve. Its Tool was
// never changed. Nobody has approved.
func approving() Approving {
	tool := testTool("refund")
	tool.Generation, tool.CreationTimestamp = 1, metav1.NewTime(created.Add(-time.Hour))
	return Approving{
		Now: created.Add(2 * time.Minute), Call: testCall(`{"text":"` + marker + `"}`), Tool: &tool, ArgsDigest: testArgsDigest,
		Rules:        []policy.Approval{approvalRule("big", 1, groupSubject("finance"), userSubject("boss"))},
		StampedSince: created.Add(-time.Hour),
	}
}

// remember stores what was found, as the reconciler and the API server do.
func remember(a *Approving, out Approved) {
	a.Call.Status.ApprovalDigest, a.Call.Status.Approvals = out.Digest, nil
	for _, s := range out.Status {
		s.ExpireTime = metav1.NewTime(time.Unix(s.ExpireTime.Unix(), 0))
		a.Call.Status.Approvals = append(a.Call.Status.Approvals, s)
	}
}

// askedBefore is the call after its first look.
func askedBefore(a *Approving) {
	at := a.Now
	a.Now = created
	remember(a, Approve(*a))
	a.Now = at
}

func TestApprove(t *testing.T) {
	const (
		wanted  = `waiting for approval: 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:02:00Z`
		again   = ": approve again with the call's status.approvalDigest as spec.toolCallRef.approvalDigest"
		refused = wanted + ". ToolCallApproval a1 of boss does not count: "
	)
	give := func(a *Approving, all ...v1alpha1.ToolCallApproval) { a.Approvals = append(a.Approvals, all...) }
	// one changes the approval of boss.
	one := func(change func(a *Approving, p *v1alpha1.ToolCallApproval)) func(*Approving) {
		return func(a *Approving) {
			p := approvalBy("a1", "boss")
			change(a, &p)
			give(a, p)
		}
	}
	createdAt := func(p *v1alpha1.ToolCallApproval, t time.Time) { p.CreationTimestamp = metav1.NewTime(t) }
	quote := func(a *Approving, p *v1alpha1.ToolCallApproval) {
		p.Spec.ToolCallRef.ApprovalDigest = ApprovalDigest(a.Call, a.ArgsDigest, a.Tool)
	}
	two := func(a *Approving) { a.Rules[0].Required = 2 }
	expire := created.Add(time.Hour) // of what was asked before

	for _, tc := range []struct {
		reason string
		change func(a *Approving)
		met    bool
		// granted of every rule, in the order of the status
		granted [][]string
		// the end
		code      v1alpha1.ErrorCode
		retryable bool
		// the whole message of the end or of the wait
		message string
		after   time.Duration
	}{
		{reason: "nobody has approved: the call waits until its time is over",
			change: func(*Approving) {}, granted: [][]string{nil}, message: wanted, after: time.Hour},
		{reason: "one of the users", change: func(a *Approving) { give(a, approvalBy("a1", "boss")) }, met: true, granted: [][]string{{"boss"}}},
		{reason: "one of the group", change: func(a *Approving) { give(a, approvalBy("a1", "ann", "staff", "finance")) },
			met: true, granted: [][]string{{"ann"}}},
		{reason: "a ServiceAccount", change: func(a *Approving) {
			a.Rules[0].Approvers = []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: "ops", Name: "bot"}}
			give(a, approvalBy("a1", "system:serviceaccount:ops:bot"))
		}, met: true, granted: [][]string{{"system:serviceaccount:ops:bot"}}},

		// Whose, and of which call.
		{reason: "the call of that name that was there before: another UID",
			change: one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Spec.ToolCallRef.UID = "old-uid" }), granted: [][]string{nil},
			message: refused + "spec.toolCallRef.uid is not that of this call", after: time.Hour},
		{reason: "another name with this UID", granted: [][]string{nil},
			change:  one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Spec.ToolCallRef.Name = "another" }),
			message: wanted, after: time.Hour},
		{reason: "another namespace", granted: [][]string{nil},
			change:  one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Namespace = "elsewhere" }),
			message: wanted, after: time.Hour},
		{reason: "no approver was stamped", granted: [][]string{nil},
			change:  one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Spec.Approver = nil }),
			message: wanted + ". ToolCallApproval a1 does not count: its spec.approver is empty: create it again", after: time.Hour},
		{reason: "an approver without a name", granted: [][]string{nil},
			change:  one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Spec.Approver = &v1alpha1.Requester{} }),
			message: wanted + ". ToolCallApproval a1 does not count: its spec.approver is empty: create it again", after: time.Hour},
		{reason: "somebody who is no approver", granted: [][]string{nil},
			change:  func(a *Approving) { give(a, approvalBy("a1", "eve", "staff")) },
			message: wanted + ". ToolCallApproval a1 of eve does not count: its approver is not among those who may approve", after: time.Hour},
		{reason: "the requester never, though an approver", granted: [][]string{nil},
			change:  func(a *Approving) { give(a, approvalBy("a1", requesterName, "finance")) },
			message: wanted + ". ToolCallApproval a1 of " + requesterName + " does not count: its approver created the call", after: time.Hour},
		{reason: "the requester never, though with another UID and other groups", granted: [][]string{nil},
			change: func(a *Approving) {
				a.Call.Spec.Requester = &v1alpha1.Requester{Username: "boss", UID: ptr.To("1"), Groups: []string{"x"}}
				give(a, approvalBy("a1", "boss"))
			},
			message: refused + "its approver created the call", after: time.Hour},
		{reason: "a requester that is not known: nobody can be told from them", granted: [][]string{nil},
			change:  func(a *Approving) { a.Call.Spec.Requester = nil; give(a, approvalBy("a1", "boss")) },
			message: refused + "its approver created the call", after: time.Hour},
		{reason: "a decision that this version does not know", granted: [][]string{nil},
			change:  one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { p.Spec.Decision = "Perhaps" }),
			message: refused + "its spec.decision is unknown", after: time.Hour},

		// Stamping.
		{reason: "created in the moment from which stamping is proven", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) { a.StampedSince = p.CreationTimestamp.Time })},
		{reason: "created before stamping was proven", granted: [][]string{nil},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) {
				a.StampedSince = p.CreationTimestamp.Add(time.Second)
			}),
			message: refused + "it was created while it was not proven that the API server stamps spec.approver: create it again", after: time.Hour},
		{reason: "stamping is not proven now: looked at again soon, since nobody tells", granted: [][]string{nil},
			change:  one(func(a *Approving, _ *v1alpha1.ToolCallApproval) { a.StampedSince = Stamping{}.Since() }),
			message: refused + unstamped, after: time.Second},
		{reason: "and not over, for a while, when it would count if it were proven", granted: [][]string{nil},
			change: one(func(a *Approving, _ *v1alpha1.ToolCallApproval) {
				askedBefore(a)
				a.StampedSince, a.Now = Stamping{}.Since(), expire.Add(maxStampingWait)
			}),
			message: strings.ReplaceAll(refused, "13:02", "13:00") + unstamped, after: time.Second},
		{reason: "but not for ever", granted: [][]string{nil},
			change: one(func(a *Approving, _ *v1alpha1.ToolCallApproval) {
				askedBefore(a)
				a.StampedSince, a.Now = Stamping{}.Since(), expire.Add(maxStampingWait+1)
			}),
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: strings.Replace(strings.ReplaceAll(refused, "13:02", "13:00"), "waiting for approval", "not approved in time", 1) + unstamped},
		{reason: "and over in time if it would not count anyhow", granted: [][]string{nil},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) {
				askedBefore(a)
				p.Spec.Approver.Username = "eve"
				a.StampedSince, a.Now = Stamping{}.Since(), expire.Add(1)
			}),
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z` +
				". ToolCallApproval a1 of eve does not count: its approver is not among those who may approve"},
		{reason: "always proven", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, _ *v1alpha1.ToolCallApproval) { a.StampedSince = time.Time{} })},

		// Of which state of the Tool.
		{reason: "the digest of the Tool as it is", met: true, granted: [][]string{{"boss"}}, change: one(quote)},
		{reason: "the digest, and the Tool was changed before", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) { a.Tool.Generation = 7; quote(a, p) })},
		{reason: "the digest, and within the second in which the Tool was created", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) {
				a.Tool.CreationTimestamp = p.CreationTimestamp
				quote(a, p)
			})},
		{reason: "the Tool was changed since", granted: [][]string{nil},
			change:  one(func(a *Approving, p *v1alpha1.ToolCallApproval) { quote(a, p); a.Tool.Generation++ }),
			message: refused + "it is for another state of the Tool" + again, after: time.Hour},
		{reason: "the Tool was made again since", granted: [][]string{nil},
			change:  one(func(a *Approving, p *v1alpha1.ToolCallApproval) { quote(a, p); a.Tool.UID = "new-uid" }),
			message: refused + "it is for another state of the Tool" + again, after: time.Hour},
		{reason: "no digest and a Tool that was ever changed: nothing says when", granted: [][]string{nil},
			change:  one(func(a *Approving, _ *v1alpha1.ToolCallApproval) { a.Tool.Generation = 2 }),
			message: refused + "it may be for another state of the Tool, which was changed after its creation" + again, after: time.Hour},
		{reason: "no digest, and the Tool was made again in the same second", granted: [][]string{nil},
			change:  one(func(a *Approving, p *v1alpha1.ToolCallApproval) { a.Tool.CreationTimestamp = p.CreationTimestamp }),
			message: refused + "it may be for another Tool: it is not younger than this one" + again, after: time.Hour},
		{reason: "no digest, and the Tool was made again a second earlier", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, p *v1alpha1.ToolCallApproval) {
				a.Tool.CreationTimestamp = metav1.NewTime(p.CreationTimestamp.Add(-time.Second))
			})},

		// How many.
		{reason: "one of two", granted: [][]string{{"boss"}},
			change:  func(a *Approving) { two(a); give(a, approvalBy("a1", "boss")) },
			message: strings.Replace(wanted, "0 of 1", "1 of 2", 1), after: time.Hour},
		{reason: "two of two", met: true, granted: [][]string{{"ann", "boss"}},
			change: func(a *Approving) { two(a); give(a, approvalBy("a1", "boss"), approvalBy("a2", "ann", "finance")) }},
		{reason: "one person twice is one person", granted: [][]string{{"boss"}},
			change:  func(a *Approving) { two(a); give(a, approvalBy("a1", "boss"), approvalBy("a2", "boss", "finance")) },
			message: strings.Replace(wanted, "0 of 1", "1 of 2", 1), after: time.Hour},
		{reason: "more than are needed all show", met: true, granted: [][]string{{"ann", "bea", "boss"}},
			change: func(a *Approving) {
				give(a, approvalBy("a1", "boss"), approvalBy("a2", "bea", "finance"), approvalBy("a3", "ann", "finance"))
			}},
		{reason: "a rule that asks for nobody asks for one", granted: [][]string{nil},
			change: func(a *Approving) { a.Rules[0].Required = 0 }, message: wanted, after: time.Hour},

		// Several rules.
		{reason: "one approval counts for every rule that lists its approver", met: true, granted: [][]string{{"boss"}, {"boss"}},
			change: func(a *Approving) {
				a.Rules = append(a.Rules, approvalRule("any", 1, userSubject("boss")))
				give(a, approvalBy("a1", "boss"))
			}},
		{reason: "each rule must be met; one that is met is not named", granted: [][]string{nil, {"boss"}},
			change: func(a *Approving) {
				a.Rules = append(a.Rules, approvalRule("any", 1, groupSubject("security")))
				give(a, approvalBy("a1", "boss"))
			},
			message: `waiting for approval: 0 of 1 by Group security for rule "any" of policy tools/support until 2026-11-29T13:02:00Z`, after: time.Hour},
		{reason: "several unmet rules, in the order of their names; the shortest time counts", granted: [][]string{nil, nil, nil},
			change: func(a *Approving) {
				fast := approvalRule("fast", 2, userSubject("dan"))
				fast.ExpireAfter = time.Minute
				wide := approvalRule("zz", 1, userSubject("zoe"))
				wide.Rule.Policy = "company" // a ClusterToolPolicy
				a.Rules = append(a.Rules, wide, fast)
			},
			message: `waiting for approval: 0 of 1 by User zoe for rule "zz" of policy company until 2026-11-29T13:02:00Z; ` +
				strings.TrimPrefix(wanted, "waiting for approval: ") +
				`; 0 of 2 by User dan for rule "fast" of policy tools/support until 2026-11-29T12:03:00Z`, after: time.Minute},
		{reason: "the time of a rule that is met does not press", granted: [][]string{nil, {"dan"}},
			change: func(a *Approving) {
				fast := approvalRule("fast", 1, userSubject("dan"))
				fast.ExpireAfter = time.Minute
				a.Rules = append(a.Rules, fast)
				give(a, approvalBy("a1", "dan"))
			}, message: wanted, after: time.Hour},

		// Time.
		{reason: "asked before: the time that was given stands", granted: [][]string{nil},
			change: askedBefore, message: strings.Replace(wanted, "13:02", "13:00", 1), after: 58 * time.Minute},
		{reason: "asked before, and the policy now gives less", granted: [][]string{nil},
			change:  func(a *Approving) { askedBefore(a); a.Rules[0].ExpireAfter = time.Second },
			message: strings.Replace(wanted, "13:02", "13:00", 1), after: 58 * time.Minute},
		{reason: "asked before, about another state of the Tool: asked anew", granted: [][]string{nil},
			change: func(a *Approving) { askedBefore(a); a.Tool.Generation++ }, message: wanted, after: time.Hour},
		{reason: "asked before by another rule: this one is asked anew", granted: [][]string{nil},
			change: func(a *Approving) { askedBefore(a); a.Call.Status.Approvals[0].Rule = "small" }, message: wanted, after: time.Hour},
		{reason: "asked before by a rule of that name of another policy", granted: [][]string{nil},
			change: func(a *Approving) { askedBefore(a); a.Call.Status.Approvals[0].Policy = "support" }, message: wanted, after: time.Hour},
		{reason: "times are whole seconds, never shorter", granted: [][]string{nil},
			change:  func(a *Approving) { a.Now = a.Now.Add(time.Millisecond) },
			message: strings.Replace(wanted, "13:02:00", "13:02:01", 1), after: time.Hour + 999*time.Millisecond},
		{reason: "the last moment", granted: [][]string{nil},
			change:  func(a *Approving) { askedBefore(a); a.Now = expire },
			message: strings.Replace(wanted, "13:02", "13:00", 1), after: time.Millisecond},
		{reason: "the call's own deadline is sooner", granted: [][]string{nil},
			change: func(a *Approving) { a.Call.Spec.DeadlineSeconds = 150 }, message: wanted, after: 30 * time.Second},
		{reason: "and ends the wait with the code of the wait", granted: [][]string{nil},
			change: func(a *Approving) { a.Call.Spec.DeadlineSeconds = 120 },
			code:   v1alpha1.ErrorApprovalExpired, retryable: true,
			message: strings.Replace(wanted, "waiting for approval", "not approved within the call's deadlineSeconds (120)", 1)},
		{reason: "it is later than the rule's time", granted: [][]string{nil},
			change: func(a *Approving) { a.Call.Spec.DeadlineSeconds = 86400 }, message: wanted, after: time.Hour},
		{reason: "approved before it: how the call goes on is not decided here", met: true, granted: [][]string{{"boss"}},
			change: one(func(a *Approving, _ *v1alpha1.ToolCallApproval) { a.Call.Spec.DeadlineSeconds = 119 })},
		{reason: "nobody said yes in time", granted: [][]string{nil},
			change: func(a *Approving) { askedBefore(a); a.Now = expire.Add(1) },
			code:   v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z`},
		{reason: "the call's own deadline ends the wait, however long the rule would wait", granted: [][]string{nil},
			change: func(a *Approving) {
				askedBefore(a)
				a.Call.Spec.DeadlineSeconds, a.Now = 150, created.Add(151*time.Second)
			},
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved within the call's deadlineSeconds (150): 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z`},
		{reason: "and is when to look again", granted: [][]string{nil},
			change:  func(a *Approving) { askedBefore(a); a.Call.Spec.DeadlineSeconds = 150 },
			message: strings.Replace(wanted, "13:02", "13:00", 1), after: 30 * time.Second},
		{reason: "one of two said yes in time; what does not count is told", granted: [][]string{{"boss"}},
			change: func(a *Approving) {
				two(a)
				askedBefore(a)
				give(a, approvalBy("a1", "boss"), approvalBy("a2", "eve"))
				a.Now = expire.Add(time.Second)
			},
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 1 of 2 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z` +
				`. ToolCallApproval a2 of eve does not count: its approver is not among those who may approve`},
		{reason: "expiry of one rule ends the call, though the other has time", granted: [][]string{nil, nil},
			change: func(a *Approving) {
				fast := approvalRule("fast", 1, userSubject("dan"))
				fast.ExpireAfter = time.Minute
				a.Rules = append(a.Rules, fast)
				askedBefore(a)
			},
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z` +
				`; 0 of 1 by User dan for rule "fast" of policy tools/support until 2026-11-29T12:01:00Z`},
		{reason: "created in the last second, and seen a day later", met: true, granted: [][]string{{"boss"}},
			change: func(a *Approving) {
				askedBefore(a)
				one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { createdAt(p, expire) })(a)
				a.Now = expire.Add(24 * time.Hour)
			}},
		{reason: "created a second too late", granted: [][]string{nil},
			change: func(a *Approving) {
				askedBefore(a)
				one(func(_ *Approving, p *v1alpha1.ToolCallApproval) { createdAt(p, expire.Add(time.Second)) })(a)
				a.Now = expire.Add(2 * time.Second)
			},
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 0 of 1 by Group finance, User boss for rule "big" of policy tools/support until 2026-11-29T13:00:00Z` +
				`. ToolCallApproval a1 of boss does not count: it was created too late`},
		{reason: "too late for one rule and in time for the other", granted: [][]string{{"boss"}, nil},
			change: func(a *Approving) {
				fast := approvalRule("fast", 1, userSubject("boss"))
				fast.ExpireAfter = time.Second
				a.Rules = append(a.Rules, fast)
				askedBefore(a)
				give(a, approvalBy("a1", "boss"))
			},
			code: v1alpha1.ErrorApprovalExpired, retryable: true,
			message: `not approved in time: 0 of 1 by User boss for rule "fast" of policy tools/support until 2026-11-29T12:00:01Z`},

		// A no.
		{reason: "an approver says no", granted: [][]string{nil}, change: func(a *Approving) { give(a, denialBy("d1", "boss", "not on a Friday")) },
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: not on a Friday"},
		{reason: "no, without a word", granted: [][]string{nil}, change: func(a *Approving) { give(a, denialBy("d1", "boss", "")) },
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: no reason given"},
		{reason: "no, though all approvals are there", granted: [][]string{{"ann"}},
			change: func(a *Approving) {
				give(a, approvalBy("a1", "ann", "finance"), denialBy("d1", "boss", "stop"), approvalBy("z1", "ann", "finance"))
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: stop"},
		{reason: "a person may change their mind: no is no", granted: [][]string{{"boss"}},
			change: func(a *Approving) { give(a, approvalBy("a1", "boss"), denialBy("d1", "boss", "stop")) },
			code:   v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: stop"},
		{reason: "an approver of one rule of several", granted: [][]string{nil, {"boss"}},
			change: func(a *Approving) {
				a.Rules = append(a.Rules, approvalRule("any", 1, userSubject("dan")))
				give(a, approvalBy("a1", "boss"), denialBy("d1", "dan", "stop"))
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by dan in ToolCallApproval d1: stop"},
		{reason: "no, to a Tool that was changed since", granted: [][]string{nil},
			change: func(a *Approving) {
				d := denialBy("d1", "boss", "stop")
				quote(a, &d)
				give(a, d)
				a.Tool.Generation, a.Tool.UID = 9, "new-uid"
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: stop"},
		{reason: "no, though its stamp is not proven", granted: [][]string{nil},
			change: func(a *Approving) { give(a, denialBy("d1", "boss", "stop")); a.StampedSince = a.Now },
			code:   v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: stop"},
		{reason: "no, after the time was over", granted: [][]string{nil},
			change: func(a *Approving) {
				askedBefore(a)
				a.Now = expire.Add(time.Hour)
				d := denialBy("d1", "boss", "stop")
				createdAt(&d, a.Now)
				give(a, d)
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: stop"},
		{reason: "of several the first by time is named", granted: [][]string{nil},
			change: func(a *Approving) {
				first := denialBy("d9", "boss", "first")
				createdAt(&first, created.Add(time.Second))
				d := denialBy("d1", "boss", "second")
				give(a, d, first)
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d9: first"},
		{reason: "of several of one second the first by name", granted: [][]string{nil},
			change: func(a *Approving) {
				give(a, denialBy("d2", "boss", "two"), denialBy("d1", "boss", "one"), denialBy("d3", "boss", "three"))
			},
			code: v1alpha1.ErrorApprovalDenied, message: "denied by boss in ToolCallApproval d1: one"},
		{reason: "no by a stranger", granted: [][]string{nil}, change: func(a *Approving) { give(a, denialBy("d1", "eve", "stop")) },
			message: wanted + ". ToolCallApproval d1 of eve does not count: its approver is not among those who may approve", after: time.Hour},
		{reason: "no by a stranger to what is approved", met: true, granted: [][]string{{"boss"}},
			change: func(a *Approving) { give(a, denialBy("d1", "eve", "stop"), approvalBy("a1", "boss")) }},
		{reason: "no by the requester, who has spec.cancel for that", granted: [][]string{nil},
			change: func(a *Approving) {
				a.Call.Spec.Requester.Username = "boss"
				give(a, denialBy("a1", "boss", "stop"))
			},
			message: refused + "its approver created the call", after: time.Hour},
		{reason: "no to an earlier call of that name", granted: [][]string{nil},
			change: func(a *Approving) {
				d := denialBy("a1", "boss", "stop")
				d.Spec.ToolCallRef.UID = "old-uid"
				give(a, d)
			},
			message: refused + "spec.toolCallRef.uid is not that of this call", after: time.Hour},

		// What does not count.
		{reason: "by name, a few, what is of an earlier call last", granted: [][]string{nil},
			change: func(a *Approving) {
				old := approvalBy("a0", "boss")
				old.Spec.ToolCallRef.UID = "old-uid"
				give(a, old, approvalBy("a3", "eve"), approvalBy("a1", "eve"), approvalBy("a4", "eve"), approvalBy("a2", "eve"))
			},
			message: wanted + ". ToolCallApproval a1 of eve does not count: its approver is not among those who may approve" +
				"; ToolCallApproval a2 of eve does not count: its approver is not among those who may approve" +
				"; ToolCallApproval a3 of eve does not count: its approver is not among those who may approve; and 2 more", after: time.Hour},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			a := approving()
			tc.change(&a)
			out := Approve(a)
			checkApproved(t, a, out)
			if out.Met != tc.met || out.Ended() != (tc.code != "") {
				t.Fatalf("met %v, ended %v, want %v and %v: %+v", out.Met, out.Ended(), tc.met, tc.code != "", out)
			}
			var granted [][]string
			for _, s := range out.Status {
				granted = append(granted, s.Granted)
			}
			if !slices.EqualFunc(granted, tc.granted, slices.Equal[[]string]) {
				t.Errorf("granted %v, want %v", granted, tc.granted)
			}
			message := out.Message
			if out.Ended() {
				message = out.Result.Message
				if out.Result.ErrorCode != tc.code || *out.Result.Retryable != tc.retryable {
					t.Errorf("ended in %s, retryable %v; want %s, %v", out.Result.ErrorCode, *out.Result.Retryable, tc.code, tc.retryable)
				}
			}
			if message != tc.message {
				t.Errorf("message\n %s\nwant\n %s", message, tc.message)
			}
			if out.After != tc.after {
				t.Errorf("look again after %s, want %s", out.After, tc.after)
			}
		})
	}
}

// checkApproved checks what is true of every answer.
func checkApproved(t *testing.T, a Approving, out Approved) {
	t.Helper()
	if out.Met != reflect.DeepEqual(out.Verdict, Verdict{}) {
		t.Errorf("met %v with the verdict %+v", out.Met, out.Verdict)
	}
	if !out.Met {
		checkVerdict(t, "Approve", out.Verdict)
	}
	if !out.Met && !out.Ended() && (out.Act != ActNone || out.Reason != v1alpha1.ReasonAwaitingApproval) {
		t.Errorf("waits with %q, %s", out.Act, out.Reason)
	}
	if len(out.Status) != len(a.Rules) {
		t.Fatalf("%d entries for %d rules", len(out.Status), len(a.Rules))
	}
	if want := ApprovalDigest(a.Call, a.ArgsDigest, a.Tool); out.Digest != want {
		t.Errorf("digest %q, want %q", out.Digest, want)
	}
	for i, s := range out.Status {
		if i > 0 && s.Policy+"\x00"+s.Rule <= out.Status[i-1].Policy+"\x00"+out.Status[i-1].Rule {
			t.Errorf("%s, %s is not sorted", s.Policy, s.Rule)
		}
		if !slices.IsSorted(s.Granted) || len(s.Granted) > 32 || s.ExpireTime.Nanosecond() != 0 {
			t.Errorf("%+v", s)
		}
		at := slices.IndexFunc(a.Rules, func(r policy.Approval) bool { return r.Rule.Policy == s.Policy && r.Rule.Rule == s.Rule })
		if at < 0 || !slices.Equal(a.Rules[at].Approvers, s.Approvers) || a.Rules[at].Required != s.RequiredApprovals {
			t.Errorf("no rule says this: %+v", s)
		}
	}
}

func TestApproveWithoutRules(t *testing.T) {
	a := approving()
	a.Rules, a.Approvals = nil, []v1alpha1.ToolCallApproval{denialBy("d1", "boss", "stop")}
	if out := Approve(a); !reflect.DeepEqual(out, Approved{Met: true}) {
		t.Errorf("nobody is asked: %+v", out)
	}
}

// What was found at the first look is found again at every later one: the status
// is written once, not at every look.
func TestApproveIsStable(t *testing.T) {
	a := approving()
	a.Now = created.Add(123456789 * time.Nanosecond)
	first := Approve(a)
	remember(&a, first)
	a.Now = a.Now.Add(10 * time.Minute)
	later := Approve(a)
	if later.Message != first.Message || later.Digest != first.Digest {
		t.Errorf("%q, then %q", first.Message, later.Message)
	}
	if !first.Status[0].ExpireTime.Equal(&later.Status[0].ExpireTime) {
		t.Errorf("until %s, then %s", first.Status[0].ExpireTime, later.Status[0].ExpireTime)
	}
}

func TestApproveSharesNothingWithThePolicy(t *testing.T) {
	a := approving()
	out := Approve(a)
	out.Status[0].Approvers[0].Name = "changed"
	if a.Rules[0].Approvers[0].Name != "finance" {
		t.Error("a change of the status changed the policy")
	}
}

func TestApproveMessagesAreBounded(t *testing.T) {
	long := strings.Repeat("ü\x1b", 500)
	a := approving()
	a.Rules = nil
	for i := range 64 {
		r := approvalRule(fmt.Sprintf("r%02d", i), 16)
		r.Rule.Policy = long
		for range 32 {
			r.Approvers = append(r.Approvers, userSubject(long))
		}
		a.Rules = append(a.Rules, r)
	}
	for i := range 200 {
		a.Approvals = append(a.Approvals, approvalBy(fmt.Sprint(long, i), long+"x"))
	}
	waiting := Approve(a)
	a.Approvals = append(a.Approvals, denialBy(long, long, long))
	denied := Approve(a)
	for _, message := range []string{waiting.Message, denied.Result.Message} {
		if message == "" || len(message) > maxBytes || !utf8.ValidString(message) || strings.ContainsRune(message, '\x1b') {
			t.Errorf("%d bytes: %.200q", len(message), message)
		}
	}

	// Ordinary names in every place that a message has fit.
	a = approving()
	a.Rules = nil
	name := strings.Repeat("n", 63)
	for i := range 64 {
		r := approvalRule(fmt.Sprintf("r%02d", i), 16)
		r.Rule.Policy = "tools/" + name
		for range 32 {
			r.Approvers = append(r.Approvers, v1alpha1.Subject{Kind: v1alpha1.SubjectServiceAccount, Namespace: name, Name: name})
		}
		a.Rules = append(a.Rules, r)
	}
	for i := range 200 {
		a.Approvals = append(a.Approvals, approvalBy(fmt.Sprint("a", i), "eve"))
	}
	out := Approve(a)
	for _, want := range []string{", and 28 more for rule", "; and 61 more. ToolCallApproval a0 of eve", "; and 197 more"} {
		if !strings.Contains(out.Message, want) {
			t.Errorf("no %q in %s", want, out.Message)
		}
	}
}

func TestGrantedIsBounded(t *testing.T) {
	a := approving()
	for i := range 50 {
		a.Approvals = append(a.Approvals, approvalBy(fmt.Sprint("a", i), fmt.Sprintf("u%02d", i), "finance"))
	}
	out := Approve(a)
	if g := out.Status[0].Granted; len(g) != 32 || g[0] != "u00" || g[31] != "u31" {
		t.Errorf("granted %v: the CRD takes 32", g)
	}
}

func TestApprovalDigest(t *testing.T) {
	of := func(call, args, tool string, generation int64) string {
		return ApprovalDigest(&v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{UID: types.UID(call)}}, args,
			&v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{UID: types.UID(tool), Generation: generation}})
	}
	if got, want := of("c", "a", "t", 1), "51a0c18e47caa921a427baef329b36552c855fa2122d4b65345228b91bdafeb4"; got != want {
		t.Errorf("digest %s, want %s: what people approved before an upgrade would be asked again", got, want)
	}
	seen := map[string]string{}
	for _, tc := range []struct {
		reason, call, args, tool string
		generation               int64
	}{
		{"the one", "c", "a", "t", 1},
		{"another call", "d", "a", "t", 1},
		{"other arguments", "c", "b", "t", 1},
		{"another Tool", "c", "a", "u", 1},
		{"another generation", "c", "a", "t", 2},
		{"a border moved", "ca", "", "t", 1},
		{"a border moved the other way", "", "ca", "t", 1},
		{"a digit moved", "c", "a", "t1", 1},
		{"a digit moved to the generation", "c", "a", "t", 11},
		{"separators in a text", `c" "a`, "", "t", 1},
		{"separators in the other", "c", `a" "t`, "", 1},
	} {
		digest := of(tc.call, tc.args, tc.tool, tc.generation)
		if other, ok := seen[digest]; ok {
			t.Errorf("%s has the digest of %s", tc.reason, other)
		}
		seen[digest] = tc.reason
	}
}

func TestToolChangeTime(t *testing.T) {
	entry := func(at time.Time, subresource string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: "kubectl", Subresource: subresource, Time: ptr.To(metav1.NewTime(at))}
	}
	for _, tc := range []struct {
		reason string
		meta   metav1.ObjectMeta
		want   time.Time
		known  bool
	}{
		{reason: "never changed: since it was created", meta: metav1.ObjectMeta{Generation: 1}, want: created, known: true},
		{reason: "never changed but for its status and labels, which nobody approves",
			meta: metav1.ObjectMeta{Generation: 1, ManagedFields: []metav1.ManagedFieldsEntry{entry(created.Add(time.Hour), "status"), entry(created.Add(time.Hour), "")}},
			want: created, known: true},
		{reason: "changed, and nothing says when", meta: metav1.ObjectMeta{Generation: 2}},
		{reason: "changed: a removed field leaves the times of managedFields as they were",
			meta: metav1.ObjectMeta{Generation: 2, ManagedFields: []metav1.ManagedFieldsEntry{entry(created, "")}}},
		{reason: "changed: whoever updates a Tool may write the times of managedFields",
			meta: metav1.ObjectMeta{Generation: 2, ManagedFields: []metav1.ManagedFieldsEntry{entry(created.Add(-time.Hour), ""), entry(created, "")}}},
		{reason: "a generation that the API server never gives", meta: metav1.ObjectMeta{}},
	} {
		tc.meta.CreationTimestamp = metav1.NewTime(created)
		got, known := toolChangeTime(&v1alpha1.Tool{ObjectMeta: tc.meta})
		if known != tc.known || known && !got.Equal(tc.want) {
			t.Errorf("%s: %s, %v", tc.reason, got, known)
		}
	}
}
