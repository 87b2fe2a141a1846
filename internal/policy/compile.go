package policy

import (
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"callgate.dev/callgate/api/v1alpha1"
)

// Policy is a ToolPolicy or ClusterToolPolicy, compiled. It is safe for
// concurrent use.
type Policy struct {
	// Name is namespace/name, or the name of a ClusterToolPolicy.
	Name string

	namespace string // of the Tools it speaks of; empty means all
	audit     bool
	subjects  []v1alpha1.Subject
	rules     []rule
}

type rule struct {
	ref      v1alpha1.RuleReference
	message  string
	tools    v1alpha1.ToolSelector
	selector labels.Selector // nil selects all
	when     *condition      // nil is always true
	approval *Approval       // of a RequireApproval that can be met
	limit    *Limit          // of a Limit that bounds something
	broken   error           // names the field
}

// Compile compiles a ToolPolicy of a namespace, or a ClusterToolPolicy where
// namespace is empty. It never fails: a rule that cannot be read stays in, and
// counts against every call.
func Compile(namespace, name string, spec *v1alpha1.ToolPolicySpec) *Policy {
	p := &Policy{Name: name, namespace: namespace, audit: spec.Mode == v1alpha1.PolicyModeAudit, subjects: spec.Subjects}
	if namespace != "" {
		p.Name = namespace + "/" + name
	}
	for i := range spec.Rules {
		s := &spec.Rules[i]
		r := rule{
			ref:     v1alpha1.RuleReference{Policy: p.Name, Rule: s.Name, Effect: s.Effect},
			message: s.Message, tools: s.Tools,
		}
		if s.Tools.Selector != nil {
			var err error
			if r.selector, err = metav1.LabelSelectorAsSelector(s.Tools.Selector); err != nil {
				r.broken = fmt.Errorf("spec.rules[%d].tools.selector (rule %q): %w", i, s.Name, err)
			}
		}
		if s.When != "" {
			var err error
			if r.when, err = compileCondition(s.When); err != nil {
				r.broken = errors.Join(r.broken, fmt.Errorf("spec.rules[%d].when (rule %q): %w", i, s.Name, err))
			}
		}
		if field, err := r.compileObligation(s); err != nil {
			r.broken = errors.Join(r.broken, fmt.Errorf("spec.rules[%d].%s (rule %q): %w", i, field, s.Name, err))
		}
		p.rules = append(p.rules, r)
	}
	return p
}

// Err says which rules are broken; nil if none is.
func (p *Policy) Err() error {
	var all []error
	for i := range p.rules {
		all = append(all, p.rules[i].broken)
	}
	return errors.Join(all...)
}

// speaksOf says whether the policy speaks of Tools of this one's namespace.
func (p *Policy) speaksOf(t *v1alpha1.Tool) bool {
	return p.namespace == "" || p.namespace == t.Namespace
}

// selectsUnknown: the selector does not compile, and nobody knows which Tools the
// rule speaks of.
func (r *rule) selectsUnknown() bool { return r.selector == nil && r.tools.Selector != nil }

// selects says whether a rule speaks of a Tool, whatever its condition.
func (r *rule) selects(t *v1alpha1.Tool) bool {
	sel := &r.tools
	switch {
	case len(sel.Names) > 0 && !slices.Contains(sel.Names, "*") && !slices.Contains(sel.Names, t.Name),
		len(sel.SideEffects) > 0 && !slices.Contains(sel.SideEffects, sideEffects(t)),
		len(sel.Namespaces) > 0 && !slices.Contains(sel.Namespaces, t.Namespace),
		r.selector != nil && !r.selector.Matches(labels.Set(t.Labels)):
		return false
	}
	// A rule that selects by nothing selects nothing; the CRD refuses it.
	return len(sel.Names)+len(sel.SideEffects)+len(sel.Namespaces) > 0 || sel.Selector != nil
}

func sideEffects(t *v1alpha1.Tool) v1alpha1.SideEffects {
	if t.Spec.SideEffects == "" {
		return v1alpha1.SideEffectsNonIdempotent
	}
	return t.Spec.SideEffects
}

// Arguments says whether the conditions of a policy read only arguments that
// the Tools they select declare: unknown lists those that no selected Tool
// declares, unguarded those that are read without has() and that some selected
// Tool does not require. Each entry names the field of the policy. The
// functions tell what a Tool's inputSchema declares and requires.
func (p *Policy) Arguments(tools []v1alpha1.Tool, declares, requires func(*v1alpha1.Tool, string) bool) (unknown, unguarded []string) {
	for i := range p.rules {
		r := &p.rules[i]
		if r.when == nil || r.broken != nil {
			continue
		}
		var selected []*v1alpha1.Tool
		for j := range tools {
			if p.speaksOf(&tools[j]) && r.selects(&tools[j]) {
				selected = append(selected, &tools[j])
			}
		}
		if len(selected) == 0 {
			continue
		}
		names := slices.Concat(r.when.arguments, r.when.guarded)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			at := fmt.Sprintf("spec.rules[%d].when (rule %q): args.%s", i, r.ref.Rule, name)
			if !slices.ContainsFunc(selected, func(t *v1alpha1.Tool) bool { return declares(t, name) }) {
				unknown = append(unknown, at)
				continue
			}
			if slices.Contains(r.when.guarded, name) {
				continue
			}
			for _, t := range selected {
				if !requires(t, name) {
					unguarded = append(unguarded, fmt.Sprintf("%s, which Tool %s/%s does not require", at, t.Namespace, t.Name))
					break
				}
			}
		}
	}
	return unknown, unguarded
}
