package controllers_test

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/controllers"
	"callgate.dev/callgate/internal/sandbox"
)

// newClass makes a RuntimeClass with a handler of its own name.
func newClass(t *testing.T, name string) *nodev1.RuntimeClass {
	t.Helper()
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: name}
	create(t, class)
	t.Cleanup(func() { _ = admin.Delete(t.Context(), class.DeepCopy()) })
	return class
}

func withClass(name string) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = name }
}

// newNode makes a node with one handler, whose support of user namespaces it
// reports.
func newNode(t *testing.T, name, handler string, userNamespaces bool) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	create(t, node)
	report(t, node, handler, userNamespaces)
	return node
}

func report(t *testing.T, node *corev1.Node, handler string, userNamespaces bool) {
	t.Helper()
	node.Status.RuntimeHandlers = []corev1.NodeRuntimeHandler{{Name: handler, Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: &userNamespaces}}}
	if err := admin.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// waitForMessage waits until a Ready Tool says exactly that of its isolation.
func waitForMessage(t *testing.T, tool *v1alpha1.Tool, message string) {
	t.Helper()
	eventually(t, "Tool "+tool.Name+" says: "+message, func() (bool, any) {
		now := waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
		return now == message, now
	})
}

// waitForJob waits for another Job of a call than the one that it had.
func waitForJob(t *testing.T, call *v1alpha1.ToolCall, before types.UID) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	eventually(t, "another Job of the call", func() (bool, any) {
		return get(t, jobKey(toolNamespace(call), call), job) && job.UID != before && job.DeletionTimestamp == nil, job
	})
	return job
}

// Whether sandboxes have a user namespace follows what the nodes report, in the
// Ready message, and in the sandbox of a call that waits for it.
func TestUserNamespaceByNodes(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	name := "users-" + tools
	newClass(t, name)
	under := `sandboxes run under RuntimeClass "` + name + `"`
	with := under + " in a user namespace (hostUsers: false)"
	tool := newTool(t, tools, "tool", withClass(name))
	waitForMessage(t, tool, with) // no node has the handler yet

	a := newNode(t, "a-"+tools, name, false)
	waitForMessage(t, tool, under+` without a user namespace of Kubernetes: its handler "`+name+`" reports no support for it on any node`)
	call := newCall(t, tools, "tool")
	job := jobOf(t, call)
	if pod := job.Spec.Template.Spec; pod.HostUsers != nil || ptr.Deref(pod.RuntimeClassName, "") != name {
		t.Errorf("hostUsers is %v, runtimeClassName %v; no node can have the one", pod.HostUsers, pod.RuntimeClassName)
	}

	b := newNode(t, "b-"+tools, name, true)
	waitForMessage(t, tool, with+"; warning: they do not start on "+a.Name+`, whose handler "`+name+
		`" reports no support for it: update it, or leave those nodes out in the RuntimeClass's scheduling.nodeSelector`)
	job = waitForJob(t, call, job.UID)
	if pod := job.Spec.Template.Spec; ptr.Deref(pod.HostUsers, true) {
		t.Error("the sandbox that waited was not made again with a user namespace")
	}

	report(t, a, name, true)
	waitForMessage(t, tool, with) // without the warning
	remove(t, b)
	report(t, a, name, false)
	waitForMessage(t, tool, under+` without a user namespace of Kubernetes: its handler "`+name+`" reports no support for it on any node`)
	remove(t, a)
	waitForMessage(t, tool, with)
	// The call runs in what is right now.
	eventually(t, "a sandbox with a user namespace", func() (bool, any) {
		j := &batchv1.Job{}
		return get(t, jobKey(tools, call), j) && j.DeletionTimestamp == nil && !ptr.Deref(j.Spec.Template.Spec.HostUsers, true), j
	})
	startPod(t, call, prints("1", 0))
	want{}.check(t, waitForEnd(t, call))
}

// A RuntimeClass that goes takes its Tools and their waiting calls with it.
func TestRuntimeClassDeleted(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	name := "deleted-" + tools
	class := newClass(t, name)
	tool := newTool(t, tools, "tool", withClass(name))
	call := newCall(t, tools, "tool")
	podOf(t, call)
	remove(t, class)
	says := []string{v1alpha1.ReasonRuntimeClassNotFound, "spec.isolation.runtimeClassName", name}
	want{code: v1alpha1.ErrorToolUnavailable, message: says}.check(t, waitForEnd(t, call))
	waitForNoSandbox(t, call)
	waitForReady(t, tool, metav1.ConditionFalse, v1alpha1.ReasonRuntimeClassNotFound)
	newClass(t, name)
	waitForReady(t, tool, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if pod := podOf(t, newCall(t, tools, "tool")); ptr.Deref(pod.Spec.RuntimeClassName, "") != name {
		t.Errorf("the pod's RuntimeClass is %v", pod.Spec.RuntimeClassName)
	}
}

// The rules about RuntimeClasses hold from the first moment of a controller that
// is told them, whatever the Tools' status still says. It is not parallel, since
// it stops the controller of all.
func TestRuntimeClassRules(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	newClass(t, "rules-second")
	newClass(t, "rules-other")
	gone := newClass(t, "rules-gone")
	newTool(t, tools, "second", withClass("rules-second"))
	none := newTool(t, tools, "none")
	other := newTool(t, tools, "other", withClass("rules-other"))
	lost := newTool(t, tools, "lost", withClass("rules-gone"))
	waiting := newCall(t, tools, "none")
	before := jobOf(t, waiting)
	if before.Spec.Template.Spec.RuntimeClassName != nil {
		t.Fatal("there is a default already")
	}

	// While no controller runs, nothing corrects what the Tools say of themselves.
	var ofOther, ofLost *v1alpha1.ToolCall
	t.Cleanup(func() { restartController(t, func() {}) })
	restartController(t, func() {
		remove(t, gone)
		newClass(t, "rules-default")
		ofOther, ofLost = newCall(t, tools, "other"), newCall(t, tools, "lost")
	}, func(o *controllers.Options) {
		o.RuntimeClasses = sandbox.RuntimeClasses{Default: "rules-default", Required: []string{"rules-default", "rules-second", "rules-gone"}}
	})
	for call, says := range map[*v1alpha1.ToolCall][]string{
		ofOther: {v1alpha1.ReasonRuntimeClassNotAllowed, `"rules-other"`, "rules-default, rules-second", "--require-runtime-class"},
		ofLost:  {v1alpha1.ReasonRuntimeClassNotFound, `"rules-gone"`},
	} {
		call = waitForEnd(t, call)
		want{code: v1alpha1.ErrorToolUnavailable, message: says}.check(t, call)
		if jobs := jobsOf(t, call); len(jobs) > 0 {
			t.Errorf("it has Job %s", jobs[0].Name)
		}
	}
	waitForReady(t, other, metav1.ConditionFalse, v1alpha1.ReasonRuntimeClassNotAllowed)
	waitForReady(t, lost, metav1.ConditionFalse, v1alpha1.ReasonRuntimeClassNotFound)

	// A sandbox that waits is made again with the default, and runs.
	job := waitForJob(t, waiting, before.UID)
	if got := ptr.Deref(job.Spec.Template.Spec.RuntimeClassName, ""); got != "rules-default" {
		t.Errorf("the RuntimeClass of a Tool that names none is %q", got)
	}
	startPod(t, waiting, prints("1", 0))
	want{}.check(t, waitForEnd(t, waiting))
	if message := waitForReady(t, none, metav1.ConditionTrue, v1alpha1.ReasonReady); !strings.Contains(message, "rules-default") {
		t.Errorf("the message does not name the default: %s", message)
	}
	job = jobOf(t, newCall(t, tools, "second"))
	if got := ptr.Deref(job.Spec.Template.Spec.RuntimeClassName, ""); got != "rules-second" {
		t.Errorf("the default replaced what the Tool names: %q", got)
	}

	// A default that is missing is no reason to do without.
	remove(t, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "rules-default"}})
	if message := waitForReady(t, none, metav1.ConditionFalse, v1alpha1.ReasonRuntimeClassNotFound); !strings.Contains(message, "--default-runtime-class") {
		t.Errorf("the message does not say where the name comes from: %s", message)
	}
	newClass(t, "rules-default")
	waitForReady(t, none, metav1.ConditionTrue, v1alpha1.ReasonReady)
	// The Tool changes, and may run.
	setSpec(t, other, withClass("rules-second"))
	waitForReady(t, other, metav1.ConditionTrue, v1alpha1.ReasonReady)
	setSpec(t, other, withClass("rules-other"))
	waitForReady(t, other, metav1.ConditionFalse, v1alpha1.ReasonRuntimeClassNotAllowed)
}

// A sandbox with volumes and a token meets Pod Security restricted, and what the
// API server makes of it is no change.
func TestVolumesAndServiceAccount(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	create(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: tools, Name: "deployer"}})
	volumes := []v1alpha1.Volume{
		{Name: "secret", MountPath: "/secret", Secret: &v1alpha1.SecretVolumeSource{SecretName: "s", Items: []v1alpha1.KeyToPath{{Key: "a", Path: "b"}}}},
		{Name: "config", MountPath: "/config", ConfigMap: &v1alpha1.ConfigMapVolumeSource{Name: "c"}},
		{Name: "image", MountPath: "/image", Image: &v1alpha1.ImageVolumeSource{Reference: "registry.example/data"}},
		{Name: "claim", MountPath: "/claim", PersistentVolumeClaim: &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}},
		{Name: "written", MountPath: "/written", ReadOnly: ptr.To(false), PersistentVolumeClaim: &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}},
	}
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) { s.Container.Volumes, s.Container.ServiceAccountName = volumes, "deployer" })
	call := newCall(t, tools, "tool")
	startPod(t, call, prints("1", 0))
	want{}.check(t, waitForEnd(t, call))

	nested := toolObject(tools, "nested", func(s *v1alpha1.ToolSpec) {
		s.Container.Volumes = []v1alpha1.Volume{volumes[0], volumes[1]}
		s.Container.Volumes[1].MountPath = "/secret/config"
	})
	create(t, nested)
	if message := waitForReady(t, nested, metav1.ConditionFalse, v1alpha1.ReasonInvalidSandbox); !strings.Contains(message, "spec.container.volumes[1].mountPath is /secret/config") {
		t.Errorf("message: %s", message)
	}

	newTool(t, tools, "nobody", func(s *v1alpha1.ToolSpec) { s.Container.ServiceAccountName, s.StartDeadlineSeconds = "nobody", 5 })
	call = waitForEnd(t, newCall(t, tools, "nobody"))
	want{code: v1alpha1.ErrorToolUnavailable, retryable: *call.Status.Result.Retryable, message: []string{`serviceaccount "nobody" not found`}}.check(t, call)
}
