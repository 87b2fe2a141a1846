// Package policy decides which calls the ToolPolicies of a namespace allow. It
// is pure: policies, Tool and caller in, one explained decision out.
package policy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"callgate.dev/callgate/api/v1alpha1"
)

// maxMatched bounds the rules that a decision lists; status.decision has the
// same bound.
const maxMatched = 64

// Decision is what the policies say to one call.
type Decision struct {
	// Allowed says whether the call may run.
	Allowed bool
	// Decisive is the rule that decided; nil when no rule matched.
	Decisive *v1alpha1.RuleReference
	// Matched are the rules that matched, sorted, at most 64.
	Matched []v1alpha1.RuleReference
	// Message explains a refusal to the caller: who, what, and what to do.
	Message string
}

// Decide judges a call of tool by requester. policies are all those of the
// Tool's namespace, in any order: the order changes nothing. Deny beats every
// Allow, and without an Allow the answer is no.
func Decide(tool *v1alpha1.Tool, requester v1alpha1.Requester, policies []v1alpha1.ToolPolicy) Decision {
	var d Decision
	var allow, deny *v1alpha1.RuleReference
	var denyMessage string
	for i := range policies {
		p := &policies[i]
		if !slices.ContainsFunc(p.Spec.Subjects, func(s v1alpha1.Subject) bool { return isSubject(s, requester) }) {
			continue
		}
		for j := range p.Spec.Rules {
			rule := &p.Spec.Rules[j]
			if !matches(rule, tool) {
				continue
			}
			ref := v1alpha1.RuleReference{Policy: p.Namespace + "/" + p.Name, Rule: rule.Name, Effect: rule.Effect}
			d.Matched = append(d.Matched, ref)
			switch {
			case rule.Effect == v1alpha1.EffectAllow:
				allow = first(allow, ref)
			default:
				// Everything but Allow refuses: an effect that this version does
				// not know must not be skipped.
				if deny = first(deny, ref); *deny == ref {
					denyMessage = rule.Message
				}
			}
		}
	}
	slices.SortFunc(d.Matched, compare)
	if len(d.Matched) > maxMatched {
		d.Matched = d.Matched[:maxMatched]
	}
	switch {
	case deny != nil:
		d.Decisive = deny
		d.Message = fmt.Sprintf("ToolPolicy %s, rule %q (%s) refuses calls of Tool %s/%s by %s",
			deny.Policy, deny.Rule, deny.Effect, tool.Namespace, tool.Name, requester.Username)
		if denyMessage != "" {
			d.Message += ": " + denyMessage
		}
	case allow != nil:
		d.Decisive, d.Allowed = allow, true
	default:
		d.Message = fmt.Sprintf("no ToolPolicy in namespace %q allows %s to call Tool %s: "+
			"the owner of that namespace can add an Allow rule", tool.Namespace, requester.Username, tool.Name)
	}
	return d
}

// first keeps the smaller of two rules, so that the decisive rule does not
// depend on the order of a list.
func first(a *v1alpha1.RuleReference, b v1alpha1.RuleReference) *v1alpha1.RuleReference {
	if a != nil && compare(*a, b) <= 0 {
		return a
	}
	return &b
}

func compare(a, b v1alpha1.RuleReference) int {
	if c := strings.Compare(a.Policy, b.Policy); c != 0 {
		return c
	}
	return strings.Compare(a.Rule, b.Rule)
}

func isSubject(s v1alpha1.Subject, r v1alpha1.Requester) bool {
	switch s.Kind {
	case v1alpha1.SubjectUser:
		return r.Username == s.Name
	case v1alpha1.SubjectGroup:
		return slices.Contains(r.Groups, s.Name)
	case v1alpha1.SubjectServiceAccount:
		return s.Namespace != "" && r.Username == "system:serviceaccount:"+s.Namespace+":"+s.Name
	}
	return false
}

// matches says whether a rule speaks of a Tool. A rule whose selector cannot
// be read counts against the call: a broken Allow never matches, anything else
// always does.
func matches(rule *v1alpha1.PolicyRule, tool *v1alpha1.Tool) bool {
	sel := rule.Tools
	if len(sel.Names) > 0 && !slices.Contains(sel.Names, "*") && !slices.Contains(sel.Names, tool.Name) {
		return false
	}
	if len(sel.SideEffects) > 0 && !slices.Contains(sel.SideEffects, sideEffects(tool)) {
		return false
	}
	if sel.Selector != nil {
		s, err := metav1.LabelSelectorAsSelector(sel.Selector)
		if err != nil {
			return rule.Effect != v1alpha1.EffectAllow
		}
		return s.Matches(labels.Set(tool.Labels))
	}
	// A rule that selects by nothing selects nothing; the CRD refuses it.
	return len(sel.Names) > 0 || len(sel.SideEffects) > 0
}

func sideEffects(t *v1alpha1.Tool) v1alpha1.SideEffects {
	if t.Spec.SideEffects == "" {
		return v1alpha1.SideEffectsNonIdempotent
	}
	return t.Spec.SideEffects
}

// Check says what is wrong with a policy that the CRD accepted: nil, or an
// error that names the field.
func Check(p *v1alpha1.ToolPolicy) error {
	for i := range p.Spec.Rules {
		if s := p.Spec.Rules[i].Tools.Selector; s != nil {
			if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
				return fmt.Errorf("spec.rules[%d].tools.selector (rule %q): %w", i, p.Spec.Rules[i].Name, err)
			}
		}
	}
	return nil
}
