package controllers_test

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// Calls that are deleted right after they were created leave nothing.
func TestDeletedCalls(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	for i := range 30 {
		call := newCall(t, tools, "tool")
		if i%2 == 0 {
			jobOf(t, call) // half of them have a sandbox by then
		}
		if err := agent.Delete(t.Context(), call); err != nil {
			t.Fatal(err)
		}
	}
	// One more, which comes after them, tells that they were all looked at.
	last := newCall(t, tools, "tool")
	podOf(t, last)
	waitForReason(t, last, v1alpha1.ReasonStarting)
	eventually(t, "no other sandbox left", func() (bool, any) {
		var jobs batchv1.JobList
		var pods corev1.PodList
		if err := admin.List(t.Context(), &jobs, client.InNamespace(tools)); err != nil {
			return false, err
		}
		if err := admin.List(t.Context(), &pods, client.InNamespace(tools)); err != nil {
			return false, err
		}
		return len(jobs.Items) == 1 && len(pods.Items) == 1, []any{jobs.Items, pods.Items}
	})
	if !get(t, jobKey(tools, last), &jobType{}) {
		t.Error("the sandbox of a living call is gone")
	}
}

func TestCallDeletedWhileRunning(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	tool, _ := blocked(t)
	call := newCall(t, tools, "tool")
	pod := startPod(t, call, tool)
	waitForSend(t, call)
	remove(t, call.DeepCopy())
	waitForNoSandbox(t, call)
	if get(t, keyOf(pod), pod) {
		t.Error("the pod is still there")
	}
}

// A call that was deleted and created again under its name is another call.
func TestCallCreatedAgain(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	tool, _ := blocked(t)
	named := func() *v1alpha1.ToolCall {
		call := callObject(tools, "tool")
		call.GenerateName, call.Name = "", "again-"+tools
		return propose(t, agent, call)
	}
	first := named()
	startPod(t, first, tool)
	waitForSend(t, first)
	remove(t, first.DeepCopy())
	second := named()
	startPod(t, second, prints(`"second"`, 0))
	second = waitForEnd(t, second)
	want{}.check(t, second)
	if data := string(second.Status.Result.Data.Raw); data != `"second"` {
		t.Errorf("data is %s: the answer of the call before", data)
	}
	waitForNoSandbox(t, first)
	waitForNoSandbox(t, second)
}

// A Job that looks like a sandbox of a call that does not exist goes; one that
// is not ours stays.
func TestOrphans(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	job := func(name, installID string) *batchv1.Job {
		o := anyJob(tools, name)
		o.Labels = map[string]string{v1alpha1.LabelInstall: installID, v1alpha1.LabelCallUID: "0000", v1alpha1.LabelAttempt: "1"}
		o.Annotations = map[string]string{v1alpha1.AnnotationCall: agentsNamespace + "/gone"}
		create(t, o)
		return o
	}
	other := job("other-install", "callgate-elsewhere")
	orphan := job("callgate-0000-1", install)
	eventually(t, "the orphan removed", func() (bool, any) { return !get(t, keyOf(orphan), orphan), orphan })
	if !get(t, keyOf(other), other) || other.DeletionTimestamp != nil {
		t.Error("the Job of another install was removed")
	}
}
