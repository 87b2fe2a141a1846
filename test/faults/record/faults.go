package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

func faults(r *recorder) []fault {
	const absent = "localhost/callgate/absent:1"
	image := func(ref string) func(*v1alpha1.ToolSpec) {
		return func(t *v1alpha1.ToolSpec) { t.Container.Image = ref }
	}
	env := func(v v1alpha1.EnvVarSource) func(*v1alpha1.ToolSpec) {
		return func(t *v1alpha1.ToolSpec) { t.Container.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v}} }
	}
	spec := func(change func(*corev1.PodSpec)) func(*batchv1.Job) {
		return func(j *batchv1.Job) { change(&j.Spec.Template.Spec) }
	}
	quota := func(hard corev1.ResourceList) func(string) []client.Object {
		return func(ns string) []client.Object {
			return []client.Object{&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "quota"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}}
		}
	}
	limits := func(item corev1.LimitRangeItem) func(string) []client.Object {
		item.Type = corev1.LimitTypeContainer
		return func(ns string) []client.Object {
			return []client.Object{&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "limits"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}}}
		}
	}
	script := func(s string) func(*batchv1.Job) {
		return spec(func(p *corev1.PodSpec) {
			p.Containers[0].Command = []string{"/bin/sh", "-c", s}
			p.Containers[0].Stdin, p.Containers[0].StdinOnce = false, false
		})
	}
	both := func(a, b func(*batchv1.Job)) func(*batchv1.Job) {
		return func(j *batchv1.Job) { a(j); b(j) }
	}
	gvisor := func(t *v1alpha1.ToolSpec) { t.Isolation.RuntimeClassName = "gvisor" }
	const eat = `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`

	return []fault{
		// Never started.
		{name: "registry-down", what: "the image is absent and its registry refuses connections", tool: image(absent), until: waiting("ImagePullBackOff")},
		{name: "err-image-pull", what: "the first failure to pull an image that its registry does not have", around: r.registry, tool: image(registryHost + "/absent:1"), until: waiting("ErrImagePull")},
		{name: "image-pull-back-off", what: "the registry does not have the image", around: r.registry, tool: image(registryHost + "/absent:1"), until: waiting("ImagePullBackOff")},
		{name: "runner-missing", what: "the registry does not have the runner's image", around: r.registry, until: anyOf(waiting("ImagePullBackOff"), event("Failed")),
			job: spec(func(p *corev1.PodSpec) { p.Volumes[0].Image.Reference = registryHost + "/absent-runner:1" })},
		{name: "start-error-memory", what: "the memory limit is too low for the runtime itself", until: anyOf(terminated, event("FailedCreatePodSandBox")),
			job: spec(func(p *corev1.PodSpec) {
				few := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Ki")}
				p.Containers[0].Resources = corev1.ResourceRequirements{Limits: few, Requests: few}
			})},
		{name: "invalid-image-name", what: "an image name that is none", tool: image("localhost/UPPER:1"), until: waiting("InvalidImageName")},
		{name: "err-image-never-pull", what: "an image that may not be pulled", tool: image(absent), until: waiting("ErrImageNeverPull"),
			job: spec(func(p *corev1.PodSpec) { p.Containers[0].ImagePullPolicy = corev1.PullNever })},
		{name: "missing-secret", what: "a variable from a Secret that is not there", until: waiting("CreateContainerConfigError"),
			tool: env(v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "absent", Key: "token"}})},
		{name: "missing-key", what: "a variable from a key that its Secret has not", until: waiting("CreateContainerConfigError"),
			around: func(ns string) []client.Object {
				return []client.Object{&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "present"}, StringData: map[string]string{"other": "x"}}}
			}, tool: env(v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "present", Key: "token"}})},
		{name: "missing-configmap", what: "a variable from a ConfigMap that is not there", until: waiting("CreateContainerConfigError"),
			tool: env(v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "absent", Key: "token"}})},
		{name: "missing-volume-secret", what: "a volume of a Secret that is not there", until: event("FailedMount"),
			job: spec(func(p *corev1.PodSpec) {
				p.Volumes = append(p.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "absent"}}})
				p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "s", MountPath: "/s"})
			})},
		{name: "missing-volume-configmap", what: "a volume of a ConfigMap that is not there", until: event("FailedMount"),
			job: spec(func(p *corev1.PodSpec) {
				p.Volumes = append(p.Volumes, corev1.Volume{Name: "s", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}}}})
				p.Containers[0].VolumeMounts = append(p.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "s", MountPath: "/s"})
			})},
		{name: "run-as-non-root", what: "the user is root, which may not be", until: waiting("CreateContainerConfigError"),
			job: spec(func(p *corev1.PodSpec) { p.SecurityContext.RunAsUser = ptr.To[int64](0) })},
		{name: "start-error", what: "the container's command is not there", until: terminated,
			job: spec(func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"/.callgate/absent"} })},
		{name: "start-error-gvisor", what: "the container's command is not there, under gVisor", tool: gvisor, until: terminated,
			job: spec(func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"/.callgate/absent"} })},
		{name: "unschedulable-cpu", what: "no node has so much", until: unschedulable, tool: func(t *v1alpha1.ToolSpec) {
			many := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
			t.Container.Resources.Requests, t.Container.Resources.Limits = many, many
		}},
		{name: "unschedulable-selector", what: "no node has the label", until: unschedulable,
			job: spec(func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"disk": "absent"} })},
		{name: "quota-exceeded", what: "the quota has no room", around: quota(corev1.ResourceList{"pods": resource.MustParse("0")}), until: event("FailedCreate")},
		{name: "quota-demands", what: "the quota demands what the pod has not", until: event("FailedCreate"),
			around: quota(corev1.ResourceList{"limits.cpu": resource.MustParse("1")}),
			job:    spec(func(p *corev1.PodSpec) { p.Containers[0].Resources = corev1.ResourceRequirements{} })},
		{name: "quota-met", what: "the quota demands limits, and the pod has them", until: running,
			around: quota(corev1.ResourceList{"limits.cpu": resource.MustParse("1"), "limits.memory": resource.MustParse("1Gi"), "requests.cpu": resource.MustParse("1"), "requests.memory": resource.MustParse("1Gi")})},
		{name: "limit-range-max", what: "the LimitRange's maximum is below ours", until: event("FailedCreate"),
			around: limits(corev1.LimitRangeItem{Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}})},
		{name: "limit-range-ratio", what: "the LimitRange's ratio is below ours", until: event("FailedCreate"),
			around: limits(corev1.LimitRangeItem{MaxLimitRequestRatio: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2")}})},
		{name: "limit-range-default", what: "the LimitRange adds a limit", until: running,
			around: limits(corev1.LimitRangeItem{Default: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("64Mi")}})},
		{name: "pod-security", what: "Pod Security refuses a pod", restricted: true, until: event("FailedCreate"),
			job: spec(func(p *corev1.PodSpec) {
				p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
			})},
		{name: "pod-security-injected", what: "Pod Security refuses a pod into which a container was put", restricted: true, until: event("FailedCreate"),
			around: func(ns string) []client.Object {
				return mutate(ns, `JSONPatch{op: "add", path: "/spec/initContainers", value: [Object.spec.initContainers{name: "injected", image: "busybox", command: ["true"]}]}`)
			}},
		{name: "policy-denied", what: "an admission policy refuses the pod", until: event("FailedCreate"), around: deny},
		{name: "webhook-down", what: "an admission webhook does not answer", until: event("FailedCreate"), around: webhookDown},
		{name: "runtime-class-missing", what: "there is no such RuntimeClass", until: event("FailedCreate"),
			tool: func(t *v1alpha1.ToolSpec) { t.Isolation.RuntimeClassName = "absent" }},
		{name: "runtime-handler-missing", what: "the node has no such runtime", until: event("FailedCreatePodSandBox"),
			around: func(string) []client.Object {
				return []client.Object{&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "unhandled"}, Handler: "unhandled"}}
			}, tool: func(t *v1alpha1.ToolSpec) { t.Isolation.RuntimeClassName = "unhandled" }},
		{name: "kubelet-out-of-cpu", what: "the kubelet refuses the pod: no room", until: failedPod,
			tool: func(t *v1alpha1.ToolSpec) {
				many := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
				t.Container.Resources.Requests, t.Container.Resources.Limits = many, many
			}, job: spec(func(p *corev1.PodSpec) { p.NodeName = r.node() })},
		{name: "kubelet-node-affinity", what: "the kubelet refuses the pod: wrong node", until: failedPod,
			job: spec(func(p *corev1.PodSpec) {
				p.NodeName, p.NodeSelector = r.node(), map[string]string{"disk": "absent"}
			})},
		{name: "sidecar-injected", what: "a container that never ends was put into the pod", until: running, around: func(ns string) []client.Object {
			return mutate(ns, `JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "injected", image: "`+r.images["BUSYBOX"]+`", command: ["sleep", "3600"]}}`)
		}},
		{name: "sidecar-image-missing", what: "a container whose image is not there was put into the pod", until: anyWaiting("ImagePullBackOff"), around: func(ns string) []client.Object {
			return mutate(ns, `JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "injected", image: "`+absent+`"}}`)
		}},
		{name: "image-mutated", what: "the pod has another image", until: running, around: func(ns string) []client.Object {
			return mutate(ns, `JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "`+r.images["TESTTOOLS"]+`"}`)
		}},
		{name: "user-mutated", what: "the pod has another user", until: running, around: func(ns string) []client.Object {
			return mutate(ns, `JSONPatch{op: "replace", path: "/spec/securityContext/runAsUser", value: 1000}`)
		}},
		{name: "waits", what: "a sandbox that waits for its call", until: running},
		{name: "no-call", what: "a sandbox whose stdin closed", ready: running, act: closeStdin, until: terminated},

		// Ran: what a container's status says, whoever printed what.
		{name: "exit-3", what: "exit code 3", job: script("exit 3"), until: jobFailed},
		{name: "exit-137", what: "exit code 137 that no kernel gave", job: script("exit 137"), until: terminated},
		{name: "oom", what: "the only process ran out of memory", job: script(eat), until: terminated},
		{name: "oom-child", what: "a child ran out of memory and the container ended well", job: script("( " + eat + " ); echo; exit 0"), until: terminated},
		{name: "oom-gvisor", what: "out of memory under gVisor", tool: gvisor, job: script(eat), until: terminated},
		{name: "oom-child-gvisor", what: "a child ran out of memory under gVisor", tool: gvisor, job: script("( " + eat + " ); echo; exit 0"), until: terminated},
		{name: "oom-tmp-gvisor", what: "a file in memory that is larger than the limit, under gVisor", tool: gvisor, until: terminated,
			job: both(script("head -c 400000000 /dev/zero > /tmp/x; exit $?"), spec(func(p *corev1.PodSpec) { p.Volumes[2].EmptyDir.SizeLimit = nil }))},
		{name: "evicted-storage", what: "evicted for the size of a volume on disk", until: failedPod,
			job: both(script("head -c 20000000 /dev/zero > /tmp/x; trap '' TERM; sleep 100"), spec(func(p *corev1.PodSpec) {
				p.Volumes[2].EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Mi"))}
				p.TerminationGracePeriodSeconds = ptr.To[int64](2)
			}))},
		{name: "draining", what: "told to go by the eviction API, and not gone yet", ready: running, act: evict, until: deleting},
		{name: "drained", what: "ended after an eviction: SIGKILL", job: both(script("trap '' TERM; sleep 100 & wait; sleep 100"), grace(2)), ready: running, act: evict, until: and(deleting, terminated)},
		{name: "drained-exit-0", what: "C022: ended well when told to go by the eviction API", job: script("trap 'exit 0' TERM; while :; do sleep 0.1; done"), ready: running, act: evict, until: and(deleting, terminated)},
		{name: "deleted", what: "deleted by somebody, gone", ready: running, act: remove(1), until: and(gone, jobFailed)},
		{name: "force-deleted", what: "deleted at once by somebody, gone", ready: running, act: remove(0), until: and(gone, jobFailed)},
		{name: "second-container", what: "another image was set, so the kubelet started another container", ready: running, act: otherImage, until: restarted},
		{name: "job-deadline", what: "the Job's activeDeadlineSeconds", job: both(func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = ptr.To[int64](4) }, grace(1)), until: and(gone, jobFailed)},
		{name: "pod-deadline", what: "C005: the pod's activeDeadlineSeconds; its container ended well", until: and(failedPod, terminated),
			job: both(script("trap 'exit 0' TERM; while :; do sleep 0.1; done"), spec(func(p *corev1.PodSpec) { p.ActiveDeadlineSeconds = ptr.To[int64](3) }))},
		{name: "pod-deadline-waiting", what: "the pod's activeDeadlineSeconds before any container", tool: image(absent), until: failedPod,
			job: spec(func(p *corev1.PodSpec) { p.ActiveDeadlineSeconds = ptr.To[int64](5) })},
	}
}

func (r *recorder) node() string {
	var nodes corev1.NodeList
	if err := r.List(context.Background(), &nodes); err != nil || len(nodes.Items) == 0 {
		return ""
	}
	return nodes.Items[0].Name
}

func grace(seconds int64) func(*batchv1.Job) {
	return func(j *batchv1.Job) { j.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds }
}

// registryHost is a registry on the node that has no image at all. Every
// namespace of a fault makes it: the first has the port, the others wait for it.
const registryHost = "localhost:5999"

func (r *recorder) registry(ns string) []client.Object {
	return []client.Object{&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "registry"},
		Spec: corev1.PodSpec{HostNetwork: true, TerminationGracePeriodSeconds: ptr.To[int64](0), Containers: []corev1.Container{{
			Name: "registry", Image: r.images["BUSYBOX"], Command: []string{"httpd", "-f", "-p", "127.0.0.1:5999", "-h", "/tmp"},
		}}},
	}}
}

func podRules() *admissionv1.MatchResources {
	return &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
	}}}}
}

func onlyIn(ns string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}}
}

func deny(ns string) []client.Object {
	rules := podRules()
	rules.NamespaceSelector = onlyIn(ns)
	return []client.Object{
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: rules, Validations: []admissionv1.Validation{{Expression: "false", Message: "images must be signed"}}}},
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}},
	}
}

func mutate(ns, patch string) []client.Object {
	rules := podRules()
	rules.NamespaceSelector = onlyIn(ns)
	return []client.Object{
		&admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: rules, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: "[" + patch + "]"}}}}},
		&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: ns}},
	}
}

func webhookDown(ns string) []client.Object {
	return []client.Object{&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "pods.webhook.example", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionv1.SideEffectClassNone), NamespaceSelector: onlyIn(ns),
		ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")}, Rules: []admissionv1.RuleWithOperations{podRules().ResourceRules[0].RuleWithOperations}}}}}
}

// State of the tool's container; its zero value if there is none.
func status(s seen) corev1.ContainerStatus {
	if s.Pod != nil {
		for _, c := range s.Pod.Status.ContainerStatuses {
			if c.Name == sandbox.Container {
				return c
			}
		}
	}
	return corev1.ContainerStatus{}
}

func waiting(reason string) func(seen) bool {
	return func(s seen) bool { w := status(s).State.Waiting; return w != nil && w.Reason == reason }
}

func anyWaiting(reason string) func(seen) bool {
	return func(s seen) bool {
		if s.Pod != nil {
			for _, c := range s.Pod.Status.ContainerStatuses {
				if c.State.Waiting != nil && c.State.Waiting.Reason == reason {
					return true
				}
			}
		}
		return false
	}
}

func event(reason string) func(seen) bool {
	return func(s seen) bool {
		for _, e := range s.Events {
			if e.Reason == reason {
				return true
			}
		}
		return false
	}
}

func anyOf(fs ...func(seen) bool) func(seen) bool {
	return func(s seen) bool {
		for _, f := range fs {
			if f(s) {
				return true
			}
		}
		return false
	}
}

func and(a, b func(seen) bool) func(seen) bool { return func(s seen) bool { return a(s) && b(s) } }

func running(s seen) bool    { return status(s).State.Running != nil }
func terminated(s seen) bool { return status(s).State.Terminated != nil }
func restarted(s seen) bool  { return status(s).RestartCount > 0 }
func failedPod(s seen) bool  { return s.Pod != nil && s.Pod.Status.Phase == corev1.PodFailed }
func deleting(s seen) bool   { return s.Pod != nil && s.Pod.DeletionTimestamp != nil }
func gone(s seen) bool       { return s.Pod != nil && s.Pod.Annotations["gone"] != "" }

func unschedulable(s seen) bool {
	return s.Pod != nil && strings.Contains(fmt.Sprint(s.Pod.Status.Conditions), corev1.PodReasonUnschedulable)
}

func jobFailed(s seen) bool {
	return s.Job != nil && strings.Contains(fmt.Sprint(s.Job.Status.Conditions), "Failed")
}

func evict(ctx context.Context, r *recorder, s seen) error {
	time.Sleep(500 * time.Millisecond)
	return r.SubResource("eviction").Create(ctx, s.Pod, &policyv1.Eviction{})
}

func remove(grace int64) func(context.Context, *recorder, seen) error {
	return func(ctx context.Context, r *recorder, s seen) error {
		return r.Delete(ctx, s.Pod, client.GracePeriodSeconds(grace))
	}
}

func otherImage(ctx context.Context, r *recorder, s seen) error {
	return r.Patch(ctx, s.Pod, client.RawPatch("application/strategic-merge-patch+json",
		[]byte(`{"spec":{"containers":[{"name":"tool","image":"`+r.images["TESTTOOLS"]+`"}]}}`)))
}
