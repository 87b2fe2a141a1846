package abuse

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// dryRun asks the API server, admission included, and changes nothing.
var dryRun = client.DryRunAll

// People of these tests, by their names.
const (
	editor   = "abuse-editor"   // the role edit in the namespaces of the Tools and of the agent, and the agent's role
	author   = "abuse-author"   // callgate-tool-admin in the namespace of the Tools, and no more
	approver = "abuse-approver" // callgate-approver and the agent's role in the agent's namespace
)

// bound gives them their roles.
var bound = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Patience)
	defer cancel()
	for _, b := range []struct{ user, role, namespace string }{
		{editor, "edit", cluster.ToolsNS}, {editor, "edit", cluster.AgentsNS}, {editor, "callgate-agent", cluster.AgentsNS},
		{author, "callgate-tool-admin", cluster.ToolsNS},
		{approver, "callgate-approver", cluster.AgentsNS}, {approver, "callgate-agent", cluster.AgentsNS},
	} {
		if err := cluster.Admin.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: b.user + "-" + b.role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: b.user}},
		}); err != nil {
			return err
		}
	}
	return nil
})

// configOf is how somebody reaches the API server.
func configOf(t *testing.T, user string) *rest.Config {
	t.Helper()
	if err := bound(); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	return config
}

func as(t *testing.T, user string) client.Client {
	t.Helper()
	c, err := client.New(configOf(t, user), client.Options{Scheme: cluster.Admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refusal judges what the API server said to something that must be refused.
func (r *row) refusal(what string, err error) {
	r.t.Helper()
	switch {
	case err == nil:
		r.breach("%s is taken", what)
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
		reason := string(apierrors.ReasonForError(err))
		r.t.Logf("%s: %s: %v", r.name, what, err)
		r.gotf("%s: %s", what, reason)
	default:
		r.untried("%s: %v", what, err)
	}
}

// permitted is a control: somebody may do this, so that the refusal of the other
// thing is not one of everything.
func (r *row) permitted(what string, err error) {
	r.t.Helper()
	if err != nil {
		r.untried("%s must be possible: %v", what, err)
	}
}

// victim is a call that runs for some seconds, and its pod and Job.
func (r *row) victim(ctx context.Context, seconds int64) (*v1alpha1.ToolCall, *corev1.Pod, *batchv1.Job) {
	r.t.Helper()
	call := cluster.Propose(ctx, r.t, tool(ctx, r.t, RuncRuntime, closed), cluster.JSONOf(r.t, arguments{Attack: "sleep", Seconds: seconds}))
	cluster.WaitReason(ctx, r.t, call, v1alpha1.ReasonRunning)
	cluster.WaitAccepted(ctx, r.t, call)
	a := call.Status.Attempts[0]
	pod, job := &corev1.Pod{}, &batchv1.Job{}
	if err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Pod}, pod); err != nil {
		r.t.Fatal(err)
	}
	if err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: sandbox.JobName(call.UID, 1)}, job); err != nil {
		r.t.Fatal(err)
	}
	return call, pod, job
}

// unharmed says that the victim ended as if nothing had been.
func (r *row) unharmed(ctx context.Context, call *v1alpha1.ToolCall) {
	r.t.Helper()
	cluster.Finish(ctx, r.t, call)
	if !*call.Status.Result.OK || len(call.Status.Attempts) != 1 {
		r.breach("the call ended after %d attempts: %s", len(call.Status.Attempts), cluster.JSONOf(r.t, call.Status.Result))
	}
}

// restricted is a pod that Pod Security lets in.
func restricted() corev1.PodSpec {
	yes, no := true, false
	user := int64(65532)
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "tool", Image: cluster.Images["BUSYBOX"], Command: []string{"sleep", "600"},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
	}
}

// Somebody with the role edit in the namespace of a Tool, from outside.
func TestFromOutside(t *testing.T) {
	t.Parallel()
	attacked(t, "exec-attach", func(ctx context.Context, r *row) {
		call, pod, _ := r.victim(ctx, 8)
		own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "editors-own"}, Spec: restricted()}
		if err := as(r.t, editor).Create(ctx, own); err != nil {
			r.t.Fatal(err)
		}
		cluster.WaitFor(ctx, r.t, own, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }, func(p *corev1.Pod) string { return p.Status.String() })
		clientset, err := kubernetes.NewForConfig(configOf(r.t, editor))
		if err != nil {
			r.t.Fatal(err)
		}
		// Without an upgrade of the connection: who may connect is asked before.
		connect := func(name, subresource, query string) error {
			request := clientset.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(name).SubResource(subresource)
			for _, pair := range strings.Split(query, "&") {
				if k, v, ok := strings.Cut(pair, "="); ok {
					request = request.Param(k, v)
				}
			}
			return request.Do(ctx).Error()
		}
		for subresource, query := range map[string]string{
			"exec": "command=id&container=tool&stdout=true", "attach": "container=tool&stdin=true&stdout=true", "portforward": "ports=80",
		} {
			if err := connect(own.Name, subresource, query); apierrors.IsForbidden(err) {
				r.untried("%s of an own pod: %v", subresource, err)
			}
			if err := connect(pod.Name, subresource, query); !apierrors.IsForbidden(err) {
				r.breach("%s of a sandbox is let through (%v)", subresource, err)
			} else {
				r.gotf("%s: Forbidden", subresource)
			}
		}
		// The role edit does not hold pods/ephemeralcontainers, so its refusal proves
		// nothing of the policy, by which not even an administrator may.
		administrator, err := kubernetes.NewForConfig(cluster.Config)
		if err != nil {
			r.t.Fatal(err)
		}
		debug := func(p *corev1.Pod) error {
			p = p.DeepCopy()
			no := false
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: cluster.Images["BUSYBOX"],
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}}}
			_, err := administrator.CoreV1().Pods(p.Namespace).UpdateEphemeralContainers(ctx, p.Name, p, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		r.permitted("debug another pod, as an administrator", debug(own))
		r.refusal("debug, by an administrator", debug(pod))
		r.unharmed(ctx, call)
	})
	attacked(t, "forged-job", func(ctx context.Context, r *row) {
		call, _, job := r.victim(ctx, 3)
		forged := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: sandbox.JobName(call.UID, 2), Labels: job.Labels, Annotations: job.Annotations},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: job.Labels, Annotations: job.Spec.Template.Annotations}, Spec: restricted()}}}
		plain := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: "plain"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: restricted()}}}
		r.permitted("make another Job", as(r.t, editor).Create(ctx, plain, dryRun))
		r.refusal("the Job of the next attempt", as(r.t, editor).Create(ctx, forged.DeepCopy(), dryRun))
		forged.Name = "other"
		r.refusal("a Job with the labels of a sandbox", as(r.t, editor).Create(ctx, forged.DeepCopy(), dryRun))
		r.unharmed(ctx, call)
	})
	attacked(t, "changed-job", func(ctx context.Context, r *row) {
		call, _, job := r.victim(ctx, 3)
		plain := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: "changed"}, Spec: batchv1.JobSpec{Suspend: new(true), Template: corev1.PodTemplateSpec{Spec: restricted()}}}
		r.permitted("make a Job", as(r.t, editor).Create(ctx, plain))
		// A tool that may not run twice would.
		rules := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+sandbox.AnnotationOutput+`":"{\"format\":\"Text\",\"maxBytes\":9,\"sideEffects\":\"None\"}"}}}`))
		r.permitted("change it", as(r.t, editor).Patch(ctx, plain, rules))
		r.refusal("other rules for its answer", as(r.t, editor).Patch(ctx, job.DeepCopy(), rules, dryRun))
		for what, patch := range map[string]string{"suspended": `{"spec":{"suspend":true}}`, "deadline": `{"spec":{"activeDeadlineSeconds":1}}`} {
			r.refusal(what, as(r.t, editor).Patch(ctx, job.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch)), dryRun))
		}
		r.unharmed(ctx, call)
	})
	attacked(t, "forged-pod", func(ctx context.Context, r *row) {
		call, pod, _ := r.victim(ctx, 3)
		forged := func(name string, labels map[string]string, owners []metav1.OwnerReference) error {
			return as(r.t, editor).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name, Labels: labels, OwnerReferences: owners}, Spec: restricted()}, dryRun)
		}
		r.permitted("make another pod", forged("plain", nil, nil))
		r.refusal("a pod by the name", forged(sandbox.JobName(call.UID, 1)+"-zzzzz", nil, nil))
		r.refusal("a pod by the labels", forged("plain", pod.Labels, nil))
		r.refusal("a pod of the Job", forged("plain", pod.Labels, pod.OwnerReferences))
		r.unharmed(ctx, call)
	})
	attacked(t, "forged-pod-by-controller", func(ctx context.Context, r *row) {
		call, pod, _ := r.victim(ctx, 12)
		labels := map[string]string{"app": "forged"}
		for k, v := range pod.Labels {
			labels[k] = v
		}
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: sandbox.JobName(call.UID, 1)}, Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "forged"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: restricted()}}}
		set.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyAlways
		if err := as(r.t, editor).Create(ctx, set); err != nil {
			r.refusal("a ReplicaSet with such pods", err)
			r.unharmed(ctx, call)
			return
		}
		cluster.WaitFor(ctx, r.t, set, &appsv1.ReplicaSetList{}, func(s *appsv1.ReplicaSet) bool { return s.Status.Replicas > 0 || len(s.Status.Conditions) > 0 },
			func(s *appsv1.ReplicaSet) string { return fmt.Sprintf("%+v", s.Status) })
		switch {
		case set.Status.Replicas > 0:
			r.breach("a pod with the name and labels of a sandbox was made")
		case !strings.Contains(set.Status.Conditions[0].Message, "only the Job controller creates it"):
			r.untried("its pod is refused for another reason: %s", set.Status.Conditions[0].Message)
		default:
			r.gotf("its pod is refused: %.200s", set.Status.Conditions[0].Message)
		}
		r.unharmed(ctx, call)
		if err := cluster.Admin.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			r.t.Error(err)
		}
	})
	attacked(t, "changed-pod", func(ctx context.Context, r *row) {
		call, pod, _ := r.victim(ctx, 3)
		own := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "changed"}, Spec: restricted()}
		own.Spec.Containers[0].Command = []string{"true"}
		r.permitted("make a pod", as(r.t, editor).Create(ctx, own))
		image := `{"spec":{"containers":[{"name":"tool","image":"` + cluster.Images["TESTTOOLS"] + `"}]}}`
		for what, patch := range map[string]string{"image": image, "labels": `{"metadata":{"labels":{"callgate.dev/call-uid":"x","callgate.dev/tool-uid":"x"}}}`} {
			p := client.RawPatch("application/strategic-merge-patch+json", []byte(patch))
			if what == "image" {
				r.permitted("another image for an own pod", as(r.t, editor).Patch(ctx, own, p, dryRun))
			}
			r.refusal(what, as(r.t, editor).Patch(ctx, pod.DeepCopy(), p, dryRun))
		}
		r.unharmed(ctx, call)
	})
	attacked(t, "changed-network", func(ctx context.Context, r *row) {
		made := tool(ctx, r.t, RuncRuntime, open)
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: made.Namespace, Name: sandbox.NetworkPolicyName(made.UID)}}
		all := networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}
		r.permitted("make another NetworkPolicy", as(r.t, editor).Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: made.Namespace, Name: "plain"}, Spec: all}, dryRun))
		r.refusal("delete it", as(r.t, editor).Delete(ctx, policy.DeepCopy(), dryRun))
		r.refusal("open it", as(r.t, editor).Patch(ctx, policy.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"egress":[{}]}}`)), dryRun))
	})
	attacked(t, "forged-status", func(ctx context.Context, r *row) {
		call, _, _ := r.victim(ctx, 3)
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"result":{"ok":true,"data":"FORGED","retryable":false}}}`))
		r.permitted("change a label of the call", as(r.t, editor).Patch(ctx, call.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`)), dryRun))
		r.refusal("its status, by the agent", cluster.Agent.Status().Patch(ctx, call.DeepCopy(), patch))
		r.refusal("its status, by an editor", as(r.t, editor).Status().Patch(ctx, call.DeepCopy(), patch))
		// Beside the spec it is dropped: a subresource.
		r.permitted("a patch of both", cluster.Agent.Patch(ctx, call.DeepCopy(), patch))
		r.unharmed(ctx, call)
		if strings.Contains(cluster.JSONOf(r.t, call.Status), "FORGED") {
			r.breach("the status is forged")
		}
	})
	attacked(t, "forged-requester", func(ctx context.Context, r *row) {
		call := cluster.Propose(ctx, r.t, tool(ctx, r.t, RuncRuntime, closed), `{"attack":"sleep","seconds":1}`, func(s *v1alpha1.ToolCallSpec) {
			s.Requester = &v1alpha1.Requester{Username: "system:admin", Groups: []string{"system:masters"}}
		})
		who := "system:serviceaccount:" + cluster.AgentsNS + ":" + cluster.AgentName
		if call.Spec.Requester == nil || call.Spec.Requester.Username != who || strings.Contains(cluster.JSONOf(r.t, call.Spec.Requester), "masters") {
			r.breach("the requester is %s", cluster.JSONOf(r.t, call.Spec.Requester))
		}
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"requester":{"username":"system:admin"}}}`))
		changed := call.DeepCopy()
		if err := cluster.Agent.Patch(ctx, changed, patch); err == nil && changed.Spec.Requester.Username != who {
			r.breach("the requester became %s", changed.Spec.Requester.Username)
		}
		r.refusal("other arguments later", cluster.Agent.Patch(ctx, call.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"args":{"attack":"ids"}}}`))))
		r.gotf("stamped: %s", call.Spec.Requester.Username)
	})
	attacked(t, "forged-approval", func(ctx context.Context, r *row) {
		call, _, _ := r.victim(ctx, 3)
		approval := func(spec v1alpha1.ToolCallApprovalSpec) *v1alpha1.ToolCallApproval {
			spec.ToolCallRef = v1alpha1.ApprovedCallReference{Name: call.Name, UID: call.UID}
			spec.Decision = v1alpha1.DecisionApprove
			return &v1alpha1.ToolCallApproval{ObjectMeta: metav1.ObjectMeta{Namespace: call.Namespace, GenerateName: "forged-"}, Spec: spec}
		}
		r.refusal("the agent approves", cluster.Agent.Create(ctx, approval(v1alpha1.ToolCallApprovalSpec{}), dryRun))
		r.refusal("an editor approves", as(r.t, editor).Create(ctx, approval(v1alpha1.ToolCallApprovalSpec{}), dryRun))
		forged := approval(v1alpha1.ToolCallApprovalSpec{Approver: &v1alpha1.Requester{Username: "system:admin"}})
		r.permitted("an approver approves", as(r.t, approver).Create(ctx, forged, dryRun))
		if forged.Spec.Approver == nil || forged.Spec.Approver.Username != approver {
			r.breach("the approver is %s", cluster.JSONOf(r.t, forged.Spec.Approver))
		} else {
			r.gotf("stamped: %s", forged.Spec.Approver.Username)
		}
	})
	attacked(t, "forged-lease", func(ctx context.Context, r *row) {
		lease := func(name string) error {
			return as(r.t, editor).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: name}}, dryRun)
		}
		r.permitted("make another Lease", lease("plain"))
		r.refusal("the Lease of a key", lease("callgate-key-0123456789abcdef"))
	})
	attacked(t, "controller-token", func(ctx context.Context, r *row) {
		clientset, err := kubernetes.NewForConfig(configOf(r.t, editor))
		if err != nil {
			r.t.Fatal(err)
		}
		get := func(namespace, name string) error {
			_, err := clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}
		r.permitted("a token of a ServiceAccount of the own namespace", get(cluster.ToolsNS, "default"))
		r.refusal("a token of the controller", get("callgate-system", "callgate-controller"))
	})
	attacked(t, "foreign-secret", func(ctx context.Context, r *row) {
		createSecret(ctx, r.t, "foreign", "not for the author")
		try := func(mod func(*v1alpha1.ToolSpec)) error {
			spec := v1alpha1.ToolSpec{InputSchema: cluster.Raw(`{}`), Container: v1alpha1.ToolContainer{Image: cluster.Images["BUSYBOX"], Command: []string{"env"}}}
			mod(&spec)
			return as(r.t, author).Create(ctx, &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: "authors"}, Spec: spec}, dryRun)
		}
		r.permitted("a Tool without a Secret", try(func(*v1alpha1.ToolSpec) {}))
		r.refusal("a Tool with the Secret", try(func(s *v1alpha1.ToolSpec) {
			s.Container.Env = []v1alpha1.EnvVar{{Name: "SECRET", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "foreign", Key: "key"}}}}
		}))
		r.refusal("a Tool that pulls its image with the Secret", try(func(s *v1alpha1.ToolSpec) {
			s.Container.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "foreign"}}
		}))
	})
	attacked(t, "result-in-log", func(ctx context.Context, r *row) {
		call := cluster.Propose(ctx, r.t, tool(ctx, r.t, RuncRuntime, texts), `{"attack":"forged-frames","seconds":2,"data":"x"}`)
		cluster.WaitReason(ctx, r.t, call, v1alpha1.ReasonRunning)
		log := followLog(ctx, r.t, call)
		cluster.Finish(ctx, r.t, call)
		const answer = "TRUE ANSWER"
		if got := cluster.Unquote(r.t, cluster.Succeeded(r.t, call)); !strings.Contains(got, answer) {
			r.untried("the answer is %.200s", got)
		}
		lines := log()
		if !strings.Contains(lines, `"type":"result"`) {
			r.untried("the log has no result: %.400s", lines)
		}
		if decoded(lines).contains(answer) {
			r.breach("whoever reads the log reads the answer")
		}
		r.gotf("%d bytes of log, no answer in them", len(lines))
	})
}
