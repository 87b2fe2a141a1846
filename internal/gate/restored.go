package gate

import (
	"time"

	"callgate.dev/callgate/api/v1alpha1"
)

// restoreMark is the label that Velero puts on everything it restores
// (https://velero.io/docs/main/restore-reference/).
const restoreMark = "velero.io/restore-name"

// Restored ends a call that came back from a backup: to run it now would be to
// run it a second time, or long after anybody wanted it. before is the time of
// the restore that an administrator named, zero if there was none; calls that
// were created before it, and are unfinished, may have run after the backup.
func Restored(call *v1alpha1.ToolCall, before time.Time) Verdict {
	_, label := call.Labels[restoreMark]
	_, annotation := call.Annotations[restoreMark]
	restored := label || annotation
	switch {
	case restored && mayHaveRun(&call.Status):
		// Its status came back with it, or a restore over a living cluster marked it.
		v := end(v1alpha1.ErrorOutcomeUnknown, false, "the call was restored from a backup (%s) when it was under way: it may have run, and is not run again", restoreMark)
		return v.outcome(v1alpha1.OutcomeUnknown)
	case restored:
		v := end(v1alpha1.ErrorCancelled, false, "the call was restored from a backup (%s) and is not run: create a new one if it is still wanted", restoreMark)
		return v.outcome(v1alpha1.OutcomeUnknown)
	case call.CreationTimestamp.Time.Before(before):
		v := end(v1alpha1.ErrorOutcomeUnknown, false, "the call was unfinished in the state that the cluster was restored to (--unfinished-before=%s): it may have run after that backup was taken",
			before.UTC().Format(time.RFC3339))
		return v.outcome(v1alpha1.OutcomeUnknown)
	}
	return Verdict{}
}
