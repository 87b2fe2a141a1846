package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const controllerName = "system:serviceaccount:callgate-system:callgate-controller"

// may asks the API server's authorizer. The resource may have a name behind a slash.
func may(t *testing.T, username, verb, group, resource, subresource, namespace string) bool {
	t.Helper()
	resource, name, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:   username,
		Groups: []string{"system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: verb, Group: group, Resource: resource, Name: name, Subresource: subresource, Namespace: namespace,
		},
	}}
	if err := adminClient.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}

func bind(t *testing.T, namespace, role, username string) {
	t.Helper()
	if err := adminClient.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: role + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: username}},
	}); err != nil {
		t.Fatal(err)
	}
}

func bindCluster(t *testing.T, role, username string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: role + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: username}},
	}
	if err := adminClient.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = adminClient.Delete(context.Background(), binding) }) // other tests have users of their own
}

func TestRoles(t *testing.T) {
	const controller = controllerName
	opened, closed := &corev1.Namespace{}, &corev1.Namespace{}
	opened.GenerateName, closed.GenerateName = "tools-", "closed-"
	for _, namespace := range []*corev1.Namespace{opened, closed} {
		if err := adminClient.Create(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	bind(t, opened.Name, "callgate-tool-namespace", controller)
	for _, role := range []string{"callgate-agent", "callgate-approver", "callgate-viewer", "callgate-tool-admin", "callgate-policy-admin", "callgate-cluster-policy-admin"} {
		bind(t, opened.Name, role, role)
		bindCluster(t, role, "all-"+role)
	}
	// What the default roles hold by themselves; the controller that aggregates does not run here.
	for _, role := range []string{"view", "edit", "admin"} {
		bind(t, opened.Name, "system:aggregate-to-"+role, role)
	}
	bind(t, opened.Name, "system:aggregate-to-edit", "admin") // admin has all of edit
	if err := poll(t.Context(), "the bindings", func() (bool, string) {
		if !may(t, "callgate-cluster-policy-admin", "list", "callgate.dev", "toolpolicies", "", opened.Name) ||
			!may(t, "all-callgate-cluster-policy-admin", "list", "callgate.dev", "toolpolicies", "", "") {
			return false, "the last role bound has no effect"
		}
		return may(t, controller, "create", "batch", "jobs", "", opened.Name), "the controller may not create jobs"
	}); err != nil {
		t.Fatal(err)
	}

	const callgate, leases, system = "callgate.dev", "coordination.k8s.io", "callgate-system"
	for _, tc := range []struct {
		who, verb, group, resource, subresource, namespace string
		allowed                                            bool
		reason                                             string
	}{
		{controller, "watch", callgate, "toolcalls", "", "", true, "calls live in any namespace"},
		{controller, "watch", "", "pods", "", "", true, "sandboxes, by its own label"},
		{controller, "list", "", "events", "", closed.Name, true, "why a sandbox does not start"},
		{controller, "update", callgate, "toolcalls", "status", closed.Name, true, "the result"},
		{controller, "update", callgate, "tools", "status", closed.Name, true, "Ready"},
		{controller, "patch", callgate, "tools", "status", closed.Name, false, "it updates"},
		{controller, "create", "", "events", "", closed.Name, false, "it writes those of events.k8s.io"},
		{controller, "watch", callgate, "clustertoolpolicies", "", "", true, "they decide, too"},
		{controller, "update", callgate, "clustertoolpolicies", "status", "", true, "Ready"},
		{controller, "update", callgate, "clustertoolpolicies", "", "", false, "it never changes a policy"},
		{controller, "watch", "admissionregistration.k8s.io", "mutatingadmissionpolicies", "", "", true, "whether stamping is proven"},
		{controller, "watch", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "", true, "the same"},
		{controller, "create", "events.k8s.io", "events", "", closed.Name, true, "events about calls"},
		{controller, "update", callgate, "toolcalls", "", closed.Name, false, "it never changes a call"},
		{controller, "create", callgate, "toolcalls", "", closed.Name, false, "it makes no calls"},
		{controller, "create", callgate, "toolcalls", "", system, true, "the proof of stamping, here only"},
		{controller, "watch", callgate, "toolcallapprovals", "", "", true, "who approved, beside the calls"},
		{controller, "create", callgate, "toolcallapprovals", "", system, true, "the proof of stamping, here only"},
		{controller, "create", callgate, "toolcallapprovals", "", opened.Name, false, "it approves nothing"},
		{controller, "create", callgate, "toolcallapprovals", "", closed.Name, false, "it approves nothing"},
		{controller, "delete", callgate, "toolcallapprovals", "", system, false, "nor takes anything back"},
		{controller, "watch", leases, "leases", "", "", true, "the keys of all opened namespaces"},
		{controller, "update", leases, "leases", "", system, true, "leader election, and rate limits"},
		{controller, "delete", leases, "leases", "", system, true, "rate limits"},
		{controller, "create", leases, "leases", "", opened.Name, true, "the key of a call"},
		{controller, "update", leases, "leases", "", opened.Name, true, "its end and result"},
		{controller, "delete", leases, "leases", "", opened.Name, true, "a key that is free again"},
		{controller, "create", leases, "leases", "", closed.Name, false, "the namespace was not opened"},
		{controller, "update", leases, "leases", "", closed.Name, false, "no stranger's Lease"},
		{controller, "delete", leases, "leases", "", closed.Name, false, "no stranger's Lease"},
		{controller, "update", leases, "leases", "", "kube-node-lease", false, "no node's Lease"},
		{controller, "manage", callgate, "sandboxes", "", opened.Name, true, "passes callgate-leases"},
		{controller, "manage", callgate, "sandboxes", "", system, true, "passes callgate-leases"},
		{controller, "manage", callgate, "sandboxes", "", closed.Name, false, "the namespace was not opened"},
		{controller, "get", "", "secrets", "", system, false, "it reads no Secret but one"},
		{controller, "get", "", "secrets/callgate-result-key", "", system, true, "the key that results are sealed under"},
		{controller, "update", "", "secrets/callgate-result-key", "", system, false, "it is made once"},
		{controller, "delete", "", "secrets/callgate-result-key", "", system, false, "the same"},
		{controller, "get", "", "secrets/callgate-result-key", "", opened.Name, false, "in its own namespace only"},
		{controller, "list", "", "secrets", "", system, false, "by its name only"},
		{controller, "create", "", "secrets", "", system, true, "that key; RBAC knows no name here"},
		{controller, "create", "", "secrets", "", opened.Name, false, "in its own namespace only"},
		{controller, "get", "", "secrets", "", opened.Name, false, "not even a tool's"},
		{controller, "list", "", "secrets", "", "", false, "nor all"},
		{controller, "get", "", "configmaps", "", opened.Name, false, "the kubelet reads them"},
		{controller, "create", "batch", "jobs", "", opened.Name, true, "a sandbox"},
		{controller, "create", "batch", "jobs", "", closed.Name, false, "the namespace was not opened"},
		{controller, "patch", "batch", "jobs", "", opened.Name, true, "which call a sandbox that waited has"},
		{controller, "patch", "batch", "jobs", "", closed.Name, false, "no stranger's Job"},
		{controller, "patch", "", "pods", "", opened.Name, false, "not even then"},
		{controller, "watch", "", "nodes", "", "", true, "whether they are cordoned"},
		{controller, "delete", "", "pods", "", opened.Name, true, "cancel"},
		{controller, "delete", "", "pods", "", closed.Name, false, "the namespace was not opened"},
		{controller, "create", "", "pods", "", opened.Name, false, "the Job controller does"},
		{controller, "create", "", "pods", "attach", opened.Name, true, "sends the call"},
		{controller, "get", "", "pods", "attach", opened.Name, true, "over a WebSocket"},
		{controller, "create", "", "pods", "attach", closed.Name, false, "no stranger's pod"},
		{controller, "create", "", "pods", "exec", opened.Name, false, "never"},
		{controller, "get", "", "pods", "log", opened.Name, true, "recovery"},
		{controller, "get", "", "pods", "log", closed.Name, false, "no stranger's log"},
		{controller, "update", "networking.k8s.io", "networkpolicies", "", opened.Name, true, "a Tool's policy"},
		{controller, "delete", "networking.k8s.io", "networkpolicies", "", closed.Name, false, "no stranger's policy"},
		{controller, "bind", rbacv1.GroupName, "clusterroles", "", "", false, "it opens no namespace itself"},

		{"callgate-agent", "create", callgate, "toolcalls", "", opened.Name, true, "propose"},
		{"callgate-agent", "watch", callgate, "tools", "", opened.Name, true, "discover"},
		{"callgate-agent", "update", callgate, "toolcalls", "status", opened.Name, false, "only the controller says how it went"},
		{"callgate-agent", "create", callgate, "tools", "", opened.Name, false, "the platform team's"},
		{"callgate-agent", "get", callgate, "toolpolicies", "", opened.Name, false, "not the agent's to know"},
		{"callgate-agent", "watch", callgate, "toolcallapprovals", "", opened.Name, true, "what was said to its calls"},
		{"callgate-agent", "create", callgate, "toolcallapprovals", "", opened.Name, false, "an agent approves nothing"},
		{"callgate-agent", "delete", callgate, "toolcallapprovals", "", opened.Name, false, "nor takes a Deny away"},
		{"callgate-agent", "get", leases, "leases", "", opened.Name, false, "results of other callers' calls"},
		{"callgate-agent", "delete", leases, "leases", "", opened.Name, false, "nothing shortens what is remembered"},
		{"callgate-approver", "create", callgate, "toolcallapprovals", "", opened.Name, true, "says yes or no"},
		{"callgate-approver", "watch", callgate, "toolcallapprovals", "", opened.Name, true, "what others said"},
		{"callgate-approver", "delete", callgate, "toolcallapprovals", "", opened.Name, true, "takes it back"},
		{"callgate-approver", "deletecollection", callgate, "toolcallapprovals", "", opened.Name, false, "not everybody's at once"},
		{"callgate-approver", "update", callgate, "toolcallapprovals", "", opened.Name, false, "it cannot be changed"},
		{"callgate-approver", "patch", callgate, "toolcallapprovals", "", opened.Name, false, "the same"},
		{"callgate-approver", "watch", callgate, "toolcalls", "", opened.Name, true, "what there is to decide"},
		{"callgate-approver", "get", callgate, "tools", "", opened.Name, true, "what it would do"},
		{"callgate-approver", "update", callgate, "toolcalls", "", opened.Name, false, "it cancels no call"},
		{"callgate-approver", "create", callgate, "toolcalls", "", opened.Name, false, "it makes no calls"},
		{"callgate-approver", "update", callgate, "toolcalls", "status", opened.Name, false, "the controller counts approvals"},
		{"callgate-viewer", "list", callgate, "toolcallapprovals", "", opened.Name, true, "reads all"},
		{"callgate-viewer", "create", callgate, "toolcallapprovals", "", opened.Name, false, "changes nothing"},
		{"callgate-viewer", "list", callgate, "toolpolicies", "", opened.Name, true, "reads all"},
		{"callgate-viewer", "create", callgate, "toolcalls", "", opened.Name, false, "changes nothing"},
		{"callgate-tool-admin", "patch", callgate, "tools", "", opened.Name, true, "registers tools"},
		{"callgate-tool-admin", "patch", callgate, "toolpolicies", "", opened.Name, false, "who may call is decided by others"},
		{"callgate-tool-admin", "create", callgate, "toolcallapprovals", "", opened.Name, false, "who approves is decided by others"},
		{"callgate-policy-admin", "create", callgate, "toolcallapprovals", "", opened.Name, false, "it names approvers and is none"},
		{"callgate-policy-admin", "patch", callgate, "toolpolicies", "", opened.Name, true, "decides who may call"},
		{"callgate-policy-admin", "patch", callgate, "tools", "", opened.Name, false, "what runs is decided by others"},
		{"all-callgate-policy-admin", "patch", callgate, "toolpolicies", "", closed.Name, true, "of every namespace"},
		{"all-callgate-policy-admin", "create", callgate, "clustertoolpolicies", "", "", false, "a Deny of the security team beats its Allow, and stays"},
		{"all-callgate-viewer", "list", callgate, "clustertoolpolicies", "", "", true, "reads all"},
		{"all-callgate-agent", "get", callgate, "clustertoolpolicies", "", "", false, "not the agent's to know"},
		{"all-callgate-tool-admin", "create", callgate, "clustertoolpolicies", "", "", false, "who may call is decided by others"},
		{"all-callgate-cluster-policy-admin", "create", callgate, "clustertoolpolicies", "", "", true, "decides for all namespaces"},
		{"all-callgate-cluster-policy-admin", "update", callgate, "clustertoolpolicies", "status", "", false, "the controller's"},
		{"all-callgate-cluster-policy-admin", "patch", callgate, "toolpolicies", "", opened.Name, false, "a namespace's own are others'"},
		{"all-callgate-cluster-policy-admin", "list", callgate, "toolpolicies", "", "", true, "what they decide with"},
		{"all-callgate-cluster-policy-admin", "list", callgate, "toolcalls", "", "", false, "arguments are not its business"},
		{"callgate-cluster-policy-admin", "create", callgate, "clustertoolpolicies", "", "", false, "a RoleBinding grants nothing cluster-wide"},

		// A Lease of a key holds a result: docs say who can read it.
		{"view", "get", leases, "leases", "", opened.Name, false, "Kubernetes gives view no Leases"},
		{"edit", "get", leases, "leases", "", opened.Name, true, "Kubernetes gives edit all Leases: callgate-leases keeps ours"},
		{"edit", "deletecollection", leases, "leases", "", opened.Name, true, "the same"},
		{"admin", "update", leases, "leases", "", opened.Name, true, "the same"},
	} {
		t.Run(fmt.Sprintf("%s/%s %s%s in %s", tc.who, tc.verb, tc.resource, tc.subresource, tc.namespace), func(t *testing.T) {
			if got := may(t, tc.who, tc.verb, tc.group, tc.resource, tc.subresource, tc.namespace); got != tc.allowed {
				t.Errorf("%s: allowed is %t, want %t", tc.reason, got, tc.allowed)
			}
		})
	}
}

// The right that tells the controller from everybody else is in no other role,
// neither in the roles for users nor in what Kubernetes gives a namespace's
// admin, and the latter cannot hand it out.
func TestOnlyTheControllerManagesSandboxes(t *testing.T) {
	namespace := newNamespace(t)
	roles := &rbacv1.ClusterRoleList{}
	if err := adminClient.List(t.Context(), roles); err != nil {
		t.Fatal(err)
	}
	bound := 0
	for _, role := range roles.Items {
		aggregated := strings.HasPrefix(role.Name, "system:aggregate-to-") || role.Name == "admin" || role.Name == "edit" || role.Name == "view"
		if !aggregated && (!strings.HasPrefix(role.Name, "callgate-") || role.Name == "callgate-tool-namespace") {
			continue
		}
		bound++
		bind(t, namespace, role.Name, "collector")
	}
	if bound < 10 {
		t.Fatalf("%d roles bound", bound)
	}
	if err := poll(t.Context(), "the bindings", func() (bool, string) {
		return may(t, "collector", "create", rbacv1.GroupName, "rolebindings", "", namespace) &&
			may(t, "collector", "update", "coordination.k8s.io", "leases", "", namespace) &&
			may(t, "collector", "create", "callgate.dev", "toolcallapprovals", "", namespace), "not all have effect"
	}); err != nil {
		t.Fatal(err)
	}
	if may(t, "collector", "manage", "callgate.dev", "sandboxes", "", namespace) {
		t.Error("somebody with every role but the controller's passes for the controller")
	}
	collector := certificateUser(t, "collector")
	path := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace
	for _, tc := range []struct{ name, path, body string }{
		{"by binding the controller's role", "/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"x"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"callgate-tool-namespace"},
			"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"collector"}]}`},
		{"by a role of its own", "/roles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"x"},
			"rules":[{"apiGroups":["callgate.dev"],"resources":["sandboxes"],"verbs":["manage"]}]}`},
		{"by a role for everything", "/roles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"x"},
			"rules":[{"apiGroups":["callgate.dev"],"resources":["*"],"verbs":["*"]}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := collector.do(t, http.MethodPost, path+tc.path, jsonType, tc.body)
			if answer.code != http.StatusForbidden || !strings.Contains(answer.message(), "manage") && !strings.Contains(answer.message(), `"*"`) {
				t.Errorf("want 403 for granting what one does not hold: %s", answer)
			}
		})
	}
}

// Whoever may edit or view a namespace's workloads is not thereby allowed to
// make calls or to read their arguments. (Aggregation itself is done by a
// controller that does not run here.)
func TestRolesAreNotAggregated(t *testing.T) {
	roles := &rbacv1.ClusterRoleList{}
	if err := adminClient.List(t.Context(), roles); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, role := range roles.Items {
		if !strings.HasPrefix(role.Name, "callgate-") {
			continue
		}
		seen++
		for label := range role.Labels {
			if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
				t.Errorf("%s has the label %s", role.Name, label)
			}
		}
	}
	if seen != 8 {
		t.Errorf("%d roles named callgate-…, want 8", seen)
	}
}
