package controllers_test

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/wire"
)

// What waits outlives the controller: the next one uses it, after it has seen in
// each sandbox's log that no call was accepted there. It is not parallel, since
// it stops the controller of all.
func TestWarmRestart(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	startsWarm(t, tools, prints(`"warm"`, 0))
	tool := newTool(t, tools, "tool", withWarm(2))
	gone := newTool(t, tools, "gone", withWarm(1))
	waitForWarm(t, tool, 2, 2)
	waitForWarm(t, gone, 1, 1)
	var before []string
	for _, job := range warmJobs(t, tools) {
		if job.Annotations[v1alpha1.AnnotationTool] == tool.Name {
			before = append(before, job.Name)
		}
	}
	var used string
	restartController(t, func() {
		// Deleted while no controller saw it.
		remove(t, gone)
		// Sent by the controller that is gone, to a call that is gone as well.
		var pods corev1.PodList
		if err := admin.List(t.Context(), &pods, client.InNamespace(tools), client.MatchingLabels{"batch.kubernetes.io/job-name": before[0]}); err != nil || len(pods.Items) != 1 {
			t.Fatal(err, len(pods.Items))
		}
		used = before[0]
		theNode.mu.Lock()
		defer theNode.mu.Unlock()
		_ = wire.WriteAccepted(&theNode.pods[tools+"/"+pods.Items[0].Name].log, "a-call-that-is-gone", 1)
	})
	eventually(t, "the used sandbox and those of the deleted Tool removed, the other one kept", func() (bool, any) {
		var names []string
		for _, job := range warmJobs(t, tools) {
			if job.Annotations[v1alpha1.AnnotationTool] == gone.Name {
				return false, job.Name
			}
			names = append(names, job.Name)
		}
		return len(names) == 2 && !slices.Contains(names, used) && slices.Contains(names, before[1]), names
	})
	waitForWarm(t, tool, 2, 2)
	call := waitForEnd(t, newCall(t, tools, "tool"))
	want{}.check(t, call)
	if a := call.Status.Attempts; len(a) != 1 || a[0].Sandbox != before[1] {
		t.Errorf("it did not run in %s, which waited longest: %s", before[1], show(a))
	}
}

// A controller that dies after a call was sent: the next one finishes the call,
// says so on its Job, and gives its sandbox to nobody else.
func TestWarmRestartWhileRunning(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	tool, release := blocked(t)
	startsWarm(t, tools, tool)
	registered := newTool(t, tools, "tool", withWarm(1))
	waitForWarm(t, registered, 1, 1)
	call := waitForSend(t, newCall(t, tools, "tool"))
	eventually(t, "the call taken by the runner", func() (bool, any) { return attachedTo(call) == 1, nil })
	name := client.ObjectKey{Namespace: tools, Name: call.Status.Attempts[0].Sandbox}
	restartController(t, func() {})
	eventually(t, "the Job names the call", func() (bool, any) {
		job := &batchv1.Job{}
		get(t, name, job)
		return job.Labels[v1alpha1.LabelCallUID] == string(call.UID), job.ObjectMeta
	})
	waitForWarm(t, registered, 1, 1) // another one
	release()
	call = waitForEnd(t, call)
	want{}.check(t, call)
	if a := call.Status.Attempts; len(a) != 1 || a[0].Sandbox != name.Name || attachedTo(call) != 1 {
		t.Errorf("attempts are %s, with %d attaches", show(a), attachedTo(call))
	}
	waitForNoSandbox(t, call)
}
