package gate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

// sent is when the call of every test was sent; its time limit is 8 s, so that
// the watchdog acts after 18.
var sent = created.Add(time.Minute)

// runningCall is a call that was sent three seconds ago, by this process, and
// runs: its attach stream is open and showed that it was accepted.
func runningCall(t *testing.T) Running {
	call := testCall(`{"text":"hello"}`)
	call.Status.ArgsDigest = digestOf(t, `{"text":"hello"}`)
	return Running{
		Now: sent.Add(3 * time.Second), Call: call,
		Attempt: &v1alpha1.Attempt{Number: 1, Sandbox: "callgate-call-uid-1", TimeoutSeconds: 8, SendTime: metav1.NewMicroTime(sent)},
		Output:  result.Spec{Format: result.FormatJSON, MaxBytes: 100, SideEffects: "NonIdempotent", Timeout: 8 * time.Second},
		Pod:     &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1"}}, State: sandbox.State{Phase: sandbox.PhaseRunning},
		Session: &dispatch.Snapshot{State: wire.State{Ready: true, Accepted: &wire.Accepted{CallUID: "call-uid", Attempt: 1}}}, CanResend: true,
	}
}

func TestRun(t *testing.T) {
	at := func(r *Running, d time.Duration) { r.Now = sent.Add(d) }
	ok := &wire.Result{Stdout: []byte(`{"a":1}`), StdoutBytes: 7}
	// ended: the container ended with an exit code
	exit := func(r *Running, code int32, reason string) {
		r.State = sandbox.Observe(nil, &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: sandbox.Container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}}}}}, nil)
	}
	// attached: the attach stream has ended
	attached := func(r *Running, err error) { r.Session.Done, r.Session.Err, r.Session.EndTime = true, err, r.Now }
	// log: the log was read, long enough ago for the next look; reads of it began after the container's end
	log := func(r *Running, reads int, err error) {
		attached(r, err)
		r.Session.FromLog, r.Session.Reads, r.Session.EndTime = true, reads, r.Now.Add(-time.Minute)
	}
	whole := func(r *Running) { log(r, 1, dispatch.ErrNoResult) }
	gone := func(r *Running) { r.Pod, r.State = nil, sandbox.Observe(nil, nil, nil) }
	notAccepted := func(r *Running) { r.Session.Accepted = nil }
	deleted := func(r *Running, ago time.Duration) {
		r.Pod.DeletionTimestamp = &metav1.Time{Time: r.Now.Add(-ago)}
		r.State.Disrupted = true
	}
	broken := errors.New("connection reset")
	readLog := fmt.Errorf("followed: %w", dispatch.ErrNotAccepted)

	for _, tc := range []struct {
		reason    string
		change    func(*Running)
		code      v1alpha1.ErrorCode
		success   bool
		retryable bool
		outcome   v1alpha1.AttemptOutcome
		message   string
		act       Act
		after     time.Duration
	}{
		// The answer is there.
		{reason: "a result: success", change: func(r *Running) { r.Session.Result = ok; attached(r, nil) }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result wins over cancel", change: func(r *Running) { r.Session.Result, r.Call.Spec.Cancel = ok, true }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result wins over the watchdog", change: func(r *Running) { r.Session.Result = ok; at(r, time.Hour) }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result wins over a pod that is gone", change: func(r *Running) { r.Session.Result = ok; gone(r) }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result wins over how the container ended", change: func(r *Running) { r.Session.Result = ok; exit(r, 137, "OOMKilled") }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result of the log", change: func(r *Running) { r.Session.Result = ok; log(r, 1, nil); exit(r, 0, "Completed") }, success: true, outcome: v1alpha1.OutcomeReported},
		{reason: "a result that is a failure", change: func(r *Running) {
			r.Session.Result = &wire.Result{ExitCode: 3, StderrTail: []byte("no such order"), StderrBytes: 13}
		},
			code: v1alpha1.ErrorToolFailed, message: "exit code 3: no such order", outcome: v1alpha1.OutcomeReported},
		{reason: "the tool asks for another try", change: func(r *Running) { r.Session.Result = &wire.Result{ExitCode: 75} },
			code: v1alpha1.ErrorToolFailed, retryable: true, message: "exit code 75", outcome: v1alpha1.OutcomeReported},
		{reason: "the runner's own timeout", change: func(r *Running) { r.Session.Result = &wire.Result{ExitCode: -1, TimedOut: true} },
			code: v1alpha1.ErrorToolTimeout, message: "limit of 8s", outcome: v1alpha1.OutcomeReported},
		{reason: "output that is not JSON", change: func(r *Running) { r.Session.Result = &wire.Result{Stdout: []byte("hi"), StdoutBytes: 2} },
			code: v1alpha1.ErrorInvalidOutput, message: "not JSON", outcome: v1alpha1.OutcomeReported},

		// The answer is another call's.
		{reason: "a result of another call (two claims of one sandbox): this one never started",
			change: func(r *Running) {
				r.Session.Accepted, r.Session.Result = &wire.Accepted{CallUID: "another", Attempt: 1}, ok
				attached(r, nil)
			},
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "had taken another call", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "accepted names another attempt", change: func(r *Running) { r.Session.Accepted.Attempt, r.Session.Result = 2, ok },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "had taken another call", outcome: v1alpha1.OutcomeNeverStarted},

		// It runs.
		{reason: "it runs, the stream is open: wait for the watchdog", change: func(*Running) {}, after: 15*time.Second + time.Millisecond},
		{reason: "a new process: read the log first", change: func(r *Running) { r.Session = nil }, act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the attach stream broke: read the log", change: func(r *Running) { attached(r, broken) }, act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "attach was refused: read the log, as another process would", change: func(r *Running) { notAccepted(r); r.Session.Ready = false; attached(r, broken) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "an attach that showed ready and nothing more is no proof", change: func(r *Running) { notAccepted(r); attached(r, broken) }, act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the log is followed", change: func(r *Running) { r.Session.FromLog = true }, after: 15*time.Second + time.Millisecond},
		{reason: "the log broke just now: a pause", change: func(r *Running) { log(r, 0, broken); r.Session.EndTime = r.Now.Add(-400 * time.Millisecond) }, after: 600 * time.Millisecond},
		{reason: "the log broke a second ago: again", change: func(r *Running) { log(r, 0, broken); r.Session.EndTime = r.Now.Add(-time.Second) }, act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the log cannot be read while it runs: that uses nothing up", change: func(r *Running) { notAccepted(r); r.Session.Ready = false; log(r, 0, broken) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},

		// Send again.
		{reason: "the log shows ready and no accepted: send again", change: func(r *Running) { notAccepted(r); log(r, 0, readLog) }, act: ActResend, after: 15*time.Second + time.Millisecond},
		{reason: "accepted: never again", change: func(r *Running) { log(r, 0, readLog) }, act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the log without its first line: never again", change: func(r *Running) { notAccepted(r); r.Session.Ready = false; log(r, 0, readLog) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "a log that broke behind ready may have been about to show accepted", change: func(r *Running) { notAccepted(r); log(r, 0, broken) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "a log that ended behind ready: so has the container", change: func(r *Running) { notAccepted(r); log(r, 0, dispatch.ErrNoResult) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the Tool has changed, so the frame cannot be made again", change: func(r *Running) { notAccepted(r); log(r, 0, readLog); r.CanResend = false },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "the arguments have changed, so the frame cannot be made again", change: func(r *Running) { notAccepted(r); log(r, 0, readLog); r.Call.Spec.Args.Raw = []byte(`{}`) },
			act: ActFollow, after: 15*time.Second + time.Millisecond},
		{reason: "cancelled: not again", change: func(r *Running) { notAccepted(r); log(r, 0, readLog); r.Call.Spec.Cancel = true }, act: ActStop, after: time.Second},

		// End it.
		{reason: "cancelled while it runs", change: func(r *Running) { r.Call.Spec.Cancel = true }, act: ActStop, after: time.Second},
		{reason: "deleted while it runs, and kept by a finalizer", change: func(r *Running) { r.Call.DeletionTimestamp = &metav1.Time{} }, act: ActStop, after: time.Second},
		{reason: "cancelled, no session", change: func(r *Running) { r.Session, r.Call.Spec.Cancel = nil, true }, act: ActStop, after: time.Second},
		{reason: "the last moment before the watchdog", change: func(r *Running) { at(r, 18*time.Second) }, after: time.Millisecond},
		{reason: "the watchdog", change: func(r *Running) { at(r, 18*time.Second+1) }, act: ActStop, after: time.Second},
		{reason: "the watchdog, whatever the session is", change: func(r *Running) { at(r, 19*time.Second); r.Session = nil }, act: ActStop, after: time.Second},
		{reason: "it is being ended", change: func(r *Running) { r.Call.Spec.Cancel = true; deleted(r, 0) }, after: time.Second},
		{reason: "it is being ended by somebody else, in a minute: sooner", change: func(r *Running) { r.Call.Spec.Cancel = true; deleted(r, -time.Minute) }, act: ActStop, after: time.Second},
		{reason: "somebody else deletes it, and nobody gave up: the tool may still answer", change: func(r *Running) { deleted(r, 0) }, after: 15*time.Second + time.Millisecond},
		{reason: "its node does not end it: cancelled all the same",
			change: func(r *Running) { r.Call.Spec.Cancel = true; deleted(r, 31*time.Second) },
			code:   v1alpha1.ErrorCancelled, message: "while the tool was running; it may have taken effect", outcome: v1alpha1.OutcomeFailed},
		{reason: "its node does not end it, past its time: what became of it is not known there either",
			change: func(r *Running) { at(r, time.Minute); deleted(r, 31*time.Second) },
			code:   v1alpha1.ErrorOutcomeUnknown, message: "node node-1 did not end its sandbox within 30s", outcome: v1alpha1.OutcomeUnknown},
		{reason: "its node does not end it, and whether it ran is not known",
			change: func(r *Running) { at(r, time.Minute); r.Session = nil; deleted(r, 31*time.Second) },
			code:   v1alpha1.ErrorOutcomeUnknown, message: "node node-1 did not end its sandbox within 30s", outcome: v1alpha1.OutcomeUnknown},

		// It ended without a result in the stream.
		{reason: "ended, no session: read the log", change: func(r *Running) { exit(r, 0, "Completed"); r.Session = nil }, act: ActFollow, after: time.Second},
		{reason: "ended, the stream still open: its last bytes may come", change: func(r *Running) { exit(r, 0, "Completed") }, after: time.Second},
		{reason: "ended, the attach stream broke: read the log", change: func(r *Running) { exit(r, 0, "Completed"); attached(r, broken) }, act: ActFollow, after: time.Second},
		{reason: "ended, the log was read before its end: once more, to its end",
			change: func(r *Running) { exit(r, 0, "Completed"); log(r, 0, broken) }, act: ActFollow, after: time.Second},
		{reason: "ended, even if that read came to an end: the pod's state is newer", change: func(r *Running) { exit(r, 0, "Completed"); log(r, 0, dispatch.ErrNoResult) }, act: ActFollow, after: time.Second},
		{reason: "ended, the log is unreadable: again after a pause",
			change: func(r *Running) { exit(r, 0, "Completed"); log(r, 1, broken); r.Session.EndTime = r.Now }, after: time.Second},
		{reason: "ended, the log is unreadable: again", change: func(r *Running) { exit(r, 0, "Completed"); log(r, 9, broken) }, act: ActFollow, after: time.Second},
		{reason: "ended, the log broke behind its first line: again", change: func(r *Running) { exit(r, 0, "Completed"); log(r, 1, broken) }, act: ActFollow, after: time.Second},
		{reason: "ended, an empty log proves nothing: again", change: func(r *Running) { exit(r, 0, "Completed"); whole(r); r.Session.Ready = false }, act: ActFollow, after: time.Second},
		{reason: "ended, and reading has its bound", change: func(r *Running) { exit(r, 137, "Error"); log(r, 10, broken) },
			code: v1alpha1.ErrorOutcomeUnknown, message: "exit code 137; connection reset; it may have taken effect", outcome: v1alpha1.OutcomeUnknown},
		{reason: "C005, C022: exit code 0 and a whole log without a result: no success",
			change: func(r *Running) { exit(r, 0, "Completed"); whole(r) }, code: v1alpha1.ErrorOutcomeUnknown, message: "exit code 0", outcome: v1alpha1.OutcomeUnknown},
		{reason: "66: accepted, not reported", change: func(r *Running) { exit(r, 66, "Error"); whole(r) }, code: v1alpha1.ErrorOutcomeUnknown, message: "exit code 66", outcome: v1alpha1.OutcomeUnknown},
		{reason: "66 of a tool that only reads: try again", change: func(r *Running) { exit(r, 66, "Error"); whole(r); r.Output.SideEffects = result.SideEffectsNone },
			code: v1alpha1.ErrorOutcomeUnknown, retryable: true, message: "exit code 66", outcome: v1alpha1.OutcomeUnknown},
		{reason: "66 of an idempotent tool: try again", change: func(r *Running) { exit(r, 66, "Error"); whole(r); r.Output.SideEffects = result.SideEffectsIdempotent },
			code: v1alpha1.ErrorOutcomeUnknown, retryable: true, outcome: v1alpha1.OutcomeUnknown},
		{reason: "C026: out of memory", change: func(r *Running) { exit(r, 137, "OOMKilled"); whole(r) },
			code: v1alpha1.ErrorToolFailed, message: "ran out of memory: raise container.resources.limits.memory", outcome: v1alpha1.OutcomeFailed},
		{reason: "C026: out of memory is the cause even if it is seen late", change: func(r *Running) { exit(r, 137, "OOMKilled"); at(r, time.Hour); whole(r) },
			code: v1alpha1.ErrorToolFailed, message: "ran out of memory", outcome: v1alpha1.OutcomeFailed},
		{reason: "C027: out of memory and exit code 0, no result", change: func(r *Running) { exit(r, 0, "OOMKilled"); whole(r) },
			code: v1alpha1.ErrorToolFailed, message: "ran out of memory", outcome: v1alpha1.OutcomeFailed},
		{reason: "C028: ended by the watchdog, 137: a timeout, not out of memory", change: func(r *Running) { exit(r, 137, "Error"); at(r, 20*time.Second); whole(r) },
			code: v1alpha1.ErrorToolTimeout, message: "ran past its time limit of 8s", outcome: v1alpha1.OutcomeFailed},
		{reason: "C028: the same of an idempotent tool", change: func(r *Running) {
			exit(r, 137, "Error")
			at(r, 20*time.Second)
			whole(r)
			r.Output.SideEffects = result.SideEffectsIdempotent
		}, code: v1alpha1.ErrorToolTimeout, retryable: true, outcome: v1alpha1.OutcomeFailed},
		{reason: "past its time, but whether it was accepted is not known: no timeout of a tool",
			change: func(r *Running) { exit(r, 137, "Error"); at(r, 20*time.Second); whole(r); notAccepted(r) },
			code:   v1alpha1.ErrorOutcomeUnknown, message: "may have taken effect", outcome: v1alpha1.OutcomeUnknown},
		{reason: "cancelled while it ran", change: func(r *Running) { exit(r, 137, "Error"); whole(r); r.Call.Spec.Cancel = true },
			code: v1alpha1.ErrorCancelled, message: "while the tool was running; it may have taken effect", outcome: v1alpha1.OutcomeFailed},
		{reason: "cancelled, and whether it ran is not known", change: func(r *Running) { exit(r, 137, "Error"); whole(r); notAccepted(r); r.Call.Spec.Cancel = true },
			code: v1alpha1.ErrorCancelled, message: "whether the tool started is not known", outcome: v1alpha1.OutcomeFailed},
		{reason: "cancelled, ended: a result in the log still wins, so it is read", change: func(r *Running) { exit(r, 137, "Error"); attached(r, broken); r.Call.Spec.Cancel = true },
			act: ActFollow, after: time.Second},

		// It surely never started.
		{reason: "64: no call", change: func(r *Running) { exit(r, 64, "Error"); notAccepted(r); attached(r, broken) },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "was not started: the sandbox ended before a call reached it", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "64, seen by a new process", change: func(r *Running) { exit(r, 64, "Error"); r.Session = nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "65: used before", change: func(r *Running) { exit(r, 65, "Error"); r.Session = nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "used before", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "67: the network was open", change: func(r *Running) { exit(r, 67, "Error"); r.Session = nil },
			code: v1alpha1.ErrorToolUnavailable, retryable: true, message: "network policy was not in force", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "64 after its deletion", change: func(r *Running) { exit(r, 64, "Error"); notAccepted(r); r.Call.DeletionTimestamp = &metav1.Time{} },
			code: v1alpha1.ErrorCancelled, message: "cancelled by the deletion of the call before the tool was started", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "64 after cancel", change: func(r *Running) { exit(r, 64, "Error"); notAccepted(r); r.Call.Spec.Cancel = true },
			code: v1alpha1.ErrorCancelled, message: "before the tool was started", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "never started for good", change: func(r *Running) { exit(r, 128, "StartError"); r.Session = nil },
			code: v1alpha1.ErrorToolUnavailable, message: "StartError", outcome: v1alpha1.OutcomeNeverStarted},
		{reason: "65, but we saw it accept this call: the exit code is a second container's", change: func(r *Running) { exit(r, 65, "Error"); whole(r) },
			code: v1alpha1.ErrorOutcomeUnknown, message: "it may have taken effect", outcome: v1alpha1.OutcomeUnknown},
		{reason: "64 with an out-of-memory kill proves nothing", change: func(r *Running) { exit(r, 64, "OOMKilled"); notAccepted(r); attached(r, broken) }, act: ActFollow, after: time.Second},

		// It is gone.
		{reason: "the pod is gone, and so is the stream", change: func(r *Running) { gone(r); attached(r, broken) },
			code: v1alpha1.ErrorOutcomeUnknown, message: "its sandbox is gone; connection reset; it may have taken effect", outcome: v1alpha1.OutcomeUnknown},
		{reason: "the pod is gone, a new process", change: func(r *Running) { gone(r); r.Session = nil },
			code: v1alpha1.ErrorOutcomeUnknown, message: "its sandbox is gone; it may have taken effect", outcome: v1alpha1.OutcomeUnknown},
		{reason: "the pod is gone, and the tool only reads", change: func(r *Running) { gone(r); r.Session = nil; r.Output.SideEffects = result.SideEffectsNone },
			code: v1alpha1.ErrorOutcomeUnknown, retryable: true, outcome: v1alpha1.OutcomeUnknown},
		{reason: "the pod is gone, its last words are on their way", change: func(r *Running) { gone(r) }, after: 15*time.Second + time.Millisecond},
		{reason: "the pod is gone, its last words never came", change: func(r *Running) { gone(r); at(r, 19*time.Second) },
			code: v1alpha1.ErrorToolTimeout, outcome: v1alpha1.OutcomeFailed},
		{reason: "the pod is gone after cancel", change: func(r *Running) { gone(r); attached(r, broken); r.Call.Spec.Cancel = true },
			code: v1alpha1.ErrorCancelled, message: "while the tool was running", outcome: v1alpha1.OutcomeFailed},
		{reason: "a second container in the pod: the first may have run the call",
			change: func(r *Running) {
				r.State = sandbox.Observe(nil, &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
					Name: sandbox.Container, RestartCount: 1, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}, nil)
				whole(r)
				notAccepted(r)
			}, code: v1alpha1.ErrorOutcomeUnknown, message: "started a second time", outcome: v1alpha1.OutcomeUnknown},
		{reason: "a pod that failed and whose container's state is lost proves nothing",
			change: func(r *Running) {
				r.State = sandbox.Observe(nil, &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}}, nil)
				log(r, 10, broken)
				notAccepted(r)
			}, code: v1alpha1.ErrorOutcomeUnknown, message: "Evicted", outcome: v1alpha1.OutcomeUnknown},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			r := runningCall(t)
			tc.change(&r)
			got := Run(r)
			if got.Ended() != (tc.success || tc.code != "") {
				t.Fatalf("ended is %v: %+v, act %q", got.Ended(), got.Result, got.Act)
			}
			if !got.Ended() {
				if got.Act != tc.act || got.After != tc.after || got.Reason != v1alpha1.ReasonRunning {
					t.Errorf("act %q, after %s, reason %q; want %q, %s, Running", got.Act, got.After, got.Reason, tc.act, tc.after)
				}
				return
			}
			res := got.Result
			if *res.OK != tc.success || res.ErrorCode != tc.code || *res.Retryable != tc.retryable || got.Outcome != tc.outcome {
				t.Errorf("ok %v, %s, retryable %v, outcome %s; want %v, %s, %v, %s", *res.OK, res.ErrorCode, *res.Retryable, got.Outcome,
					tc.success, tc.code, tc.retryable, tc.outcome)
			}
			if !strings.Contains(res.Message, tc.message) || tc.success != (res.Message == "") {
				t.Errorf("message %q, want %q in it", res.Message, tc.message)
			}
			if tc.success && string(res.Data.Raw) != `{"a":1}` {
				t.Errorf("data %s", res.Data.Raw)
			}
		})
	}
}

// An outage while the tool runs must not use up the reads after its end.
func TestRunOutlastsAnOutage(t *testing.T) {
	r := runningCall(t)
	r.State = sandbox.State{Phase: sandbox.PhaseEnded, Words: "the sandbox's container ended with exit code 0"}
	r.Session.Done, r.Session.FromLog, r.Session.Err, r.Session.EndTime = true, true, errors.New("connection refused"), r.Now
	for range 100 {
		got := Run(r)
		if got.Ended() {
			t.Fatalf("given up without one read that reached the API server: %s", got.Result.Message)
		}
		r.Now = r.Now.Add(got.After)
	}
}

// A sandbox that must not be ended is waited for, until its time and the time to
// end it are over.
func TestUnstopped(t *testing.T) {
	r := runningCall(t)
	for range 1000 {
		got := Unstopped(r, "forbidden")
		if !got.Ended() {
			r.Now = r.Now.Add(got.After)
			continue
		}
		if got.Result.ErrorCode != v1alpha1.ErrorOutcomeUnknown || *got.Result.Retryable || got.Outcome != v1alpha1.OutcomeUnknown || !strings.Contains(got.Result.Message, "cannot be ended: forbidden") {
			t.Errorf("it ends with %s: %+v", got.Outcome, got.Result)
		}
		if early := watchdog(r.Attempt).Add(stopLimit).Sub(r.Now); early > 0 {
			t.Errorf("given up %s early", early)
		}
		return
	}
	t.Fatal("it never ends")
}
