package controllers_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

func withWarm(replicas int32) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.Warm = &v1alpha1.WarmPool{Replicas: &replicas} }
}

func warmRunning() corev1.PodStatus {
	status := running()
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	return status
}

// startsWarm lets every waiting sandbox of a namespace run tool, from now until
// the end of the test.
func startsWarm(t *testing.T, namespace string, tool toolFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { stop(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			var pods corev1.PodList
			if err := admin.List(ctx, &pods, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelPool}); err == nil {
				for i := range pods.Items {
					if pod := &pods.Items[i]; pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
						startWarm(ctx, pod, tool)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

// startWarm does with one pod what a kubelet does. The pod may be gone.
func startWarm(ctx context.Context, pod *corev1.Pod, tool toolFunc) {
	if err := adminSet.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}, metav1.CreateOptions{}); err != nil {
		return
	}
	c := &container{pod: pod, tool: tool}
	_ = wire.WriteReady(&c.log)
	theNode.mu.Lock()
	theNode.pods[pod.Namespace+"/"+pod.Name] = c
	theNode.mu.Unlock()
	for range 20 {
		now := &corev1.Pod{}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(pod), now); err != nil {
			return
		}
		now.Status = warmRunning()
		if err := admin.Status().Update(ctx, now); err == nil {
			return
		}
	}
}

// callWithUID finds a call; an empty one if it is gone.
func callWithUID(uid string) (*v1alpha1.ToolCall, error) {
	var calls v1alpha1.ToolCallList
	if err := admin.List(context.Background(), &calls); err != nil {
		return nil, err
	}
	for i := range calls.Items {
		if string(calls.Items[i].UID) == uid {
			return &calls.Items[i], nil
		}
	}
	return &v1alpha1.ToolCall{}, nil
}

func warmJobs(t *testing.T, namespace string) []batchv1.Job {
	t.Helper()
	var jobs batchv1.JobList
	if err := admin.List(t.Context(), &jobs, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelPool}); err != nil {
		t.Fatal(err)
	}
	return jobs.Items
}

// waitForWarm waits until the Tool's status says how many sandboxes wait.
func waitForWarm(t *testing.T, tool *v1alpha1.Tool, replicas, ready int32) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d of %d sandboxes of %s ready", ready, replicas, tool.Name), func() (bool, any) {
		now := &v1alpha1.Tool{}
		get(t, keyOf(tool), now)
		w := now.Status.Warm
		return w != nil && *w.Replicas == replicas && *w.Ready == ready, now.Status
	})
}

func isWarm(call *v1alpha1.ToolCall) bool {
	a := call.Status.Attempts
	return len(a) > 0 && sandbox.IsWarm(a[len(a)-1].Sandbox)
}

// waitForEndAnywhere waits for the end of a call, which gets a sandbox of its own
// if none waits.
func waitForEndAnywhere(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	sent := waitForCall(t, call, "an attempt, or a sandbox of its own", func(now *v1alpha1.ToolCall) bool {
		return len(now.Status.Attempts) > 0 || get(t, jobKey(toolNamespace(now), now), &batchv1.Job{})
	})
	if len(sent.Status.Attempts) == 0 {
		startPod(t, call, prints(`"cold"`, 0))
	}
	return waitForEnd(t, call)
}

// A call takes a sandbox that waits, and another one takes its place.
func TestWarmCall(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	startsWarm(t, tools, prints(`"warm"`, 0))
	tool := newTool(t, tools, "tool", withWarm(2))
	waitForWarm(t, tool, 2, 2)
	before := warmJobs(t, tools)
	for _, job := range before {
		if len(job.Labels[v1alpha1.LabelCallUID]+job.Annotations[v1alpha1.AnnotationCall]) > 0 {
			t.Errorf("a waiting sandbox names a call: %s", show(job.ObjectMeta))
		}
	}
	call := waitForEnd(t, newCall(t, tools, "tool"))
	want{}.check(t, call)
	if !isWarm(call) || len(call.Status.Attempts) != 1 || call.Status.Attempts[0].Outcome != v1alpha1.OutcomeReported {
		t.Fatalf("not one attempt in a sandbox that waited: %s", show(call.Status.Attempts))
	}
	used := call.Status.Attempts[0].Sandbox
	if !slices.ContainsFunc(before, func(j batchv1.Job) bool { return j.Name == used }) {
		t.Errorf("it ran in %s, which did not wait before", used)
	}
	eventually(t, "the used sandbox removed, and another one waiting", func() (bool, any) {
		var names []string
		for _, j := range warmJobs(t, tools) {
			names = append(names, j.Name)
		}
		return len(names) == 2 && !slices.Contains(names, used), names
	})
	waitForWarm(t, tool, 2, 2)
}

// Each sandbox gets one call, ever, however many calls want it.
func TestWarmManyAtOnce(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	var mu sync.Mutex
	served := map[string]int{} // by the idempotency key, which is the call's UID
	startsWarm(t, tools, func(c toolCall) toolResult {
		mu.Lock()
		defer mu.Unlock()
		served[c.Env[0].Value]++
		return prints(`"warm"`, 0)(c)
	})
	tool := newTool(t, tools, "tool", withWarm(2), func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 30 })
	waitForWarm(t, tool, 2, 2)
	var calls []*v1alpha1.ToolCall
	for range 20 {
		calls = append(calls, newCall(t, tools, "tool"))
	}
	warm, pods := 0, map[string]string{}
	for _, call := range calls {
		call = waitForEndAnywhere(t, call)
		want{}.check(t, call)
		if isWarm(call) {
			warm++
		}
		for _, a := range call.Status.Attempts {
			if other, ok := pods[string(a.PodUID)]; ok {
				t.Errorf("calls %s and %s name one pod", other, call.Name)
			}
			pods[string(a.PodUID)] = call.Name
		}
	}
	if warm < 2 {
		t.Errorf("%d of 20 calls got a sandbox that waited, want 2 at least", warm)
	}
	for uid, n := range served {
		if n != 1 {
			t.Errorf("call %s was served %d times", uid, n)
		}
	}
	if len(served) != warm {
		t.Errorf("%d calls were served warm, %d say so", len(served), warm)
	}
}

// What a waiting sandbox is made of changes: it is not used, and made anew.
func TestWarmRolls(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		change string
		rolls  bool
	}{
		{"another image", `{"spec":{"container":{"image":"registry.example/tool:2"}}}`, true},
		{"another time limit, which is the pod's grace period", `{"spec":{"timeoutSeconds":20}}`, true},
		{"another format of the output, which stands on the Job", `{"spec":{"output":{"format":"Text"}}}`, true},
		{"another command, which comes with the call", `{"spec":{"container":{"command":["/other"]}}}`, false},
		{"no pool", `{"spec":{"warm":null}}`, true},
		{"no replicas", `{"spec":{"warm":{"replicas":0}}}`, true},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			startsWarm(t, tools, prints(`"warm"`, 0))
			tool := newTool(t, tools, "tool", withWarm(1))
			waitForWarm(t, tool, 1, 1)
			old := warmJobs(t, tools)[0].Name
			patch(t, admin, tool, test.change)
			waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
			if !test.rolls {
				call := waitForEnd(t, newCall(t, tools, "tool"))
				if call.Status.Attempts[0].Sandbox != old {
					t.Errorf("it ran in %s, and %s waited", call.Status.Attempts[0].Sandbox, old)
				}
				return
			}
			eventually(t, "the old sandbox removed", func() (bool, any) {
				jobs := warmJobs(t, tools)
				return !slices.ContainsFunc(jobs, func(j batchv1.Job) bool { return j.Name == old }), jobs
			})
			if sandbox.WarmReplicas(tool) == 0 {
				eventually(t, "no number in the status, or none", func() (bool, any) {
					get(t, keyOf(tool), tool)
					w := tool.Status.Warm
					return w == nil && tool.Spec.Warm == nil || w != nil && *w.Replicas == 0 && *w.Ready == 0, tool.Status
				})
				return
			}
			waitForWarm(t, tool, 1, 1)
			call := waitForEndAnywhere(t, newCall(t, tools, "tool"))
			want{}.check(t, call)
			if call.Status.Attempts[0].Sandbox == old {
				t.Errorf("it ran in %s", show(call.Status.Attempts))
			}
		})
	}
}

// The sandboxes of a deleted Tool go, and its NetworkPolicy after them.
func TestWarmOfDeletedTool(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	startsWarm(t, tools, prints(`"warm"`, 0))
	tool := newTool(t, tools, "tool", withWarm(3))
	waitForWarm(t, tool, 3, 3)
	remove(t, tool)
	eventually(t, "no sandbox left", func() (bool, any) {
		jobs := warmJobs(t, tools)
		return len(jobs) == 0, jobs
	})
}

// A pool that cannot start keeps no call waiting, and does not make ever more.
func TestWarmUnschedulable(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool := newTool(t, tools, "tool", withWarm(2))
	var pods corev1.PodList
	eventually(t, "two waiting pods", func() (bool, any) {
		if err := admin.List(t.Context(), &pods, client.InNamespace(tools), client.HasLabels{v1alpha1.LabelPool}); err != nil {
			return false, err
		}
		return len(pods.Items) == 2, pods.Items
	})
	for i := range pods.Items {
		setPod(t, &pods.Items[i], unschedulable("0/1 nodes are available: Insufficient memory"))
	}
	call := newCall(t, tools, "tool")
	startPod(t, call, prints("1", 0))
	call = waitForEnd(t, call)
	want{}.check(t, call)
	if isWarm(call) {
		t.Error("it ran in a sandbox that cannot start")
	}
	waitForWarm(t, tool, 2, 0)
	if jobs := warmJobs(t, tools); len(jobs) != 2 {
		t.Errorf("there are %d Jobs, want the two of the pool", len(jobs))
	}
}

// While a call runs, its Job says which call it is, and has the deadline of one.
func TestWarmIsAdopted(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool, release := blocked(t)
	startsWarm(t, tools, tool)
	registered := newTool(t, tools, "tool", withWarm(1), func(s *v1alpha1.ToolSpec) { s.TimeoutSeconds = 60 })
	waitForWarm(t, registered, 1, 1)
	call := waitForSend(t, newCall(t, tools, "tool"))
	if !isWarm(call) {
		t.Fatalf("it ran in %s", show(call.Status.Attempts))
	}
	job := &batchv1.Job{}
	eventually(t, "the Job names the call", func() (bool, any) {
		get(t, client.ObjectKey{Namespace: tools, Name: call.Status.Attempts[0].Sandbox}, job)
		return job.Labels[v1alpha1.LabelCallUID] == string(call.UID) && job.Labels[v1alpha1.LabelAttempt] == "1" &&
			job.Annotations[v1alpha1.AnnotationCall] == call.Namespace+"/"+call.Name, job.ObjectMeta
	})
	limit := time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
	if most := call.Status.Attempts[0].SendTime.Sub(job.Status.StartTime.Time) + sandbox.CallTime(registered) + 5*time.Second; limit > most {
		t.Errorf("its activeDeadlineSeconds is %s, want at most %s", limit, most)
	}
	// Deleted, it takes its sandbox along.
	remove(t, call)
	waitForNoSandbox(t, call)
	release()
}

// A sandbox that took another call, as its runner proves, costs this call nothing.
func TestWarmTakenByAnother(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool := newTool(t, tools, "tool", withWarm(1), func(s *v1alpha1.ToolSpec) { s.MaxRetries = ptr.To[int32](0) })
	pod := &corev1.Pod{}
	eventually(t, "a waiting pod", func() (bool, any) {
		var pods corev1.PodList
		if err := admin.List(t.Context(), &pods, client.InNamespace(tools), client.HasLabels{v1alpha1.LabelPool}); err != nil || len(pods.Items) != 1 {
			return false, err
		}
		*pod = pods.Items[0]
		return true, nil
	})
	bind(t, pod)
	c := &container{pod: pod, other: "another-call"}
	_ = wire.WriteReady(&c.log)
	_ = wire.WriteAccepted(&c.log, "another-call", 1)
	theNode.mu.Lock()
	theNode.pods[pod.Namespace+"/"+pod.Name] = c
	theNode.mu.Unlock()
	setPod(t, pod, warmRunning())
	waitForWarm(t, tool, 1, 1)
	call := newCall(t, tools, "tool")
	startsWarm(t, tools, prints(`"warm"`, 0)) // the next one
	call = waitForEnd(t, call)
	want{}.check(t, call)
	a := call.Status.Attempts
	if len(a) != 2 || a[0].Outcome != v1alpha1.OutcomeNeverStarted || a[0].PodUID != pod.UID || a[1].PodUID == pod.UID {
		t.Errorf("attempts are %s", show(a))
	}
	eventually(t, "the used sandbox removed", func() (bool, any) {
		jobs := warmJobs(t, tools)
		return !slices.ContainsFunc(jobs, func(j batchv1.Job) bool { return strings.HasPrefix(pod.Name, j.Name) }), jobs
	})
}

// busy is the runner of a sandbox that took another call: it says nothing to
// this one.
func busy(in io.Reader) { _, _ = io.Copy(io.Discard, in) }

// A cordoned node, a draining pod and a node that is silent are not used.
func TestWarmNotUsed(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	startsWarm(t, tools, prints(`"warm"`, 0))
	tool := newTool(t, tools, "tool", withWarm(1))
	waitForWarm(t, tool, 1, 1)
	var pods corev1.PodList
	if err := admin.List(t.Context(), &pods, client.InNamespace(tools), client.HasLabels{v1alpha1.LabelPool}); err != nil || len(pods.Items) != 1 {
		t.Fatal(err, len(pods.Items))
	}
	status := warmRunning()
	status.Conditions[0].Status = corev1.ConditionFalse
	setPod(t, &pods.Items[0], status)
	waitForWarm(t, tool, 1, 0)
	call := newCall(t, tools, "tool")
	startPod(t, call, prints("1", 0))
	if call = waitForEnd(t, call); isWarm(call) {
		t.Errorf("it ran in %s on a silent node", call.Status.Attempts[0].Sandbox)
	}
}
