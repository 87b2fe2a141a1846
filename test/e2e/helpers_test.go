package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// patience bounds every wait of these tests that has no tighter bound.
const patience = 90 * time.Second

// parallel bounds how many sandboxes run at once: the node has two cores.
var parallel = make(chan struct{}, 6)

// start lets a test run beside others and returns the context of its requests.
func start(t *testing.T) context.Context {
	t.Helper()
	t.Parallel()
	parallel <- struct{}{}
	t.Cleanup(func() { <-parallel })
	return t.Context()
}

// newTool registers a Tool that runs the command in the busybox image and waits
// until it is Ready.
func newTool(ctx context.Context, t *testing.T, name string, command []string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	tool := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: name},
		Spec: v1alpha1.ToolSpec{
			InputSchema: raw(`{"type":"object"}`),
			Container:   v1alpha1.ToolContainer{Image: images["BUSYBOX"], Command: command},
		},
	}
	for _, mod := range mods {
		mod(&tool.Spec)
	}
	if err := admin.Create(ctx, tool); err != nil {
		t.Fatalf("create Tool %s: %v", name, err)
	}
	return waitReady(ctx, t, tool)
}

func waitReady(ctx context.Context, t *testing.T, tool *v1alpha1.Tool) *v1alpha1.Tool {
	t.Helper()
	waitFor(ctx, t, tool, &v1alpha1.ToolList{}, func(o *v1alpha1.Tool) bool {
		c := apimeta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.ObservedGeneration == o.Generation && c.Status == metav1.ConditionTrue
	}, func(o *v1alpha1.Tool) string { return fmt.Sprintf("%+v", o.Status.Conditions) })
	return tool
}

// shell is a Tool of one script for busybox sh.
func shell(ctx context.Context, t *testing.T, name, script string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	return newTool(ctx, t, name, []string{"sh", "-c", script}, mods...)
}

func text(s *v1alpha1.ToolSpec) { s.Output.Format = v1alpha1.OutputText }

func timeout(seconds int32) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.TimeoutSeconds = seconds }
}

// propose creates a call as the agent.
func propose(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, args string, mods ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	t.Helper()
	call := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, GenerateName: tool.Name + "-"},
		Spec:       v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool.Name, Namespace: tool.Namespace}},
	}
	if args != "" {
		call.Spec.Args = ptr.To(raw(args))
	}
	for _, mod := range mods {
		mod(&call.Spec)
	}
	if err := agent.Create(ctx, call); err != nil {
		t.Fatalf("create a call of %s: %v", tool.Name, err)
	}
	return call
}

// finish waits for any end of a call.
func finish(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) *v1alpha1.ToolCall {
	t.Helper()
	waitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(o *v1alpha1.ToolCall) bool {
		return apimeta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionComplete)
	}, func(o *v1alpha1.ToolCall) string { return fmt.Sprintf("%+v", o.Status) })
	if call.Status.Result == nil {
		t.Fatalf("complete without a result: %+v", call.Status)
	}
	return call
}

func callOf(ctx context.Context, t *testing.T, tool *v1alpha1.Tool, args string, mods ...func(*v1alpha1.ToolCallSpec)) *v1alpha1.ToolCall {
	t.Helper()
	return finish(ctx, t, propose(ctx, t, tool, args, mods...))
}

// waitFor watches one object until it is as wanted, and leaves that state in it.
func waitFor[T any, P interface {
	*T
	client.Object
}](ctx context.Context, t *testing.T, o P, list client.ObjectList, done func(P) bool, show func(P) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	key := client.ObjectKeyFromObject(o)
	watcher, err := admin.Watch(ctx, list, client.InNamespace(key.Namespace),
		client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", key.Name)})
	if err != nil {
		t.Fatalf("watch %s: %v", key, err)
	}
	defer watcher.Stop()
	// A watch without a version begins with the object as it is.
	for !done(o) {
		event, ok := <-watcher.ResultChan()
		if !ok {
			t.Fatalf("%s was not as expected within %s: %s", key, patience, show(o))
		}
		if got, ok := event.Object.(P); ok {
			*o = *got
		}
	}
}

func raw(s string) apiextensionsv1.JSON { return apiextensionsv1.JSON{Raw: []byte(s)} }

// succeeded fails the test unless the call ended well, and returns its data.
func succeeded(t *testing.T, call *v1alpha1.ToolCall) string {
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

// failed fails the test unless the call ended with the code, the flag and all
// the parts of a message.
func failed(t *testing.T, call *v1alpha1.ToolCall, code v1alpha1.ErrorCode, retryable bool, parts ...string) {
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

// unquote is the string that a JSON string stands for.
func unquote(t *testing.T, data string) string {
	t.Helper()
	var s string
	if err := json.Unmarshal([]byte(data), &s); err != nil {
		t.Fatalf("data is no JSON string: %.200s", data)
	}
	return s
}

// unquoteField is the string in field v of an object.
func unquoteField(t *testing.T, data string) string {
	t.Helper()
	var o struct{ V string }
	if err := json.Unmarshal([]byte(data), &o); err != nil {
		t.Fatalf("data is no object with v: %.200s", data)
	}
	return o.V
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }
