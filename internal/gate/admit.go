package gate

import (
	"fmt"
	"strings"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/policy"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/schema"
	"callgate.dev/callgate/internal/template"
)

const (
	// settle is how much younger than the last change of the stamping policies
	// a call must be: for so long the API server may still use the old ones.
	settle = 10 * time.Second
	// maxStampingWait bounds the wait for stamping to be proven.
	maxStampingWait = 10 * time.Minute
	// confirmAge is the age up to which a refusal by default is confirmed with
	// a read past the cache, so that "kubectl apply -f dir/" never loses
	// against it.
	confirmAge = 5 * time.Second
)

// Stamping is what is known of the admission policies that write spec.requester.
type Stamping struct {
	// Proven: a forged requester was overwritten when last tried.
	Proven bool
	// LastChange is when the policies last changed, by the API server's clock.
	LastChange time.Time
	// Message says what is wrong while Proven is false; empty before the first
	// trial has ended.
	Message string
}

// Tried says whether anything is known yet.
func (s Stamping) Tried() bool { return s.Proven || s.Message != "" }

// Since is when a name that was stamped can be trusted from: never, as long as
// stamping is not proven.
func (s Stamping) Since() time.Time {
	if !s.Proven {
		return time.Unix(1<<40, 0)
	}
	return s.LastChange.Add(settle)
}

// Admission is everything that the decision whether a call may run looks at.
type Admission struct {
	Now      time.Time
	Call     *v1alpha1.ToolCall
	Stamping Stamping
	// Tools that the call's toolRef names, in its namespace: usually one.
	Tools []v1alpha1.Tool
	// Policies of the Tool's namespace, and those of all namespaces.
	Policies []*policy.Policy
	// Confirmed: Tools and Policies were read past the cache.
	Confirmed bool
	// InputSchema of the Tool, compiled; nil if it does not compile.
	InputSchema *schema.Schema
	// ToolSeen is when the Tool, as it is now, was first seen; zero if it always
	// was so.
	ToolSeen time.Time
}

// Admitted is the verdict of [Admit], and what it found on its way.
type Admitted struct {
	Verdict
	// ArgsDigest is set once the call was judged.
	ArgsDigest string
	// Tool the call is decided with; nil if there is none.
	Tool     *v1alpha1.Tool
	Decision *v1alpha1.PolicyDecision
	// Command is the final argv, if the call may run.
	Command []string
	// Approvals and Limits are the obligations of the rules that match.
	Approvals []policy.Approval
	Limits    []policy.Limit
}

// Admit decides whether a call may run. It reads in the order of the design's
// picture: who asked, lookup, authorize by what is known without the arguments,
// readiness, validate, authorize by the arguments. So a caller that nothing
// allows learns nothing of a schema, and a wrong type is always
// invalid_arguments.
func Admit(a Admission) Admitted {
	// What was judged before stands until it is judged anew.
	out := Admitted{ArgsDigest: a.Call.Status.ArgsDigest, Decision: a.Call.Status.Decision}
	for _, check := range []func(Admission, *Admitted) (Verdict, bool){
		cancelled, requester, lookup, authorizeCaller, ready, validate, authorizeArguments,
	} {
		if v, stop := check(a, &out); stop {
			out.Verdict, out.Command = withDeadline(v, a.Call, a.Now), nil
			return out
		}
	}
	// Start looks at the call's deadline: it knows what the sandbox waits for.
	out.Verdict = Verdict{Reason: v1alpha1.ReasonStarting}
	return out
}

func cancelled(a Admission, _ *Admitted) (Verdict, bool) {
	if by := withdrawn(a.Call); by != "" {
		return end(v1alpha1.ErrorCancelled, false, "cancelled by %s before the tool was started", by), true
	}
	return Verdict{}, false
}

// withdrawn is what says that nobody wants a call any more; empty if it is wanted.
// A call that is deleted is still seen as long as a finalizer keeps it.
func withdrawn(call *v1alpha1.ToolCall) (by string) {
	switch {
	case call.Spec.Cancel:
		return "spec.cancel"
	case call.DeletionTimestamp != nil:
		return "the deletion of the call"
	}
	return ""
}

// requester judges once, when the call is first seen, whether the name in
// spec.requester can be trusted. The stored digest is the proof that it was:
// later changes of the policies do not revoke it.
func requester(a Admission, out *Admitted) (Verdict, bool) {
	digest, err := jsonvalue.CanonicalDigest(Args(a.Call))
	if err != nil {
		// What has no digest is refused for its arguments, after the other checks.
		digest = "none"
	}
	judged := a.Call.Status.ArgsDigest
	if judged != "" && judged != digest {
		return end(v1alpha1.ErrorToolNotAllowed, false, "spec.args changed after the call was judged: create a new call"), true
	}
	if judged == "" && !a.Stamping.Proven {
		if a.Now.Sub(a.Call.CreationTimestamp.Time) > maxStampingWait {
			return end(v1alpha1.ErrorInternal, true, "for %s it could not be proven that the API server stamps who asked and who approved: %s",
				maxStampingWait, a.Stamping.Message), true
		}
		return wait(ActNone, v1alpha1.ReasonPending, "waiting for proof that the API server stamps who asked and who approved: "+a.Stamping.Message, time.Second), true
	}
	out.ArgsDigest = digest
	if judged == "" && a.Call.CreationTimestamp.Time.Before(a.Stamping.LastChange.Add(settle)) {
		return end(v1alpha1.ErrorToolNotAllowed, false,
			"created while stamping was not proven (less than %s after the last change of Callgate's admission policies): create it again", settle), true
	}
	if a.Call.Spec.Requester == nil || a.Call.Spec.Requester.Username == "" {
		return end(v1alpha1.ErrorToolNotAllowed, false, "spec.requester is empty: create the call again"), true
	}
	return Verdict{}, false
}

func lookup(a Admission, out *Admitted) (Verdict, bool) {
	if len(a.Tools) == 0 {
		if !a.Confirmed {
			return Verdict{Act: ActConfirm, Reason: v1alpha1.ReasonPending}, true
		}
		return end(v1alpha1.ErrorToolNotFound, false, "there is no Tool with %s in namespace %q: kubectl get tools -n %[2]s lists them",
			refText(a.Call.Spec.ToolRef), ToolNamespace(a.Call)), true
	}
	out.Tool = &a.Tools[0]
	for i := range a.Tools {
		// Of two with one function name neither runs; which one is named must not
		// depend on the order of a cache.
		if a.Tools[i].Name < out.Tool.Name {
			out.Tool = &a.Tools[i]
		}
	}
	return Verdict{}, false
}

func refText(ref v1alpha1.ToolReference) string {
	if ref.Name != "" {
		return fmt.Sprintf("name %q", ref.Name)
	}
	return fmt.Sprintf("functionName %q", ref.FunctionName)
}

// ToolNamespace is the namespace that a call looks for its Tool in.
func ToolNamespace(call *v1alpha1.ToolCall) string {
	if ns := call.Spec.ToolRef.Namespace; ns != "" {
		return ns
	}
	return call.Namespace
}

// authorizeCaller refuses what no arguments could make allowed.
func authorizeCaller(a Admission, out *Admitted) (Verdict, bool) {
	return authorize(a, out, nil)
}

// authorizeArguments decides with all rules. The arguments are valid.
func authorizeArguments(a Admission, out *Admitted) (Verdict, bool) {
	decoded, err := jsonvalue.Decode(Args(a.Call))
	args, ok := decoded.(map[string]any)
	if err != nil || !ok {
		return end(v1alpha1.ErrorInternal, true, "the arguments were valid and cannot be read"), true
	}
	return authorize(a, out, policy.Arguments(args))
}

func authorize(a Admission, out *Admitted, args map[string]any) (Verdict, bool) {
	d := policy.Decide(policy.Input{
		Tool: out.Tool, Requester: *a.Call.Spec.Requester, Namespace: a.Call.Namespace, Context: a.Call.Spec.Context, Now: a.Now, Args: args,
	}, a.Policies)
	if args != nil || !d.Allowed {
		out.Decision = &v1alpha1.PolicyDecision{Allowed: ptr.To(d.Allowed), DecisiveRule: d.Decisive, MatchedRules: d.Matched, Audit: d.Audit}
	}
	if d.Allowed {
		out.Approvals, out.Limits = d.Approvals, d.Limits
		if args != nil && len(d.Approvals) == 0 && out.Tool.Spec.Approval == v1alpha1.ApprovalRequired {
			return end(v1alpha1.ErrorToolNotAllowed, false, "Tool %s/%s requires an approval (spec.approval), and no RequireApproval rule matches this call, so nobody can be asked: "+
				"the owner of namespace %q can add one to a ToolPolicy", out.Tool.Namespace, out.Tool.Name, out.Tool.Namespace), true
		}
		return Verdict{}, false
	}
	byDefault := d.Decisive == nil
	if byDefault && !a.Confirmed && a.Now.Sub(a.Call.CreationTimestamp.Time) < confirmAge {
		return Verdict{Act: ActConfirm, Reason: v1alpha1.ReasonPending}, true
	}
	return end(v1alpha1.ErrorToolNotAllowed, false, "%s", d.Message), true
}

func ready(a Admission, out *Admitted) (Verdict, bool) {
	t := out.Tool
	if t.DeletionTimestamp != nil {
		return end(v1alpha1.ErrorToolNotFound, false, "Tool %s/%s is being deleted", t.Namespace, t.Name), true
	}
	if len(a.Tools) > 1 {
		// Their conditions say so, too, but perhaps not yet.
		return end(v1alpha1.ErrorToolUnavailable, false, "%d Tools in namespace %q have %s: name one of them with toolRef.name",
			len(a.Tools), t.Namespace, refText(a.Call.Spec.ToolRef)), true
	}
	c := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionReady)
	known := c != nil && c.ObservedGeneration == t.Generation && c.Status != metav1.ConditionUnknown
	if known && c.Status == metav1.ConditionTrue {
		return Verdict{}, false
	}
	if known {
		return end(v1alpha1.ErrorToolUnavailable, false, "Tool %s/%s is not Ready: %s: %s", t.Namespace, t.Name, c.Reason, c.Message), true
	}
	return untilReady(a, t), true
}

// untilReady is the wait for a Tool of which it is not known whether it is Ready.
// A call that is much older, because it waits for people, waits for it as long
// as any other when the Tool changes.
func untilReady(a Admission, t *v1alpha1.Tool) Verdict {
	limit := sandbox.StartDeadlineSeconds(t)
	since := a.Call.CreationTimestamp.Time
	if a.ToolSeen.After(since) {
		since = a.ToolSeen
	}
	left := since.Add(time.Duration(limit) * time.Second).Sub(a.Now)
	if left <= 0 {
		return end(v1alpha1.ErrorToolUnavailable, true, "the controller did not say within startDeadlineSeconds (%d) whether Tool %s/%s is Ready",
			limit, t.Namespace, t.Name)
	}
	return wait(ActNone, v1alpha1.ReasonPending, fmt.Sprintf("waiting for Tool %s/%s to become Ready", t.Namespace, t.Name), left)
}

func validate(a Admission, out *Admitted) (Verdict, bool) {
	raw := Args(a.Call)
	if err := jsonvalue.CheckArgs(raw); err != nil {
		return end(v1alpha1.ErrorInvalidArguments, false, "%s", withField(err)), true
	}
	if a.InputSchema == nil {
		// A Ready Tool has a schema that compiles; that it is Ready was said by
		// another version of the controller, and this one will judge it.
		return untilReady(a, out.Tool), true
	}
	if err := a.InputSchema.Validate(raw); err != nil {
		return end(v1alpha1.ErrorInvalidArguments, false, "%s", withField(err)), true
	}
	command, err := template.Expand(out.Tool.Spec.Container.Command, raw)
	if err != nil {
		return end(v1alpha1.ErrorInvalidArguments, false, "%s", withField(err)), true
	}
	out.Command = command
	return Verdict{}, false
}

// withField says where the fault is, if the text does not.
func withField(err error) string {
	if s := err.Error(); strings.HasPrefix(s, "spec.args") {
		return s
	}
	return "spec.args: " + err.Error()
}
