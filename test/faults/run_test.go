package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

func gvisor(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = "gvisor" }

func memory(limit string) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) {
		s.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: cluster.Quantity(limit)}
	}
}

// eat takes all memory there is.
const eat = `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`

// signals sends the runner all that it can catch.
const signals = `for s in HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM CHLD CONT TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS; do kill -$s 1 2>/dev/null; done; `

// A tool that ran and ended badly, and whose fault it was.
func TestRan(t *testing.T) {
	for _, tc := range []struct {
		name, reason, script string
		mods                 []func(*v1alpha1.ToolSpec)
		code                 v1alpha1.ErrorCode // empty: success with data
		retryable            bool
		data                 string
		parts                []string
	}{
		{name: "exit-126", reason: "C029: a child's 126 is the tool's own exit code", script: `/etc/passwd`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 126"}},
		{name: "exit-143", reason: "C029: what a shell makes of a child's SIGTERM", script: `exit 143`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 143"}},
		{name: "exit-137", reason: "C028: 137 is not out of memory", script: `exit 137`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 137"}},
		{name: "exit-255", reason: "C029", script: `exit 255`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 255"}},
		{name: "sigterm", reason: "a signal by its name", script: `kill -TERM $$`, code: v1alpha1.ErrorToolFailed, parts: []string{"SIGTERM"}},
		{name: "sigabrt", reason: "a signal by its name", script: `kill -ABRT $$`, code: v1alpha1.ErrorToolFailed, parts: []string{"SIGABRT"}},
		{name: "sigkill", reason: "C028: it may be the memory limit, and that is all that can be said", script: `kill -KILL $$`, code: v1alpha1.ErrorToolFailed, parts: []string{"SIGKILL"}},
		{name: "stack-overflow", reason: "a recursion without end", script: `f() { f; }; f`, code: v1alpha1.ErrorToolFailed, parts: []string{"SIGSEGV"}},
		{name: "oom", reason: "C026: all of the tool's processes are one", script: eat, mods: []func(*v1alpha1.ToolSpec){memory("64Mi")}, code: v1alpha1.ErrorToolFailed, parts: []string{"memory"}},
		{name: "oom-gvisor", reason: "C026: under gVisor the sandbox goes with it", script: eat, mods: []func(*v1alpha1.ToolSpec){memory("64Mi"), gvisor}, code: v1alpha1.ErrorToolFailed, parts: []string{"ran out of memory", "160Mi", "limits.memory"}},
		{name: "oom-child", reason: "C027: the tool knows and says so", script: `( ` + eat + ` ) || exit 9`, mods: []func(*v1alpha1.ToolSpec){memory("64Mi")}, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 9"}},
		{name: "oom-child-unsaid", reason: "C027: nor does it pass for a success if the tool says nothing", script: `( ` + eat + ` ); echo 1`, mods: []func(*v1alpha1.ToolSpec){memory("64Mi")},
			code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 0", "ran out of memory"}},
		{name: "oom-child-gvisor", reason: "C027: under gVisor the sandbox goes with the child", script: `( ` + eat + ` ); echo 1`, mods: []func(*v1alpha1.ToolSpec){memory("64Mi"), gvisor}, code: v1alpha1.ErrorToolFailed, parts: []string{"ran out of memory"}},
		{name: "scratch-full", reason: "/tmp is full at its limit, and the tool's words say so", script: `dd if=/dev/zero of=/tmp/x bs=1M || exit 4`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 4", "No space left on device"}},
		{name: "read-only", reason: "the root is not for writing", script: `echo x > /x || exit 5`, code: v1alpha1.ErrorToolFailed, parts: []string{"exit code 5", "Read-only file system"}},
		{name: "closed-streams", reason: "closed streams do not end a run, the time limit does", script: `exec <&- >&- 2>&-; sleep 1000`, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(2)}, code: v1alpha1.ErrorToolTimeout, parts: []string{"2s"}},
		{name: "forks", reason: "every process of it ends with its time", script: `for i in 1 2 3 4 5; do ( setsid sh -c 'trap "" TERM; sleep 1000' & ); done; wait; sleep 1000`, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(2)}, code: v1alpha1.ErrorToolTimeout, parts: []string{"2s"}},
		{name: "signals-runner", reason: "no signal of a tool ends, stops or hurries the runner", script: signals + `kill -STOP 1; kill -KILL 1; sleep 1; echo 1`, data: "1"},
		{name: "signals-runner-gvisor", reason: "the same under gVisor", script: signals + `sleep 1; echo 1`, mods: []func(*v1alpha1.ToolSpec){gvisor}, data: "1"},
		{name: "kills-runner-gvisor", reason: "gVisor lets it end the runner: it did not answer, and what it did is not known", script: `kill -KILL 1; sleep 1; echo 1`,
			mods: []func(*v1alpha1.ToolSpec){gvisor}, code: v1alpha1.ErrorOutcomeUnknown, parts: []string{"exit code 137", "may have taken effect"}},
		{name: "stops-runner-gvisor", reason: "gVisor lets it stop the runner: the sandbox is ended all the same", script: `kill -STOP 1; sleep 1; echo 1`,
			mods: []func(*v1alpha1.ToolSpec){gvisor, cluster.Timeout(2)}, code: v1alpha1.ErrorToolTimeout, parts: []string{"2s", "may have taken effect"}},
		{name: "signals-all", reason: "nor a signal to everybody, which the sender does not get", script: `kill -KILL -1 2>/dev/null; sleep 1; echo 1`, data: "1"},
		{name: "last-moment", reason: "an answer at the last moment is one answer", script: `sleep 1.9; echo 1`, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(2)}, data: "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			tool := cluster.Shell(ctx, t, tc.name, tc.script, tc.mods...)
			call := cluster.CallOf(ctx, t, tool, "")
			t.Logf("%s: %s", tc.reason, call.Status.Result.Message)
			if tc.code != "" {
				cluster.Failed(t, call, tc.code, tc.retryable, tc.parts...)
			} else if got := cluster.Succeeded(t, call); got != tc.data {
				t.Errorf("%s: data is %s", tc.reason, got)
			}
			if n := len(call.Status.Attempts); n != 1 {
				t.Errorf("%d attempts", n)
			}
			cluster.WaitGone(ctx, t, call)
		})
	}
	t.Run("not-executable", func(t *testing.T) {
		ctx := cluster.Start(t)
		tool := cluster.NewTool(ctx, t, "not-executable", []string{"/etc/passwd"})
		cluster.Failed(t, cluster.CallOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "cannot be executed", "/etc/passwd")
	})
}

// Somebody ends a sandbox in the middle of a run. No call is a success that
// was cut off, and none a failure of its tool's.
func TestEndedByOthers(t *testing.T) {
	onPod := func(act func(context.Context, *corev1.Pod) error) func(context.Context, *testing.T, *v1alpha1.ToolCall) error {
		return func(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) error {
			t.Helper()
			a := call.Status.Attempts[0]
			return act(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Pod, UID: a.PodUID}})
		}
	}
	deletion := func(grace int64) func(context.Context, *testing.T, *v1alpha1.ToolCall) error {
		return onPod(func(ctx context.Context, p *corev1.Pod) error {
			return cluster.Admin.Delete(ctx, p, client.GracePeriodSeconds(grace))
		})
	}
	drain := onPod(func(ctx context.Context, p *corev1.Pod) error {
		return cluster.Admin.SubResource("eviction").Create(ctx, p, &policyv1.Eviction{})
	})
	for _, tc := range []struct {
		name, reason, script string
		mods                 []func(*v1alpha1.ToolSpec)
		act                  func(context.Context, *testing.T, *v1alpha1.ToolCall) error
		code                 v1alpha1.ErrorCode
		retryable            bool
		parts                []string
		within               time.Duration // of the act
	}{
		{name: "drain", reason: "a drain gives it the time that it has, and its whole answer counts", script: `trap 'echo 2; exit 0' TERM; sleep 3; echo 1`, act: drain, within: 6 * time.Second},
		{name: "drain-timeout", reason: "nor is its time cut short", script: `sleep 1000`, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(4)}, act: drain,
			code: v1alpha1.ErrorToolTimeout, parts: []string{"4s"}, within: 8 * time.Second},
		{name: "deleted", reason: "deleted with a short grace: cut off", script: `sleep 30; echo 1`, act: deletion(1),
			code: v1alpha1.ErrorOutcomeUnknown, parts: []string{"may have taken effect"}, within: 8 * time.Second},
		{name: "deleted-idempotent", reason: "the same of a tool that may run again, and has no retries", script: `sleep 30; echo 1`, act: deletion(1),
			mods: []func(*v1alpha1.ToolSpec){func(s *v1alpha1.ToolSpec) {
				s.SideEffects, s.MaxRetries = v1alpha1.SideEffectsIdempotent, ptr.To[int32](0)
			}},
			code: v1alpha1.ErrorOutcomeUnknown, retryable: true, within: 8 * time.Second},
		{name: "deleted-gvisor", reason: "the same under gVisor", script: `sleep 30; echo 1`, mods: []func(*v1alpha1.ToolSpec){gvisor}, act: deletion(1),
			code: v1alpha1.ErrorOutcomeUnknown, within: 8 * time.Second},
		{name: "force-deleted", reason: "deleted by force: the pod is gone before its container", script: `sleep 30; echo 1`, act: deletion(0),
			code: v1alpha1.ErrorOutcomeUnknown, parts: []string{"may have taken effect"}, within: 8 * time.Second},
		{name: "job-deleted", reason: "its Job deleted: as long as the grace of its pod, which is its time", script: `sleep 3; echo 1`, within: 6 * time.Second,
			act: func(ctx context.Context, _ *testing.T, call *v1alpha1.ToolCall) error {
				a := call.Status.Attempts[0]
				return cluster.Admin.Delete(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Sandbox}}, client.PropagationPolicy(metav1.DeletePropagationBackground))
			}},
		{name: "second-container", reason: "another image in the same pod: the kubelet lets the first container end, which is its answer, and starts a second, which gets none", script: `sleep 3; echo 1`,
			act: onPod(func(ctx context.Context, p *corev1.Pod) error {
				return cluster.Admin.Patch(ctx, p, client.RawPatch("application/strategic-merge-patch+json",
					[]byte(`{"spec":{"containers":[{"name":"tool","image":"`+cluster.Images["TESTTOOLS"]+`"}]}}`)))
			}), within: 6 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			tool := cluster.Shell(ctx, t, tc.name, tc.script, append([]func(*v1alpha1.ToolSpec){cluster.Timeout(40)}, tc.mods...)...)
			call := cluster.Propose(ctx, t, tool, "")
			cluster.WaitReason(ctx, t, call, v1alpha1.ReasonRunning)
			cluster.WaitAccepted(ctx, t, call)
			begin := time.Now()
			if err := tc.act(ctx, t, call); err != nil {
				t.Fatal(err)
			}
			cluster.Finish(ctx, t, call)
			took := time.Since(begin)
			t.Logf("%s: after %s: %s", tc.reason, took.Round(100*time.Millisecond), call.Status.Result.Message)
			if tc.code != "" {
				cluster.Failed(t, call, tc.code, tc.retryable, tc.parts...)
				if strings.Contains(call.Status.Result.Message, "the tool ended with") {
					t.Errorf("%s: its tool is blamed", tc.reason)
				}
			} else if got := cluster.Succeeded(t, call); got != "1" {
				t.Errorf("%s: data is %s", tc.reason, got)
			}
			if took > tc.within {
				t.Errorf("%s: it ended after %s, want %s", tc.reason, took, tc.within)
			}
			if n := len(call.Status.Attempts); n != 1 {
				t.Errorf("%d attempts", n)
			}
			cluster.WaitGone(ctx, t, call)
		})
	}
}

// C008: the grace is not added to what was asked: a tool gets its time to the
// moment, and a second after SIGTERM.
func TestTimesAreExact(t *testing.T) {
	for _, tc := range []struct{ name, reason, script string }{
		{"ignores", "ignores SIGTERM", `trap '' TERM; while :; do sleep 1; done`},
		{"answers", "answers SIGTERM with a success", `trap 'echo 1; exit 0' TERM; while :; do sleep 0.1; done`},
		{"forks-too", "forked", `( trap '' TERM; sleep 1000 ) & ( trap '' TERM; sleep 1000 ) & wait`},
		{"closes", "closed its streams", `exec >&- 2>&- <&-; sleep 1000`},
	} {
		for _, under := range []string{"", "gvisor"} {
			name := "exact-" + tc.name + under
			t.Run(name, func(t *testing.T) {
				ctx := cluster.Start(t)
				tool := cluster.Shell(ctx, t, name, tc.script, cluster.Timeout(30), func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = under })
				call := cluster.CallOf(ctx, t, tool, "", func(s *v1alpha1.ToolCallSpec) { s.TimeoutSeconds = 2 })
				cluster.Failed(t, call, v1alpha1.ErrorToolTimeout, false, "2s")
				a := call.Status.Attempts[0]
				ran := a.FinishTime.Sub(a.StartTime.Time)
				t.Logf("%s: it ran for %s", tc.reason, ran)
				if ran < 2*time.Second || ran > 3500*time.Millisecond {
					t.Errorf("%s: it ran for %s, want 2 s and at most one of grace", tc.reason, ran)
				}
			})
		}
	}
}
