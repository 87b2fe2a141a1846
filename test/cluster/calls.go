package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/wire"
)

// Patience bounds every wait of these tests that has no tighter bound.
const Patience = 90 * time.Second

// parallel bounds how many sandboxes run at once: the node has two cores.
var parallel = make(chan struct{}, 6)

// Start lets a test run beside others and returns the context of its requests.
func Start(t *testing.T) context.Context {
	t.Helper()
	t.Parallel()
	parallel <- struct{}{}
	t.Cleanup(func() { <-parallel })
	return t.Context()
}

// NewTool registers a Tool that runs the command in the busybox image and waits
// until it is Ready.
func NewTool(ctx context.Context, t *testing.T, name string, command []string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	return NewToolIn(ctx, t, ToolsNS, name, command, mods...)
}

// NewToolIn is NewTool in another namespace.
func NewToolIn(ctx context.Context, t *testing.T, namespace, name string, command []string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	tool := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.ToolSpec{
			InputSchema: Raw(`{"type":"object"}`),
			Container:   v1alpha1.ToolContainer{Image: Images["BUSYBOX"], Command: command},
		},
	}
	for _, mod := range mods {
		mod(&tool.Spec)
	}
	if err := Admin.Create(ctx, tool); err != nil {
		t.Fatalf("create Tool %s: %v", name, err)
	}
	return WaitReady(ctx, t, tool)
}

// WaitReady waits until a Tool is Ready in its current generation.
func WaitReady(ctx context.Context, t *testing.T, tool *v1alpha1.Tool) *v1alpha1.Tool {
	t.Helper()
	WaitFor(ctx, t, tool, &v1alpha1.ToolList{}, func(o *v1alpha1.Tool) bool {
		c := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.ObservedGeneration == o.Generation && c.Status == metav1.ConditionTrue
	}, func(o *v1alpha1.Tool) string { return fmt.Sprintf("%+v", o.Status.Conditions) })
	return tool
}

// Shell is a Tool of one script for busybox sh.
func Shell(ctx context.Context, t *testing.T, name, script string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	return NewTool(ctx, t, name, []string{"sh", "-c", script}, mods...)
}

// Text lets a Tool's answer be text.
func Text(s *v1alpha1.ToolSpec) { s.Output.Format = v1alpha1.OutputText }

// Timeout is a time limit for a Tool.
func Timeout(seconds int32) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.TimeoutSeconds = seconds }
}

// Propose creates a call as the agent.
func Propose(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, args string, mods ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	t.Helper()
	call := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: AgentsNS, GenerateName: tool.Name + "-"},
		Spec:       v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: tool.Namespace}},
	}
	if args != "" {
		call.Spec.Args = ptr.To(Raw(args))
	}
	for _, mod := range mods {
		mod(&call.Spec)
	}
	if err := Agent.Create(ctx, call); err != nil {
		t.Fatalf("create a call of %s: %v", tool.Name, err)
	}
	return call
}

// Finish waits for any end of a call.
func Finish(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	WaitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(o *v1alpha1.ToolCall) bool {
		return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionComplete)
	}, func(o *v1alpha1.ToolCall) string { return fmt.Sprintf("%+v", o.Status) })
	if call.Status.Result == nil {
		t.Fatalf("complete without a result: %+v", call.Status)
	}
	return call
}

// CallOf makes a call as the agent and waits for its end.
func CallOf(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, args string, mods ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	t.Helper()
	return Finish(ctx, t, Propose(ctx, t, tool, args, mods...))
}

// WaitFor watches one object until it is as wanted, and leaves that state in it.
func WaitFor[T any, P interface {
	*T
	client.Object
}](ctx context.Context, t *testing.T, o P, list client.ObjectList, done func(P) bool, show func(P) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	key := client.ObjectKeyFromObject(o)
	watcher, err := Admin.Watch(ctx, list, client.InNamespace(key.Namespace),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", key.Name)})
	if err != nil {
		t.Fatalf("watch %s: %v", key, err)
	}
	defer watcher.Stop()
	// A watch without a version begins with the object as it is.
	for !done(o) {
		event, ok := <-watcher.ResultChan()
		if !ok {
			t.Fatalf("%s was not as expected within %s: %s", key, Patience, show(o))
		}
		if got, ok := event.Object.(P); ok {
			*o = *got
		}
	}
}

// Raw is JSON as it stands.
func Raw(s string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(s)} }

// Succeeded fails the test unless the call ended well, and returns its data.
func Succeeded(t *testing.T, call *v1alpha1.ToolCall) string {
	t.Helper()
	r := call.Status.Result
	if !*r.OK {
		t.Fatalf("ended %s: %s", r.ErrorCode, r.Message)
	}
	if r.Data == nil {
		return "null" // Go's JSON reads null into a pointer as nil
	}
	return string(r.Data.Raw)
}

// Failed fails the test unless the call ended with the code, the flag and all
// the parts of a message.
func Failed(t *testing.T, call *v1alpha1.ToolCall, code v1alpha1.ErrorCode, retryable bool, parts ...string) {
	t.Helper()
	r := call.Status.Result
	if *r.OK {
		t.Fatalf("succeeded with %.200s; want %s", r.Data.Raw, code)
	}
	if r.ErrorCode != code || *r.Retryable != retryable {
		t.Fatalf("ended %s (retryable %v): %s; want %s (%v)", r.ErrorCode, *r.Retryable, r.Message, code, retryable)
	}
	for _, part := range parts {
		if !strings.Contains(r.Message, part) {
			t.Errorf("message %q lacks %q", r.Message, part)
		}
	}
}

// Unquote is the string that a JSON string stands for.
func Unquote(t *testing.T, data string) string {
	t.Helper()
	var s string
	if err := json.Unmarshal([]byte(data), &s); err != nil {
		t.Fatalf("data is no JSON string: %.200s", data)
	}
	return s
}

// JSONOf is a value as JSON.
func JSONOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Quantity reads one.
func Quantity(s string) resource.Quantity { return resource.MustParse(s) }

// SucceededReason is the one word that kubectl get shows.
func SucceededReason(c *v1alpha1.ToolCall) string {
	if s := apimeta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionSucceeded); s != nil {
		return s.Reason
	}
	return ""
}

// WaitReason waits until kubectl get shows a word for a call.
func WaitReason(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall, reason string) {
	t.Helper()
	WaitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(c *v1alpha1.ToolCall) bool { return SucceededReason(c) == reason },
		func(c *v1alpha1.ToolCall) string { return fmt.Sprintf("%+v", c.Status) })
}

// WaitGone waits until no Job and pod of a call is left.
func WaitGone(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	namespace := client.InNamespace(call.Spec.ToolRef.Namespace)
	labels := client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)}
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}} {
		watcher, err := Admin.Watch(ctx, list, namespace, labels)
		if err != nil {
			t.Fatal(err)
		}
		defer watcher.Stop()
		for {
			if err := Admin.List(ctx, list, namespace, labels); err != nil {
				t.Fatal(err)
			}
			if apimeta.LenList(list) == 0 {
				break
			}
			if _, ok := <-watcher.ResultChan(); !ok {
				t.Fatalf("%T of call %s is left after %s", list, call.Name, Patience)
			}
		}
	}
}

// Cancel asks for the end of a call, as the agent.
func Cancel(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if err := Agent.Patch(ctx, call, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"cancel":true}}`))); err != nil {
		t.Fatal(err)
	}
}

// WaitAccepted waits until the runner says that it has the call: the status
// says Running a moment before.
func WaitAccepted(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	clientset, err := kubernetes.NewForConfig(Config)
	if err != nil {
		t.Fatal(err)
	}
	a := call.Status.Attempts[0]
	stream, err := clientset.CoreV1().Pods(a.Namespace).GetLogs(a.Pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var transcript wire.Transcript
	go func() { _, _ = io.Copy(&transcript, stream) }()
	select {
	case <-transcript.AcceptedSeen():
	case <-ctx.Done():
		t.Fatalf("no accepted call in the log of %s within %s", a.Pod, Patience)
	}
}
