// Package policy decides which calls the policies of a Tool allow. It is pure:
// compiled policies, Tool, caller and arguments in, one explained decision out.
package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
)

// maxMatched bounds the rules that a decision lists; status.decision has the
// same bound.
const maxMatched = 64

// maxErrorBytes bounds what a refusal quotes of a rule's error.
const maxErrorBytes = 300

// serviceAccountPrefix is what Kubernetes puts before NAMESPACE:NAME in the
// username of a ServiceAccount.
const serviceAccountPrefix = "system:serviceaccount:"

// Input is what a decision is about.
type Input struct {
	Tool      *v1alpha1.Tool
	Requester v1alpha1.Requester
	// Namespace and Context of the call.
	Namespace string
	Context   map[string]v1alpha1.ContextValue
	Now       time.Time
	// Args are the arguments as [Arguments] makes them; nil before they are
	// known to be valid. Without them, rules whose condition reads args stay open.
	Args map[string]any
}

// Decision is what the policies say to one call.
type Decision struct {
	// Allowed says whether the call may run. Without Input.Args it only says that
	// the call is not refused yet.
	Allowed bool
	// Decisive is the Allow that granted, or the rule that refused: a Deny, or one
	// with an effect or an obligation that this version cannot keep. It is nil when
	// there was none: nothing granted, or too many obligations match.
	Decisive *v1alpha1.RuleReference
	// Matched are the rules that matched, obligations among them, sorted, at most 64.
	Matched []v1alpha1.RuleReference
	// Approvals and Limits are what the call must meet before it runs, all that
	// match, sorted by policy and rule, each at most 64. They are known only of an
	// Allowed call with Input.Args.
	Approvals []Approval
	Limits    []Limit
	// Message explains a refusal to the caller: who, what, and what to do.
	Message string
	// Audit is the decision with the policies in mode Audit enforced, too; nil if
	// none of their rules matched.
	Audit *v1alpha1.AuditDecision
}

// Decide judges a call. policies are all that may speak of the Tool, in any
// order: the order changes nothing. Deny beats every Allow, and without an
// Allow the answer is no; RequireApproval and Limit grant and refuse nothing,
// they are listed. A rule that is broken, or whose condition fails on this call,
// counts against it: an Allow does not match, any other effect does. An effect
// that this version does not know refuses, and so does an obligation that cannot
// be met.
func Decide(in Input, policies []*Policy) Decision {
	var enforced, audited tally
	seen := variables(in)
	for _, p := range policies {
		if !p.speaksOf(in.Tool) || !Includes(p.subjects, in.Requester) {
			continue
		}
		for i := range p.rules {
			r := &p.rules[i]
			m, err := r.on(in, seen)
			if p.audit {
				audited.add(r, m, err)
			} else {
				enforced.add(r, m, err)
			}
		}
	}
	d := enforced.decide(in)
	if len(audited.matched) > 0 {
		all := enforced
		all.merge(&audited)
		would := all.decide(in)
		d.Audit = &v1alpha1.AuditDecision{Allowed: &would.Allowed, DecisiveRule: would.Decisive, MatchedRules: sorted(audited.matched)}
	}
	return d
}

// match is what a rule says to a call.
type match int

const (
	other match = iota // it speaks of other Tools
	unmet              // its condition does not hold
	open               // decided only with the arguments
	yes
)

// on judges a call by one rule. The error says why a rule that could not be
// evaluated counts as it does.
func (r *rule) on(in Input, seen map[string]any) (match, error) {
	against := yes
	if r.ref.Effect == v1alpha1.EffectAllow {
		against = unmet
	}
	switch {
	case r.selectsUnknown():
		return against, r.broken
	case !r.selects(in.Tool):
		return other, nil
	case r.broken != nil:
		return against, r.broken
	case r.when == nil:
		return yes, nil
	case r.when.readsArgs && in.Args == nil:
		return open, nil
	}
	matches, err := r.when.eval(seen)
	switch {
	case err != nil:
		return against, err
	case matches:
		return yes, nil
	}
	return unmet, nil
}

// tally collects what rules say, independent of their order: of several, the
// first by name counts.
type tally struct {
	matched                 []v1alpha1.RuleReference
	allow, deny, unmetAllow said
	openAllow               bool
	approvals, limits       []*rule // that matched, in the order of the list
}

// said is a rule, and why it could not be evaluated if so.
type said struct {
	rule *rule
	err  error
}

func (t *tally) add(r *rule, m match, err error) {
	allows := r.ref.Effect == v1alpha1.EffectAllow
	switch {
	case m == yes && allows:
		t.allow = first(t.allow, said{r, err})
	case m == yes && r.approval != nil:
		t.approvals = append(t.approvals, r)
	case m == yes && r.limit != nil:
		t.limits = append(t.limits, r)
	case m == yes:
		// All the rest refuses: an effect that this version does not know, or an
		// obligation that asks for nothing, must not be skipped.
		t.deny = first(t.deny, said{r, err})
	case m == open && allows:
		t.openAllow = true
	case m == unmet && allows:
		t.unmetAllow = first(t.unmetAllow, said{r, err})
	}
	if m == yes {
		t.matched = append(t.matched, r.ref)
	}
}

func (t *tally) merge(other *tally) {
	t.allow, t.deny, t.unmetAllow = first(t.allow, other.allow), first(t.deny, other.deny), first(t.unmetAllow, other.unmetAllow)
	t.openAllow = t.openAllow || other.openAllow
	t.approvals, t.limits = slices.Concat(t.approvals, other.approvals), slices.Concat(t.limits, other.limits)
}

func (t *tally) decide(in Input) Decision {
	d := Decision{Matched: sorted(t.matched)}
	tool, who := in.Tool.Namespace+"/"+in.Tool.Name, in.Requester.Username
	switch {
	case t.deny.rule != nil:
		d.Decisive = &t.deny.rule.ref
		d.Message = fmt.Sprintf("%s refuses calls of Tool %s by %s", t.deny, tool, who)
		if m := t.deny.rule.message; m != "" {
			d.Message += ": " + m
		}
		if t.deny.err != nil {
			d.Message += "; the rule counts against the call since it could not be evaluated: " + short(t.deny.err)
		}
		if t.allow.rule == nil && !t.openAllow {
			d.Message += "; and no policy allows it, either"
		}
	case t.allow.rule != nil && in.Args != nil && t.excess() != nil:
		all := sortedRules(t.excess())
		d.Message = fmt.Sprintf("%d %s rules match calls of Tool %s by %s, at most %d can be met: the first is %s; the owners of the policies can join some of them",
			len(all), all[0].ref.Effect, tool, who, maxObligations, said{rule: all[0]})
	case t.allow.rule != nil:
		d.Decisive, d.Allowed = &t.allow.rule.ref, true
		if in.Args != nil {
			t.oblige(&d)
		}
	case t.openAllow:
		d.Allowed = true
	case t.unmetAllow.err != nil:
		d.Message = fmt.Sprintf("no policy allows %s to call Tool %s: %s could not be evaluated: %s", who, tool, t.unmetAllow, short(t.unmetAllow.err))
	case t.unmetAllow.rule != nil:
		d.Message = fmt.Sprintf("no policy allows %s to call Tool %s with these arguments and in this context: the condition of %s is not met", who, tool, t.unmetAllow)
	default:
		d.Message = fmt.Sprintf("no policy allows %s to call Tool %s: without an Allow rule for both nothing is allowed, Deny rules alone grant nothing; "+
			"the owner of namespace %q can add one to a ToolPolicy", who, tool, in.Tool.Namespace)
	}
	return d
}

// String names the rule as a person looks for it.
func (s said) String() string {
	return fmt.Sprintf("%s, rule %q (%s)", kindAndName(s.rule.ref.Policy), s.rule.ref.Rule, s.rule.ref.Effect)
}

// short is an error in one line of bounded length.
func short(err error) string {
	return jsonvalue.Cut(jsonvalue.Printable(strings.ReplaceAll(err.Error(), "\n", "; ")), maxErrorBytes)
}

func kindAndName(policy string) string {
	if strings.Contains(policy, "/") {
		return "ToolPolicy " + policy
	}
	return "ClusterToolPolicy " + policy
}

// first is the smaller of two rules, so that the decisive rule does not depend
// on the order of a list.
func first(a, b said) said {
	if b.rule == nil || a.rule != nil && compare(a.rule.ref, b.rule.ref) <= 0 {
		return a
	}
	return b
}

func sorted(refs []v1alpha1.RuleReference) []v1alpha1.RuleReference {
	slices.SortFunc(refs, compare)
	return refs[:min(len(refs), maxMatched)]
}

func compare(a, b v1alpha1.RuleReference) int {
	if c := strings.Compare(a.Policy, b.Policy); c != 0 {
		return c
	}
	return strings.Compare(a.Rule, b.Rule)
}

// Includes says whether one of the subjects is who: the user of that name, a
// member of the group, or the ServiceAccount. A kind that this version does not
// know includes nobody.
func Includes(subjects []v1alpha1.Subject, who v1alpha1.Requester) bool {
	return slices.ContainsFunc(subjects, func(s v1alpha1.Subject) bool {
		switch s.Kind {
		case v1alpha1.SubjectUser:
			return who.Username == s.Name
		case v1alpha1.SubjectGroup:
			return slices.Contains(who.Groups, s.Name)
		case v1alpha1.SubjectServiceAccount:
			return s.Namespace != "" && isServiceAccount(who.Username, s.Namespace, s.Name)
		}
		return false
	})
}

// isServiceAccount compares without building the username: a decision asks this
// of every policy.
func isServiceAccount(username, namespace, name string) bool {
	rest, ok := strings.CutPrefix(username, serviceAccountPrefix)
	if ok {
		rest, ok = strings.CutPrefix(rest, namespace)
	}
	if ok {
		rest, ok = strings.CutPrefix(rest, ":")
	}
	return ok && rest == name
}

// variables are what a condition sees.
func variables(in Input) map[string]any {
	serviceAccount := "" // namespace/name, empty for anybody else
	if rest, ok := strings.CutPrefix(in.Requester.Username, serviceAccountPrefix); ok {
		serviceAccount = strings.Replace(rest, ":", "/", 1)
	}
	labels := in.Tool.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	context := make(map[string]string, len(in.Context))
	for k, v := range in.Context {
		context[k] = string(v)
	}
	groups := in.Requester.Groups
	if groups == nil {
		groups = []string{}
	}
	v := map[string]any{
		"caller": map[string]any{"username": in.Requester.Username, "groups": groups, "serviceAccount": serviceAccount},
		"tool":   map[string]any{"name": in.Tool.Name, "namespace": in.Tool.Namespace, "labels": labels, "sideEffects": string(sideEffects(in.Tool))},
		"call":   map[string]any{"namespace": in.Namespace, "context": context},
		"now":    in.Now,
	}
	if in.Args != nil {
		v["args"] = in.Args
	}
	return v
}

// Arguments turns decoded JSON (numbers as json.Number) into what a condition
// reads: an int64 where the number is one, else a double.
func Arguments(decoded map[string]any) map[string]any {
	out := make(map[string]any, len(decoded))
	for k, v := range decoded {
		out[k] = argument(v)
	}
	return out
}

func argument(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64() // out of range is infinite, and no limit allows that
		return f
	case map[string]any:
		return Arguments(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = argument(v[i])
		}
		return out
	}
	return v
}
