package gate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/result"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

// marker stands for what only status.result may hold: it is in the arguments
// and in everything that the tool prints.
const marker = "M4RK3R"

// maxBytes of a message: what was cut ends with an ellipsis.
const maxBytes = maxMessage + len("…")

func maybe(r *rand.Rand) bool { return r.IntN(2) == 0 }

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func anyState(r *rand.Rand) sandbox.State {
	return sandbox.State{
		Phase: pick(r, sandbox.PhaseMissing, sandbox.PhaseStarting, sandbox.PhaseRunning, sandbox.PhaseNeverStarted, sandbox.PhaseEnded),
		Words: pick(r, "", "ImagePullBackOff: not found"), Permanent: r.IntN(4) == 0, OutOfMemory: r.IntN(4) == 0, Disrupted: r.IntN(4) == 0,
	}
}

func anySession(r *rand.Rand, now time.Time) *dispatch.Snapshot {
	if r.IntN(5) == 0 {
		return nil
	}
	s := &dispatch.Snapshot{FromLog: maybe(r), Done: maybe(r)}
	s.Ready, s.Stderr, s.NoCall = maybe(r), []byte(marker), ""
	if maybe(r) {
		s.Accepted = &wire.Accepted{CallUID: pick(r, "call-uid", "call-uid", "another"), Attempt: pick[int32](r, 1, 1, 2)}
		if r.IntN(3) == 0 {
			s.Result = &wire.Result{
				ExitCode: pick(r, 0, 1, 75, -1), TimedOut: r.IntN(4) == 0, Signal: pick(r, "", "", "SIGKILL"),
				Stdout: []byte(`"` + marker + `"`), StdoutBytes: 8, StderrTail: []byte(marker), StderrBytes: 6,
			}
		}
	}
	if s.Done {
		s.EndTime = now.Add(-time.Duration(r.IntN(1500)) * time.Millisecond)
		s.Err = pick(r, nil, errors.New("connection reset"), dispatch.ErrNoResult, fmt.Errorf("x: %w", dispatch.ErrNotAccepted))
		if s.FromLog {
			s.Reads = r.IntN(maxReads + 2)
		}
	}
	return s
}

func checkVerdict(t *testing.T, what string, v Verdict) {
	t.Helper()
	if strings.Contains(v.Message+v.Reason, marker) {
		t.Errorf("%s: the condition says %s: %q, and conditions never hold arguments or output", what, v.Reason, v.Message)
	}
	if len(v.Message) > maxBytes {
		t.Errorf("%s: a message of %d bytes", what, len(v.Message))
	}
	if !v.Ended() {
		goesOn := v.Act == ActConfirm || v.Act == ActDispatch || v.Act == ActNone && v.Reason == v1alpha1.ReasonStarting && what == "Admit"
		if v.After < 0 || v.After == 0 && !goesOn {
			t.Errorf("%s: nothing will look at this again: %+v", what, v)
		}
		if v.Reason == "" {
			t.Errorf("%s: a condition without a reason is refused by the API server: %+v", what, v)
		}
		return
	}
	r := v.Result
	switch {
	case r.OK == nil || r.Retryable == nil:
		t.Errorf("%s: not a whole envelope: %+v", what, r)
	case *r.OK && (r.ErrorCode != "" || r.Message != "" || r.Data == nil || *r.Retryable):
		t.Errorf("%s: a success with %+v", what, r)
	case !*r.OK && (r.ErrorCode == "" || r.Message == "" || r.Data != nil):
		t.Errorf("%s: a failure with %+v", what, r)
	case len(r.Message) > maxBytes:
		t.Errorf("%s: a message of %d bytes", what, len(r.Message))
	}
}

func TestVerdictsAreWholeAndKeepSecrets(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	base := admissible(t)
	inStderr := false
	for range 8000 {
		now := created.Add(time.Duration(r.IntN(700)) * time.Second)
		args := pick(r, `{"text":"`+marker+`"}`, `{"text":{"`+marker+`":1}}`, `{"`+marker+`":1,"text":"x"}`, `{"text":"-`+marker+`"}`,
			`{"text":"`+marker+`\u0000"}`, `{"text":"`+marker+`"`, `"`+marker+`"`, `{"text":"x","n":`+strings.Repeat("9", 40)+`}`)

		a := base
		a.Now, a.Call, a.Confirmed = now, testCall(args), maybe(r)
		a.Call.Spec.Cancel, a.Call.Spec.DeadlineSeconds = r.IntN(8) == 0, pick[int32](r, 0, 0, 1, 300, 800)
		a.Stamping = Stamping{Proven: r.IntN(4) > 0, LastChange: created.Add(-time.Duration(r.IntN(20)) * time.Second), Message: pick(r, "", "missing")}
		a.Tools = nil
		for range r.IntN(3) {
			tool := testTool(pick(r, "a", "b"))
			tool.Status.Conditions[0].Status = pick(r, metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown)
			tool.Status.Conditions[0].ObservedGeneration = pick[int64](r, 3, 3, 2)
			a.Tools = append(a.Tools, tool)
		}
		if r.IntN(5) == 0 {
			a.Policies = nil
		}
		if r.IntN(8) == 0 {
			a.InputSchema = nil
		}
		admitted := Admit(a)
		checkVerdict(t, "Admit", admitted.Verdict)
		if a.Confirmed && admitted.Act == ActConfirm {
			t.Error("Admit: confirm what is confirmed, for ever")
		}

		s := starting()
		s.Now, s.Call, s.State = now, a.Call, anyState(r)
		if r.IntN(5) == 0 {
			s.Job = nil
		} else if r.IntN(5) == 0 {
			s.Job.DeletionTimestamp = &metav1.Time{Time: created.Add(time.Duration(r.IntN(700)) * time.Second)}
		}
		checkVerdict(t, "Start", Start(s))

		run := runningCall(t)
		run.Now, run.Call = sent.Add(time.Duration(r.IntN(60000))*time.Millisecond), a.Call
		run.State, run.CanResend = anyState(r), maybe(r)
		run.Session = anySession(r, run.Now)
		run.Output.Format = pick(r, result.FormatJSON, result.FormatText)
		if r.IntN(5) == 0 {
			run.Pod = nil
		} else if maybe(r) {
			run.Pod.DeletionTimestamp = &metav1.Time{Time: run.Now.Add(time.Duration(r.IntN(90)-60) * time.Second)}
		}
		v := Run(run)
		checkVerdict(t, "Run", v)
		if v.Ended() && v.Outcome == "" {
			t.Errorf("Run: an end without an outcome of the attempt: %+v", v.Result)
		}
		if v.Act == ActResend && run.Session.Accepted != nil {
			t.Error("Run: sent again what was accepted")
		}
		mayHaveRun := v.Outcome == v1alpha1.OutcomeFailed || v.Outcome == v1alpha1.OutcomeUnknown
		if v.Ended() && mayHaveRun && *v.Result.Retryable {
			t.Errorf("Run: a NonIdempotent tool that may have run is called retryable: %+v", v.Result)
		}
		if v.Ended() && strings.Contains(v.Result.Message, marker) {
			inStderr = true
		}
		if t.Failed() {
			return
		}
	}
	if !inStderr {
		t.Error("no result held the marker of stderr: the test proves nothing")
	}
}

func TestLongMessagesAreBounded(t *testing.T) {
	s := starting()
	s.State.Words = strings.Repeat("pulling ", 10000) + "\x00\xff"
	if v := Start(s); len(v.Message) > maxBytes || strings.ContainsRune(v.Message, 0) || !utf8.ValidString(v.Message) {
		t.Errorf("a condition of %d bytes: the API server refuses more than 32 KiB, and the call would wait for ever", len(v.Message))
	}
}

// Whatever the cluster does, every call that was sent comes to an end in time.
func TestRunAlwaysEnds(t *testing.T) {
	// The run and its grace, a session's slack, a lost node, the reads of a log.
	const last = 8 + sandbox.GraceSeconds + 30 + 30 + (maxReads+1)*(15+1)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 2000 {
		run := runningCall(t)
		run.Now, run.Session = sent.Add(time.Duration(r.IntN(100))*time.Millisecond), nil
		run.CanResend = maybe(r)
		var sessionEnds time.Time
		obeys := maybe(r) // the node ends what is deleted
		var trace []string
		for step := 0; ; step++ {
			if r.IntN(30) == 0 {
				run.Call.Spec.Cancel = true
			}
			if run.State.Phase == sandbox.PhaseRunning && r.IntN(30) == 0 {
				run.State = pick(r, sandbox.State{Phase: sandbox.PhaseEnded}, sandbox.State{Phase: sandbox.PhaseNeverStarted}, sandbox.State{Phase: sandbox.PhaseStarting})
			}
			if s := run.Session; s != nil && !s.Done && !run.Now.Before(sessionEnds) {
				s.Done, s.EndTime = true, run.Now
				s.Err = pick(r, errors.New("broken"), dispatch.ErrNoResult, dispatch.ErrNotAccepted)
			}
			v := Run(run)
			checkVerdict(t, "Run", v)
			trace = append(trace, fmt.Sprintf("%s act %q after %s", run.Now.Sub(sent), v.Act, v.After))
			if v.Ended() {
				break
			}
			if run.Now.Sub(sent) > last*time.Second || step > 1000 {
				t.Fatalf("call %d is not over after %s and %d looks:\n%s", i, run.Now.Sub(sent), step, strings.Join(trace[max(0, len(trace)-20):], "\n"))
			}
			switch v.Act {
			case ActFollow, ActResend:
				old := run.Session
				run.Session = &dispatch.Snapshot{FromLog: v.Act == ActFollow}
				run.Session.Ready = maybe(r)
				if old != nil {
					run.Session.Reads, run.Session.Accepted = old.Reads, old.Accepted
				}
				longest := 38 * time.Second
				if run.State.Ended() {
					longest = 15 * time.Second
					run.Session.Reads++
				}
				if r.IntN(4) == 0 {
					run.Session.Accepted = &wire.Accepted{CallUID: "call-uid", Attempt: 1}
				}
				sessionEnds = run.Now.Add(pick(r, 0, time.Millisecond, 3*time.Second, longest))
			case ActStop:
				run.Pod.DeletionTimestamp = &metav1.Time{Time: run.Now.Add(time.Second)}
			}
			if run.Pod != nil && run.Pod.DeletionTimestamp != nil && obeys && maybe(r) {
				run.Pod, run.State = nil, sandbox.State{Phase: sandbox.PhaseMissing}
			}
			// The next look: when the verdict says so, or when the session has ended.
			next := run.Now.Add(v.After)
			if s := run.Session; s != nil && !s.Done && sessionEnds.Before(next) {
				next = sessionEnds
			}
			run.Now = next
		}
	}
}

// A sandbox either gets its call, or the call ends, by the start deadline.
func TestStartAlwaysEnds(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 500 {
		s := starting()
		s.Now = s.Job.CreationTimestamp.Time
		for step := 0; ; step++ {
			s.State = sandbox.State{Phase: sandbox.PhaseStarting, Words: "x", Permanent: r.IntN(3) == 0}
			v := Start(s)
			checkVerdict(t, "Start", v)
			if v.Ended() {
				break
			}
			if step > 1000 || s.Now.Sub(s.Job.CreationTimestamp.Time) > 121*time.Second {
				t.Fatalf("sandbox %d is waited for after %s and %d looks", i, s.Now.Sub(s.Job.CreationTimestamp.Time), step)
			}
			s.Now = s.Now.Add(min(v.After, time.Duration(1+r.IntN(20000))*time.Millisecond))
		}
	}
}
