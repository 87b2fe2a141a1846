package gate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/policy"
)

// Bounds of what a message lists and quotes: everything is in status.approvals
// and in the approvals themselves.
const (
	maxRulesNamed     = 3
	maxApproversNamed = 4
	maxUncounted      = 3
	maxNameBytes      = 100 // of a user, group, policy or object
)

// maxGranted bounds the names in status.approvals[].granted; the CRD has the
// same bound, and a rule asks for at most 16.
const maxGranted = 32

// Approving is everything that the decision whether the persons who must agree
// to a call did agree looks at.
type Approving struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	// Tool and ArgsDigest that the call is decided with.
	Tool       *v1alpha1.Tool
	ArgsDigest string
	// Rules that ask for approval of this call, in any order.
	Rules []policy.Approval
	// Approvals of the call's namespace that name the call, in any order.
	Approvals []v1alpha1.ToolCallApproval
	// StampedSince is from when on the name in spec.approver is proven; zero
	// means always.
	StampedSince time.Time
}

// Approved is the verdict of [Approve], and what it found on its way.
type Approved struct {
	// Verdict is empty if every rule is met.
	Verdict
	// Met: every rule has its approvals.
	Met bool
	// Status and Digest are for status.approvals and status.approvalDigest; both
	// are empty if no rule asks.
	Status []v1alpha1.ApprovalStatus
	Digest string
}

// Approve decides whether a call has the approvals that its rules ask for. The
// order of rules and approvals changes nothing.
//
// A Deny by one who may approve ends the call at once, whatever else is there:
// also if the Tool was changed since, and also if its stamp is not proven. A no
// that is wrongly believed costs a retry, one that is wrongly ignored cannot be
// made good.
func Approve(a Approving) Approved {
	if len(a.Rules) == 0 {
		return Approved{Met: true}
	}
	out := Approved{Digest: ApprovalDigest(a.Call, a.ArgsDigest, a.Tool)}
	rules := ask(a, out.Digest)
	var denial *v1alpha1.ToolCallApproval
	var rest []uncounted
	unproven := false
	for i := range a.Approvals {
		p := &a.Approvals[i]
		if p.Namespace != a.Call.Namespace || p.Spec.ToolCallRef.Name != a.Call.Name {
			continue
		}
		why := noSay(a, rules, p)
		if why == "" && p.Spec.Decision == v1alpha1.DecisionDeny {
			denial = earlierDenial(denial, p)
			continue
		}
		if why == "" {
			why = outdated(a, out.Digest, p)
		}
		if why == "" {
			why = grant(rules, p)
		}
		if why != "" {
			rest = append(rest, uncounted{p, why})
			unproven = unproven || why == unstamped && a.StampedSince.After(a.Now)
		}
	}
	var unmet []asked
	for i := range rules {
		out.Status = append(out.Status, rules[i].status())
		if !rules[i].met() {
			unmet = append(unmet, rules[i])
		}
	}
	out.Verdict = approval(a, denial, unmet, rest, unproven)
	out.Met = denial == nil && len(unmet) == 0
	return out
}

// approval is the verdict of what was found. unproven says that an approval is
// among the rest which may count as soon as stamping is proven again.
func approval(a Approving, denial *v1alpha1.ToolCallApproval, unmet []asked, rest []uncounted, unproven bool) Verdict {
	if denial != nil {
		return end(v1alpha1.ErrorApprovalDenied, false, "denied by %s in ToolCallApproval %s: %s",
			shortName(denial.Spec.Approver.Username), shortName(denial.Name), cmp.Or(denial.Spec.Reason, "no reason given"))
	}
	if len(unmet) == 0 {
		return Verdict{}
	}
	expires := unmet[0].expires
	for _, r := range unmet {
		if r.expires.Before(expires) {
			expires = r.expires
		}
	}
	words := missing(unmet) + notCounted(rest)
	if d := deadline(a.Call); !d.IsZero() && !a.Now.Before(d) {
		return end(v1alpha1.ErrorApprovalExpired, true, "not approved within the call's deadlineSeconds (%d): %s", a.Call.Spec.DeadlineSeconds, words)
	} else if !d.IsZero() && d.Before(expires) {
		expires = d
	}
	waiting := wait(ActNone, v1alpha1.ReasonAwaitingApproval, "waiting for approval: "+words, expires.Sub(a.Now))
	if unproven {
		// Nobody tells a call when stamping is proven.
		waiting.After = time.Second
		expires = expires.Add(maxStampingWait)
	}
	// Only now: an approval that was given in time counts whenever it is seen.
	if a.Now.After(expires) {
		return end(v1alpha1.ErrorApprovalExpired, true, "not approved in time: %s", words)
	}
	return waiting
}

// ApprovalDigest names exactly what is to be approved: this call with these
// arguments, and the Tool as it is. It is the SHA-256, in hex, of the call's UID,
// the digest of its arguments, and the Tool's UID and generation.
func ApprovalDigest(call *v1alpha1.ToolCall, argsDigest string, tool *v1alpha1.Tool) string {
	// Quoted, no text can end where another begins.
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d", call.UID, argsDigest, tool.UID, tool.Generation))
	return hex.EncodeToString(sum[:])
}

// toolChangeTime is when the Tool became what it is, by the API server's clock in
// whole seconds; false if that cannot be known.
//
// It is known only of a Tool that was never changed. The times in managedFields
// do not tell it of another: a field that is removed by somebody who never set
// one leaves all of them as they were, and whoever may update a Tool may also
// write them.
func toolChangeTime(t *v1alpha1.Tool) (time.Time, bool) {
	return t.CreationTimestamp.Time, t.Generation == 1
}

// asked is one rule, and who has approved.
type asked struct {
	policy.Approval
	expires time.Time
	granted map[string]bool // usernames
}

// ask lists the rules, sorted. A rule that was asked before, for the same state
// of things, keeps its time; otherwise its time begins now.
func ask(a Approving, digest string) []asked {
	rules := make([]asked, 0, len(a.Rules))
	for _, r := range a.Rules {
		rules = append(rules, asked{r, roundUp(a.Now.Add(r.ExpireAfter)), map[string]bool{}})
	}
	slices.SortFunc(rules, func(x, y asked) int {
		return cmp.Or(strings.Compare(x.Rule.Policy, y.Rule.Policy), strings.Compare(x.Rule.Rule, y.Rule.Rule))
	})
	if a.Call.Status.ApprovalDigest != digest {
		return rules
	}
	for _, s := range a.Call.Status.Approvals {
		for i := range rules {
			if rules[i].Rule.Policy == s.Policy && rules[i].Rule.Rule == s.Rule {
				rules[i].expires = s.ExpireTime.UTC()
			}
		}
	}
	return rules
}

// roundUp makes whole seconds, as the API stores them: the time of a first look
// is that of the later ones.
func roundUp(t time.Time) time.Time {
	if down := t.UTC().Truncate(time.Second); down.Before(t) {
		return down.Add(time.Second)
	}
	return t.UTC()
}

func (r *asked) met() bool { return len(r.granted) >= max(1, int(r.Required)) }

func (r *asked) status() v1alpha1.ApprovalStatus {
	granted := slices.Sorted(maps.Keys(r.granted))
	return v1alpha1.ApprovalStatus{
		// A status is decoded into when it was written; the policy's list must not be.
		Policy: r.Rule.Policy, Rule: r.Rule.Rule, Approvers: slices.Clone(r.Approvers), RequiredApprovals: r.Required,
		Granted: granted[:min(len(granted), maxGranted)], ExpireTime: metav1.NewTime(r.expires),
	}
}

// noSay is why somebody has no say in this call, neither yes nor no; empty if
// they have.
func noSay(a Approving, rules []asked, p *v1alpha1.ToolCallApproval) string {
	who, requester := p.Spec.Approver, a.Call.Spec.Requester
	switch {
	case p.Spec.ToolCallRef.UID != a.Call.UID:
		return otherCall
	case who == nil || who.Username == "":
		return "its spec.approver is empty: create it again"
	case requester == nil || who.Username == requester.Username:
		return "its approver created the call"
	}
	for i := range rules {
		if policy.Includes(rules[i].Approvers, *who) {
			return ""
		}
	}
	return "its approver is not among those who may approve"
}

const otherCall = "spec.toolCallRef.uid is not that of this call"

const unstamped = "it was created while it was not proven that the API server stamps spec.approver: create it again"

const quoteDigest = ": approve again with the call's status.approvalDigest as spec.toolCallRef.approvalDigest"

// outdated is why an approval is not one of what is to be approved now; empty if
// it is.
func outdated(a Approving, digest string, p *v1alpha1.ToolCallApproval) string {
	since, known := toolChangeTime(a.Tool)
	quoted := p.Spec.ToolCallRef.ApprovalDigest
	switch {
	case p.Spec.Decision != v1alpha1.DecisionApprove:
		return "its spec.decision is unknown"
	case p.CreationTimestamp.Time.Before(a.StampedSince):
		return unstamped
	case quoted == digest:
		return ""
	case quoted != "":
		return "it is for another state of the Tool" + quoteDigest
	case !known:
		return "it may be for another state of the Tool, which was changed after its creation" + quoteDigest
	case !p.CreationTimestamp.Time.After(since):
		// Within one second the clock does not say which was first.
		return "it may be for another Tool: it is not younger than this one" + quoteDigest
	}
	return ""
}

// grant lets an approval count for every rule that lists its approver; otherwise
// it says why it counts for none.
func grant(rules []asked, p *v1alpha1.ToolCallApproval) (why string) {
	why = "it was created too late"
	for i := range rules {
		if r := &rules[i]; policy.Includes(r.Approvers, *p.Spec.Approver) && !p.CreationTimestamp.Time.After(r.expires) {
			r.granted[p.Spec.Approver.Username] = true
			why = ""
		}
	}
	return why
}

func earlierDenial(x, y *v1alpha1.ToolCallApproval) *v1alpha1.ToolCallApproval {
	if x == nil || cmp.Or(y.CreationTimestamp.Time.Compare(x.CreationTimestamp.Time), strings.Compare(y.Name, x.Name)) < 0 {
		return y
	}
	return x
}

// missing says what each rule still needs, from whom and until when.
func missing(unmet []asked) string {
	return list(unmet, maxRulesNamed, "; ", func(r asked) string {
		return fmt.Sprintf("%d of %d by %s for rule %q of policy %s until %s", len(r.granted), max(1, r.Required),
			list(r.Approvers, maxApproversNamed, ", ", subjectText), r.Rule.Rule, shortName(r.Rule.Policy), r.expires.Format(time.RFC3339))
	})
}

func subjectText(s v1alpha1.Subject) string {
	if s.Namespace != "" {
		return fmt.Sprintf("%s %s/%s", s.Kind, s.Namespace, shortName(s.Name))
	}
	return fmt.Sprintf("%s %s", s.Kind, shortName(s.Name))
}

// uncounted is an approval, and why it does not count.
type uncounted struct {
	*v1alpha1.ToolCallApproval
	why string
}

// notCounted says why approvals do not count, sorted by name. Those of an earlier
// call of this name come last: they are not news.
func notCounted(rest []uncounted) string {
	if len(rest) == 0 {
		return ""
	}
	slices.SortFunc(rest, func(x, y uncounted) int {
		if (x.why == otherCall) != (y.why == otherCall) {
			if y.why == otherCall {
				return -1
			}
			return 1
		}
		return strings.Compare(x.Name, y.Name)
	})
	return ". " + list(rest, maxUncounted, "; ", func(u uncounted) string {
		of := ""
		if u.Spec.Approver != nil && u.Spec.Approver.Username != "" {
			of = " of " + shortName(u.Spec.Approver.Username)
		}
		return fmt.Sprintf("ToolCallApproval %s%s does not count: %s", shortName(u.Name), of, u.why)
	})
}

func shortName(name string) string { return jsonvalue.Cut(name, maxNameBytes) }

// list lists at most limit of a list, and says how many more there are.
func list[T any](all []T, limit int, separator string, text func(T) string) string {
	var parts []string
	for i, v := range all {
		if i == limit {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-limit))
			break
		}
		parts = append(parts, text(v))
	}
	return strings.Join(parts, separator)
}
