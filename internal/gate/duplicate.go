package gate

import (
	"fmt"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/idempotency"
	"callgate.dev/callgate/internal/sandbox"
)

// Keyed is everything that the decision looks at whether a call is the first
// with one of its keys.
type Keyed struct {
	Now        time.Time
	Call       *v1alpha1.ToolCall
	Tool       *v1alpha1.Tool
	ArgsDigest string
	Key        idempotency.Key
	// Record of the key; nil if there is none.
	Record *idempotency.Record
	// Holder is the call that the record names; nil if it is gone, which was read
	// past the cache.
	Holder *v1alpha1.ToolCall
}

// Duplicate decides about one key of a call: ActTakeKey, an end, a wait, or
// nothing if the key is the call's own. duplicateOf is the first call, for a
// wait and an end that come from it.
func Duplicate(k Keyed) (v Verdict, duplicateOf *v1alpha1.ToolCallReference) {
	r := k.Record
	switch {
	case r == nil:
		return Verdict{Act: ActTakeKey, Reason: v1alpha1.ReasonPending}, nil
	case r.Holder == k.Call.UID:
		return Verdict{}, nil
	case free(k):
		return Verdict{Act: ActTakeKey, Reason: v1alpha1.ReasonPending}, nil
	case k.Key.Explicit && r.ArgsDigest != k.ArgsDigest:
		return end(v1alpha1.ErrorIdempotencyConflict, false,
			"spec.idempotencyKey was used before with other arguments, by call %s: use another key for another action", r.Call), nil
	}
	first := &v1alpha1.ToolCallReference{Namespace: r.Call.Namespace, Name: r.Call.Name, UID: r.Holder}
	switch {
	case k.Holder != nil && k.Holder.Status.Result != nil:
		return Verdict{Result: k.Holder.Status.Result.DeepCopy()}, first
	case r.Result != nil:
		return Verdict{Result: r.Result.DeepCopy()}, first
	case k.Holder != nil:
		pause := keyPause
		if !r.Ended.IsZero() {
			pause = time.Second // only its status is not written yet
		}
		v := wait(ActNone, v1alpha1.ReasonAwaitingFirstCall, fmt.Sprintf("call %s %s is under way; this call gets its result", r.Call, sameWords(k.Key)), pause)
		return withDeadline(v, k.Call, k.Now), first
	case !r.Ended.IsZero():
		return end(v1alpha1.ErrorOutcomeUnknown, false, "call %s %s was deleted and no result of it is kept: it was deleted while it ran, or its result was over %d bytes; it may have taken effect",
			r.Call, sameWords(k.Key), idempotency.MaxResultBytes), first
	}
	return end(v1alpha1.ErrorOutcomeUnknown, false, "call %s %s was deleted after it had been sent to its sandbox; it may have taken effect",
		r.Call, sameWords(k.Key)), first
}

// keyPause is when a call looks again at the first one, should the news of its
// end be lost.
const keyPause = 10 * time.Second

// free says whether a key that another call held can be taken.
func free(k Keyed) bool {
	r := k.Record
	switch {
	case k.Holder != nil && k.Holder.Status.Result == nil:
		return false // under way, however long
	case !r.Expires.IsZero() && k.Now.After(r.Expires):
		return true
	case k.Holder != nil:
		return Frees(&k.Holder.Status)
	}
	// It is gone. If it left no result, it was deleted on its way, or its result
	// was too large; where a second run is safe, that is the better answer.
	return r.Result == nil && (again(k.Tool) || r.Ended.IsZero() && !r.Sent)
}

// Frees says whether an ended call gives its keys back: it never started, or
// its end invites to propose it again.
func Frees(s *v1alpha1.ToolCallStatus) bool {
	if s.Result == nil || *s.Result.OK {
		return false
	}
	if *s.Result.Retryable {
		return true
	}
	// What is not known may have run, also if no attempt says so: that of a call
	// from before a restore of the cluster's state.
	return s.DuplicateOfRef == nil && !mayHaveRun(s) && s.Result.ErrorCode != v1alpha1.ErrorOutcomeUnknown
}

// mayHaveRun says whether any attempt of a call may have started the tool.
func mayHaveRun(s *v1alpha1.ToolCallStatus) bool {
	for i := range s.Attempts {
		if s.Attempts[i].Outcome != v1alpha1.OutcomeNeverStarted {
			return true
		}
	}
	return false
}

// again says whether a second run of a Tool is safe.
func again(t *v1alpha1.Tool) bool {
	return repeatable(sandbox.OutputRules(t).SideEffects)
}

func sameWords(k idempotency.Key) string {
	if k.Explicit {
		return "with the same spec.idempotencyKey"
	}
	return "with the same arguments by the same caller (the Tool's deduplicate)"
}
