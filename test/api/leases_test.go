package api

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const leaseRefusal = "a Lease whose name begins with callgate- is what Callgate remembers of a call"

func leasesPath(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

func leaseBody(name string) string {
	return `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"` + name + `"},"spec":{"holderIdentity":"a"}}`
}

// namespaceForLeases makes a namespace in which the controller, and the users
// edit and admin with those roles, may write Leases as far as RBAC goes.
func namespaceForLeases(t *testing.T, labels map[string]string) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "leases-", Labels: labels}}
	if err := adminClient.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	bind(t, namespace.Name, "callgate-tool-namespace", controllerName)
	bindEditors(t, namespace.Name)
	return namespace.Name
}

func bindEditors(t *testing.T, namespace string) {
	t.Helper()
	bind(t, namespace, "system:aggregate-to-edit", "edit")
	bind(t, namespace, "system:aggregate-to-edit", "admin")
	bind(t, namespace, "system:aggregate-to-admin", "admin")
	if err := poll(t.Context(), "rights in "+namespace, func() (bool, string) {
		return may(t, controllerName, "create", "coordination.k8s.io", "leases", "", namespace) &&
			may(t, "edit", "deletecollection", "coordination.k8s.io", "leases", "", namespace) &&
			may(t, "admin", "update", "coordination.k8s.io", "leases", "", namespace), "not all"
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLeases: what is remembered of calls is the controller's alone.
func TestLeases(t *testing.T) {
	boss := certificateUser(t, "boss", "system:masters")
	as := func(name string, groups ...string) *user {
		return impersonating(t, boss, rest.ImpersonationConfig{UserName: name, Groups: groups})
	}
	controller := as(controllerName, "system:serviceaccounts", "system:serviceaccounts:callgate-system", "system:authenticated")
	edit, namespaceAdmin := certificateUser(t, "edit"), certificateUser(t, "admin", "developers")
	root := certificateUser(t, "root") // cluster-admin by a binding, not by its group
	bindCluster(t, "cluster-admin", "root")

	opened := namespaceForLeases(t, map[string]string{"callgate.dev/tools": "enabled"})
	closed := namespaceForLeases(t, nil)
	const system = "callgate-system"
	bindEditors(t, system)
	for _, namespace := range []string{opened, system} {
		if err := poll(t.Context(), "callgate-leases in force in "+namespace, func() (bool, string) {
			answer := edit.do(t, http.MethodPost, leasesPath(namespace)+"?dryRun=All", jsonType, leaseBody("callgate-in-force"))
			return answer.code == http.StatusForbidden && strings.Contains(answer.message(), leaseRefusal), answer.String()
		}); err != nil {
			t.Fatal(err)
		}
	}

	for _, tc := range []struct {
		namespace, name string
		who             *user
		allowed         bool
		reason          string
	}{
		{opened, "callgate-key-1", controller, true, "remembers a key"},
		{opened, "callgate-key-1", edit, false, "would free a key, or forge its result"},
		{opened, "callgate-key-1", namespaceAdmin, false, "as edit"},
		{opened, "callgate-key-1", root, true, "the way out"},
		{opened, "callgate-key-1", boss, true, "the way out"},
		{opened, "callgate-x", edit, false, "the prefix decides"},
		{opened, "callgate", edit, true, "somebody else's leader election"},
		{opened, "callgates-leader", edit, true, "somebody else's leader election"},
		{opened, "my-callgate-key-1", edit, true, "somebody else's leader election"},
		{closed, "callgate-key-1", edit, true, "no Tool lives here"},
		{system, "callgate-rate-1", controller, true, "remembers what a limit has counted"},
		{system, "callgate-rate-1", edit, false, "would go over the limit"},
		{system, "callgate-controller", controller, true, "leader election"},
		{system, "callgate-controller", edit, true, "leader election is left alone"},
	} {
		t.Run(tc.who.name+" "+tc.name+" in "+tc.namespace[:6], func(t *testing.T) {
			path := leasesPath(tc.namespace)
			item := path + "/" + tc.name
			exists := func() {
				if answer := boss.do(t, http.MethodGet, item, jsonType, ""); answer.code == http.StatusNotFound {
					boss.create(t, path, leaseBody(tc.name))
				}
			}
			gone := func() { boss.do(t, http.MethodDelete, item, jsonType, "") }
			applied := "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: " + tc.name + ", namespace: " + tc.namespace + "}\nspec: {holderIdentity: mallory}\n"
			for _, act := range []struct {
				name    string
				prepare func()
				right   bool // the controller has it
				send    func() answer
			}{
				{"create", gone, true, func() answer { return tc.who.do(t, http.MethodPost, path, jsonType, leaseBody(tc.name)) }},
				{"create by apply", gone, false, func() answer {
					return tc.who.do(t, http.MethodPatch, item+"?fieldManager=m", applyType, applied)
				}},
				{"kubectl apply", gone, false, func() answer { return kubectlAnswer(t, tc.who, applied, "apply", "-f", "-") }},
				{"replace", exists, true, func() answer {
					object := boss.get(t, item)
					object["spec"] = map[string]any{"holderIdentity": "mallory"}
					return tc.who.do(t, http.MethodPut, item, jsonType, object.json(t))
				}},
				{"patch", exists, false, func() answer {
					return tc.who.do(t, http.MethodPatch, item, mergeType, `{"metadata":{"annotations":{"callgate.dev/result":"{}"}}}`)
				}},
				{"owner", exists, false, func() answer { // of an object that does not exist: the garbage collector would delete it
					return tc.who.do(t, http.MethodPatch, item, strategicType,
						`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"u"}]}}`)
				}},
				{"delete", exists, true, func() answer { return tc.who.do(t, http.MethodDelete, item, jsonType, "") }},
				{"deletecollection", exists, false, func() answer {
					return tc.who.do(t, http.MethodDelete, path+"?fieldSelector=metadata.name%3D"+tc.name, jsonType, "")
				}},
			} {
				if tc.who == controller && !act.right {
					continue
				}
				t.Run(act.name, func(t *testing.T) {
					act.prepare()
					answer := act.send()
					switch {
					case tc.allowed && !answer.ok():
						t.Errorf("%s: refused: %s", tc.reason, answer)
					case !tc.allowed && (answer.ok() || !strings.Contains(string(answer.body), leaseRefusal)):
						t.Errorf("%s: want it refused with %q: %s", tc.reason, leaseRefusal, answer)
					}
				})
			}
			gone()
		})
	}

	// The name is not in the request.
	t.Run("generated name", func(t *testing.T) {
		body := strings.ReplaceAll(leaseBody("callgate-key-"), `"name"`, `"generateName"`)
		if answer := edit.do(t, http.MethodPost, leasesPath(opened), jsonType, body); answer.code != http.StatusForbidden || !strings.Contains(answer.message(), leaseRefusal) {
			t.Errorf("want 403: %s", answer)
		}
	})
	t.Run("all at once", func(t *testing.T) {
		for _, name := range []string{"callgate-key-2", "leader"} {
			boss.create(t, leasesPath(opened), leaseBody(name))
		}
		if answer := edit.do(t, http.MethodDelete, leasesPath(opened), jsonType, ""); answer.code != http.StatusForbidden || !strings.Contains(answer.message(), leaseRefusal) {
			t.Errorf("want 403: %s", answer)
		}
		boss.get(t, leasesPath(opened)+"/callgate-key-2")
	})

	// The controller of namespaces has no right of ours, and must empty this one.
	t.Run("namespace that goes", func(t *testing.T) {
		namespaces := as("system:serviceaccount:kube-system:namespace-controller",
			"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
		if answer := namespaces.do(t, http.MethodDelete, leasesPath(opened), jsonType, ""); answer.code != http.StatusForbidden {
			t.Errorf("a namespace that does not go is nobody's to empty: %s", answer)
		}
		// Nothing finalizes a namespace here: it stays Terminating.
		if answer := boss.do(t, http.MethodDelete, "/api/v1/namespaces/"+opened, jsonType, ""); !answer.ok() {
			t.Fatal(answer)
		}
		replaced := boss.get(t, leasesPath(opened)+"/callgate-key-2")
		replaced["spec"] = map[string]any{"holderIdentity": "mallory"}
		if answer := edit.do(t, http.MethodPut, leasesPath(opened)+"/callgate-key-2", jsonType, replaced.json(t)); !strings.Contains(answer.message(), leaseRefusal) {
			t.Errorf("changed while the namespace goes, when its calls may still run: %s", answer)
		}
		// The API server sees the deletion by a watch.
		if err := poll(t.Context(), "the namespace emptied", func() (bool, string) {
			answer := namespaces.do(t, http.MethodDelete, leasesPath(opened), jsonType, "")
			return answer.ok(), answer.String()
		}); err != nil {
			t.Fatal(err)
		}
		if list := boss.get(t, leasesPath(opened)); len(list.at("items").([]any)) != 0 {
			t.Errorf("left: %s", asJSON(list.at("items")))
		}
	})
}
