package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestSandboxIsRemoved(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "removed", "cat")
	call := callOf(ctx, t, tool, `{"secret-marker":1}`)
	succeeded(t, call)
	waitGone(ctx, t, call)
	a := call.Status.Attempts
	if len(a) != 1 || a[0].Outcome != v1alpha1.OutcomeReported || a[0].ImageID == "" || a[0].Node == "" || *a[0].ExitCode != 0 || a[0].FinishTime.Before(a[0].StartTime) {
		t.Errorf("the attempt's record is not complete: %+v", a)
	}
}

func TestTimeoutIsExact(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "exact", "trap '' TERM; sleep 1000", timeout(30))
	call := callOf(ctx, t, tool, "", func(s *v1alpha1.ToolCallSpec) { s.TimeoutSeconds = 2 })
	failed(t, call, v1alpha1.ErrorToolTimeout, false, "2s")
	a := call.Status.Attempts[0]
	// The tool got its two seconds, and one of grace after SIGTERM.
	if ran := a.FinishTime.Sub(a.StartTime.Time); ran < 2*time.Second || ran > 4*time.Second {
		t.Errorf("the tool ran for %s", ran)
	}
}

func TestCancelRunning(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "cancelled", "sleep 1000", timeout(300))
	call := propose(ctx, t, tool, "")
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	cancelCall(ctx, t, call)
	failed(t, finish(ctx, t, call), v1alpha1.ErrorCancelled, false, "while the tool was running")
	waitGone(ctx, t, call)
}

func TestCancelWaiting(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "cancel-waiting", "cat", func(s *v1alpha1.ToolSpec) { s.Container.Image = "localhost/callgate/no-such-image:1" })
	call := propose(ctx, t, tool, "")
	waitReason(ctx, t, call, v1alpha1.ReasonStarting)
	cancelCall(ctx, t, call)
	failed(t, finish(ctx, t, call), v1alpha1.ErrorCancelled, false, "before the tool was started")
	waitGone(ctx, t, call)
}

// What never starts ends with the cluster's own words.
func TestNeverStarts(t *testing.T) {
	deadline := func(seconds int32) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = seconds }
	}
	secret := func(s *v1alpha1.ToolSpec) {
		s.Container.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "absent", Key: "token"}}}}
	}
	image := func(ref string) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.Container.Image = ref }
	}
	for _, tc := range []struct {
		name, reason string
		mods         []func(*v1alpha1.ToolSpec)
		retryable    bool
		parts        []string
	}{
		{"no-image", "a missing image may be pushed later", []func(*v1alpha1.ToolSpec){image("localhost/callgate/no-such-image:1"), deadline(8)}, true, []string{"startDeadlineSeconds (8)", "no-such-image"}},
		{"bad-image", "a bad image name is final, at once", []func(*v1alpha1.ToolSpec){image("localhost/UPPER:1")}, false, []string{"InvalidImageName"}},
		{"no-secret", "a missing Secret by its name", []func(*v1alpha1.ToolSpec){secret}, false, []string{"absent"}},
		{"unschedulable", "the scheduler's words", []func(*v1alpha1.ToolSpec){deadline(5), func(s *v1alpha1.ToolSpec) {
			s.Container.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: quantity("900Gi")}
			s.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("900Gi")}
		}}, true, []string{"Insufficient memory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := start(t)
			tool := shell(ctx, t, tc.name, "cat", tc.mods...)
			call := callOf(ctx, t, tool, "")
			failed(t, call, v1alpha1.ErrorToolUnavailable, tc.retryable, tc.parts...)
			if len(call.Status.Attempts) != 0 {
				t.Errorf("%s: it has an attempt: %+v", tc.reason, call.Status.Attempts)
			}
			waitGone(ctx, t, call)
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "memory", `x=a; while :; do x=$x$x$x$x; done`, timeout(30), func(s *v1alpha1.ToolSpec) {
		s.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("64Mi")}
	})
	failed(t, callOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "memory")
}

// A controller that dies while a tool runs: the next one finds the result in
// the log, and the tool ran once. Not parallel: the other calls would wait.
func TestControllerKilledWhileToolRuns(t *testing.T) {
	ctx := t.Context()
	tool := shell(ctx, t, "survives", `sleep 6; printf '"%s"' "$(head -c 24 /dev/urandom | base64)"`, timeout(60))
	call := propose(ctx, t, tool, `{"keep":"this"}`)
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	waitAccepted(ctx, t, call)
	before := controllerPod(ctx, t)
	killController(ctx, t, before)
	if data := succeeded(t, finish(ctx, t, call)); len(unquote(t, data)) != 32 {
		t.Errorf("the answer is %s", data)
	}
	if a := call.Status.Attempts; len(a) != 1 || a[0].Outcome != v1alpha1.OutcomeReported {
		t.Errorf("attempts: %+v", a)
	}
	if after := controllerPod(ctx, t); after.UID == before.UID && restarts(after) == restarts(before) {
		t.Error("the controller was not killed")
	}
	waitGone(ctx, t, call)
}

func restarts(p *corev1.Pod) int32 { return p.Status.ContainerStatuses[0].RestartCount }

// killController ends the controller with SIGKILL: nothing is released, nothing
// is said. From outside of the node it can only delete the pod at once.
func killController(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range processes {
		line, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(line), "/callgate\x00") || !strings.Contains(string(line), "--runner-image=") {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if err != nil || !strings.Contains(string(cgroup), string(pod.UID)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Log("the controller's process is not on this machine: its pod is deleted instead")
	if err := admin.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

func controllerPod(ctx context.Context, t *testing.T) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := admin.List(ctx, &pods, client.InNamespace("callgate-system")); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil && strings.HasPrefix(p.Name, "callgate-controller-") {
			return p
		}
	}
	t.Fatal("no pod of the controller in callgate-system")
	return nil
}

// No argument is anywhere but in the call and the tool.
func TestArgumentsAreNowhereElse(t *testing.T) {
	ctx := start(t)
	const marker = "marker-5f3a9c"
	tool := newTool(ctx, t, "nowhere", []string{"sh", "-c", `sleep 3; exit 3`, "sh", "$(args.v)"}, func(s *v1alpha1.ToolSpec) {
		s.InputSchema = raw(`{"type":"object","properties":{"v":{"type":"string"}}}`)
	})
	call := propose(ctx, t, tool, `{"v":"`+marker+`"}`)
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	var jobs batchv1.JobList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&jobs, &pods} {
		if err := admin.List(ctx, list, client.InNamespace(toolsNS), client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)}); err != nil {
			t.Fatal(err)
		}
	}
	if len(jobs.Items) != 1 || len(pods.Items) != 1 {
		t.Fatalf("%d Jobs and %d pods while the tool runs", len(jobs.Items), len(pods.Items))
	}
	if owners := jobs.Items[0].OwnerReferences; len(owners) != 0 {
		t.Errorf("the Job has ownerReferences: %v", owners)
	}
	failed(t, finish(ctx, t, call), v1alpha1.ErrorToolFailed, false, "exit code 3")
	var events corev1.EventList
	if err := admin.List(ctx, &events); err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]any{"Job": jobs.Items, "Pod": pods.Items, "Event": events.Items, "status": call.Status.Conditions} {
		if strings.Contains(jsonOf(t, o), marker) {
			t.Errorf("the arguments stand in a %s", what)
		}
	}
	if got := metav1.GetControllerOf(&pods.Items[0]); got == nil || got.UID != jobs.Items[0].UID {
		t.Errorf("the pod is not the Job's: %v", got)
	}
}

// A cancel that comes too late changes nothing, and kubectl wait still returns.
func TestCancelFinished(t *testing.T) {
	ctx := start(t)
	call := callOf(ctx, t, shell(ctx, t, "too-late", "echo 1"), "")
	cancelCall(ctx, t, call)
	waitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(c *v1alpha1.ToolCall) bool {
		complete := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionComplete)
		return c.Generation == 2 && c.Status.ObservedGeneration == 2 && complete != nil && complete.ObservedGeneration == 2
	}, func(c *v1alpha1.ToolCall) string { return fmt.Sprintf("%+v", c.Status) })
	if got := succeeded(t, call); got != "1" {
		t.Errorf("the result became %s", got)
	}
}
