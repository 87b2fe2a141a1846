package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

// marker is in the arguments of every call: it must be found nowhere but in the
// call's spec, and in what a tool answers.
const marker = "marker-5e1a"

// eventually asks until done says so, at most for patience. The failure shows
// what was seen last.
func eventually(t *testing.T, what string, done func() (bool, any)) {
	t.Helper()
	if err := poll(t.Context(), what, done); err != nil {
		t.Fatal(err)
	}
}

func poll(ctx context.Context, what string, done func() (bool, any)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, seen := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s; last seen: %s", what, patience, show(seen))
		case <-ticker.C:
		}
	}
}

func show(v any) string {
	if err, ok := v.(error); ok {
		return err.Error()
	}
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(content)
}

func namespaceObject(name string) *corev1.Namespace {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if name == "" {
		namespace.GenerateName = "tools-"
	}
	namespace.Name = name
	return namespace
}

// closedNamespace makes a namespace that is not opened for Tools.
func closedNamespace(t *testing.T) string {
	t.Helper()
	namespace := namespaceObject("")
	create(t, namespace)
	return namespace.Name
}

// openNamespace makes a namespace that is opened for Tools, and waits until
// pods can be created in it.
func openNamespace(t *testing.T) string {
	t.Helper()
	name := closedNamespace(t)
	label(t, name, v1alpha1.LabelToolsEnabled)
	create(t, toolsBinding(name))
	waitForBinding(t, name, true)
	eventually(t, "a ServiceAccount in "+name, func() (bool, any) {
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: name, Name: "default"}, &corev1.ServiceAccount{})
		return err == nil, err
	})
	return name
}

func label(t *testing.T, namespace, value string) {
	t.Helper()
	patch(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, v1alpha1.LabelTools, value))
}

// toolsBinding is the RoleBinding that lets the controller run sandboxes.
func toolsBinding(namespace string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "callgate"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-tool-namespace"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: install, Name: "callgate-controller"}},
	}
}

// waitForBinding waits until the authorizer, which has bindings by a watch,
// answers that the controller may (or may not) create Jobs in a namespace.
func waitForBinding(t *testing.T, namespace string, allowed bool) {
	t.Helper()
	waitForAccess(t, allowed, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "create", Group: "batch", Resource: "jobs"})
}

func waitForAccess(t *testing.T, allowed bool, to authorizationv1.ResourceAttributes) {
	t.Helper()
	eventually(t, "the controller's rights in "+to.Namespace, func() (bool, any) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: controllerName, ResourceAttributes: &to}}
		if err := admin.Create(t.Context(), review); err != nil {
			return false, err
		}
		return review.Status.Allowed == allowed, review.Status
	})
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := admin.Create(t.Context(), o); err != nil {
		t.Fatalf("create %T: %v", o, err)
	}
}

func remove(t *testing.T, o client.Object) {
	t.Helper()
	if err := admin.Delete(t.Context(), o); err != nil {
		t.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
}

func patch(t *testing.T, who client.Client, o client.Object, merge string) {
	t.Helper()
	if err := who.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(merge))); err != nil {
		t.Fatalf("patch %T %s: %v", o, o.GetName(), err)
	}
}

// get reads an object past every cache; false if it is not there.
func get(t *testing.T, key client.ObjectKey, o client.Object) bool {
	t.Helper()
	err := admin.Get(t.Context(), key, o)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("get %T %s: %v", o, key, err)
	}
	return err == nil
}

func rawJSON(text string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(text)} }

// toolObject is a Tool that is Ready in an opened namespace.
func toolObject(namespace, name string, changes ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	tool := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ToolSpec{
			InputSchema: rawJSON(`{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"},"any":{}},"additionalProperties":false}`),
			Container:   v1alpha1.ToolContainer{Image: "registry.example/tool:1", Command: []string{"/tool"}},
		},
	}
	for _, change := range changes {
		change(&tool.Spec)
	}
	return tool
}

// newTool makes a Tool and waits until it is Ready.
func newTool(t *testing.T, namespace, name string, changes ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	tool := toolObject(namespace, name, changes...)
	create(t, tool)
	waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
	return tool
}

// waitForReady waits for the Ready condition of a Tool's present generation and
// returns its message.
func waitForReady(t *testing.T, tool *v1alpha1.Tool, status metav1.ConditionStatus, reason string) string {
	t.Helper()
	var message string
	eventually(t, fmt.Sprintf("Tool %s Ready=%s (%s)", tool.Name, status, reason), func() (bool, any) {
		if !get(t, client.ObjectKeyFromObject(tool), tool) {
			return false, "no Tool"
		}
		c := apimeta.FindStatusCondition(tool.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.ObservedGeneration != tool.Generation || c.Status != status || c.Reason != reason {
			return false, tool.Status
		}
		message = c.Message
		return true, nil
	})
	return message
}

func policyObject(namespace, name string, effect v1alpha1.RuleEffect, tools ...string) *v1alpha1.ToolPolicy {
	return &v1alpha1.ToolPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ToolPolicySpec{
			Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectUser, Name: agentName}},
			Rules:    []v1alpha1.PolicyRule{{Name: "rule", Effect: effect, Tools: v1alpha1.ToolSelector{Names: tools}}},
		},
	}
}

// allow lets agent call every Tool of a namespace.
func allow(t *testing.T, namespace string) *v1alpha1.ToolPolicy {
	t.Helper()
	policy := policyObject(namespace, "agents", v1alpha1.EffectAllow, "*")
	create(t, policy)
	return policy
}

func callObject(namespace, tool string, changes ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	args := rawJSON(`{"text":"` + marker + `"}`)
	call := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentsNamespace, GenerateName: "call-"},
		Spec:       v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Namespace: namespace, Name: tool}, Args: &args},
	}
	for _, change := range changes {
		change(&call.Spec)
	}
	return call
}

// newCall is a call by agent. Every state that it is ever in is judged at the
// end of the test.
func newCall(t *testing.T, namespace, tool string, changes ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	t.Helper()
	return propose(t, agent, callObject(namespace, tool, changes...))
}

func propose(t *testing.T, who client.Client, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	if err := who.Create(t.Context(), call); err != nil {
		t.Fatalf("create a call: %v", err)
	}
	uid := call.UID
	t.Cleanup(func() { judgeHistory(t, uid) })
	return call
}

func withArgs(text string) func(*v1alpha1.ToolCallSpec) {
	return func(s *v1alpha1.ToolCallSpec) { args := rawJSON(text); s.Args = &args }
}

func cancel(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	patch(t, agent, call.DeepCopy(), `{"spec":{"cancel":true}}`)
}

// waitForCall reads a call until done says so, and returns it.
func waitForCall(t *testing.T, call *v1alpha1.ToolCall, what string, done func(*v1alpha1.ToolCall) bool) *v1alpha1.ToolCall {
	t.Helper()
	now := &v1alpha1.ToolCall{}
	eventually(t, what, func() (bool, any) {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(call), now); err != nil {
			return false, err
		}
		return done(now), now.Status
	})
	return now
}

func waitForEnd(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, "the end of the call", complete)
}

func complete(call *v1alpha1.ToolCall) bool {
	return apimeta.IsStatusConditionTrue(call.Status.Conditions, v1alpha1.ConditionComplete)
}

// waitForReason waits for the reason of an unfinished call, and returns its message.
func waitForReason(t *testing.T, call *v1alpha1.ToolCall, reason string) string {
	t.Helper()
	call = waitForCall(t, call, "reason "+reason, func(call *v1alpha1.ToolCall) bool { return reasonOf(call) == reason })
	return apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionSucceeded).Message
}

func reasonOf(call *v1alpha1.ToolCall) string {
	if c := apimeta.FindStatusCondition(call.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil {
		return c.Reason
	}
	return ""
}

// waitForSend waits until the call's status names the pod that gets it.
func waitForSend(t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	return waitForCall(t, call, "an attempt", func(call *v1alpha1.ToolCall) bool { return len(call.Status.Attempts) > 0 })
}

func jobKey(namespace string, call *v1alpha1.ToolCall) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: sandbox.JobName(call.UID, 1)}
}

// jobOf waits for the Job of a call.
func jobOf(t *testing.T, call *v1alpha1.ToolCall) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	eventually(t, "the Job of the call", func() (bool, any) {
		return get(t, jobKey(toolNamespace(call), call), job), call
	})
	return job
}

// podOf waits for the pod that the Job controller makes for a call.
func podOf(t *testing.T, call *v1alpha1.ToolCall) *corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, "the pod of the call", func() (bool, any) {
		pods = podsOf(t, call)
		return len(pods) == 1, pods
	})
	return &pods[0]
}

// podOfAttempt waits for the pod of a certain attempt of a call.
func podOfAttempt(t *testing.T, call *v1alpha1.ToolCall, number int) *corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, fmt.Sprintf("the pod of attempt %d", number), func() (bool, any) {
		pods = podsOfAttempt(t, call, number)
		return len(pods) == 1, pods
	})
	return &pods[0]
}

func podsOfAttempt(t *testing.T, call *v1alpha1.ToolCall, number int) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(podsOf(t, call), func(p corev1.Pod) bool { return p.Labels[v1alpha1.LabelAttempt] != fmt.Sprint(number) })
}

// podsOf are the pods of a call that are not being deleted.
func podsOf(t *testing.T, call *v1alpha1.ToolCall) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := admin.List(t.Context(), &list, client.InNamespace(toolNamespace(call)), client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)}); err != nil {
		t.Fatal(err)
	}
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// waitForNoSandbox waits until neither Job nor pod of a call is left.
func waitForNoSandbox(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	of := client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)}
	eventually(t, "the sandbox removed", func() (bool, any) {
		var jobs batchv1.JobList
		var pods corev1.PodList
		if err := admin.List(t.Context(), &jobs, of); err != nil {
			return false, err
		}
		if err := admin.List(t.Context(), &pods, of); err != nil {
			return false, err
		}
		return len(jobs.Items)+len(pods.Items) == 0, []any{jobs.Items, pods.Items}
	})
}

func toolNamespace(call *v1alpha1.ToolCall) string {
	if call.Spec.ToolRef.Namespace != "" {
		return call.Spec.ToolRef.Namespace
	}
	return call.Namespace
}

// want is how a call must end. Empty fields are not compared.
type want struct {
	code      v1alpha1.ErrorCode
	retryable bool
	message   []string // each must be in the message
}

func (w want) check(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	r := call.Status.Result
	if r == nil {
		t.Fatalf("no result: %s", show(call.Status))
	}
	if r.ErrorCode != w.code || *r.Retryable != w.retryable || *r.OK != (w.code == "") {
		t.Errorf("result is %s, want errorCode %q, retryable %t", show(r), w.code, w.retryable)
	}
	for _, part := range w.message {
		if !contains(r.Message, part) {
			t.Errorf("message %q does not say %q", r.Message, part)
		}
	}
}

type jobType = batchv1.Job

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }
