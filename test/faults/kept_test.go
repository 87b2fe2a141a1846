package faults

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// C036: finished calls are kept up to the cap, oldest first to go, and up to
// their time; the log of a sandbox can be read for a while after its call has
// ended. Controllers that start anew write nothing about them, make no sandbox,
// and are ready soon.
func TestFinishedCallsAndRestarts(t *testing.T) {
	const keep, more, soon = 1000, 30, 10 * time.Second
	takeOver(t)
	ctx := t.Context()
	flags := []string{fmt.Sprint("--max-finished-calls=", keep), "--keep-sandboxes=8s"}
	controller := startController(t, "", "", flags...)
	controller.waitReady()
	tools := cluster.NewToolsNamespace(ctx, t, "finished")
	agents, agent := newAgentsNamespace(ctx, t, "finished", tools)
	tool := cluster.NewToolIn(ctx, t, tools, "says", []string{"sh", "-c", "echo words >&2; echo 1"})
	calling := func(name string, ttl *int32, toolName string) *v1alpha1.ToolCall {
		return &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: agents, Name: name}, Spec: v1alpha1.ToolCallSpec{
			ToolRef: v1alpha1.ToolReference{Name: toolName, Namespace: tools}, TTLSecondsAfterFinished: ttl}}
	}

	// Those that are to go first, and one whose time is short.
	errs := make([]error, keep+more)
	inParallel(more, 8, func(i int) { errs[i] = agent.Create(ctx, calling(fmt.Sprint("oldest-", i), nil, "absent")) })
	finished(ctx, t, agents, more)
	short := calling("short-lived", ptr.To[int32](1), tool.Name)
	if err := agent.Create(ctx, short); err != nil {
		t.Fatal(err)
	}
	cluster.Succeeded(t, cluster.Finish(ctx, t, short))
	time.Sleep(3 * time.Second) // ends are told apart by whole seconds, and the time of the short one is over
	inParallel(keep-5, 16, func(i int) { errs[more+i] = agent.Create(ctx, calling(fmt.Sprint("refused-", i), nil, "absent")) })
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	var ran []*v1alpha1.ToolCall
	for _, call := range []*v1alpha1.ToolCall{calling("ran-1", nil, tool.Name), calling("ran-2", nil, tool.Name),
		calling("ran-3", ptr.To[int32](3600), tool.Name), calling("ran-4", nil, tool.Name), calling("ran-5", nil, tool.Name)} {
		if err := agent.Create(ctx, call); err != nil {
			t.Fatal(err)
		}
		ran = append(ran, call)
	}
	for _, call := range ran {
		cluster.Succeeded(t, cluster.Finish(ctx, t, call))
	}
	// What the tool printed is in the runner's lines, in base64.
	if words := logOf(ctx, t, ran[len(ran)-1]); !strings.Contains(words, base64.StdEncoding.EncodeToString([]byte("words\n"))) {
		t.Errorf("the log of a sandbox whose call has ended: %q", words)
	}
	list := finished(ctx, t, agents, keep)
	for i := range list.Items {
		if name := list.Items[i].Name; name == short.Name || strings.HasPrefix(name, "oldest-") {
			t.Errorf("call %s is kept, in place of a younger one", name)
		}
	}
	nothingLeft(ctx, t, tools)

	jobs, err := cluster.Admin.Watch(ctx, &batchv1.JobList{}, client.InNamespace(tools))
	if err != nil {
		t.Fatal(err)
	}
	defer jobs.Stop()
	for range 2 {
		controller.kill()
		dropLeadership(t)
		begin := time.Now()
		controller = startController(t, "", "", flags...)
		controller.waitReady()
		took := time.Since(begin)
		t.Logf("ready after %s, with %d finished calls", took.Round(10*time.Millisecond), keep)
		if took > soon {
			t.Errorf("ready only after %s, want %s", took, soon)
		}
		// One more call, which comes after all others in the queue, tells that they were looked at.
		call := calling("after-restart", nil, "absent")
		if err := agent.Create(ctx, call); err != nil {
			t.Fatal(err)
		}
		cluster.Finish(ctx, t, call)
		if err := agent.Delete(ctx, call); err != nil {
			t.Fatal(err)
		}
	}
	var after v1alpha1.ToolCallList
	if err := cluster.Admin.List(ctx, &after, client.InNamespace(agents)); err != nil {
		t.Fatal(err)
	}
	if before, now := versions(list), versions(&after); !slices.Equal(before, now) {
		t.Errorf("finished calls were written or are gone after two restarts: %d of %d are as they were", len(common(before, now)), len(before))
	}
	select {
	case e := <-jobs.ResultChan():
		if e.Type == watch.Added {
			t.Errorf("a sandbox was made: %s", cluster.JSONOf(t, e.Object))
		}
	default:
	}
}

// finished waits until n calls are in a namespace and all of them have ended.
func finished(ctx context.Context, t *testing.T, namespace string, n int) *v1alpha1.ToolCallList {
	t.Helper()
	list := &v1alpha1.ToolCallList{}
	open := 0
	if err := until(ctx, func() (bool, error) {
		err := cluster.Admin.List(ctx, list, client.InNamespace(namespace))
		open = 0
		for i := range list.Items {
			if list.Items[i].Status.Result == nil {
				open++
			}
		}
		return err == nil && open == 0 && len(list.Items) == n, err
	}); err != nil {
		t.Fatalf("%d calls, %d of them not ended, want %d and 0: %v", len(list.Items), open, n, err)
	}
	return list
}

// versions are the names and versions of calls, sorted.
func versions(calls *v1alpha1.ToolCallList) []string {
	var all []string
	for i := range calls.Items {
		all = append(all, calls.Items[i].Name+" "+calls.Items[i].ResourceVersion)
	}
	slices.Sort(all)
	return all
}

func common(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return !slices.Contains(b, s) })
}

// logOf reads the log of a call's last sandbox.
func logOf(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) string {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	a := call.Status.Attempts[len(call.Status.Attempts)-1]
	log, err := clientset.CoreV1().Pods(a.Namespace).GetLogs(a.Pod, &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		t.Fatalf("read the log of a sandbox whose call has ended: %v", err)
	}
	defer log.Close()
	content, err := io.ReadAll(io.LimitReader(log, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// The sandbox of a call that is gone is removed, also if the call went while
// there was no controller, but only on proof: an API server that does not
// answer the question is none.
func TestOrphanIsRemovedOnlyOnProof(t *testing.T) {
	takeOver(t)
	ctx := t.Context()
	controller := startController(t, "", "")
	controller.waitReady()
	tools := cluster.NewToolsNamespace(ctx, t, "orphans")
	tool := cluster.NewToolIn(ctx, t, tools, "long", []string{"sleep", "1000"}, cluster.Timeout(900))

	call := cluster.Propose(ctx, t, tool, "")
	cluster.WaitReason(ctx, t, call, v1alpha1.ReasonRunning)
	controller.kill()
	if err := cluster.Agent.Delete(ctx, call); err != nil {
		t.Fatal(err)
	}
	sandboxThere(ctx, t, call)
	dropLeadership(t)
	controller = startController(t, "", "")
	controller.waitReady()
	nothingLeft(ctx, t, tools)

	call = cluster.Propose(ctx, t, tool, "")
	cluster.WaitReason(ctx, t, call, v1alpha1.ReasonRunning)
	give := withoutGet(ctx, t)
	if err := cluster.Agent.Delete(ctx, call); err != nil {
		t.Fatal(err)
	}
	refusals := `toolcalls.callgate.dev \"` + call.Name + `\" is forbidden`
	if err := until(ctx, func() (bool, error) {
		log, err := os.ReadFile(controller.log)
		return strings.Count(string(log), refusals) >= 3, err
	}); err != nil {
		t.Fatalf("the controller did not ask three times whether the call is gone: %v", err)
	}
	sandboxThere(ctx, t, call)
	give()
	nothingLeft(ctx, t, tools)
}

func sandboxThere(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	a := call.Status.Attempts[0]
	job, pod := &batchv1.Job{}, &corev1.Pod{}
	if err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Sandbox}, job); err != nil || job.DeletionTimestamp != nil {
		t.Fatalf("the Job was removed without proof: %v", err)
	}
	if err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Pod}, pod); err != nil || pod.DeletionTimestamp != nil {
		t.Fatalf("the pod was removed without proof: %v", err)
	}
}

// withoutGet takes from the controller the right to get calls, not to watch
// them, until give is called or the test ends.
func withoutGet(ctx context.Context, t *testing.T) (give func()) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: controllerName}}
	if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(role), role); err != nil {
		t.Fatal(err)
	}
	whole := role.DeepCopy()
	for i := range role.Rules {
		r := &role.Rules[i]
		if slices.Contains(r.Resources, "toolcalls") {
			r.Verbs = slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == "get" })
		}
	}
	if err := cluster.Admin.Update(ctx, role); err != nil {
		t.Fatal(err)
	}
	given := false
	give = func() {
		if given {
			return
		}
		role.Rules = whole.Rules
		if err := cluster.Admin.Update(context.WithoutCancel(ctx), role); err != nil {
			t.Errorf("give ClusterRole %s its rules back: %v", role.Name, err)
		}
		given = true
	}
	t.Cleanup(give)
	// In force when the API server says so.
	clientset := clientAs(t, install, controllerName)
	if err := until(ctx, func() (bool, error) {
		err := clientset.Get(ctx, client.ObjectKey{Namespace: cluster.AgentsNS, Name: "any"}, &v1alpha1.ToolCall{})
		return apierrors.IsForbidden(err), nil
	}); err != nil {
		t.Fatalf("the controller may still get calls: %v", err)
	}
	return give
}

// What a restore brings back is not run: calls with the mark of Velero, and,
// where an administrator says when the state of etcd is from, those that were
// unfinished in it.
func TestRestored(t *testing.T) {
	takeOver(t)
	ctx := t.Context()
	controller := startController(t, "", "")
	controller.waitReady()
	tools := cluster.NewToolsNamespace(ctx, t, "restored")
	tool := cluster.NewToolIn(ctx, t, tools, "says", []string{"echo", "1"})
	marked := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, GenerateName: "marked-", Labels: map[string]string{"velero.io/restore-name": "monday"}},
		Spec:       v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: tools}},
	}
	if err := cluster.Agent.Create(ctx, marked); err != nil {
		t.Fatal(err)
	}
	cluster.Failed(t, cluster.Finish(ctx, t, marked), v1alpha1.ErrorCancelled, false, "restored from a backup")
	controller.kill()

	unfinished := cluster.Propose(ctx, t, tool, "")
	time.Sleep(time.Second) // creation times are whole seconds
	restore := time.Now().Truncate(time.Second).UTC()
	dropLeadership(t)
	startController(t, "", "", "--unfinished-before="+restore.Format(time.RFC3339)).waitReady()
	cluster.Failed(t, cluster.Finish(ctx, t, unfinished), v1alpha1.ErrorOutcomeUnknown, false, "--unfinished-before")
	if len(marked.Status.Attempts)+len(unfinished.Status.Attempts) > 0 {
		t.Errorf("a call that came back was sent")
	}
	var jobs batchv1.JobList
	if err := cluster.Admin.List(ctx, &jobs, client.InNamespace(tools)); err != nil || len(jobs.Items) > 0 {
		t.Errorf("%d sandboxes of calls that came back, %v", len(jobs.Items), err)
	}
	if got := cluster.Succeeded(t, cluster.CallOf(ctx, t, tool, "")); got != "1" {
		t.Errorf("a call that was made after the restore answered %s", got)
	}
}
