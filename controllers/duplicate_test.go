package controllers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func withKey(key string) func(*v1alpha1.ToolCallSpec) {
	return func(s *v1alpha1.ToolCallSpec) { s.IdempotencyKey = key }
}

func deduplicates(seconds int32) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.Deduplicate = &v1alpha1.Deduplicate{WindowSeconds: seconds} }
}

// duplicateOf waits for the end of a call that did not run, and got what the
// first one ended with.
func duplicateOf(t *testing.T, first, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	call = waitForEnd(t, call)
	want := v1alpha1.ToolCallReference{Namespace: first.Namespace, Name: first.Name, UID: first.UID}
	if !ptr.Equal(call.Status.DuplicateOfRef, &want) {
		t.Errorf("duplicateOfRef is %s, want %s; the result is %s", show(call.Status.DuplicateOfRef), show(want), show(call.Status.Result))
	}
	if len(call.Status.Attempts) > 0 || get(t, jobKey(toolNamespace(call), call), &jobType{}) {
		t.Errorf("a duplicate has attempts or a sandbox: %s", show(call.Status))
	}
	return call
}

func sameResult(t *testing.T, first, call *v1alpha1.ToolCall) {
	t.Helper()
	if got, want := show(call.Status.Result), show(first.Status.Result); got != want {
		t.Errorf("the result is %s, that of the first call %s", got, want)
	}
}

// noDuplicate runs a call that is an action of its own.
func noDuplicate(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	call = runs(t, call)
	if call.Status.DuplicateOfRef != nil {
		t.Errorf("it ran, and duplicateOfRef is %s", show(call.Status.DuplicateOfRef))
	}
	return call
}

func toolWith(t *testing.T, changes ...func(*v1alpha1.ToolSpec)) (tools string, tool *v1alpha1.Tool) {
	t.Helper()
	tools = openNamespace(t)
	allow(t, tools)
	return tools, newTool(t, tools, "tool", changes...)
}

func TestDuplicateOfFinishedCall(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason   string
		window   int32 // of deduplicate; else by idempotencyKey
		stdout   string
		exitCode int
		code     v1alpha1.ErrorCode
	}{
		{reason: "an answer, by key", stdout: `{"b":[1,null],"a":9007199254740993}`},
		{reason: "an answer, by arguments", window: 600, stdout: `"done"`},
		{reason: "a failure that ran would fail again, by key", exitCode: 3, code: v1alpha1.ErrorToolFailed},
		{reason: "a failure that ran, by arguments", window: 600, stdout: "no JSON", code: v1alpha1.ErrorInvalidOutput},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			key := withKey("ship-4821")
			tool := func(*v1alpha1.ToolSpec) {}
			if test.window > 0 {
				key, tool = withKey(""), deduplicates(test.window)
			}
			tools, _ := toolWith(t, tool)
			first := newCall(t, tools, "tool", key)
			startPod(t, first, prints(test.stdout, test.exitCode))
			first = waitForEnd(t, first)
			want{code: test.code}.check(t, first)
			for range 2 {
				second := duplicateOf(t, first, newCall(t, tools, "tool", key))
				sameResult(t, first, second)
			}
		})
	}
}

func TestDuplicateWaits(t *testing.T) {
	t.Parallel()
	tools, _ := toolWith(t)
	tool, release := blocked(t)
	first := newCall(t, tools, "tool", withKey("k"))
	startPod(t, first, tool)
	waitForSend(t, first)

	second := newCall(t, tools, "tool", withKey("k"))
	cancelled := newCall(t, tools, "tool", withKey("k"))
	late := newCall(t, tools, "tool", withKey("k"), func(s *v1alpha1.ToolCallSpec) { s.DeadlineSeconds = 2 })
	if message := waitForReason(t, second, v1alpha1.ReasonAwaitingFirstCall); !contains(message, agentsNamespace+"/"+first.Name) {
		t.Errorf("the wait does not name the first call: %s", message)
	}
	if ref := waitForCall(t, second, "the status", func(*v1alpha1.ToolCall) bool { return true }).Status.DuplicateOfRef; ref == nil || ref.UID != first.UID {
		t.Errorf("duplicateOfRef of a call that waits is %s", show(ref))
	}
	waitForReason(t, cancelled, v1alpha1.ReasonAwaitingFirstCall)
	cancel(t, cancelled)
	cancelled = waitForEnd(t, cancelled)
	want{code: v1alpha1.ErrorCancelled, message: []string{"before the tool was started"}}.check(t, cancelled)
	if ref := cancelled.Status.DuplicateOfRef; ref != nil {
		t.Errorf("a cancelled call has an end of its own, and duplicateOfRef %s", show(ref))
	}
	late = waitForEnd(t, late)
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{"deadlineSeconds (2)", first.Name}}.check(t, late)

	if complete(waitForSend(t, first)) {
		t.Fatal("the first call ended because another one was cancelled")
	}
	release()
	first = waitForEnd(t, first)
	want{}.check(t, first)
	sameResult(t, first, duplicateOf(t, first, second))
}

func TestDuplicateConflict(t *testing.T) {
	t.Parallel()
	tools, _ := toolWith(t)
	tool, release := blocked(t)
	args := withArgs(`{"n":1,"any":{"b":0.5,"a":[1,{"y":null,"x":"é"}]},"text":"` + marker + `"}`)
	first := newCall(t, tools, "tool", withKey("k"), args)
	startPod(t, first, tool)
	waitForSend(t, first)
	conflict := want{code: v1alpha1.ErrorIdempotencyConflict, message: []string{"idempotencyKey", agentsNamespace + "/" + first.Name}}
	conflict.check(t, waitForEnd(t, newCall(t, tools, "tool", withKey("k"), withArgs(`{"n":2}`))))
	release()
	first = waitForEnd(t, first)
	for _, test := range []struct {
		reason, args string
		same         bool
	}{
		{"members in another order, numbers and text written another way",
			`{"text":"` + marker + `", "any":{"a":[1.0,{"x":"\u00e9","y":null}],"b":5e-1}, "n":1.0}`, true},
		{"an array in another order", `{"n":1,"any":{"b":0.5,"a":[{"y":null,"x":"é"},1]},"text":"` + marker + `"}`, false},
		{"a number that is text", `{"n":1,"any":{"b":"0.5","a":[1,{"y":null,"x":"é"}]},"text":"` + marker + `"}`, false},
		{"a member more", `{"n":1,"any":{"b":0.5,"a":[1,{"y":null,"x":"é"}],"c":null},"text":"` + marker + `"}`, false},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			call := newCall(t, tools, "tool", withKey("k"), withArgs(test.args))
			if test.same {
				sameResult(t, first, duplicateOf(t, first, call))
				return
			}
			call = waitForEnd(t, call)
			conflict.check(t, call)
			if call.Status.DuplicateOfRef != nil {
				t.Errorf("another action is no duplicate: %s", show(call.Status.DuplicateOfRef))
			}
		})
	}
}

// Ends after which the same call may be proposed again, and ends before the
// start, give the key back, also to other arguments.
func TestDuplicateFreed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		reason string
		ends   func(t *testing.T, call *v1alpha1.ToolCall)
		want   want
	}{
		{reason: "its sandbox cannot start", want: want{code: v1alpha1.ErrorToolUnavailable}, ends: func(t *testing.T, call *v1alpha1.ToolCall) {
			setPod(t, podOf(t, call), waiting("InvalidImageName", "couldn't parse image name"))
		}},
		{reason: "it is cancelled before it starts", want: want{code: v1alpha1.ErrorCancelled}, ends: func(t *testing.T, call *v1alpha1.ToolCall) {
			podOf(t, call)
			cancel(t, call)
		}},
		{reason: "exit code 75 promises that nothing was done", want: want{code: v1alpha1.ErrorToolFailed, retryable: true}, ends: func(t *testing.T, call *v1alpha1.ToolCall) {
			startPod(t, call, prints("", 75))
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools, _ := toolWith(t, func(s *v1alpha1.ToolSpec) { s.MaxRetries = ptr.To[int32](0) })
			first := newCall(t, tools, "tool", withKey("k"))
			jobOf(t, first)
			second := newCall(t, tools, "tool", withKey("k"))
			waitForReason(t, second, v1alpha1.ReasonAwaitingFirstCall)
			test.ends(t, first)
			test.want.check(t, waitForEnd(t, first))
			// Who waited is the first now, and gives the key back in its turn.
			startPod(t, second, prints("", 75))
			second = waitForEnd(t, second)
			want{code: v1alpha1.ErrorToolFailed, retryable: true}.check(t, second)
			if second.Status.DuplicateOfRef != nil {
				t.Errorf("it ran, and duplicateOfRef is %s", show(second.Status.DuplicateOfRef))
			}
			noDuplicate(t, newCall(t, tools, "tool", withKey("k"), withArgs(`{"n":5}`)))
		})
	}
}

// simultaneous are the ways in which twenty calls are one.
var simultaneous = []struct {
	reason string
	window int32
	key    func(i int) string
}{
	{"the same key", 0, func(int) string { return "k" }},
	{"the same arguments of a Tool that deduplicates", 600, func(int) string { return "" }},
	{"the same arguments under keys of their own", 600, func(i int) string { return fmt.Sprint("k", i) }},
}

const manyCalls = 20

// oneRuns proposes twenty calls at once that are one.
func oneRuns(t *testing.T, window int32, key func(i int) string) {
	t.Helper()
	changes := []func(*v1alpha1.ToolSpec){}
	if window > 0 {
		changes = append(changes, deduplicates(window))
	}
	tools, _ := toolWith(t, changes...)
	work := runAll(t, tools, counter())
	calls := make([]*v1alpha1.ToolCall, manyCalls)
	for i := range calls {
		calls[i] = callObject(tools, "tool", withKey(key(i)))
	}
	together(t, calls)
	var first *v1alpha1.ToolCall
	for i := range calls {
		calls[i] = waitForEnd(t, calls[i])
		want{}.check(t, calls[i])
		if calls[i].Status.DuplicateOfRef == nil {
			if first != nil {
				t.Errorf("%s and %s both are the first", first.Name, calls[i].Name)
			}
			first = calls[i]
		}
	}
	if n := work.ran(); n != 1 || first == nil {
		t.Fatalf("%d calls ran, and the first is %v", n, first)
	}
	for _, call := range calls {
		sameResult(t, first, call)
	}
}

func TestDuplicatesAtOnce(t *testing.T) {
	t.Parallel()
	for _, test := range simultaneous {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			oneRuns(t, test.window, test.key)
		})
	}
}

// Two controllers work at once when a leader has lost its election and does
// not know it yet. It is not parallel: limits of concurrent calls are one
// controller's.
func TestDuplicatesUnderTwoControllers(t *testing.T) {
	second, err := startManager(environment.Config, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := second.stop(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the second controller at work", func() (bool, any) {
		code, body := readyzOf(second)
		return code == http.StatusOK, body
	})
	for range 3 {
		for _, test := range simultaneous {
			t.Run(test.reason, func(t *testing.T) { oneRuns(t, test.window, test.key) })
		}
	}
}

func TestDuplicateOfDeletedCall(t *testing.T) {
	t.Parallel()
	large := `"` + strings.Repeat("x", 70<<10) + `"`
	for _, test := range []struct {
		reason      string
		sideEffects v1alpha1.SideEffects
		when        string // it is deleted: starting, running or finished
		stdout      string
		waits       bool // the duplicate is there already
		// then the duplicate
		runs bool
		want want
	}{
		{reason: "finished: its result was kept", when: "finished", stdout: `{"updated":true}`},
		{reason: "finished, and its result is too large to be kept", when: "finished", stdout: large,
			want: want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"over 65536 bytes", "may have taken effect"}}},
		{reason: "the same, where a second run is safe", sideEffects: v1alpha1.SideEffectsNone, when: "finished", stdout: large, runs: true},
		{reason: "running: it may have taken effect", when: "running",
			want: want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"deleted", "may have taken effect"}}},
		{reason: "running, and a call waits for it", when: "running", waits: true,
			want: want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"deleted", "may have taken effect"}}},
		{reason: "running, where a second run is safe", sideEffects: v1alpha1.SideEffectsIdempotent, when: "running", runs: true},
		{reason: "before its start", when: "starting", runs: true},
		{reason: "before its start, and a call waits for it", when: "starting", waits: true, runs: true},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools, _ := toolWith(t, func(s *v1alpha1.ToolSpec) { s.SideEffects, s.Output.MaxBytes = test.sideEffects, 100<<10 })
			first := newCall(t, tools, "tool", withKey("k"))
			switch test.when {
			case "starting":
				podOf(t, first)
			case "running":
				tool, _ := blocked(t)
				startPod(t, first, tool)
				waitForSend(t, first)
			case "finished":
				startPod(t, first, prints(test.stdout, 0))
				first = waitForEnd(t, first)
				want{}.check(t, first)
				// As long as the call is there, the result is, however large.
				sameResult(t, first, duplicateOf(t, first, newCall(t, tools, "tool", withKey("k"))))
			}
			var second *v1alpha1.ToolCall
			if test.waits {
				second = newCall(t, tools, "tool", withKey("k"))
				waitForReason(t, second, v1alpha1.ReasonAwaitingFirstCall)
			}
			remove(t, first.DeepCopy())
			if second == nil {
				second = newCall(t, tools, "tool", withKey("k"))
			}
			if test.runs {
				noDuplicate(t, second)
				return
			}
			second = duplicateOf(t, first, second)
			test.want.check(t, second)
			if test.want.code == "" {
				sameResult(t, first, second)
			}
			// And so for everybody who asks later.
			third := duplicateOf(t, first, newCall(t, tools, "tool", withKey("k")))
			sameResult(t, second, third)
		})
	}
}

func TestKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	tools, tool := toolWith(t, deduplicates(600))
	other := newTool(t, tools, "other", deduplicates(600))
	allowWorker(t, tools)
	first := noDuplicate(t, newCall(t, tools, "tool", withKey("k")))
	noDuplicate(t, propose(t, worker, callObject(tools, "tool", withKey("k"))))
	noDuplicate(t, newCall(t, tools, other.Name, withKey("k")))
	sameResult(t, first, duplicateOf(t, first, newCall(t, tools, "tool", withKey("k"))))
	remove(t, tool)
	newTool(t, tools, "tool", deduplicates(600))
	noDuplicate(t, newCall(t, tools, "tool", withKey("k")))
}

func allowWorker(t *testing.T, tools string) {
	t.Helper()
	p := policyObject(tools, "worker", v1alpha1.EffectAllow, "*")
	p.Spec.Subjects = []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: agentsNamespace, Name: "worker"}}
	create(t, p)
}

// A call with a key of a Tool that deduplicates has both.
func TestDuplicateByKeyAndArguments(t *testing.T) {
	t.Parallel()
	tools, _ := toolWith(t, deduplicates(600))
	x, y := withArgs(`{"n":1}`), withArgs(`{"n":2}`)
	tool, release := blocked(t)
	first := newCall(t, tools, "tool", withKey("a"), x)
	startPod(t, first, tool)
	waitForSend(t, first)
	// The key of a call that waits for another one is its own, and it may give it back.
	second := newCall(t, tools, "tool", withKey("b"), x)
	waitForReason(t, second, v1alpha1.ReasonAwaitingFirstCall)
	want{code: v1alpha1.ErrorIdempotencyConflict, message: []string{second.Name}}.check(t, waitForEnd(t, newCall(t, tools, "tool", withKey("b"), y)))
	cancel(t, second)
	want{code: v1alpha1.ErrorCancelled}.check(t, waitForEnd(t, second))
	noDuplicate(t, newCall(t, tools, "tool", withKey("b"), y))

	// And it is answered under that key.
	third := newCall(t, tools, "tool", withKey("c"), x)
	waitForReason(t, third, v1alpha1.ReasonAwaitingFirstCall)
	release()
	first = waitForEnd(t, first)
	third = duplicateOf(t, first, third)
	sameResult(t, first, third)
	remove(t, first.DeepCopy())
	remove(t, third.DeepCopy())
	sameResult(t, first, duplicateOf(t, third, newCall(t, tools, "tool", withKey("c"), x)))
	sameResult(t, first, duplicateOf(t, first, newCall(t, tools, "tool", x)))
	want{code: v1alpha1.ErrorIdempotencyConflict}.check(t, waitForEnd(t, newCall(t, tools, "tool", withKey("c"), y)))
}

// leasesOf are the Leases of the keys in a namespace.
func leasesOf(t *testing.T, tools string) []coordinationv1.Lease {
	t.Helper()
	var leases coordinationv1.LeaseList
	if err := admin.List(t.Context(), &leases, client.InNamespace(tools)); err != nil {
		t.Fatal(err)
	}
	return leases.Items
}

// What is remembered of a key is nobody's but the controller's, says nothing of
// arguments, and goes when its time is over.
func TestLeaseOfAKey(t *testing.T) {
	t.Parallel()
	tools, tool := toolWith(t, deduplicates(4))
	create(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: tools, Name: "leases"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"*"}}}})
	create(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: tools, Name: "leases"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "leases"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: agentName}}})
	first := noDuplicate(t, newCall(t, tools, "tool"))
	leases := leasesOf(t, tools)
	if len(leases) != 1 {
		t.Fatalf("%d Leases for one key", len(leases))
	}
	lease := &leases[0]
	if *lease.Spec.HolderIdentity != string(first.UID) || contains(show(lease), marker) || contains(lease.Name, agentName) ||
		lease.Labels[v1alpha1.LabelToolUID] != string(tool.UID) || lease.Annotations[v1alpha1.AnnotationCall] != agentsNamespace+"/"+first.Name {
		t.Errorf("the Lease is %s", show(lease))
	}
	eventually(t, "the right to write Leases is not enough to forge a result", func() (bool, any) {
		err := agent.Patch(t.Context(), lease.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"callgate.dev/result":"{}"}}}`)))
		if err == nil {
			t.Fatal("a caller wrote into the Lease")
		}
		return apierrors.IsForbidden(err) && contains(err.Error(), "only Callgate's controller writes"), err
	})
	if err := agent.Delete(t.Context(), lease.DeepCopy()); !apierrors.IsForbidden(err) {
		t.Errorf("a caller deletes the Lease: %v", err)
	}
	forged := lease.DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{Namespace: tools, Name: lease.Name + "0", Labels: lease.Labels, Annotations: lease.Annotations}
	if err := agent.Create(t.Context(), forged); !apierrors.IsForbidden(err) {
		t.Errorf("a caller creates a Lease: %v", err)
	}
	eventually(t, "the Lease removed", func() (bool, any) { return !get(t, keyOf(lease), lease), lease })
	if age := time.Since(first.Status.CompletionTime.Time); age < 4*time.Second {
		t.Errorf("the key was forgotten %s after the end, want 4 s", age)
	}
	noDuplicate(t, newCall(t, tools, "tool"))
	// A key of the caller's is kept for a day whatever the window is.
	second := noDuplicate(t, newCall(t, tools, "tool", withKey("k"), withArgs(`{"n":1}`)))
	for _, lease := range leasesOf(t, tools) {
		if *lease.Spec.HolderIdentity == string(second.UID) && *lease.Spec.LeaseDurationSeconds != 4 && *lease.Spec.LeaseDurationSeconds != 24*60*60 {
			t.Errorf("the Lease is kept for %d seconds", *lease.Spec.LeaseDurationSeconds)
		}
	}
}

// Whatever the controller knew of keys, it knows after a restart. It is not
// parallel, since it stops the controller of all.
func TestDuplicatesAcrossRestart(t *testing.T) {
	tools, _ := toolWith(t)
	finished := noDuplicate(t, newCall(t, tools, "tool", withKey("finished")))
	deleted := noDuplicate(t, newCall(t, tools, "tool", withKey("deleted")))
	remove(t, deleted.DeepCopy())
	tool, release := blocked(t)
	running := newCall(t, tools, "tool", withKey("running"))
	startPod(t, running, tool)
	eventually(t, "the call taken by the runner", func() (bool, any) { return attachedTo(waitForSend(t, running)) == 1, nil })
	waits := newCall(t, tools, "tool", withKey("running"))
	waitForReason(t, waits, v1alpha1.ReasonAwaitingFirstCall)
	var meanwhile *v1alpha1.ToolCall
	restartController(t, func() { meanwhile = newCall(t, tools, "tool", withKey("running")) })
	sameResult(t, finished, duplicateOf(t, finished, newCall(t, tools, "tool", withKey("finished"))))
	sameResult(t, deleted, duplicateOf(t, deleted, newCall(t, tools, "tool", withKey("deleted"))))
	waitForReason(t, meanwhile, v1alpha1.ReasonAwaitingFirstCall)
	release()
	running = waitForEnd(t, running)
	want{}.check(t, running)
	sameResult(t, running, duplicateOf(t, running, waits))
	sameResult(t, running, duplicateOf(t, running, meanwhile))
}

// A Lease of somebody else that names a call as its holder gets nothing of the
// call's result, and does not keep the call from its end.
func TestForeignLeaseLearnsNothing(t *testing.T) {
	t.Parallel()
	tools, _ := toolWith(t)
	call := newCall(t, tools, "tool", withKey("k"))
	var leases []*coordinationv1.Lease
	for _, namespace := range []string{tools, openNamespace(t), agentsNamespace} {
		for _, annotations := range []map[string]string{nil, {"a": "b"}} {
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "mine-", Annotations: annotations, Labels: map[string]string{v1alpha1.LabelInstall: install}},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(string(call.UID))},
			}
			create(t, lease)
			leases = append(leases, lease)
		}
	}
	// The controller has had the time to see them.
	waitForReason(t, newCall(t, tools, "tool"), v1alpha1.ReasonStarting)
	startPod(t, call, prints(`"secret"`, 0))
	want{}.check(t, waitForEnd(t, call))
	for _, lease := range leases {
		now := &coordinationv1.Lease{}
		if !get(t, keyOf(lease), now) || now.ResourceVersion != lease.ResourceVersion {
			t.Errorf("somebody's Lease became %s", show(now))
		}
	}
}
