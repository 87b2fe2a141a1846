package api

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPluginOpensANamespace: the command gives the controller its rights in a
// namespace, says what it did, and does nothing twice.
func TestPluginOpensANamespace(t *testing.T) {
	folder := buildPlugin(t)
	create := func(labels map[string]string) string {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "open-", Labels: labels}}
		if err := adminClient.Create(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
		return namespace.Name
	}
	bindings := func(ns string) string { return "/apis/rbac.authorization.k8s.io/v1/namespaces/" + ns + "/rolebindings" }
	otherBinding := func(ns, role, subjects string) {
		admin.create(t, bindings(ns), `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"callgate"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+role+`"},"subjects":[`+subjects+`]}`)
	}
	const bound = ": ServiceAccount callgate-system/callgate-controller has ClusterRole callgate-tool-namespace in NS\n"
	const labels = ": callgate.dev/tools=enabled, pod-security.kubernetes.io/enforce="
	for _, tc := range []struct {
		reason  string
		labels  map[string]string
		prepare func(ns string)
		stdout  string
		level   string
	}{
		{"a new namespace", nil, nil,
			"rolebinding/callgate created" + bound + "namespace/NS labeled" + labels + "restricted\n", "restricted"},
		{"another level of Pod Security stays", map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}, nil,
			"rolebinding/callgate created" + bound + "namespace/NS labeled" + labels + "baseline\n" +
				"pod-security.kubernetes.io/enforce stays baseline, as it was set before; every sandbox meets restricted\n", "baseline"},
		{"the label is there", map[string]string{"callgate.dev/tools": "enabled", "pod-security.kubernetes.io/enforce": "restricted"}, nil,
			"rolebinding/callgate created" + bound + "namespace/NS unchanged" + labels + "restricted\n", "restricted"},
		{"the label has another value", map[string]string{"callgate.dev/tools": "disabled"}, nil,
			"rolebinding/callgate created" + bound + "namespace/NS labeled" + labels + "restricted\n", "restricted"},
		{"the binding is there, of another install", nil, func(ns string) {
			otherBinding(ns, "callgate-tool-namespace", `{"kind":"ServiceAccount","namespace":"old","name":"callgate-controller"}`)
		}, "rolebinding/callgate changed" + bound + "namespace/NS labeled" + labels + "restricted\n", "restricted"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			ns := create(tc.labels)
			if tc.prepare != nil {
				tc.prepare(ns)
			}
			stdout, stderr, code := admin.plugin(t, folder, "namespace", "open", ns)
			if want := strings.ReplaceAll(tc.stdout, "NS", ns); code != 0 || stderr != "" || stdout != want {
				t.Fatalf("exit code %d, stderr %q, stdout\n%swant\n%s", code, stderr, stdout, want)
			}
			namespace := admin.get(t, "/api/v1/namespaces/"+ns)
			if namespace.str("metadata", "labels", "callgate.dev/tools") != "enabled" || namespace.str("metadata", "labels", "pod-security.kubernetes.io/enforce") != tc.level {
				t.Errorf("labels are %s", asJSON(namespace.at("metadata", "labels")))
			}
			if err := poll(t.Context(), "the controller's rights", func() (bool, string) {
				return may(t, controllerName, "create", "batch", "jobs", "", ns), "none"
			}); err != nil {
				t.Fatal(err)
			}
			binding := admin.get(t, bindings(ns)+"/callgate")
			stdout, stderr, code = admin.plugin(t, folder, "namespace", "open", "--install-namespace=callgate-system", ns)
			if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "rolebinding/callgate unchanged: ") || !strings.Contains(stdout, "\nnamespace/"+ns+" unchanged: ") {
				t.Errorf("again: exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
			}
			if after := admin.get(t, bindings(ns)+"/callgate"); after.str("metadata", "resourceVersion") != binding.str("metadata", "resourceVersion") {
				t.Error("the RoleBinding was written again")
			}
			if after := admin.get(t, "/api/v1/namespaces/"+ns); after.str("metadata", "resourceVersion") != namespace.str("metadata", "resourceVersion") {
				t.Error("the namespace was written again")
			}
		})
	}

	// The manifest is the same.
	t.Run("dry run", func(t *testing.T) {
		ns := create(nil)
		stdout, stderr, code := certificateUser(t, "nobody").plugin(t, folder, "namespace", "open", ns, "--dry-run")
		if code != 0 || stderr != "" {
			t.Fatalf("exit code %d, stderr %q", code, stderr)
		}
		if output, ok := admin.kubectl(t, stdout, "apply", "--server-side", "-f", "-"); !ok {
			t.Fatal(output)
		}
		stdout, _, _ = admin.plugin(t, folder, "namespace", "open", ns)
		if strings.Count(stdout, " unchanged: ") != 2 {
			t.Errorf("after the manifest was applied there was something to do:\n%s", stdout)
		}
	})

	// It refuses, and changes nothing.
	ns, taken, seeded := create(nil), create(nil), create(nil)
	otherBinding(taken, "view", "")
	admin.create(t, "/apis/coordination.k8s.io/v1/namespaces/"+seeded+"/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"callgate-key-forged"},"spec":{}}`)
	owner := certificateUser(t, "owner")
	for _, role := range []string{"system:aggregate-to-view", "system:aggregate-to-edit", "system:aggregate-to-admin"} {
		bind(t, ns, role, "owner")
	}
	bind(t, "callgate-system", "system:aggregate-to-view", "owner")
	if err := poll(t.Context(), "the owner's rights", func() (bool, string) {
		return may(t, "owner", "create", "rbac.authorization.k8s.io", "rolebindings", "", ns) &&
			may(t, "owner", "get", "", "serviceaccounts", "", "callgate-system"), "none"
	}); err != nil {
		t.Fatal(err)
	}
	const takes = "opening a namespace takes the rights to change it and to bind ClusterRole callgate-tool-namespace in it, as a cluster administrator has: "
	for _, tc := range []struct {
		reason    string
		who       *user
		arguments []string
		code      int
		stderr    string // a part
	}{
		{"no such namespace", admin, []string{"open", "none"}, 1, "there is no namespace none: make it with kubectl create namespace none"},
		{"the controller's own", admin, []string{"open", "callgate-system"}, 2, "namespace callgate-system is where Callgate itself is"},
		{"no such install", admin, []string{"open", ns, "--install-namespace", "default"}, 1, "there is no ServiceAccount callgate-controller in namespace default: say with --install-namespace"},
		{"no rights", certificateUser(t, "nobody"), []string{"open", ns}, 1, takes + `namespaces "` + ns + `" is forbidden`},
		{"a namespace's admin", owner, []string{"open", ns}, 1, takes + `rolebindings.rbac.authorization.k8s.io "callgate" is forbidden: user "owner"`},
		{"the binding's name is taken", admin, []string{"open", taken}, 1, "RoleBinding callgate in namespace " + taken + " binds ClusterRole view"},
		{"somebody left what Callgate would take for its memory", admin, []string{"open", seeded}, 1, "namespace " + seeded + " has Lease callgate-key-forged already"},
		{"no name of a namespace", admin, []string{"open", "A_b"}, 2, `"A_b" is no name of a namespace`},
		{"no name", admin, []string{"open"}, 2, "want the NAME of one namespace, got 0"},
		{"two names", admin, []string{"open", ns, taken}, 2, "want the NAME of one namespace, got 2"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			stdout, stderr, code := tc.who.plugin(t, folder, append([]string{"namespace"}, tc.arguments...)...)
			if code != tc.code || !strings.Contains(stderr, tc.stderr) || strings.Count(stderr, "\n") != 1 || stdout != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q, want %d and one line with %q", code, stdout, stderr, tc.code, tc.stderr)
			}
		})
	}
	for _, name := range []string{ns, taken, seeded} {
		if label := admin.get(t, "/api/v1/namespaces/"+name).str("metadata", "labels", "callgate.dev/tools"); label != "" {
			t.Errorf("%s was opened", name)
		}
	}
	if answer := admin.do(t, http.MethodGet, bindings(ns)+"/callgate", jsonType, ""); answer.code != http.StatusNotFound {
		t.Errorf("a RoleBinding was created: %s", answer)
	}
}
