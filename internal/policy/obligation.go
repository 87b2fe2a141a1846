package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
)

// maxObligations bounds the RequireApproval rules, and the Limit rules, that one
// call can meet: status.approvals lists as many, and one that is not listed would
// be one that is not kept.
const maxObligations = 64

// maxApprovers bounds the approvers of one rule; status.approvals has the same
// bound.
const maxApprovers = 32

// What the API says where a field of an obligation is not set.
const (
	defaultRequiredApprovals  = 1
	defaultExpireAfterSeconds = 3600
	defaultMaxWaitSeconds     = 30
)

// Approval is what one RequireApproval rule asks of a call.
type Approval struct {
	Rule v1alpha1.RuleReference
	// Approvers are those whose approval counts, 1 to 32; [Includes] says whether
	// somebody is one of them. The slice is the policy's: it is only read.
	Approvers []v1alpha1.Subject
	// Required is how many different persons must approve, at least 1.
	Required int32
	// ExpireAfter is how long the call waits for them.
	ExpireAfter time.Duration
}

// Limit is what one Limit rule asks of a call. It counts the calls that its rule
// matches, all Tools together.
type Limit struct {
	Rule v1alpha1.RuleReference
	// MaxConcurrent bounds the calls that run at once; 0 is no bound.
	MaxConcurrent int32
	// MaxCalls bounds the calls in any Window; 0 is no bound, and Window is 0, too.
	MaxCalls int32
	Window   time.Duration
	// PerCaller: each username has the limit for itself. Else all share it.
	PerCaller bool
	// MaxWait bounds the wait of a call above MaxConcurrent; 0 means that it does
	// not wait.
	MaxWait time.Duration
}

// compileObligation reads what the rule's effect asks for. An obligation that
// cannot be met, or that asks for nothing, is left out and is an error: the CRD
// refuses such a rule, and one that is there nevertheless must not pass for one
// that is kept. The error names the field below the rule.
func (r *rule) compileObligation(s *v1alpha1.PolicyRule) (field string, err error) {
	switch s.Effect {
	case v1alpha1.EffectRequireApproval:
		if field, err = checkApproval(s.Approval); err == nil {
			r.approval = &Approval{
				Rule: r.ref, Approvers: s.Approval.Approvers,
				Required:    cmp.Or(s.Approval.RequiredApprovals, defaultRequiredApprovals),
				ExpireAfter: seconds(cmp.Or(s.Approval.ExpireAfterSeconds, defaultExpireAfterSeconds)),
			}
		}
	case v1alpha1.EffectLimit:
		if field, err = checkLimit(s.Limit); err == nil {
			r.limit = &Limit{
				Rule: r.ref, MaxConcurrent: s.Limit.MaxConcurrent, MaxCalls: s.Limit.MaxCalls, Window: seconds(s.Limit.WindowSeconds),
				PerCaller: s.Limit.Per != v1alpha1.LimitAll, MaxWait: seconds(defaultMaxWaitSeconds),
			}
			if s.Limit.MaxWaitSeconds != nil {
				r.limit.MaxWait = seconds(*s.Limit.MaxWaitSeconds)
			}
		}
	}
	return field, err
}

func checkApproval(a *v1alpha1.RuleApproval) (field string, err error) {
	switch {
	case a == nil:
		return "approval", errors.New("must be set with effect RequireApproval")
	case len(a.Approvers) == 0 || len(a.Approvers) > maxApprovers:
		return "approval.approvers", fmt.Errorf("%d approvers, must be 1 to %d", len(a.Approvers), maxApprovers)
	case a.RequiredApprovals < 0:
		return "approval.requiredApprovals", negative(a.RequiredApprovals)
	case a.ExpireAfterSeconds < 0:
		return "approval.expireAfterSeconds", negative(a.ExpireAfterSeconds)
	}
	return "", nil
}

func checkLimit(l *v1alpha1.RuleLimit) (field string, err error) {
	switch {
	case l == nil:
		return "limit", errors.New("must be set with effect Limit")
	case l.MaxConcurrent < 0:
		return "limit.maxConcurrent", negative(l.MaxConcurrent)
	case l.MaxCalls < 0:
		return "limit.maxCalls", negative(l.MaxCalls)
	case l.WindowSeconds < 0:
		return "limit.windowSeconds", negative(l.WindowSeconds)
	case l.MaxWaitSeconds != nil && *l.MaxWaitSeconds < 0:
		return "limit.maxWaitSeconds", negative(*l.MaxWaitSeconds)
	case (l.MaxCalls == 0) != (l.WindowSeconds == 0):
		return "limit.windowSeconds", errors.New("maxCalls and windowSeconds go together")
	case l.MaxConcurrent == 0 && l.MaxCalls == 0:
		return "limit", errors.New("at least one of maxConcurrent and maxCalls must be set")
	case l.Per != "" && l.Per != v1alpha1.LimitPerCaller && l.Per != v1alpha1.LimitAll:
		return "limit.per", fmt.Errorf("unknown scope %q, must be %s or %s", l.Per, v1alpha1.LimitPerCaller, v1alpha1.LimitAll)
	}
	return "", nil
}

func negative(n int32) error { return fmt.Errorf("%d must not be negative", n) }

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// RequiresApproval says whether the policy is enforced and has a RequireApproval
// rule that selects a Tool, whatever its condition and whoever calls. A rule of
// which it is not known what it selects counts.
func (p *Policy) RequiresApproval(t *v1alpha1.Tool) bool {
	if p.audit || !p.speaksOf(t) {
		return false
	}
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		return r.ref.Effect == v1alpha1.EffectRequireApproval && (r.selectsUnknown() || r.selects(t))
	})
}

// excess are the matching rules of one effect, if they are more than 64: the
// call cannot be allowed then, since none of them may be dropped. Else nil.
func (t *tally) excess() []*rule {
	for _, rules := range [][]*rule{t.approvals, t.limits} {
		if len(rules) > maxObligations {
			return rules
		}
	}
	return nil
}

// oblige lists the obligations in a decision, by policy and rule.
func (t *tally) oblige(d *Decision) {
	for _, r := range sortedRules(t.approvals) {
		d.Approvals = append(d.Approvals, *r.approval)
	}
	for _, r := range sortedRules(t.limits) {
		d.Limits = append(d.Limits, *r.limit)
	}
}

func sortedRules(rules []*rule) []*rule {
	return slices.SortedFunc(slices.Values(rules), func(a, b *rule) int { return compare(a.ref, b.ref) })
}
