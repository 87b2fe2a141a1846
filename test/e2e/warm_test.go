package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

func warm(replicas int32) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.Warm = &v1alpha1.WarmPool{Replicas: &replicas} }
}

// waitWarm waits until a Tool's status says how many sandboxes wait.
func waitWarm(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, ready int32) {
	t.Helper()
	waitFor(ctx, t, tool, &v1alpha1.ToolList{}, func(o *v1alpha1.Tool) bool {
		return o.Status.Warm != nil && *o.Status.Warm.Ready == ready && *o.Status.Warm.Replicas == *o.Spec.Warm.Replicas
	}, func(o *v1alpha1.Tool) string { return jsonOf(t, o.Status) })
}

// waiting are the sandboxes of a Tool that have no call, by name.
func waiting(ctx context.Context, t *testing.T, tool *v1alpha1.Tool) []string {
	t.Helper()
	var jobs batchv1.JobList
	if err := admin.List(ctx, &jobs, client.InNamespace(tool.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: string(tool.UID)}, client.HasLabels{v1alpha1.LabelPool}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, j := range jobs.Items {
		if j.Labels[v1alpha1.LabelCallUID] == "" {
			names = append(names, j.Name)
		}
	}
	slices.Sort(names)
	return names
}

// waitJobs watches the sandboxes of a Tool until they are as wanted.
func waitJobs(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, what string, done func(names []string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	watcher, err := admin.Watch(ctx, &batchv1.JobList{}, client.InNamespace(tool.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: string(tool.UID)})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for {
		names := waiting(context.WithoutCancel(ctx), t, tool)
		if done(names) {
			return
		}
		if _, ok := <-watcher.ResultChan(); !ok {
			t.Fatalf("%s: not within %s; there are %q", what, patience, names)
		}
	}
}

// waitPods watches the pods of a Tool until so many are ready that were not used.
func waitPods(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, n int, used map[string]bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	of := []client.ListOption{client.InNamespace(tool.Namespace), client.MatchingLabels{v1alpha1.LabelToolUID: string(tool.UID)}}
	watcher, err := admin.Watch(ctx, &corev1.PodList{}, of...)
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for {
		var pods corev1.PodList
		if err := admin.List(context.WithoutCancel(ctx), &pods, of...); err != nil {
			t.Fatal(err)
		}
		ready := 0
		for _, p := range pods.Items {
			if !used[p.Labels["batch.kubernetes.io/job-name"]] && p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		if ready == n {
			return
		}
		if _, ok := <-watcher.ResultChan(); !ok {
			t.Fatalf("%d of %d sandboxes are ready after %s", ready, n, patience)
		}
	}
}

func usedWarm(t *testing.T, call *v1alpha1.ToolCall) string {
	t.Helper()
	a := call.Status.Attempts
	if len(a) != 1 || !sandbox.IsWarm(a[0].Sandbox) {
		t.Fatalf("not one attempt, in a sandbox that waited: %s", jsonOf(t, a))
	}
	return a[0].Sandbox
}

// A call gets a sandbox that waits, which nobody had before and nobody gets
// after it, isolated as one that is made for it.
func TestWarm(t *testing.T) {
	for name, class := range map[string]string{"runc": "", "gvisor": "gvisor"} {
		t.Run(name, func(t *testing.T) {
			ctx := start(t)
			tool := shell(ctx, t, "warm-"+name, `ls -A /tmp | wc -l; touch /tmp/left; nc -z 10.96.0.1 443 && echo open; id -u; touch /x 2>&1`, text, warm(2),
				func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = class; s.Container.Command[2] += "; exit 0" })
			waitWarm(ctx, t, tool, 2)
			var took []time.Duration
			used := map[string]bool{}
			for range 8 {
				began := time.Now()
				call := callOf(ctx, t, tool, "")
				took = append(took, time.Since(began))
				// gVisor looks at whose the folder is before it looks at the file system.
				if got := unquote(t, succeeded(t, call)); got != "0\n65532\ntouch: /x: Read-only file system\n" && got != "0\n65532\ntouch: /x: Permission denied\n" {
					t.Errorf("it said %q", got)
				}
				job := usedWarm(t, call)
				if used[job] {
					t.Errorf("sandbox %s served two calls", job)
				}
				used[job] = true
				waitPods(ctx, t, tool, 2, used)
			}
			slices.Sort(took)
			t.Logf("create to Complete, seen by a watch: %v", took)
			waitJobs(ctx, t, tool, "used sandboxes removed", func(names []string) bool {
				return len(names) == 2 && !slices.ContainsFunc(names, func(n string) bool { return used[n] })
			})
		})
	}
}

// Twenty calls at once on two sandboxes: each sandbox serves one call, and every
// call has its answer.
func TestWarmManyAtOnce(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "warm-many", `printf '"%s"' "$CALLGATE_IDEMPOTENCY_KEY"`, warm(2), func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 20 })
	waitWarm(ctx, t, tool, 2)
	calls := make([]*v1alpha1.ToolCall, 20)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() { calls[i] = propose(ctx, t, tool, fmt.Sprintf(`{"n":%d}`, i)) })
	}
	wg.Wait()
	pods, hits := map[string]string{}, 0
	for _, call := range calls {
		if got := unquote(t, succeeded(t, finish(ctx, t, call))); got != string(call.UID) {
			t.Errorf("call %s got the answer of %s", call.UID, got)
		}
		for _, a := range call.Status.Attempts {
			if other := pods[string(a.PodUID)]; other != "" {
				t.Errorf("pod %s was named by calls %s and %s", a.Pod, other, call.Name)
			}
			pods[string(a.PodUID)] = call.Name
			if sandbox.IsWarm(a.Sandbox) {
				hits++
			}
		}
	}
	if hits < 2 {
		t.Errorf("%d sandboxes that waited were used, want 2 at least", hits)
	}
	t.Logf("%d of 20 calls in %d attempts were warm", hits, len(pods))
	waitWarm(ctx, t, tool, 2)
}

// A changed Tool, and one that is deleted.
func TestWarmRolls(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "warm-rolls", `echo "\"$VERSION\""`, warm(2), func(s *v1alpha1.ToolSpec) {
		s.Container.Env = []v1alpha1.EnvVar{{Name: "VERSION", Value: ptr.To("one")}}
	})
	waitWarm(ctx, t, tool, 2)
	old := waiting(ctx, t, tool)
	tool.Spec.Container.Env[0].Value = ptr.To("two")
	if err := admin.Patch(ctx, tool, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"container":{"env":[{"name":"VERSION","value":"two"}]}}}`))); err != nil {
		t.Fatal(err)
	}
	// At once, without waiting for the pool: never from the old one.
	if got := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); got != "two" {
		t.Errorf("the call ran in a sandbox of version %s", got)
	}
	waitJobs(ctx, t, tool, "the pool rolled", func(names []string) bool {
		return len(names) == 2 && !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(old, n) })
	})
	// The Tool's status may still be that of the old pool.
	for _, name := range waiting(ctx, t, tool) {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: tool.Namespace, Name: name}}
		waitFor(ctx, t, job, &batchv1.JobList{}, func(j *batchv1.Job) bool { return ptr.Deref(j.Status.Ready, 0) == 1 },
			func(j *batchv1.Job) string { return jsonOf(t, j.Status) })
	}
	call := callOf(ctx, t, tool, "")
	usedWarm(t, call)
	if err := admin.Delete(ctx, tool); err != nil {
		t.Fatal(err)
	}
	waitJobs(ctx, t, tool, "the sandboxes of the deleted Tool removed", func(names []string) bool { return len(names) == 0 })
}

// A pool that no node has room for: no call waits for it, and it does not make
// ever more.
func TestWarmUnschedulable(t *testing.T) {
	ctx := start(t)
	big := shell(ctx, t, "warm-big", "cat", warm(2), func(s *v1alpha1.ToolSpec) {
		s.Container.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: quantity("900Gi")}
		s.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("900Gi")}
	})
	waitWarm(ctx, t, big, 0)
	before := waiting(ctx, t, big)
	succeeded(t, callOf(ctx, t, shell(ctx, t, "beside-warm-big", "cat"), ""))
	if after := waiting(ctx, t, big); len(before) != 2 || !slices.Equal(before, after) {
		t.Errorf("the pool had %q and has %q, want the same two", before, after)
	}
}

// What waits outlives the controller. Not parallel: the other calls would wait.
func TestWarmSurvivesController(t *testing.T) {
	ctx := t.Context()
	tool := shell(ctx, t, "warm-survives", "cat", warm(2))
	waitWarm(ctx, t, tool, 2)
	before := waiting(ctx, t, tool)
	killController(ctx, t, controllerPod(ctx, t))
	call := callOf(ctx, t, tool, `{"a":1}`)
	succeeded(t, call)
	if job := call.Status.Attempts[0].Sandbox; !slices.Contains(before, job) {
		t.Errorf("it ran in %s; before the controller was killed there waited %q", job, before)
	}
}

// Pods that are evicted and nodes that are cordoned are not used. Not parallel:
// there is one node.
func TestWarmDrain(t *testing.T) {
	ctx := t.Context()
	tool := shell(ctx, t, "warm-drain", "cat", warm(1))
	waitWarm(ctx, t, tool, 1)
	replaced := func(what string, act func(pod *corev1.Pod)) {
		t.Helper()
		old := waiting(ctx, t, tool)
		var pods corev1.PodList
		if err := admin.List(ctx, &pods, client.InNamespace(tool.Namespace), client.MatchingLabels{"batch.kubernetes.io/job-name": old[0]}); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods of %q: %v", len(pods.Items), old, err)
		}
		act(&pods.Items[0])
		waitJobs(ctx, t, tool, what, func(names []string) bool { return len(names) == 1 && names[0] != old[0] })
	}
	replaced("an evicted one replaced", func(pod *corev1.Pod) {
		if err := admin.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}); err != nil {
			t.Fatal(err)
		}
	})
	waitWarm(ctx, t, tool, 1)
	cordon := func(ctx context.Context, node string, yes bool) {
		if err := admin.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes))); err != nil {
			t.Fatal(err)
		}
	}
	replaced("one on a cordoned node replaced", func(pod *corev1.Pod) {
		t.Cleanup(func() { cordon(context.WithoutCancel(ctx), pod.Spec.NodeName, false) })
		cordon(ctx, pod.Spec.NodeName, true)
	})
	waitWarm(ctx, t, tool, 0) // the new one has no node
	var nodes corev1.NodeList
	if err := admin.List(ctx, &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		cordon(ctx, n.Name, false)
	}
	waitWarm(ctx, t, tool, 1)
	usedWarm(t, callOf(ctx, t, tool, ""))
}
