package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// history has every state that a watch has shown of every call.
var history = struct {
	sync.Mutex
	states map[types.UID][]*v1alpha1.ToolCall
}{states: map[types.UID][]*v1alpha1.ToolCall{}}

func startRecording(cfg *rest.Config) (stop func(), err error) {
	watch, err := cache.New(cfg, cache.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	informer, err := watch.GetInformer(ctx, &v1alpha1.ToolCall{}, cache.BlockUntilSynced(false))
	if err != nil {
		cancel()
		return nil, err
	}
	record := func(o any) {
		call := o.(*v1alpha1.ToolCall)
		history.Lock()
		defer history.Unlock()
		history.states[call.UID] = append(history.states[call.UID], call)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: record, UpdateFunc: func(_, o any) { record(o) },
	}); err != nil {
		cancel()
		return nil, err
	}
	go func() { _ = watch.Start(ctx) }() // ends with ctx
	return cancel, nil
}

// judgeHistory judges every state that a call was in.
func judgeHistory(t *testing.T, uid types.UID) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var states []*v1alpha1.ToolCall
	if err := poll(ctx, "the watch of calls up to date", func() (bool, any) {
		history.Lock()
		states = history.states[uid]
		history.Unlock()
		if len(states) == 0 {
			return false, "nothing recorded"
		}
		last, stored := states[len(states)-1], &v1alpha1.ToolCall{}
		if err := admin.Get(ctx, client.ObjectKeyFromObject(last), stored); err != nil {
			return client.IgnoreNotFound(err) == nil, err
		}
		return stored.UID != uid || stored.ResourceVersion == last.ResourceVersion, last
	}); err != nil {
		t.Error(err)
		return
	}
	for i, state := range states {
		var before *v1alpha1.ToolCall
		if i > 0 {
			before = states[i-1]
		}
		if err := errors.Join(judgeState(state), judgeStep(before, state)); err != nil {
			t.Errorf("state %d of call %s: %v\n%s", i, state.Name, err, show(state.Status))
		}
	}
	judgeEvents(ctx, t, states[0])
}

// judgeState says what is wrong with the conditions of one state.
func judgeState(call *v1alpha1.ToolCall) error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	s := call.Status
	ended := complete(call)
	seen := len(s.Conditions) > 0

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(call)
	if err != nil {
		return err
	}
	computed, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return err
	}
	expected := status.InProgressStatus
	if ended && s.ObservedGeneration == call.Generation {
		expected = status.CurrentStatus
		if !*s.Result.OK {
			expected = status.FailedStatus
		}
	}
	if call.DeletionTimestamp != nil {
		expected = status.TerminatingStatus
	}
	if computed.Status != expected {
		wrong("kstatus is %s (%s), want %s", computed.Status, computed.Message, expected)
	}

	is := func(kind string, want metav1.ConditionStatus) {
		c := apimeta.FindStatusCondition(s.Conditions, kind)
		switch {
		case c == nil && want != "":
			wrong("condition %s is missing, want %s", kind, want)
		case c != nil && c.Status != want:
			wrong("condition %s is %s, want %q", kind, c.Status, want)
		}
	}
	switch {
	case !seen:
		if s.ObservedGeneration != -1 || s.Result != nil {
			wrong("a status that nobody wrote has observedGeneration %d, want -1", s.ObservedGeneration)
		}
	case !ended:
		is(v1alpha1.ConditionSucceeded, metav1.ConditionUnknown)
		is(v1alpha1.ConditionReconciling, metav1.ConditionTrue)
		is(v1alpha1.ConditionComplete, "")
		is(v1alpha1.ConditionStalled, "")
		if s.Result != nil || s.CompletionTime != nil {
			wrong("a result without Complete")
		}
	case *s.Result.OK:
		is(v1alpha1.ConditionSucceeded, metav1.ConditionTrue)
		is(v1alpha1.ConditionReconciling, "")
		is(v1alpha1.ConditionStalled, "")
	default:
		is(v1alpha1.ConditionSucceeded, metav1.ConditionFalse)
		is(v1alpha1.ConditionReconciling, "")
		is(v1alpha1.ConditionStalled, metav1.ConditionTrue)
		if reason := reasonOf(call); reason != s.Result.ErrorCode.Reason() {
			wrong("the reason is %s, the errorCode %s", reason, s.Result.ErrorCode)
		}
	}
	if ended && (s.CompletionTime == nil || s.StartTime == nil) {
		wrong("a finished call without startTime or completionTime")
	}
	for _, c := range s.Conditions {
		if strings.Contains(c.Message, marker) {
			wrong("the message of condition %s holds arguments or output: %s", c.Type, c.Message)
		}
	}
	return errors.Join(problems...)
}

// judgeStep says what must not have changed from one state to the next.
func judgeStep(before, now *v1alpha1.ToolCall) error {
	if before == nil {
		return nil
	}
	var problems []error
	b, n := before.Status, now.Status
	if complete(before) && (!complete(now) || !reflect.DeepEqual(b.Result, n.Result)) {
		problems = append(problems, errors.New("a result was changed"))
	}
	if b.ArgsDigest != "" && b.ArgsDigest != n.ArgsDigest {
		problems = append(problems, errors.New("argsDigest was changed"))
	}
	problems = append(problems, judgeAttempts(b.Attempts, n.Attempts))
	if b.ObservedGeneration > n.ObservedGeneration {
		problems = append(problems, fmt.Errorf("observedGeneration %d after %d", n.ObservedGeneration, b.ObservedGeneration))
	}
	return errors.Join(problems...)
}

// judgeAttempts says what is wrong with the attempts of a call: they are numbered,
// each has a pod of its own, one begins only after the one before has an end, and
// what has an end is not changed.
func judgeAttempts(before, now []v1alpha1.Attempt) error {
	if len(now) < len(before) || len(now) > len(before)+1 {
		return fmt.Errorf("%d attempts after %d", len(now), len(before))
	}
	for i, a := range before {
		if a.Outcome != "" && !reflect.DeepEqual(a, now[i]) {
			return fmt.Errorf("attempt %d had ended, and was changed", i+1)
		}
		if a.PodUID != now[i].PodUID || a.Sandbox != now[i].Sandbox {
			return fmt.Errorf("attempt %d names another sandbox", i+1)
		}
	}
	pods := map[types.UID]bool{}
	for i, a := range now {
		switch {
		case int(a.Number) != i+1:
			return fmt.Errorf("attempt %d has number %d", i+1, a.Number)
		case pods[a.PodUID]:
			return fmt.Errorf("attempt %d has the pod of one before it", i+1)
		case a.Outcome == "" && i < len(now)-1:
			return fmt.Errorf("attempt %d began, and the one before it had no end", i+2)
		case (a.Outcome == "") != (a.EndTime == nil):
			return fmt.Errorf("attempt %d has outcome %q and endTime %v", i+1, a.Outcome, a.EndTime)
		}
		pods[a.PodUID] = true
	}
	return nil
}

// wasEver waits until the watch has shown a call in a state that is as wanted.
func wasEver(t *testing.T, call *v1alpha1.ToolCall, what string, wanted func(*v1alpha1.ToolCall) bool) {
	t.Helper()
	eventually(t, what, func() (bool, any) {
		history.Lock()
		defer history.Unlock()
		states := history.states[call.UID]
		return slices.ContainsFunc(states, wanted), states
	})
}

func judgeEvents(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) {
	var list corev1.EventList
	if err := admin.List(ctx, &list, client.InNamespace(call.Namespace), client.MatchingFields{"involvedObject.uid": string(call.UID)}); err != nil {
		t.Error(err)
	}
	for _, e := range list.Items {
		if strings.Contains(e.Message, marker) {
			t.Errorf("event %s holds arguments or output: %s", e.Reason, e.Message)
		}
	}
}

func contains(s, part string) bool { return strings.Contains(s, part) }
