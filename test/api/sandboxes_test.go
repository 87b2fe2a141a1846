package api

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Parts of the messages of the policies.
const (
	connectRefusal = "nobody runs commands in it, forwards a port of it or sends it requests"
	attachRefusal  = "only Callgate's controller attaches to it"
	strayRefusal   = "Callgate's controller attaches to sandboxes only"
	jobRefusal     = "sandbox: only Callgate's controller creates it"
	podRefusal     = "sandbox: only the Job controller creates it, for a Job of Callgate"
	changeRefusal  = "sandbox: only components of the cluster change it"
	addRefusal     = "nobody adds a container to it"
	networkRefusal = "a NetworkPolicy whose name begins with callgate- is what a Tool may reach"
	// noRight is what RBAC says: the policies are not asked.
	noRight = "cannot"
)

// people are those who try what the admission policies decide about.
type people struct {
	controller, edit, admin, view, wide, root             *user
	jobs, plainManager, garbage, replicas, cronJobs, node *user
}

// newPeople gives them their rights in a namespace, which is opened for Tools
// if labels say so, and waits until they have them.
func newPeople(t *testing.T, labels map[string]string) (people, string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "sandboxes-", Labels: labels}}
	if err := adminClient.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	boss := certificateUser(t, "boss", "system:masters")
	account := func(ns, name string) *user {
		return impersonating(t, boss, rest.ImpersonationConfig{UserName: "system:serviceaccount:" + ns + ":" + name,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + ns, "system:authenticated"}})
	}
	p := people{
		controller: account("callgate-system", "callgate-controller"),
		edit:       certificateUser(t, "edit"),
		admin:      certificateUser(t, "admin", "developers"),
		view:       certificateUser(t, "node-reader"),
		wide:       certificateUser(t, "wide"),
		root:       certificateUser(t, "root"),
		jobs:       account("kube-system", "job-controller"),
		// A controller manager without --use-service-account-credentials.
		plainManager: certificateUser(t, "system:kube-controller-manager"),
		garbage:      account("kube-system", "generic-garbage-collector"),
		replicas:     account("kube-system", "replicaset-controller"),
		cronJobs:     account("kube-system", "cronjob-controller"),
		node:         certificateUser(t, "system:node:n1", "system:nodes"),
	}
	ns := namespace.Name
	bind(t, ns, "callgate-tool-namespace", controllerName)
	for who, roles := range map[string][]string{
		"edit":        {"system:aggregate-to-view", "system:aggregate-to-edit"},
		"admin":       {"system:aggregate-to-view", "system:aggregate-to-edit", "system:aggregate-to-admin"},
		"node-reader": {"system:aggregate-to-view"},
	} {
		for _, role := range roles {
			bind(t, ns, role, who)
		}
	}
	// More than the default roles give a namespace's owner, but for one thing.
	for name, rules := range map[string][]rbacv1.PolicyRule{
		"test-wide": {{APIGroups: []string{"", "batch", "networking.k8s.io", "apps"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
		"test-node": {{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"*"}}},
	} {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
		if err := adminClient.Create(t.Context(), role); err != nil && !strings.Contains(err.Error(), "already exists") {
			t.Fatal(err)
		}
	}
	bind(t, ns, "test-wide", "wide")
	bindCluster(t, "test-node", "node-reader")
	bindCluster(t, "cluster-admin", "root")
	bindCluster(t, "system:controller:job-controller", p.plainManager.name)
	bindCluster(t, "system:node", p.node.name)
	if err := poll(t.Context(), "rights in "+ns, func() (bool, string) {
		return may(t, controllerName, "manage", "callgate.dev", "sandboxes", "", ns) &&
			may(t, "edit", "create", "", "pods", "exec", ns) && may(t, "admin", "create", "rbac.authorization.k8s.io", "roles", "", ns) &&
			may(t, "node-reader", "get", "", "pods", "", ns) && may(t, "node-reader", "get", "", "nodes", "proxy", "") &&
			may(t, "wide", "patch", "", "pods", "ephemeralcontainers", ns) && may(t, "root", "create", "", "pods", "", "") &&
			may(t, p.plainManager.name, "patch", "", "pods", "", "") && may(t, p.node.name, "patch", "", "pods", "status", ""), "not all"
	}); err != nil {
		t.Fatal(err)
	}
	return p, ns
}

var openedLabels = map[string]string{"callgate.dev/tools": "enabled"}

// waitForSandboxPolicies waits until they are in force in a namespace.
func waitForSandboxPolicies(t *testing.T, p people, ns string) {
	t.Helper()
	for _, try := range []struct{ path, body, message string }{
		{podsPath(ns) + "/callgate-none/exec?command=id", "", connectRefusal},
		{jobsPath(ns) + "?dryRun=All", jobBody("callgate-none", ""), jobRefusal},
		{podsPath(ns) + "?dryRun=All", podBody("callgate-none", ""), podRefusal},
		{policiesPath(ns) + "?dryRun=All", networkBody("callgate-none"), networkRefusal},
	} {
		if err := poll(t.Context(), "policies in force in "+ns, func() (bool, string) {
			answer := p.edit.do(t, http.MethodPost, try.path, jsonType, try.body)
			return answer.code == http.StatusForbidden && strings.Contains(answer.message(), try.message), answer.String()
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func podsPath(ns string) string { return "/api/v1/namespaces/" + ns + "/pods" }
func jobsPath(ns string) string { return "/apis/batch/v1/namespaces/" + ns + "/jobs" }
func policiesPath(ns string) string {
	return "/apis/networking.k8s.io/v1/namespaces/" + ns + "/networkpolicies"
}

const podSpec = `{"restartPolicy":"Never","terminationGracePeriodSeconds":18,"containers":[{"name":"tool","image":"a:1",
	"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}},
	"resources":{"requests":{"cpu":"10m"},"limits":{"cpu":"500m"}}}]}`

// podBody is a pod; metadata has more fields, each with a comma before it.
func podBody(name, metadata string) string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `"` + metadata + `},"spec":` + podSpec + `}`
}

func jobBody(name, metadata string) string {
	return `{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"` + name + `"` + metadata + `},"spec":{"suspend":true,"template":{"spec":` + podSpec + `}}}`
}

func networkBody(name string) string {
	return `{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"` + name + `"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}}`
}

const sandboxLabels = `,"labels":{"callgate.dev/install":"callgate-system","callgate.dev/tool-uid":"t","callgate.dev/call-uid":"c","callgate.dev/attempt":"1"}`

// owned is metadata of what a controller of the cluster creates for an object.
func owned(apiVersion, kind, name string) string {
	return `,"ownerReferences":[{"apiVersion":"` + apiVersion + `","kind":"` + kind + `","name":"` + name + `","uid":"u","controller":true,"blockOwnerDeletion":true}]`
}

// trial is one request, and whether it is refused, with which words.
type trial struct {
	who     *user
	what    string
	method  string
	path    string
	kind    string // content type
	body    string
	refused string // empty: it is not refused
	reason  string
}

func (tc trial) run(t *testing.T) {
	t.Run(tc.who.name+" "+tc.what, func(t *testing.T) {
		answer := tc.who.do(t, tc.method, tc.path, tc.kind, tc.body)
		switch {
		case tc.refused == "" && (answer.code == http.StatusForbidden || tc.kind != connectType && !answer.ok()):
			t.Errorf("%s: refused: %s", tc.reason, answer)
		case tc.refused != "" && (answer.code != http.StatusForbidden || !strings.Contains(answer.message(), tc.refused)):
			t.Errorf("%s: want 403 with %q: %s", tc.reason, tc.refused, answer)
		}
	})
}

// connectType stands for no content type at all: the request connects to a pod.
// No node runs here, so one that is not refused comes to nothing.
const connectType = ""

// TestConnectToSandboxes: a call and its result go through attach, which is the
// controller's; nobody gets in any other way.
func TestConnectToSandboxes(t *testing.T) {
	p, ns := newPeople(t, openedLabels)
	waitForSandboxPolicies(t, p, ns)
	closed := newNamespace(t)
	bind(t, closed, "system:aggregate-to-edit", "edit")
	if err := poll(t.Context(), "edit", func() (bool, string) { return may(t, "edit", "create", "", "pods", "exec", closed), "no" }); err != nil {
		t.Fatal(err)
	}
	p.jobs.create(t, podsPath(ns), podBody("callgate-s-1-abcde", owned("batch/v1", "Job", "callgate-s-1")))
	p.root.create(t, podsPath(ns), podBody("web", ""))
	sandbox, web := podsPath(ns)+"/callgate-s-1-abcde", podsPath(ns)+"/web"
	for _, tc := range []trial{
		{who: p.controller, what: "attach", path: sandbox + "/attach?stdin=true", reason: "sends the call"},
		{who: p.root, what: "attach", path: sandbox + "/attach?stdin=true", reason: "the way out"},
		{who: p.edit, what: "attach", path: sandbox + "/attach?stdin=true", refused: attachRefusal, reason: "would forge a call, or read its arguments"},
		{who: p.edit, what: "attach to read", path: sandbox + "/attach?stdout=true", refused: attachRefusal, reason: "the result"},
		{who: p.admin, what: "attach", path: sandbox + "/attach", refused: attachRefusal, reason: "as edit"},
		{who: p.wide, what: "attach", path: sandbox + "/attach", refused: attachRefusal, reason: "every right to pods"},
		{who: p.view, what: "attach", path: sandbox + "/attach", refused: noRight, reason: "view has no such right"},
		{who: p.edit, what: "attach to a sandbox to be", path: podsPath(ns) + "/callgate-w-x/attach", refused: attachRefusal, reason: "before it is looked for"},
		{who: p.controller, what: "attach to another pod", path: web + "/attach", refused: strayRefusal, reason: "whoever takes the controller over has sandboxes only"},
		{who: p.edit, what: "attach to another pod", path: web + "/attach", reason: "not ours"},
		{who: p.edit, what: "attach elsewhere", path: podsPath(closed) + "/callgate-x/attach", reason: "no Tool lives here"},

		{who: p.edit, what: "exec", path: sandbox + "/exec?command=id", refused: connectRefusal, reason: "gets in"},
		{who: p.admin, what: "exec", path: sandbox + "/exec?command=id", refused: connectRefusal, reason: "gets in"},
		{who: p.root, what: "exec", path: sandbox + "/exec?command=id", refused: connectRefusal, reason: "nobody, not by accident either"},
		{who: p.controller, what: "exec", path: sandbox + "/exec?command=id", refused: noRight, reason: "its role has no exec"},
		{who: p.edit, what: "exec in another pod", path: web + "/exec?command=id", reason: "not ours"},
		{who: p.edit, what: "port-forward", path: sandbox + "/portforward?ports=80", refused: connectRefusal, reason: "a way around the NetworkPolicy"},
		{who: p.root, what: "port-forward", path: sandbox + "/portforward?ports=80", refused: connectRefusal, reason: "nobody"},
		{who: p.edit, what: "port-forward of another pod", path: web + "/portforward?ports=80", reason: "not ours"},
		{who: p.edit, what: "proxy", path: sandbox + "/proxy", refused: connectRefusal, reason: "a way around the NetworkPolicy"},
		{who: p.edit, what: "proxy to a path", path: sandbox + "/proxy/x", refused: connectRefusal, reason: "the same"},
		{who: p.edit, what: "proxy to a port", path: podsPath(ns) + "/callgate-s-1-abcde:80/proxy", refused: connectRefusal, reason: "the name has a port"},
		{who: p.edit, what: "proxy by HTTPS", path: podsPath(ns) + "/https:callgate-s-1-abcde:443/proxy/x", refused: connectRefusal, reason: "the name has a scheme"},
		{who: p.edit, what: "proxy without a scheme", path: podsPath(ns) + "/:callgate-s-1-abcde:443/proxy/x", refused: connectRefusal, reason: "the name has an empty scheme"},
		{who: p.edit, what: "proxy to another pod", path: web + "/proxy", reason: "not ours"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			tc := tc
			tc.method = method
			tc.what += " by " + method
			tc.run(t)
		}
	}
}

// TestSandboxJobs: a Job that looks like a sandbox is one.
func TestSandboxJobs(t *testing.T) {
	p, ns := newPeople(t, openedLabels)
	waitForSandboxPolicies(t, p, ns)
	p.controller.create(t, jobsPath(ns), jobBody("callgate-s-1", sandboxLabels))
	p.edit.create(t, jobsPath(ns), jobBody("batch", ""))
	create, sandbox, other := jobsPath(ns)+"?dryRun=All", jobsPath(ns)+"/callgate-s-1", jobsPath(ns)+"/batch"
	const dry = "?dryRun=All"
	generated := strings.Replace(jobBody("callgate-x-", ""), `"name"`, `"generateName"`, 1)
	cron := owned("batch/v1", "CronJob", "callgate-x")
	rows := []trial{
		{who: p.controller, what: "create", body: jobBody("callgate-s-2", sandboxLabels), reason: "a sandbox"},
		{who: p.root, what: "create", body: jobBody("callgate-s-2", sandboxLabels), reason: "the way out"},
		{who: p.edit, what: "create", body: jobBody("callgate-s-2", sandboxLabels), refused: jobRefusal, reason: "forged"},
		{who: p.edit, what: "create by name", body: jobBody("callgate-s-2", ""), refused: jobRefusal, reason: "the name of a sandbox to be"},
		{who: p.edit, what: "create by generated name", body: generated, refused: jobRefusal, reason: "the same"},
		{who: p.edit, what: "create by label", body: jobBody("x", `,"labels":{"callgate.dev/call-uid":"c"}`), refused: jobRefusal, reason: "the controller finds it by label"},
		{who: p.admin, what: "create", body: jobBody("callgate-s-2", ""), refused: jobRefusal, reason: "as edit"},
		{who: p.wide, what: "create", body: jobBody("callgate-s-2", ""), refused: jobRefusal, reason: "every right to Jobs"},
		{who: p.cronJobs, what: "create", body: jobBody("callgate-x-1", cron), refused: jobRefusal, reason: "a CronJob of an editor"},
		{who: p.root, what: "create for a CronJob", body: jobBody("callgate-x-1", cron), refused: jobRefusal, reason: "a controller manager with every right, for an editor"},
		{who: p.edit, what: "create another", body: jobBody("callgates", `,"labels":{"callgate.dev/team":"x"}`), reason: "not ours"},
	}
	for i := range rows {
		rows[i].method, rows[i].path, rows[i].kind = http.MethodPost, create, jsonType
	}
	for what, body := range map[string]string{
		"template":    `{"spec":{"template":{"metadata":{"annotations":{"a":"b"}}}}}`,
		"label":       `{"metadata":{"labels":{"callgate.dev/call-uid":"other"}}}`,
		"no label":    `{"metadata":{"labels":null}}`,
		"annotation":  `{"metadata":{"annotations":{"callgate.dev/call":"a/b"}}}`,
		"parallelism": `{"spec":{"parallelism":5}}`,
		"deadline":    `{"spec":{"activeDeadlineSeconds":1}}`,
		"suspend":     `{"spec":{"suspend":false}}`,
		"owner":       `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"u"}]}}`,
		"finalizer":   `{"metadata":{"finalizers":["example.com/x"]}}`,
	} {
		rows = append(rows,
			trial{p.edit, "change " + what, http.MethodPatch, sandbox + dry, mergeType, body, changeRefusal, "another sandbox than that of the call"},
			trial{p.admin, "change " + what, http.MethodPatch, sandbox + dry, mergeType, body, changeRefusal, "as edit"},
			trial{p.jobs, "change " + what, http.MethodPatch, sandbox + dry, mergeType, body, "", "the cluster's own business"})
	}
	rows = append(rows,
		trial{p.controller, "change", http.MethodPatch, sandbox + dry, mergeType, `{"metadata":{"labels":{"callgate.dev/call-uid":"other"}},"spec":{"activeDeadlineSeconds":1}}`, "", "a sandbox that waited has a call now"},
		trial{p.controller, "replace", http.MethodPut, sandbox + dry, jsonType, p.root.get(t, sandbox).json(t), noRight, "it patches"},
		trial{p.edit, "label another", http.MethodPatch, other + dry, mergeType, `{"metadata":{"labels":{"callgate.dev/install":"callgate-system"}}}`, changeRefusal, "it would become a sandbox"},
		trial{p.edit, "change another", http.MethodPatch, other + dry, mergeType, `{"spec":{"parallelism":5}}`, "", "not ours"},
		trial{p.garbage, "finalizer", http.MethodPatch, sandbox + dry, mergeType, `{"metadata":{"finalizers":["foregroundDeletion"]}}`, "", "garbage collection"},
		trial{p.jobs, "status", http.MethodPut, sandbox + "/status" + dry, jsonType, p.root.get(t, sandbox).json(t), "", "the Job controller's"},
		trial{p.edit, "status", http.MethodPut, sandbox + "/status" + dry, jsonType, p.root.get(t, sandbox).json(t), noRight, "edit has no right to it"},
		trial{p.edit, "delete", http.MethodDelete, sandbox + dry, jsonType, "", "", "whoever may edit may end a call; it ends with outcome_unknown"},
		trial{p.edit, "delete all", http.MethodDelete, jobsPath(ns) + dry, jsonType, "", "", "the same"},
		trial{p.controller, "delete", http.MethodDelete, sandbox + dry, jsonType, "", "", "its result is stored"})
	for _, tc := range rows {
		tc.run(t)
	}
}

// TestSandboxPods: the pod of a sandbox is made by the Job controller for a Job
// of ours, and stays what it is.
func TestSandboxPods(t *testing.T) {
	p, ns := newPeople(t, openedLabels)
	waitForSandboxPolicies(t, p, ns)
	ours := owned("batch/v1", "Job", "callgate-s-1")
	p.jobs.create(t, podsPath(ns), podBody("callgate-s-1-abcde", ours+sandboxLabels))
	p.edit.create(t, podsPath(ns), podBody("web", ""))
	create, sandbox, web := podsPath(ns)+"?dryRun=All", podsPath(ns)+"/callgate-s-1-abcde", podsPath(ns)+"/web"
	const dry = "?dryRun=All"
	generated := func(body string) string { return strings.Replace(body, `"name"`, `"generateName"`, 1) }
	const oneLabel = `,"labels":{"callgate.dev/tool-uid":"t"}`
	rows := []trial{
		{who: p.jobs, what: "create", body: generated(podBody("callgate-s-1-", ours+sandboxLabels)), reason: "a sandbox starts"},
		{who: p.plainManager, what: "create", body: generated(podBody("callgate-s-1-", ours+sandboxLabels)), reason: "the Job controller under its other name"},
		{who: p.root, what: "create", body: podBody("callgate-s-1-x", ours+sandboxLabels), reason: "the way out, or the Job controller with every right"},
		{who: p.root, what: "create bare", body: podBody("callgate-s-1-x", sandboxLabels), reason: "the way out"},
		{who: p.controller, what: "create", body: podBody("callgate-s-1-x", sandboxLabels), refused: noRight, reason: "it creates Jobs"},
		{who: p.edit, what: "create", body: podBody("callgate-s-1-x", sandboxLabels), refused: podRefusal, reason: "forged"},
		{who: p.edit, what: "create for our Job", body: podBody("callgate-s-1-x", ours+sandboxLabels), refused: podRefusal, reason: "an owner does not help"},
		{who: p.edit, what: "create by name", body: podBody("callgate-x", ""), refused: podRefusal, reason: "the controller may attach to it"},
		{who: p.edit, what: "create by generated name", body: generated(podBody("callgate-s-1-", "")), refused: podRefusal, reason: "the same"},
		{who: p.edit, what: "create by label", body: podBody("x", oneLabel), refused: podRefusal, reason: "the network of a Tool"},
		{who: p.admin, what: "create", body: podBody("callgate-x", ""), refused: podRefusal, reason: "as edit"},
		{who: p.wide, what: "create for our Job", body: podBody("callgate-x", ours), refused: podRefusal, reason: "every right to pods of the namespace"},
		{who: p.jobs, what: "create for another Job", body: podBody("batch-x", owned("batch/v1", "Job", "batch")+oneLabel), refused: podRefusal, reason: "a Job of an editor with labels of a sandbox"},
		{who: p.replicas, what: "create", body: podBody("callgate-web-1", owned("apps/v1", "ReplicaSet", "callgate-web")), refused: podRefusal, reason: "a Deployment of an editor"},
		{who: p.replicas, what: "create by label", body: podBody("web-1", owned("apps/v1", "ReplicaSet", "web")+oneLabel), refused: podRefusal, reason: "the same"},
		{who: p.root, what: "create for a ReplicaSet", body: podBody("web-1", owned("apps/v1", "ReplicaSet", "web")+oneLabel), refused: podRefusal, reason: "a controller manager with every right, for an editor"},
		{who: p.jobs, what: "create for others", body: podBody("batch-x", owned("batch/v1", "Job", "batch")), reason: "not ours"},
		{who: p.edit, what: "create another", body: podBody("callgates", `,"labels":{"callgate.dev/team":"x"}`), reason: "not ours"},
	}
	for i := range rows {
		rows[i].method, rows[i].path, rows[i].kind = http.MethodPost, create, jsonType
	}
	for what, body := range map[string]string{
		"image":      `{"spec":{"containers":[{"name":"tool","image":"evil:1"}]}}`,
		"deadline":   `{"spec":{"activeDeadlineSeconds":1}}`,
		"label":      `{"metadata":{"labels":{"callgate.dev/tool-uid":"other"}}}`,
		"no label":   `{"metadata":{"labels":{"callgate.dev/tool-uid":null}}}`,
		"annotation": `{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":"other"}}}`,
		"owner":      `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"u"}]}}`,
		"finalizer":  `{"metadata":{"finalizers":["example.com/x"]}}`,
	} {
		rows = append(rows,
			trial{p.edit, "change " + what, http.MethodPatch, sandbox + dry, strategicType, body, changeRefusal, "another sandbox than that of the call"},
			trial{p.admin, "change " + what, http.MethodPatch, sandbox + dry, strategicType, body, changeRefusal, "as edit"},
			trial{p.wide, "change " + what, http.MethodPatch, sandbox + dry, strategicType, body, changeRefusal, "every right to pods of the namespace"})
	}
	const taint = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager"}]}}`
	const debug = `{"spec":{"ephemeralContainers":[{"name":"debug","image":"evil:1"}]}}`
	const bigger = `{"spec":{"containers":[{"name":"tool","resources":{"requests":{"cpu":"20m"}}}]}}`
	rows = append(rows,
		trial{p.edit, "label another", http.MethodPatch, web + dry, mergeType, `{"metadata":{"labels":{"callgate.dev/install":"callgate-system"}}}`, changeRefusal, "it would become a sandbox"},
		trial{p.edit, "change another", http.MethodPatch, web + dry, strategicType, `{"spec":{"containers":[{"name":"tool","image":"a:2"}]}}`, "", "not ours"},
		trial{p.jobs, "finalizer", http.MethodPatch, sandbox + dry, strategicType, `{"metadata":{"finalizers":["batch.kubernetes.io/job-tracking"]}}`, "", "the Job controller counts pods so"},
		trial{p.plainManager, "finalizer", http.MethodPatch, sandbox + dry, strategicType, `{"metadata":{"finalizers":["batch.kubernetes.io/job-tracking"]}}`, "", "the same"},
		trial{p.garbage, "owner", http.MethodPatch, sandbox + dry, strategicType, `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"u"}]}}`, "", "garbage collection"},
		trial{p.root, "annotation", http.MethodPatch, sandbox + dry, strategicType, `{"metadata":{"annotations":{"ovn.kubernetes.io/allocated":"true"}}}`, "", "a network plugin, or the way out"},
		trial{p.node, "status", http.MethodPatch, sandbox + "/status" + dry, strategicType, `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`, "", "the kubelet's"},
		trial{p.root, "taint", http.MethodPatch, sandbox + "/status" + dry, strategicType, taint, "", "eviction says why"},
		trial{p.edit, "status", http.MethodPatch, sandbox + "/status" + dry, strategicType, taint, noRight, "edit has no right to it"},
		trial{p.edit, "debug", http.MethodPatch, sandbox + "/ephemeralcontainers" + dry, strategicType, debug, noRight, "edit has no right to it"},
		trial{p.wide, "debug", http.MethodPatch, sandbox + "/ephemeralcontainers" + dry, strategicType, debug, addRefusal, "gets in"},
		trial{p.root, "debug", http.MethodPatch, sandbox + "/ephemeralcontainers" + dry, strategicType, debug, addRefusal, "nobody"},
		trial{p.wide, "debug another", http.MethodPatch, web + "/ephemeralcontainers" + dry, strategicType, debug, "", "not ours"},
		trial{p.wide, "resize", http.MethodPatch, sandbox + "/resize" + dry, strategicType, bigger, changeRefusal, "its limits are the Tool's"},
		trial{p.wide, "resize another", http.MethodPatch, web + "/resize" + dry, strategicType, bigger, "", "not ours"},
		trial{p.edit, "bind", http.MethodPost, sandbox + "/binding" + dry, jsonType, `{"apiVersion":"v1","kind":"Binding","metadata":{"name":"callgate-s-1-abcde"},"target":{"kind":"Node","name":"n"}}`, noRight, "edit has no right to it"},
		trial{p.edit, "evict", http.MethodPost, sandbox + "/eviction" + dry, jsonType, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"callgate-s-1-abcde"}}`, "", "as delete"},
		trial{p.edit, "delete", http.MethodDelete, sandbox + dry, jsonType, "", "", "whoever may edit may end a call; it ends with outcome_unknown"},
		trial{p.controller, "delete", http.MethodDelete, sandbox + dry, jsonType, "", "", "cancel"})
	for _, tc := range rows {
		tc.run(t)
	}
}

// TestSandboxesElsewhere: a namespace that is not opened is its owner's, and so
// is that of the controller, whose own pods have the prefix.
func TestSandboxesElsewhere(t *testing.T) {
	p, closed := newPeople(t, nil)
	for _, tc := range []trial{
		{p.edit, "Job", http.MethodPost, jobsPath(closed) + "?dryRun=All", jsonType, jobBody("callgate-s-2", sandboxLabels), "", "no Tool lives here"},
		{p.edit, "pod", http.MethodPost, podsPath(closed) + "?dryRun=All", jsonType, podBody("callgate-s-2", sandboxLabels), "", "no Tool lives here"},
		{p.edit, "NetworkPolicy", http.MethodPost, policiesPath(closed) + "?dryRun=All", jsonType, networkBody("callgate-x"), "", "no Tool lives here"},
	} {
		tc.run(t)
	}
	// Opened by mistake.
	label := func(value string) {
		if answer := admin.do(t, http.MethodPatch, "/api/v1/namespaces/callgate-system", mergeType, `{"metadata":{"labels":{"callgate.dev/tools":`+value+`}}}`); !answer.ok() {
			t.Fatal(answer)
		}
	}
	label(`"enabled"`)
	defer label("null")
	// The API server sees the label before it sees this namespace.
	_, opened := newPeople(t, openedLabels)
	waitForSandboxPolicies(t, p, opened)
	trial{p.replicas, "the controller's pod", http.MethodPost, podsPath("callgate-system") + "?dryRun=All", jsonType,
		podBody("callgate-controller-1", owned("apps/v1", "ReplicaSet", "callgate-controller-1")), "", "nothing here ever stops the controller"}.run(t)
}

// TestNetworkPolicies: what a Tool may reach is in its NetworkPolicy, and stays.
func TestNetworkPolicies(t *testing.T) {
	p, ns := newPeople(t, openedLabels)
	waitForSandboxPolicies(t, p, ns)
	p.controller.create(t, policiesPath(ns), networkBody("callgate-t"))
	p.edit.create(t, policiesPath(ns), networkBody("mine"))
	const dry, open = "?dryRun=All", `{"spec":{"egress":[{}],"policyTypes":["Egress"]}}`
	own, mine := policiesPath(ns)+"/callgate-t", policiesPath(ns)+"/mine"
	for _, tc := range []trial{
		{p.controller, "create", http.MethodPost, policiesPath(ns) + dry, jsonType, networkBody("callgate-u"), "", "a Tool's"},
		{p.controller, "replace", http.MethodPut, own + dry, jsonType, p.root.get(t, own).json(t), "", "the Tool changes"},
		{p.controller, "delete", http.MethodDelete, own + dry, jsonType, "", "", "the Tool is gone"},
		{p.root, "delete", http.MethodDelete, own + dry, jsonType, "", "", "the way out"},
		{p.edit, "create", http.MethodPost, policiesPath(ns) + dry, jsonType, networkBody("callgate-u"), networkRefusal, "that of a Tool to be"},
		{p.edit, "change", http.MethodPatch, own + dry, mergeType, open, networkRefusal, "lets a tool out"},
		{p.admin, "change", http.MethodPatch, own + dry, mergeType, open, networkRefusal, "as edit"},
		{p.edit, "delete", http.MethodDelete, own + dry, jsonType, "", networkRefusal, "lets a tool out"},
		{p.edit, "delete in the foreground", http.MethodDelete, own + dry + "&propagationPolicy=Foreground", jsonType, "", networkRefusal, "lets a tool out"},
		{p.edit, "delete all", http.MethodDelete, policiesPath(ns) + dry, jsonType, "", networkRefusal, "lets a tool out"},
		{p.edit, "create another", http.MethodPost, policiesPath(ns) + dry, jsonType, networkBody("more"), "", "the namespace's own"},
		{p.edit, "change another", http.MethodPatch, mine + dry, mergeType, open, "", "the namespace's own"},
		{p.edit, "delete another", http.MethodDelete, mine + dry, jsonType, "", "", "the namespace's own"},
	} {
		tc.run(t)
	}
	t.Run("namespace that goes", func(t *testing.T) {
		if answer := admin.do(t, http.MethodDelete, "/api/v1/namespaces/"+ns, jsonType, ""); !answer.ok() {
			t.Fatal(answer)
		}
		namespaces := impersonating(t, admin, rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:namespace-controller",
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}})
		for _, path := range []string{policiesPath(ns), jobsPath(ns), podsPath(ns)} {
			if err := poll(t.Context(), path+" emptied", func() (bool, string) {
				answer := namespaces.do(t, http.MethodDelete, path, jsonType, "")
				return answer.ok(), answer.String()
			}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
