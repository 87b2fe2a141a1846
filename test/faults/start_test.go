package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// A sandbox that never starts ends its call with the cluster's own words, in
// time: at once or nearly so where only a change can help, at the start
// deadline where time may. What a Tool alone cannot do to itself is done by
// what others put into its namespace.
func TestNeverStarted(t *testing.T) {
	const startDeadline = 10
	registry := missingImages(t)
	image := func(ref string) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.Container.Image = ref }
	}
	variable := func(v v1alpha1.EnvVarSource) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.Container.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v}} }
	}
	cpu := func(s *v1alpha1.ToolSpec) {
		many := corev1.ResourceList{corev1.ResourceCPU: cluster.Quantity("1000")}
		s.Container.Resources.Requests, s.Container.Resources.Limits = many, many
	}
	for _, tc := range []struct {
		name, reason string
		tool         func(*v1alpha1.ToolSpec)
		// around is put into the Tool's namespace, unless it is of the cluster.
		around []func(namespace string) client.Object
		// inForce says by a pod that is created in dry run, and by the answer, whether around is in force.
		inForce   func(*corev1.Pod, error) bool
		retryable bool
		parts     []string
		// The call ends between these seconds after it was made; two cores may be busy with other sandboxes.
		from, to int
	}{
		{name: "image-missing", reason: "its registry answered; not before it may have been pushed, and far from the start deadline",
			tool: image(registry + "/absent:1"), parts: []string{"absent:1: not found"}, from: 14, to: 40},
		{name: "missing-configmap", reason: "by its name", parts: []string{`configmap "absent" not found`}, from: 4, to: 20,
			tool: variable(v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "absent", Key: "token"}})},
		{name: "missing-key", reason: "by its name", parts: []string{"couldn't find key token"}, from: 4, to: 20,
			tool: variable(v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "kube-root-ca.crt", Key: "token"}})},
		{name: "quota", reason: "C014: no room, until the start deadline", around: add(quota(corev1.ResourceList{"pods": cluster.Quantity("0")})), inForce: refused,
			retryable: true, parts: []string{"exceeded quota", "startDeadlineSeconds (10)"}, from: startDeadline, to: startDeadline + 5},
		{name: "limit-range", reason: "C016", around: add(limitRange(corev1.LimitRangeItem{Max: corev1.ResourceList{corev1.ResourceMemory: cluster.Quantity("64Mi")}})),
			inForce: refused, parts: []string{"maximum memory usage per Container is 64Mi", "224Mi"}, from: 4, to: 12},
		{name: "pod-security", reason: "C017, C018: the name of the container to blame", inForce: refused,
			around: mutate(`JSONPatch{op: "add", path: "/spec/initContainers", value: [Object.spec.initContainers{name: "injected", image: "example"}]}`),
			parts:  []string{"violates PodSecurity", `"injected"`}, from: 4, to: 12},
		{name: "policy", reason: "an admission policy's own text", around: deny, inForce: refused, parts: []string{"denied request: images must be signed"}, from: 4, to: 12},
		{name: "webhook-down", reason: "a webhook that does not answer may come back", around: add(webhookDown), inForce: refused,
			retryable: true, parts: []string{"pods.webhook.example", "startDeadlineSeconds (10)"}, from: startDeadline, to: startDeadline + 5},
		{name: "runtime-handler", reason: "a RuntimeClass that no node has: only an event says so", around: add(runtimeClass),
			tool:  func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = "callgate-faults-unhandled" },
			parts: []string{"FailedCreatePodSandBox", "callgate-faults-unhandled"}, from: 4, to: 20},
		{name: "kubelet-refuses", reason: "refused by the kubelet, which the scheduler would have seen; another node may take it", tool: cpu,
			around:  mutate(`JSONPatch{op: "add", path: "/spec/nodeName", value: "` + node(t) + `"}`),
			inForce: func(p *corev1.Pod, err error) bool { return err == nil && p.Spec.NodeName != "" }, retryable: true, parts: []string{"OutOfcpu"}, to: startDeadline + 5},
		{name: "sidecar", reason: "an injected container that would never end", inForce: changed(func(p *corev1.Pod) bool { return len(p.Spec.Containers) == 2 }),
			around: mutate(`JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "injected", image: "` + cluster.Images["BUSYBOX"] +
				`", command: ["sleep", "3600"], securityContext: Object.spec.containers.securityContext{allowPrivilegeEscalation: false, capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}`),
			parts: []string{`spec.containers[1] "injected" was added`, "admission webhook"}, to: 12},
		{name: "sidecar-without-image", reason: "an injected container that keeps the pod from starting: named, not waited for",
			inForce: changed(func(p *corev1.Pod) bool { return len(p.Spec.Containers) == 2 }),
			around: mutate(`JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "injected", image: "localhost/callgate/absent:1"` +
				`, securityContext: Object.spec.containers.securityContext{allowPrivilegeEscalation: false, capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}`),
			parts: []string{`spec.containers[1] "injected" was added`}, to: 12},
		{name: "image-changed", reason: "another image is another tool", inForce: changed(func(p *corev1.Pod) bool { return p.Spec.Containers[0].Image == cluster.Images["TESTTOOLS"] }),
			around: mutate(`JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "` + cluster.Images["TESTTOOLS"] + `"}`), parts: []string{"spec.containers[0].image"}, to: 12},
		{name: "user-changed", reason: "another user is another right", inForce: changed(func(p *corev1.Pod) bool { return *p.Spec.SecurityContext.RunAsUser == 1000 }),
			around: mutate(`JSONPatch{op: "replace", path: "/spec/securityContext/runAsUser", value: 1000}`), parts: []string{"spec.securityContext"}, to: 12},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "image-missing" && len(nodes(t)) > 1 {
				t.Skip("its registry is on one node, the sandbox may be on another")
			}
			ctx := cluster.Start(t)
			namespace := cluster.ToolsNS
			if tc.around != nil {
				namespace = cluster.NewToolsNamespace(ctx, t, tc.name)
				arrange(t, namespace, tc.around, tc.inForce)
			}
			tool := cluster.NewToolIn(ctx, t, namespace, tc.name, []string{"cat"}, func(s *v1alpha1.ToolSpec) {
				s.StartDeadlineSeconds = 60
				if tc.retryable {
					s.StartDeadlineSeconds = startDeadline
				}
				if tc.tool != nil {
					tc.tool(s)
				}
			})
			begin := time.Now()
			call := cluster.CallOf(ctx, t, tool, "")
			took := time.Since(begin)
			cluster.Failed(t, call, v1alpha1.ErrorToolUnavailable, tc.retryable, tc.parts...)
			t.Logf("%s: after %s: %s", tc.reason, took.Round(100*time.Millisecond), call.Status.Result.Message)
			// metav1.Time counts whole seconds.
			if took < time.Duration(tc.from-1)*time.Second || took > time.Duration(tc.to)*time.Second {
				t.Errorf("%s: it ended after %s, want %d to %d s", tc.reason, took, tc.from, tc.to)
			}
			if len(call.Status.Attempts) != 0 {
				t.Errorf("a call that was not sent has an attempt: %+v", call.Status.Attempts)
			}
			cluster.WaitGone(ctx, t, call)
		})
	}
}

// What demands or adds something that a sandbox has or bears does not stop it.
func TestStartsAllTheSame(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		around       []func(string) client.Object
	}{
		{"quota-demands", "C015: a quota that demands limits and requests of every container", add(quota(corev1.ResourceList{
			"limits.cpu": cluster.Quantity("4"), "limits.memory": cluster.Quantity("1Gi"), "requests.cpu": cluster.Quantity("4"), "requests.memory": cluster.Quantity("1Gi")}))},
		{"limit-range-default", "C016: a LimitRange that adds a limit of its own", add(limitRange(corev1.LimitRangeItem{
			Default: corev1.ResourceList{corev1.ResourceEphemeralStorage: cluster.Quantity("64Mi"), corev1.ResourceMemory: cluster.Quantity("1Gi")}}))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := cluster.Start(t)
			namespace := cluster.NewToolsNamespace(ctx, t, tc.name)
			arrange(t, namespace, tc.around, nil)
			tool := cluster.NewToolIn(ctx, t, namespace, tc.name, []string{"echo", "1"})
			if got := cluster.Succeeded(t, cluster.CallOf(ctx, t, tool, "")); got != "1" {
				t.Errorf("%s: %s", tc.reason, got)
			}
		})
	}
}

// C014: a call that waits for a quota says so, and runs when there is room.
func TestQuotaFreed(t *testing.T) {
	ctx := cluster.Start(t)
	namespace := cluster.NewToolsNamespace(ctx, t, "quota-freed")
	arrange(t, namespace, add(quota(corev1.ResourceList{"pods": cluster.Quantity("1")})), nil)
	tool := cluster.NewToolIn(ctx, t, namespace, "slow", []string{"sh", "-c", "sleep 2; echo 1"})
	var calls []*v1alpha1.ToolCall
	for range 3 {
		calls = append(calls, cluster.Propose(ctx, t, tool, ""))
	}
	said := false
	for _, call := range calls {
		cluster.WaitFor(ctx, t, call, &v1alpha1.ToolCallList{}, func(c *v1alpha1.ToolCall) bool {
			for _, condition := range c.Status.Conditions {
				said = said || condition.Type == v1alpha1.ConditionSucceeded && strings.Contains(condition.Message, "exceeded quota")
			}
			return c.Status.Result != nil
		}, func(c *v1alpha1.ToolCall) string { return cluster.JSONOf(t, c.Status) })
		if got := cluster.Succeeded(t, call); got != "1" {
			t.Errorf("data is %s", got)
		}
	}
	if !said {
		t.Error("no call said that it waits for a quota")
	}
}

// arrange puts objects into the world of a test and waits until they are in
// force, as a pod in dry run shows.
func arrange(t *testing.T, namespace string, around []func(string) client.Object, inForce func(*corev1.Pod, error) bool) {
	t.Helper()
	ctx := t.Context()
	for _, make := range around {
		o := make(namespace)
		if err := cluster.Admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cluster.Admin.Delete(context.WithoutCancel(ctx), o); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		})
	}
	if inForce == nil {
		return
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		pod := barePod(namespace)
		err := cluster.Admin.Create(ctx, pod, client.DryRunAll)
		if inForce(pod, err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not in force after 30 s: %v", err)
		}
	}
}

// barePod is a pod that Pod Security restricted takes, as large as a sandbox.
func barePod(namespace string) *corev1.Pod {
	limits := corev1.ResourceList{corev1.ResourceCPU: cluster.Quantity("500m"), corev1.ResourceMemory: cluster.Quantity("224Mi")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "dry-run-"},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "tool", Image: cluster.Images["BUSYBOX"], Resources: corev1.ResourceRequirements{Limits: limits},
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
		},
	}
}

func refused(_ *corev1.Pod, err error) bool { return err != nil }

func changed(how func(*corev1.Pod) bool) func(*corev1.Pod, error) bool {
	return func(p *corev1.Pod, err error) bool { return err == nil && how(p) }
}

func add(makes ...func(string) client.Object) []func(string) client.Object { return makes }

func quota(hard corev1.ResourceList) func(string) client.Object {
	return func(namespace string) client.Object {
		return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	}
}

func limitRange(item corev1.LimitRangeItem) func(string) client.Object {
	item.Type = corev1.LimitTypeContainer
	return func(namespace string) client.Object {
		return &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}
	}
}

func podsIn(namespace string) *admissionv1.MatchResources {
	return &admissionv1.MatchResources{NamespaceSelector: onlyIn(namespace), ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: podCreation()}}}
}

func podCreation() admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}
}

func onlyIn(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
}

var deny = []func(string) client.Object{
	func(namespace string) client.Object {
		return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: podsIn(namespace), Validations: []admissionv1.Validation{{Expression: "false", Message: "images must be signed"}}}}
	},
	func(namespace string) client.Object {
		return &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	},
}

// mutate changes every pod of the namespace on its way, as a mesh would.
func mutate(patch string) []func(string) client.Object {
	return []func(string) client.Object{
		func(namespace string) client.Object {
			return &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.MutatingAdmissionPolicySpec{
				MatchConstraints: podsIn(namespace), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: "[" + patch + "]"}}}}}
		},
		func(namespace string) client.Object {
			return &admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: namespace}}
		},
	}
}

func webhookDown(namespace string) client.Object {
	return &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "pods.webhook.example", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone),
		NamespaceSelector: onlyIn(namespace), Rules: []admissionv1.RuleWithOperations{podCreation()},
		ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")}}}}
}

func runtimeClass(string) client.Object {
	return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "callgate-faults-unhandled"}, Handler: "callgate-faults-unhandled"}
}

func nodes(t *testing.T) []corev1.Node {
	t.Helper()
	var list corev1.NodeList
	if err := cluster.Admin.List(t.Context(), &list); err != nil || len(list.Items) == 0 {
		t.Fatal("no nodes", err)
	}
	return list.Items
}

func node(t *testing.T) string { return nodes(t)[0].Name }

// missingImages starts a registry on the node that has no image, and returns its
// address. Every runtime speaks plain HTTP to the node's own loopback.
func missingImages(t *testing.T) string {
	t.Helper()
	const address = "localhost:5999"
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cluster.ToolsNS + "-registry"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "registry"},
		Spec: corev1.PodSpec{HostNetwork: true, TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{
			Name: "registry", Image: cluster.Images["BUSYBOX"], Command: []string{"httpd", "-f", "-p", "127.0.0.1:5999", "-h", "/tmp"}}}},
	}
	for _, o := range []client.Object{namespace, pod} {
		if err := cluster.Admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := cluster.Admin.Delete(context.WithoutCancel(t.Context()), namespace); err != nil {
			t.Error(err)
		}
	})
	cluster.WaitFor(t.Context(), t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning },
		func(p *corev1.Pod) string { return cluster.JSONOf(t, p.Status) })
	return address
}
