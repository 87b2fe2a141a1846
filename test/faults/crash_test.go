package faults

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/wire"
	"callgate.dev/callgate/test/cluster"
)

// armed is a controller that can be told, while it works, what happens the next
// time it passes a named point.
type armed struct {
	*process
	file string
}

func startArmed(t *testing.T, server string) armed {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fault")
	return armed{startController(t, "@"+file, server), file}
}

// arm says what happens at a point: see internal/fault.
func (a armed) arm(t *testing.T, fault string) {
	t.Helper()
	whole := a.file + ".new"
	if err := os.WriteFile(whole, []byte(fault), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(whole, a.file); err != nil {
		t.Fatal(err)
	}
}

// waitPassed waits until it is happening.
func (a armed) waitPassed(t *testing.T) {
	t.Helper()
	if err := until(t.Context(), func() (bool, error) {
		_, err := os.Stat(a.file)
		return os.IsNotExist(err), nil
	}); err != nil {
		t.Fatalf("the controller did not come to the point: %v", err)
	}
}

// next starts another controller in place of one that was killed. That its Lease
// goes at once saves the wait for its end: the dead do nothing any more.
func (a armed) next(t *testing.T) armed {
	t.Helper()
	if err := dropLease(t.Context()); err != nil {
		t.Fatal(err)
	}
	return startArmed(t, "")
}

// first starts a controller in place of those that other tests have killed.
func first(t *testing.T, server string) armed {
	t.Helper()
	if err := dropLease(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := startArmed(t, server)
	p.waitReady()
	return p
}

// Whatever dies, hangs or is lost around a call: its tool is started at most
// once. All of this shares the time in which the cluster has no other controller.
func TestNeverTwice(t *testing.T) {
	takeOver(t)
	t.Run("KilledController", killedController)
	t.Run("FailedWrites", failedWrites)
	t.Run("StaleCache", staleCache)
	t.Run("FrozenLeader", frozenLeader)
	t.Run("WarmPool", warmPool)
	t.Run("SandboxGoneBesideItsCall", sandboxGone)
	t.Run("RestartedCluster", restartedCluster)
}

// A controller is killed at each point of a call's life; another one, which
// knows nothing but status and cluster, brings the call to its end. Each row is
// one of the table in which the design says what it does.
func killedController(t *testing.T) {
	whole := t // a controller outlives the row in which it starts
	p := first(t, "")
	tool := countingTool(t, "killed")
	var all []*v1alpha1.ToolCall
	for _, tc := range []struct {
		name, point, reason string
		seconds             float64
		// before is done when the call is there; between, while there is no controller.
		before, between func(*testing.T, *v1alpha1.ToolCall)
		key             bool
		attempts        int // 0: it depends
		// cancelled: the call ends so; starts is how often its tool was started.
		cancelled bool
		starts    int
	}{
		{name: "key taken", point: "key-taken", reason: "the key is the call's own: no duplicate of itself", key: true, attempts: 1, starts: 1},
		{name: "sandbox created", point: "sandbox-created", reason: "the sandbox is found by its name", attempts: 1, starts: 1},
		{name: "entry written", point: "entry-written", reason: "ready and not accepted: sent again to the same pod", attempts: 1, starts: 1},
		{name: "entry written, sandbox taken by another call", point: "entry-written", reason: "taken by another call: the frame proves that this one never started", between: takeSandbox, attempts: 2, starts: 1},
		{name: "entry written, then cancelled", point: "entry-written", reason: "given up before a byte was sent: the runner leaves, or has accepted", between: cancel, attempts: 1, cancelled: true},
		{name: "half a frame sent", point: "half-frame", reason: "half a frame is no call: the container ends with 64, a new attempt", attempts: 2, starts: 1},
		{name: "sent", point: "sent", reason: "accepted or not: the log tells, or the exit code", starts: 1},
		{name: "accepted", point: "accepted", reason: "accepted, no result, running: its log is followed", seconds: 3, attempts: 1, starts: 1},
		{name: "result seen", point: "result-seen", reason: "a whole result in the log, no status", attempts: 1, starts: 1},
		{name: "keys settled", point: "keys-settled", reason: "the key has the result, the status has not", key: true, attempts: 1, starts: 1},
		{name: "result written", point: "result-written", reason: "a call that is complete stays as it is", attempts: 1, starts: 1},
		{name: "stop", point: "stop", reason: "cancelled while running, killed before the pod was deleted", seconds: 50, before: cancelStarted, attempts: 1, cancelled: true, starts: 1},
		{name: "sandbox removal", point: "sandbox-removal", reason: "the pod is deleted, the Job is not yet", seconds: 50, before: cancelStarted, attempts: 1, cancelled: true, starts: 1},
	} {
		ok := t.Run(tc.name, func(t *testing.T) {
			p.t = t
			p.arm(t, tc.point+":kill")
			call := cluster.Propose(t.Context(), t, tool, countingArgs(tc.seconds, 0), func(s *v1alpha1.ToolCallSpec) {
				if tc.key {
					s.IdempotencyKey = tc.point
				}
			})
			if tc.before != nil {
				tc.before(t, call)
			}
			p.waitExit()
			if tc.between != nil {
				tc.between(t, call)
			}
			p = p.next(whole)
			p.t = t
			cluster.Finish(t.Context(), t, call)
			all = append(all, call)
			if tc.cancelled {
				cluster.Failed(t, call, v1alpha1.ErrorCancelled, false)
				started(t, call, tc.starts)
				cluster.WaitGone(t.Context(), t, call)
			} else {
				done(t, call, 0)
			}
			if n := len(call.Status.Attempts); tc.attempts > 0 && n != tc.attempts {
				t.Errorf("%s: %d attempts, want %d: %s", tc.reason, n, tc.attempts, cluster.JSONOf(t, call.Status.Attempts))
			}
			if tc.key {
				again := cluster.CallOf(t.Context(), t, tool, countingArgs(tc.seconds, 0), func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = tc.point })
				if ref := again.Status.DuplicateOfRef; ref == nil || ref.Name != call.Name {
					t.Errorf("a call with the same key is no duplicate: %s", cluster.JSONOf(t, again.Status))
				}
				started(t, again, 0)
			}
		})
		if !ok {
			return // the next row needs a controller that waits
		}
	}
	for _, call := range all {
		if n := starts(t, call); n > 1 {
			t.Errorf("the tool of call %s was started again after its end: %d times", call.Name, n)
		}
	}
}

func cancel(t *testing.T, call *v1alpha1.ToolCall) { cluster.Cancel(t.Context(), t, call) }

func cancelStarted(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	waitStarted(t, call)
	cancel(t, call)
}

// takeSandbox gives the sandbox of a call another call, as a second claim of it
// would.
func takeSandbox(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(call), call); err != nil {
		t.Fatal(err)
	}
	a := call.Status.Attempts[0]
	ctx, cancel := context.WithTimeout(t.Context(), cluster.Patience)
	defer cancel()
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	url := clientset.CoreV1().RESTClient().Get().Resource("pods").Namespace(a.Namespace).Name(a.Pod).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(cluster.Config, "GET", url.String())
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	seal := wire.Seal{CallUID: "another-call", Attempt: 1, PodUID: string(a.PodUID), Key: make(wire.Key, wire.KeyBytes)}
	go func() {
		_ = wire.WriteCall(writer, seal.CallUID, seal.Attempt, seal.PodUID, wire.Call{Argv: []string{"true"}, DevNullStdin: true, MaxStdoutBytes: 1, TimeoutMillis: 1000, ResultKey: seal.Key})
	}()
	transcript := wire.Transcript{Seal: seal}
	go func() {
		_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: reader, Stdout: &transcript})
	}()
	select {
	case <-transcript.ResultSeen():
		_ = writer.Close()
	case <-ctx.Done():
		t.Fatal("the sandbox did not take another call")
	}
}

// jobOf is the Job of a call's first sandbox.
func jobOf(t *testing.T, call *v1alpha1.ToolCall) *batchv1.Job {
	t.Helper()
	var jobs batchv1.JobList
	if err := until(t.Context(), func() (bool, error) {
		err := cluster.Admin.List(t.Context(), &jobs, client.InNamespace(call.Spec.ToolRef.Namespace), client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)})
		return len(jobs.Items) > 0, err
	}); err != nil {
		t.Fatal(err)
	}
	return &jobs.Items[0]
}
