package warm

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

const (
	testMaxIdle = 600 * time.Second
	testStart   = 120 * time.Second
)

func testTool(change ...func(*v1alpha1.Tool)) *v1alpha1.Tool {
	t := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "echo", UID: "tool-uid"},
		Spec: v1alpha1.ToolSpec{
			Container: v1alpha1.ToolContainer{Image: "registry.example/echo:1", Command: []string{"echo"}},
			Warm:      &v1alpha1.WarmPool{Replicas: ptr.To[int32](2), MaxIdleSeconds: 600},
		},
	}
	for _, c := range change {
		c(t)
	}
	return t
}

var theTemplate = template(testTool())

func template(t *v1alpha1.Tool) *batchv1.Job {
	return sandbox.Warm(sandbox.Job(sandbox.Input{Tool: t, Install: "callgate-system", RunnerImage: "runner:1"}), t, nil)
}

func newPool(replicas int, sandboxes ...Sandbox) Pool {
	t := testTool()
	return Pool{Now: now, Want: theTemplate, Replicas: replicas, MaxIdle: testMaxIdle, StartDeadline: testStart,
		CallTime: sandbox.CallTime(t), Sandboxes: sandboxes}
}

var serial int

// job is a sandbox that was made so long ago.
func job(age time.Duration, change ...func(*Sandbox)) Sandbox {
	serial++
	j := sandbox.Named(theTemplate, fmt.Sprintf("callgate-w-%06d", serial))
	j.CreationTimestamp = metav1.NewTime(now.Add(-age))
	j.Status.StartTime = ptr.To(j.CreationTimestamp)
	s := Sandbox{Job: j}
	for _, c := range change {
		c(&s)
	}
	return s
}

// waits is one whose pod runs and is ready.
func waits(age time.Duration, change ...func(*Sandbox)) Sandbox {
	return job(age, append([]func(*Sandbox){running}, change...)...)
}

func running(s *Sandbox) {
	s.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.Job.Name + "-x", Labels: s.Job.Spec.Template.Labels, CreationTimestamp: s.Job.CreationTimestamp},
		Spec: *s.Job.Spec.Template.Spec.DeepCopy()}
	s.Pod.Spec.NodeName, s.Pod.Spec.ServiceAccountName = "node", "default"
	s.Pod.Status = corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: s.Job.CreationTimestamp}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: sandbox.Container, State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: s.Job.CreationTimestamp}}}}}
}

func pending(s *Sandbox) {
	running(s)
	s.Pod.Spec.NodeName = ""
	s.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}}
}

func exited(code int32) func(*Sandbox) {
	return func(s *Sandbox) {
		running(s)
		s.Pod.Status.Phase = corev1.PodFailed
		s.Pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
}

func notReady(s *Sandbox) { s.Pod.Status.Conditions[0].Status = corev1.ConditionFalse }

func leaving(s *Sandbox) { s.Pod.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }

func evicted(s *Sandbox) {
	s.Pod.Status.Conditions = append(s.Pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"})
}

func mutated(s *Sandbox)  { s.Pod.Spec.Containers[0].Image = "registry.example/other:1" }
func cordoned(s *Sandbox) { s.NodeLeft = true }
func taken(s *Sandbox)    { s.Taken = true }
func unproven(s *Sandbox) { s.Unproven = true }
func used(s *Sandbox)     { s.Used = true }

func takenBefore(d time.Duration) func(*Sandbox) {
	return func(s *Sandbox) { s.Taken, s.TakeTime = true, now.Add(-d) }
}

func otherPool(s *Sandbox) {
	s.Job.Labels = map[string]string{v1alpha1.LabelInstall: "callgate-system", v1alpha1.LabelToolUID: "tool-uid", v1alpha1.LabelPool: "old"}
}

func otherTool(s *Sandbox) {
	otherPool(s)
	s.Job.Labels[v1alpha1.LabelPool], s.Job.Labels[v1alpha1.LabelToolUID] = theTemplate.Labels[v1alpha1.LabelPool], "another"
}

func failedBefore(n int) func(*Sandbox) { return func(s *Sandbox) { Failed(s.Job, n) } }

func deadline(left time.Duration) func(*Sandbox) {
	return func(s *Sandbox) {
		s.Job.Spec.ActiveDeadlineSeconds = ptr.To(int64((now.Sub(s.Job.Status.StartTime.Time) + left) / time.Second))
	}
}
