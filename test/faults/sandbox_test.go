package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// Somebody else, or the kubelet, does something to a sandbox whose tool runs.
func TestDisturbedSandboxNeverStartsTwice(t *testing.T) {
	tool := countingTool(t, "disturbed")
	for _, tc := range []struct {
		name, reason string
		seconds      float64
		disturb      func(*testing.T, *v1alpha1.ToolCall)
		unknown      bool
	}{
		{"pod deleted", "the runner lets the tool end, within the pod's grace", 4, deletePod(nil), false},
		{"pod deleted by force", "nobody can know any more", 30, deletePod(ptr.To[int64](0)), true},
		{"Job deleted", "its pod goes with it, and lets the tool end", 4, deleteJob, false},
		{"second container", "the kubelet lets the first one end, then starts another in the same pod: that finds the mark and leaves", 4, otherImage, false},
		{"second container after a crash", "the same, without an answer of the first", 30, func(t *testing.T, c *v1alpha1.ToolCall) { otherImage(t, c); killRunner(t, c) }, true},
		{"second pod", "the Job gets another pod: nobody sends it the call", 4, secondPod, false},
		{"runner killed", "the container ends without a word", 30, killRunner, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			call := cluster.Propose(ctx, t, tool, countingArgs(tc.seconds, 0))
			waitStarted(t, call)
			cluster.WaitReason(ctx, t, call, v1alpha1.ReasonRunning)
			tc.disturb(t, call)
			cluster.Finish(ctx, t, call)
			if tc.unknown {
				cluster.Failed(t, call, v1alpha1.ErrorOutcomeUnknown, false)
				t.Logf("%s: %s", tc.reason, call.Status.Result.Message)
			} else {
				done(t, call, 0)
			}
			if n := len(call.Status.Attempts); n != 1 {
				t.Errorf("%s: %d attempts, want 1: %s", tc.reason, n, cluster.JSONOf(t, call.Status.Attempts))
			}
			cluster.WaitGone(ctx, t, call)
			started(t, call, 1)
		})
	}
}

// The same before the tool runs, and after it has answered.
func sandboxGone(t *testing.T) {
	p := first(t, "")
	tool := countingTool(t, "gone")
	for _, tc := range []struct {
		name, fault, reason string
		disturb             func(*testing.T, *v1alpha1.ToolCall)
		unknown             bool
		starts              int
	}{
		{"pod deleted before it was chosen", "sandbox-created:4s", "another sandbox is made", func(t *testing.T, c *v1alpha1.ToolCall) { deletePod(ptr.To[int64](0))(t, c) }, false, 1},
		{"pod deleted before the first byte", "entry-written:3s", "it stands in the status, so it counts as sent", deletePod(ptr.To[int64](0)), true, 0},
		{"Job deleted before the status", "keys-settled:3s", "the result is there", func(t *testing.T, c *v1alpha1.ToolCall) { deleteJob(t, c); deletePod(ptr.To[int64](0))(t, c) }, false, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.t = t
			p.arm(t, tc.fault)
			call := cluster.Propose(t.Context(), t, tool, countingArgs(0, 0))
			p.waitPassed(t)
			tc.disturb(t, call)
			cluster.Finish(t.Context(), t, call)
			if tc.unknown {
				cluster.Failed(t, call, v1alpha1.ErrorOutcomeUnknown, false)
				t.Logf("%s: %s", tc.reason, call.Status.Result.Message)
				started(t, call, tc.starts)
			} else {
				done(t, call, 0)
			}
		})
	}
}

// podOf is the pod of a call's sandbox.
func podOf(t *testing.T, call *v1alpha1.ToolCall) *corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := until(t.Context(), func() (bool, error) {
		err := cluster.Admin.List(t.Context(), &pods, client.InNamespace(call.Spec.ToolRef.Namespace), client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)})
		return len(pods.Items) > 0, err
	}); err != nil {
		t.Fatalf("no pod of call %s: %v", call.Name, err)
	}
	return &pods.Items[0]
}

// deletePod deletes the pod of a sandbox, with its own grace period if seconds is nil.
func deletePod(seconds *int64) func(*testing.T, *v1alpha1.ToolCall) {
	return func(t *testing.T, call *v1alpha1.ToolCall) {
		t.Helper()
		if err := cluster.Admin.Delete(t.Context(), podOf(t, call), &client.DeleteOptions{GracePeriodSeconds: seconds}); err != nil {
			t.Fatal(err)
		}
	}
}

func deleteJob(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if err := cluster.Admin.Delete(t.Context(), jobOf(t, call), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
}

// otherImage changes the image of a pod that runs: the one thing in a pod that
// makes the kubelet start a container again whatever the restartPolicy.
func otherImage(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	pod := podOf(t, call)
	pod.Spec.Containers[0].Image = cluster.Images["TESTTOOLS"]
	if err := cluster.Admin.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// secondPod makes another pod of the Job, as a Job controller does that has not
// heard of the first.
func secondPod(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	job := jobOf(t, call)
	pod := &corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.GenerateName = job.Namespace, job.Name+"-"
	pod.Finalizers = []string{batchv1.JobTrackingFinalizer}
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
	if err := cluster.Admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// The Job controller puts an end to one of the two.
	cluster.WaitFor(t.Context(), t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending },
		func(p *corev1.Pod) string { return cluster.JSONOf(t, p.Status) })
}

// killRunner kills PID 1 of a sandbox from outside, as nothing in it can.
func killRunner(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	ownCluster(t)
	uid := string(podOf(t, call).UID)
	cgroups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range cgroups {
		content, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(content), uid) {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err != nil || !bytes.HasPrefix(cmdline, []byte("/.callgate-runner-")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no runner in the sandbox of call %s", call.Name)
}
