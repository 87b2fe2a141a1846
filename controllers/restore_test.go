package controllers_test

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/controllers"
)

// A call that a backup brought back was proposed long ago, and may have run
// then: it ends, and is not run.
func TestRestoredCallIsNotRun(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	restored := callObject(tools, "tool")
	restored.Labels = map[string]string{"velero.io/backup-name": "nightly", "velero.io/restore-name": "nightly-1"}
	propose(t, agent, restored)
	restored = waitForEnd(t, restored)
	want{code: v1alpha1.ErrorCancelled, message: []string{"restored from a backup", "velero.io/restore-name", "is not run"}}.check(t, restored)
	neverHadASandbox(t, restored)
}

// neverHadASandbox says that a call that ended was never prepared to run.
func neverHadASandbox(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if len(call.Status.Attempts) > 0 || call.Status.StartingTime != nil {
		t.Errorf("it was to be started: %s", show(call.Status))
	}
	if jobs := jobsOf(t, call); len(jobs) > 0 {
		t.Errorf("it has Job %s", jobs[0].Name)
	}
}

// What happens while no controller runs is not forgotten by the next one: a
// pause between two attempts goes on, and after a restore of the cluster's state
// what it holds of unfinished calls is not run. It is not parallel, since it
// stops the controller of all.
func TestRestartBetweenAttemptsAndAfterRestore(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", withRetries(3, v1alpha1.SideEffectsNonIdempotent))
	retrying := newCall(t, tools, "tool")
	tempFail(t, retrying, 1)
	tempFail(t, retrying, 2)
	before := waitForOutcome(t, retrying, 2) // a pause of 2 s begins
	restartController(t, func() {})
	tool, release := blocked(t)
	startAttempt(t, retrying, 3, tool)
	now := waitForAttempts(t, retrying, 3)
	if pause := now.Status.Attempts[2].SendTime.Sub(before.Status.Attempts[1].EndTime.Time); pause < 2*time.Second {
		t.Errorf("the third attempt came %s after the second, want 2s", pause)
	}
	if n := attachedTo(now); n != 1 {
		eventually(t, "the call sent", func() (bool, any) { return attachedTo(now) == 1, n })
	}

	// Now the state is said to be that of a restore.
	var old *v1alpha1.ToolCall
	restartController(t, func() { old = newCall(t, tools, "tool") },
		func(o *controllers.Options) { o.UnfinishedBefore = old.CreationTimestamp.Add(time.Second) })
	old = waitForEnd(t, old)
	want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"--unfinished-before", "may have run"}}.check(t, old)
	neverHadASandbox(t, old)
	now = waitForEnd(t, retrying)
	want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"--unfinished-before"}}.check(t, now)
	if a := now.Status.Attempts; len(a) != 3 || a[2].Outcome != v1alpha1.OutcomeUnknown {
		t.Errorf("attempts are %s, want 3, the last one with outcome Unknown", show(a))
	}
	waitForNoSandbox(t, retrying)
	release()
	fresh := callObject(tools, "tool")
	eventually(t, "a second of its own", func() (bool, any) { return time.Now().After(old.CreationTimestamp.Add(2 * time.Second)), nil })
	propose(t, agent, fresh)
	startAttempt(t, fresh, 1, prints("1", 0))
	want{}.check(t, waitForEnd(t, fresh))
	restartController(t, func() {}) // as the other tests want it
}

// Whatever a call is named, its sandbox is its own.
func TestNamesOfCalls(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	unique := strings.TrimPrefix(tools, "tools-")
	long := func(end string) string { return strings.Repeat("a", 253-len(unique)-len(end)) + unique + end }
	equal := strings.Repeat("b", 200) + unique
	for name, reason := range map[string]string{
		long(""):                       "253 characters, the most there can be",
		equal + "-one":                 "equal to the next in the first 200 characters",
		equal + "-two":                 "equal to the one before",
		"a.b.c." + unique:              "dots",
		"a-b-c-" + unique:              "the same with dashes",
		"0." + unique:                  "a digit first",
		"callgate-" + unique + "-1":    "like a sandbox",
		unique + "." + long(".x")[:50]: "dots in a long one",
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			call := callObject(tools, "tool")
			call.GenerateName, call.Name = "", name
			propose(t, agent, call)
			startPod(t, call, prints(`"`+name+`"`, 0))
			call = waitForEnd(t, call)
			want{}.check(t, call)
			if r := call.Status.Result; r.Data != nil && string(r.Data.Raw) != `"`+name+`"` {
				t.Errorf("the answer is %s, want that of its own sandbox", r.Data.Raw)
			}
			waitForNoSandbox(t, call)
		})
	}
}

// Somebody who knows a call's UID can take the name of its sandbox while it
// waits. That Job is refused by name, left alone, and never gets the call.
func TestSandboxNameTakenWhileTheCallWaits(t *testing.T) {
	t.Parallel()
	for reason, change := range map[string]func(*batchv1.Job, *v1alpha1.ToolCall){
		"a Job of its own kind": func(*batchv1.Job, *v1alpha1.ToolCall) {},
		"a Job that looks like ours but for one label": func(j *batchv1.Job, call *v1alpha1.ToolCall) {
			j.Labels = map[string]string{v1alpha1.LabelCallUID: string(call.UID), v1alpha1.LabelAttempt: "1"}
			j.Annotations = map[string]string{v1alpha1.AnnotationCall: agentsNamespace + "/" + call.Name}
		},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.MaxConcurrentCalls = 1 })
			tool, release := blocked(t)
			first := newCall(t, tools, "tool")
			startPod(t, first, tool)
			waitForSend(t, first)
			call := newCall(t, tools, "tool")
			waitForReason(t, call, v1alpha1.ReasonQueued)
			key := jobKey(tools, call)
			foreign := anyJob(key.Namespace, key.Name)
			foreign.Spec.Suspend = nil
			foreign.Spec.Template.Spec = *jobOf(t, first).Spec.Template.Spec.DeepCopy()
			change(foreign, call)
			create(t, foreign)
			var pod client.ObjectKey
			eventually(t, "its pod", func() (bool, any) {
				var list corev1.PodList
				if err := admin.List(t.Context(), &list, client.InNamespace(tools), client.MatchingLabels{batchv1.JobNameLabel: foreign.Name}); err != nil || len(list.Items) != 1 {
					return false, err
				}
				pod = keyOf(&list.Items[0])
				runPod(t, &list.Items[0], prints(`"stolen"`, 0))
				return true, nil
			})
			release()
			call = waitForEnd(t, call)
			want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{key.String(), "not made by Callgate", "delete it"}}.check(t, call)
			if len(call.Status.Attempts) > 0 {
				t.Errorf("attempts: %s", show(call.Status.Attempts))
			}
			theNode.mu.Lock()
			defer theNode.mu.Unlock()
			if n := theNode.pods[pod.String()].attached; n > 0 {
				t.Errorf("%d attaches to somebody else's pod", n)
			}
		})
	}
}

// A call that may have run before a restore keeps its key. It is not parallel,
// since it stops the controller of all.
func TestKeyAfterRestore(t *testing.T) {
	tools, _ := toolWith(t)
	first := newCall(t, tools, "tool", withKey("k"))
	podOf(t, first)
	waitForReason(t, first, v1alpha1.ReasonStarting)
	restartController(t, func() {}, func(o *controllers.Options) { o.UnfinishedBefore = first.CreationTimestamp.Add(time.Second) })
	first = waitForEnd(t, first)
	want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"--unfinished-before"}}.check(t, first)
	nextSecond(t, first)
	sameResult(t, first, duplicateOf(t, first, newCall(t, tools, "tool", withKey("k"))))
	restartController(t, func() {}) // as the other tests want it
}
