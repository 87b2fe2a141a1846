package e2e

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"callgate.dev/callgate/api/v1alpha1"
)

// editor is a ServiceAccount with the role edit in the namespace of the tools,
// and the right to debug pods there, with a token of its own.
func editor(ctx context.Context, t *testing.T) *kubernetes.Clientset {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: toolsNS, Name: "editor"}
	account := &corev1.ServiceAccount{ObjectMeta: meta}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: toolsNS, Name: "editor"}}
	if err := admin.Create(ctx, account); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods/ephemeralcontainers"}, Verbs: []string{"patch"}}}}); err != nil {
		t.Fatal(err)
	}
	debug := metav1.ObjectMeta{Namespace: toolsNS, Name: "editor-debugs"}
	for _, binding := range []*rbacv1.RoleBinding{
		{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"}, Subjects: subjects},
		{ObjectMeta: debug, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "editor"}, Subjects: subjects},
	} {
		if err := admin.Create(ctx, binding); err != nil {
			t.Fatal(err)
		}
	}
	token := &authenticationv1.TokenRequest{}
	if err := admin.SubResource("token").Create(ctx, account, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(config)
	cfg.BearerToken = token.Status.Token
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return clientset
}

// Whoever may edit the namespace of the tools gets into no sandbox, changes none
// and forges none, and the calls go on.
func TestEditorAndSandboxes(t *testing.T) {
	ctx := start(t)
	edit := editor(ctx, t)
	slow := shell(ctx, t, "edited", "sleep 10; printf intact", text, timeout(60))
	quick := shell(ctx, t, "beside", "printf quick", text)
	call := propose(ctx, t, slow, "")
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	a := call.Status.Attempts[0]
	pod, err := edit.CoreV1().Pods(toolsNS).Get(ctx, a.Pod, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job, err := edit.BatchV1().Jobs(toolsNS).Get(ctx, a.Sandbox, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	core := edit.CoreV1().RESTClient()
	connect := func(request *rest.Request, subresource, query, value string) error {
		return request.Namespace(toolsNS).Resource("pods").Name(pod.Name).SubResource(subresource).Param(query, value).Do(ctx).Error()
	}
	patchPod := func(patch string, subresource ...string) error {
		_, err := edit.CoreV1().Pods(toolsNS).Patch(ctx, pod.Name, apitypes.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	}
	patchJob := func(patch string) error {
		_, err := edit.BatchV1().Jobs(toolsNS).Patch(ctx, job.Name, apitypes.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	for _, tc := range []struct {
		what    string
		try     func() error
		refused string
	}{
		{"attach over HTTP", func() error { return connect(core.Post(), "attach", "stdin", "true") }, "only Callgate's controller attaches"},
		{"attach over a WebSocket", func() error { return connect(core.Get(), "attach", "stdout", "true") }, "only Callgate's controller attaches"},
		{"exec", func() error { return connect(core.Post(), "exec", "command", "id") }, "nobody runs commands in it"},
		{"port-forward", func() error { return connect(core.Post(), "portforward", "ports", "80") }, "nobody runs commands in it"},
		{"proxy", func() error { return connect(core.Get(), "proxy", "x", "y") }, "nobody runs commands in it"},
		{"ephemeral container", func() error {
			return patchPod(`{"spec":{"ephemeralContainers":[{"name":"debug","image":"`+pod.Spec.Containers[0].Image+`","targetContainerName":"tool",
				"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`, "ephemeralcontainers") // as restricted wants it
		}, "nobody adds a container"},
		{"changed image", func() error { return patchPod(`{"spec":{"containers":[{"name":"tool","image":"evil:1"}]}}`) }, "only components of the cluster change it"},
		{"changed label", func() error { return patchPod(`{"metadata":{"labels":{"callgate.dev/call-uid":"other"}}}`) }, "only components of the cluster change it"},
		{"changed Job", func() error { return patchJob(`{"spec":{"activeDeadlineSeconds":1}}`) }, "only components of the cluster change it"},
		{"forged Job", func() error {
			forged := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "callgate-forged-1", Labels: job.Labels, Annotations: job.Annotations},
				Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: job.Spec.Template.Spec}}}
			_, err := edit.BatchV1().Jobs(toolsNS).Create(ctx, forged, metav1.CreateOptions{})
			return err
		}, "only Callgate's controller creates it"},
		{"forged pod", func() error {
			forged := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: job.Name + "-forged", Labels: pod.Labels,
				Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences}, Spec: job.Spec.Template.Spec}
			forged.OwnerReferences[0].BlockOwnerDeletion = nil // that would take a right to the Job's finalizers
			_, err := edit.CoreV1().Pods(toolsNS).Create(ctx, forged, metav1.CreateOptions{})
			return err
		}, "only the Job controller creates it"},
		{"NetworkPolicy", func() error {
			return edit.NetworkingV1().NetworkPolicies(toolsNS).Delete(ctx, "callgate-"+string(slow.UID), metav1.DeleteOptions{})
		}, "is what a Tool may reach"},
	} {
		if err := tc.try(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), tc.refused) {
			t.Errorf("%s: want 403 with %q: %v", tc.what, tc.refused, err)
		}
	}
	if got := unquote(t, succeeded(t, callOf(ctx, t, quick, ""))); got != "quick" {
		t.Errorf("a call beside: %q", got)
	}
	if got := unquote(t, succeeded(t, finish(ctx, t, call))); got != "intact" {
		t.Errorf("the call: %q", got)
	}
	waitGone(ctx, t, call)
}
