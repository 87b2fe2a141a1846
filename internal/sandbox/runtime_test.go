package sandbox

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// testNode has handlers, whose names begin with + if they support user
// namespaces, - if they say that they do not, and ? if they say nothing.
func testNode(name string, labels map[string]string, handlers ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	for _, h := range handlers {
		r := corev1.NodeRuntimeHandler{Name: h[1:]}
		if h[0] != '?' {
			r.Features = &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: ptr.To(h[0] == '+')}
		}
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, r)
	}
	return n
}

func TestUsers(t *testing.T) {
	class := func(selector map[string]string) *nodev1.RuntimeClass {
		c := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "strong"}, Handler: "kata"}
		if selector != nil {
			c.Scheduling = &nodev1.Scheduling{NodeSelector: selector}
		}
		return c
	}
	pool := map[string]string{"pool": "sandboxes"}
	for _, tc := range []struct {
		reason    string
		class     *nodev1.RuntimeClass
		nodes     []corev1.Node
		namespace bool
		says      []string
		never     string
	}{
		{"no node is known: the promise stays", nil, nil, true, []string{"in a user namespace"}, "warning"},
		{"a runtime that reports no handlers says nothing", nil, []corev1.Node{testNode("a", nil)}, true, []string{"in a user namespace"}, "warning"},
		{"all support it", nil, []corev1.Node{testNode("a", nil, "+", "-kata"), testNode("b", nil, "+")}, true, []string{"in a user namespace"}, "warning"},
		{"none supports it", nil, []corev1.Node{testNode("a", nil, "-", "+runc"), testNode("b", nil, "?")}, false,
			[]string{"warning", "WITHOUT a user namespace", "update the nodes"}, "hostUsers: false"},
		{"nodes differ: isolation stays, and what does not start is named", nil,
			[]corev1.Node{testNode("e", nil, "-"), testNode("d", nil, "-"), testNode("c", nil, "-"), testNode("b", nil, "-"), testNode("a", nil, "+")}, true,
			[]string{"in a user namespace", "do not start on b, c, d and 1 more", "nodeSelector"}, "WITHOUT"},
		{"Windows nodes run no sandbox", nil, []corev1.Node{testNode("a", nil, "-"), testNode("w", map[string]string{"kubernetes.io/os": "windows"}, "+")}, false,
			[]string{"WITHOUT"}, ""},
		{"a handler that does not", class(nil), []corev1.Node{testNode("a", nil, "+", "-kata")}, false,
			[]string{`RuntimeClass "strong"`, "without a user namespace", `"kata" reports no support`}, "warning"},
		{"gVisor's says that it does, and does not start", &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "sandboxed"}, Handler: "runsc"},
			[]corev1.Node{testNode("a", nil, "+", "+runsc")}, false, []string{`RuntimeClass "sandboxed"`, "without a user namespace", "whatever the nodes report"}, "hostUsers: false"},
		{"a handler that does", class(nil), []corev1.Node{testNode("a", nil, "-", "+kata")}, true,
			[]string{`RuntimeClass "strong"`, "in a user namespace"}, "warning"},
		{"nodes without the handler run none of its sandboxes", class(nil), []corev1.Node{testNode("a", nil, "+"), testNode("b", nil, "-kata")}, false,
			[]string{"without a user namespace"}, ""},
		{"no node has the handler yet", class(nil), []corev1.Node{testNode("a", nil, "-")}, true, []string{"in a user namespace"}, "warning"},
		{"nodes that its nodeSelector leaves out do not count", class(pool),
			[]corev1.Node{testNode("a", nil, "-kata"), testNode("b", pool, "+kata")}, true, []string{"in a user namespace"}, "warning"},
		{"nodes that it selects do", class(pool),
			[]corev1.Node{testNode("a", pool, "-kata"), testNode("b", pool, "+kata")}, true, []string{"do not start on a,", `"kata"`}, ""},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			namespace, words := Users(tc.class, tc.nodes)
			if namespace != tc.namespace {
				t.Errorf("user namespace: %v, want %v (%s)", namespace, tc.namespace, words)
			}
			for _, part := range tc.says {
				if !strings.Contains(words, part) {
					t.Errorf("%q lacks %q", words, part)
				}
			}
			if tc.never != "" && strings.Contains(words, tc.never) {
				t.Errorf("%q says %q", words, tc.never)
			}
		})
	}
}

func TestRuntimeClasses(t *testing.T) {
	for _, tc := range []struct {
		reason   string
		rules    RuntimeClasses
		named    string
		of       string
		refusals []string // nil: allowed
	}{
		{"no rules, no class", RuntimeClasses{}, "", "", nil},
		{"no rules", RuntimeClasses{}, "gvisor", "gvisor", nil},
		{"the default", RuntimeClasses{Default: "gvisor"}, "", "gvisor", nil},
		{"a Tool's own word counts more than the default", RuntimeClasses{Default: "gvisor"}, "kata", "kata", nil},
		{"none of the minimum", RuntimeClasses{Required: []string{"gvisor", "kata"}}, "", "",
			[]string{"spec.isolation.runtimeClassName names no RuntimeClass", "gvisor, kata", "--require-runtime-class"}},
		{"another than the minimum", RuntimeClasses{Required: []string{"gvisor"}}, "runc", "runc", []string{`"runc"`, "gvisor"}},
		{"the second of the minimum", RuntimeClasses{Required: []string{"gvisor", "kata"}}, "kata", "kata", nil},
		{"the default meets the minimum", RuntimeClasses{Default: "gvisor", Required: []string{"gvisor"}}, "", "gvisor", nil},
		{"a default does not lift the minimum", RuntimeClasses{Default: "gvisor", Required: []string{"gvisor"}}, "runc", "runc", []string{`"runc"`}},
	} {
		tool := testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.RuntimeClassName = tc.named })
		if got := tc.rules.Of(tool); got != tc.of {
			t.Errorf("%s: the class is %q, want %q", tc.reason, got, tc.of)
		}
		refusal := tc.rules.Refuse(tool)
		if (refusal != "") != (tc.refusals != nil) {
			t.Errorf("%s: %q", tc.reason, refusal)
		}
		for _, part := range tc.refusals {
			if !strings.Contains(refusal, part) {
				t.Errorf("%s: %q lacks %q", tc.reason, refusal, part)
			}
		}
	}
}

// A changed flag, or nodes that can something else, make another sandbox.
func TestRuntimeIsPartOfTheTemplate(t *testing.T) {
	in := testInput(testTool())
	before := Job(in)
	in.DefaultRuntimeClass = "gvisor"
	byDefault := Job(in)
	if got := ptr.Deref(byDefault.Spec.Template.Spec.RuntimeClassName, ""); got != "gvisor" || SameTemplate(before, byDefault) {
		t.Errorf("with a default the RuntimeClass is %q, same template: %v", got, SameTemplate(before, byDefault))
	}
	in.NoUserNamespace = true
	without := Job(in)
	if without.Spec.Template.Spec.HostUsers != nil || SameTemplate(byDefault, without) {
		t.Errorf("without a user namespace hostUsers is %v, same template: %v", without.Spec.Template.Spec.HostUsers, SameTemplate(byDefault, without))
	}
	if ptr.Deref(before.Spec.Template.Spec.HostUsers, true) || ptr.Deref(byDefault.Spec.Template.Spec.HostUsers, true) {
		t.Error("hostUsers is not false")
	}
	named := testInput(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.RuntimeClassName = "kata" }))
	named.DefaultRuntimeClass = "gvisor"
	if got := *Job(named).Spec.Template.Spec.RuntimeClassName; got != "kata" {
		t.Errorf("the default replaces what the Tool names: %q", got)
	}
}
