package gate

import (
	"fmt"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/limit"
	"callgate.dev/callgate/internal/policy"
	"callgate.dev/callgate/internal/sandbox"
)

// defaultMaxConcurrentCalls is that of a Tool from before the field.
const defaultMaxConcurrentCalls = 10

// Rated is everything that the decision about one rate limit looks at.
type Rated struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	// Limit is a rule with MaxCalls.
	Limit policy.Limit
	// Window holds the calls that the rule has counted.
	Window limit.Window
}

// Rate decides about one rate limit: ActCount, or the end rate_limited, or
// nothing if the rule has counted the call already. A call that is refused is
// not counted.
func Rate(r Rated) Verdict {
	for _, counted := range r.Call.Status.Limits {
		if counted.Policy == r.Limit.Rule.Policy && counted.Rule == r.Limit.Rule.Rule {
			return Verdict{}
		}
	}
	_, ok, retry := r.Window.Take(r.Call.UID, r.Now, int(r.Limit.MaxCalls), r.Limit.Window)
	switch {
	case !ok:
		v := end(v1alpha1.ErrorRateLimited, true, "%s allows %d calls in %s %s: propose the call again after status.retryTime",
			ruleWords(r.Limit.Rule), r.Limit.MaxCalls, r.Limit.Window, scopeWords(r.Limit))
		v.RetryTime = retry
		return v
	case r.Window.Counted(r.Call.UID, r.Now, r.Limit.Window):
		return Verdict{}
	}
	return Verdict{Act: ActCount, Reason: v1alpha1.ReasonPending}
}

func ruleWords(r v1alpha1.RuleReference) string {
	return fmt.Sprintf("rule %q of policy %s", r.Rule, r.Policy)
}

func scopeWords(l policy.Limit) string {
	if l.PerCaller {
		return "by the same caller"
	}
	return "by all callers together"
}

// Place is one limit of concurrent calls that a call comes under.
type Place struct {
	limit.Place
	// MaxWait bounds the wait for it.
	MaxWait time.Duration
	// words name the limit to the caller, maxWait what bounds the wait.
	words, maxWait string
}

// Places are the limits of concurrent calls that a call comes under: that of
// its Tool, and those of the rules that match it.
func Places(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, limits []policy.Limit) []Place {
	most := int(tool.Spec.MaxConcurrentCalls)
	if most == 0 {
		most = defaultMaxConcurrentCalls
	}
	wait := sandbox.StartDeadlineSeconds(tool)
	places := []Place{{
		Place:   limit.Place{Key: toolPlace(string(tool.UID)), Limit: most},
		MaxWait: time.Duration(wait) * time.Second,
		words:   fmt.Sprintf("Tool %s/%s runs at most %d calls at once (spec.maxConcurrentCalls)", tool.Namespace, tool.Name, most),
		maxWait: fmt.Sprintf("its startDeadlineSeconds (%d)", wait),
	}}
	for _, l := range limits {
		if l.MaxConcurrent == 0 {
			continue
		}
		places = append(places, Place{
			Place:   limit.Place{Key: rulePlace(l.Rule, l.PerCaller, call.Spec.Requester.Username), Limit: int(l.MaxConcurrent)},
			MaxWait: l.MaxWait,
			words:   fmt.Sprintf("%s allows %d calls at once %s", ruleWords(l.Rule), l.MaxConcurrent, scopeWords(l)),
			maxWait: fmt.Sprintf("its maxWaitSeconds (%d)", int(l.MaxWait.Seconds())),
		})
	}
	return places
}

// PlacesHeld are the places that a call holds, or waits for, by its status
// alone. Which of the two ways a rule counts is not told there: both are named.
func PlacesHeld(call *v1alpha1.ToolCall) []limit.Place {
	places := []limit.Place{{Key: toolPlace(string(call.Status.ToolUID))}}
	if d := call.Status.Decision; d != nil && call.Spec.Requester != nil {
		for _, r := range d.MatchedRules {
			if r.Effect == v1alpha1.EffectLimit {
				places = append(places, limit.Place{Key: rulePlace(r, false, "")}, limit.Place{Key: rulePlace(r, true, call.Spec.Requester.Username)})
			}
		}
	}
	return places
}

func toolPlace(uid string) string { return "tool/" + uid }

func rulePlace(r v1alpha1.RuleReference, perCaller bool, caller string) string {
	key := "rule/" + r.Policy + "/" + r.Rule
	if perCaller {
		key += "/caller/" + caller
	}
	return key
}

// Queued is everything that the decision about a call that has to wait for its
// turn looks at.
type Queued struct {
	Now  time.Time
	Call *v1alpha1.ToolCall
	// Since is when the call began to wait.
	Since time.Time
	// At is the limit that is reached.
	At Place
}

// Queue decides about a call that has to wait for its turn. Nothing in the
// message changes while it waits: how many are in front of it would be a write
// of each waiting call's status at every end of another.
func Queue(q Queued) Verdict {
	left, bound := q.Since.Add(q.At.MaxWait).Sub(q.Now), q.At.maxWait
	if d := deadline(q.Call); !d.IsZero() && d.Sub(q.Now) < left {
		left, bound = d.Sub(q.Now), fmt.Sprintf("the call's deadlineSeconds (%d)", q.Call.Spec.DeadlineSeconds)
	}
	if left <= 0 {
		v := end(v1alpha1.ErrorRateLimited, true, "%s, and no place became free within %s", q.At.words, bound)
		if q.At.MaxWait == 0 {
			v = end(v1alpha1.ErrorRateLimited, true, "%s, and by %s the call does not wait", q.At.words, q.At.maxWait)
		}
		v.RetryTime = q.Now.Add(time.Second)
		return v
	}
	return wait(ActNone, v1alpha1.ReasonQueued, fmt.Sprintf("%s; the call waits for its turn, at most %s", q.At.words, bound), left)
}
