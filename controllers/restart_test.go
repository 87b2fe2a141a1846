package controllers_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"callgate.dev/callgate/api/v1alpha1"
)

// A restart runs nothing again: neither what is finished nor what is under way.
// It is not parallel, since it stops the controller of all.
func TestRestart(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	const finished, withSandbox = 200, 20
	var calls []*v1alpha1.ToolCall
	for i := range finished {
		if i < withSandbox {
			calls = append(calls, newCall(t, tools, "tool"))
		} else {
			calls = append(calls, newCall(t, tools, "tool", withArgs(`{"n":"no number"}`)))
		}
	}
	for i, call := range calls {
		if i < withSandbox {
			startPod(t, call, prints("1", 0))
		}
		waitForEnd(t, call)
	}
	for _, call := range calls[:withSandbox] {
		waitForNoSandbox(t, call)
	}
	tool, release := blocked(t)
	runningCall := newCall(t, tools, "tool")
	startPod(t, runningCall, tool)
	eventually(t, "the call taken by the runner", func() (bool, any) {
		return attachedTo(waitForSend(t, runningCall)) == 1, nil
	})
	startingCall := newCall(t, tools, "tool")
	startingJob := jobOf(t, startingCall)
	waitForReason(t, startingCall, v1alpha1.ReasonStarting)

	// Two that the controller was about to send when it died, as their status tells.
	unsent, elsewhere := newCall(t, tools, "tool"), newCall(t, tools, "tool")
	jobs := map[types.UID]bool{startingJob.UID: true}
	for _, call := range []*v1alpha1.ToolCall{runningCall, unsent, elsewhere} {
		jobs[jobOf(t, call).UID] = true
	}
	waitForReason(t, unsent, v1alpha1.ReasonStarting)
	waitForReason(t, elsewhere, v1alpha1.ReasonStarting)
	var before float64
	restartController(t, func() {
		before = reconciles(t, "toolcall")
		pod := startPod(t, unsent, prints(`"sent again"`, 0))
		recordAttempt(t, unsent, pod, pod.UID)
		pod = startPod(t, elsewhere, prints(`"never"`, 0))
		recordAttempt(t, elsewhere, pod, "another-pod")
	})
	eventually(t, "every call looked at", func() (bool, any) {
		n := reconciles(t, "toolcall") - before
		return n >= finished+4, n
	})
	var list batchv1.JobList
	if err := admin.List(t.Context(), &list, client.InNamespace(tools)); err != nil {
		t.Fatal(err)
	}
	for _, job := range list.Items {
		if !jobs[job.UID] {
			t.Errorf("the restart made Job %s", job.Name)
		}
	}
	// What was not sent is sent, to the pod that its status names and to no other.
	unsent = waitForEnd(t, unsent)
	want{}.check(t, unsent)
	if n := attachedTo(unsent); n != 1 {
		t.Errorf("%d attaches to the pod of the call that was not sent, want 1", n)
	}
	elsewhere = waitForEnd(t, elsewhere)
	want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"sandbox is gone"}}.check(t, elsewhere)
	if n := attachedTo(elsewhere); n != 0 {
		t.Errorf("%d attaches to a pod that the status does not name", n)
	}
	// The answer of what ran comes from the log; what was starting goes on.
	release()
	runningCall = waitForEnd(t, runningCall)
	want{}.check(t, runningCall)
	if n := attachedTo(runningCall); n != 1 {
		t.Errorf("%d attaches: the call was sent again", n)
	}
	startPod(t, startingCall, prints("1", 0))
	want{}.check(t, waitForEnd(t, startingCall))
}

// recordAttempt writes the attempt that the controller writes before it sends.
func recordAttempt(t *testing.T, call *v1alpha1.ToolCall, pod *corev1.Pod, podUID types.UID) {
	t.Helper()
	eventually(t, "the attempt recorded", func() (bool, any) {
		now := &v1alpha1.ToolCall{}
		if err := admin.Get(t.Context(), keyOf(call), now); err != nil {
			return false, err
		}
		now.Status.Attempts = []v1alpha1.Attempt{{Number: 1, Sandbox: jobKey(pod.Namespace, call).Name, Namespace: pod.Namespace,
			Pod: pod.Name, PodUID: podUID, TimeoutSeconds: 8, Node: nodeName, SendTime: metav1.NowMicro()}}
		err := admin.Status().Update(t.Context(), now)
		return err == nil, err
	})
}

// reconciles counts the looks of a controller so far.
func reconciles(t *testing.T, name string) (n float64) {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == name {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}
