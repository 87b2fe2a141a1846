// Package sandbox turns a Tool into the objects that run it, and the state of
// those objects into what became of a call. It is pure.
//
// A sandbox is one Job with one pod. The pod's only container starts our
// runner, which waits on stdin for one call; nothing in the Job holds an
// argument.
package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

const (
	// Container is the name of the only container of a sandbox's pod.
	Container = "tool"
	// GraceSeconds is what a sandbox may live past the tool's time limit.
	GraceSeconds = 10

	// annotationTemplate holds the digest of the pod template that a Job was
	// made from, so that a sandbox of an older Tool is recognized.
	annotationTemplate = "callgate.dev/template-digest"

	// podUIDVariable tells the runner which pod it is in; the tool does not get it.
	podUIDVariable = "CALLGATE_POD_UID"

	// runnerMount begins the name of the runner's folder, see [runnerFolder].
	runnerMount  = "/.callgate-runner-"
	runnerVolume = "callgate-runner"
	runnerName   = "/runner"
	stateMount   = "/.callgate-state"

	// jobTTLSeconds is a last resort if the controller is gone for good.
	jobTTLSeconds = 24 * 60 * 60

	defaultTimeoutSeconds       = 8
	defaultStartDeadlineSeconds = 120
	defaultUser                 = 65532
	defaultMaxBytes             = 65536
)

var (
	defaultScratch  = resource.MustParse("64Mi")
	runnerMemory    = resource.MustParse("32Mi")
	defaultLimits   = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	defaultRequests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
)

// Input is all that a sandbox is rendered from.
type Input struct {
	Tool        *v1alpha1.Tool
	Install     string // install ID: the namespace of the controller
	RunnerImage string
	CallUID     types.UID
	Call        types.NamespacedName
	Attempt     int32 // from 1
	// Probe is what the runner does about the NetworkPolicy, see [Probe].
	Probe Proof
	// DefaultRuntimeClass is that of Tools that name none; see [RuntimeClasses].
	DefaultRuntimeClass string
	// NoUserNamespace: the nodes have none for these sandboxes; see [Users].
	NoUserNamespace bool
}

// JobName is the name of the Job for an attempt of a call. It is made of the
// call's UID, so that a re-created call of the same name never meets it.
func JobName(callUID types.UID, attempt int32) string {
	return fmt.Sprintf("callgate-%s-%d", callUID, attempt)
}

// TimeoutSeconds is the time limit of a Tool, from the tool's exec.
func TimeoutSeconds(t *v1alpha1.Tool) int32 {
	return orDefault(t.Spec.TimeoutSeconds, defaultTimeoutSeconds)
}

// StartDeadlineSeconds is how long a Tool's sandbox may take to start.
func StartDeadlineSeconds(t *v1alpha1.Tool) int32 {
	return orDefault(t.Spec.StartDeadlineSeconds, defaultStartDeadlineSeconds)
}

// Job renders the sandbox of a call. It has no ownerReference: a ToolCall may
// live in another namespace, and garbage collection across namespaces deletes
// at random (kubernetes/kubernetes#65200).
func Job(in Input) *batchv1.Job {
	labels := map[string]string{
		v1alpha1.LabelInstall: in.Install,
		v1alpha1.LabelToolUID: string(in.Tool.UID),
		v1alpha1.LabelCallUID: string(in.CallUID),
		v1alpha1.LabelAttempt: strconv.Itoa(int(in.Attempt)),
	}
	pod := podSpec(in)
	annotations := noCollection()
	annotations[v1alpha1.AnnotationCall] = in.Call.String()
	annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] = "false"
	timeout, start := int64(TimeoutSeconds(in.Tool)), int64(StartDeadlineSeconds(in.Tool))
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: in.Tool.Namespace,
			Labels:    labels,
			Annotations: map[string]string{
				v1alpha1.AnnotationCall: in.Call.String(),
				v1alpha1.AnnotationTool: in.Tool.Name,
				annotationTemplate:      digest(pod),
				AnnotationOutput:        mustJSON(OutputRules(in.Tool)),
			},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit:         ptr.To[int32](0),
			PodReplacementPolicy: ptr.To(batchv1.Failed),
			// Last resorts if the controller is gone; the controller's own clocks
			// are tighter.
			ActiveDeadlineSeconds:   ptr.To(start + timeout + GraceSeconds + 60),
			TTLSecondsAfterFinished: ptr.To[int32](jobTTLSeconds),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
				Spec:       pod,
			},
		},
	}
	return Named(job, JobName(in.CallUID, in.Attempt))
}

// SameTemplate says whether a Job was made from the same pod template as want.
func SameTemplate(job, want *batchv1.Job) bool {
	return job.Annotations[annotationTemplate] == want.Annotations[annotationTemplate] &&
		job.Labels[v1alpha1.LabelToolUID] == want.Labels[v1alpha1.LabelToolUID]
}

// IsOurs says whether a Job was made for this attempt of this call; somebody
// else's Job may have the name. The Tool may be another: deleted and created
// again, it has another UID, and its sandbox is made again.
func IsOurs(job, want *batchv1.Job) bool {
	for _, k := range []string{v1alpha1.LabelInstall, v1alpha1.LabelCallUID, v1alpha1.LabelAttempt} {
		if job.Labels[k] != want.Labels[k] {
			return false
		}
	}
	return job.Annotations[v1alpha1.AnnotationCall] == want.Annotations[v1alpha1.AnnotationCall]
}

// maxMemory is more than any node has, and far from where sums overflow.
var maxMemory = resource.MustParse("16Ti")

// Check refuses quantities that the API server takes and no node can run.
func Check(t *v1alpha1.Tool) error {
	for field, list := range map[string]corev1.ResourceList{"limits": t.Spec.Container.Resources.Limits, "requests": t.Spec.Container.Resources.Requests} {
		for name, q := range list {
			if q.Sign() < 0 || name == corev1.ResourceMemory && q.Cmp(maxMemory) > 0 {
				return fmt.Errorf("spec.container.resources.%s.%s is %s: it must not be negative, and memory not above %s", field, name, q.String(), maxMemory.String())
			}
		}
	}
	if q := t.Spec.Isolation.ScratchSizeLimit; q != nil && (q.Sign() < 0 || q.Cmp(maxMemory) > 0) {
		return fmt.Errorf("spec.isolation.scratchSizeLimit is %s: it must not be negative or above %s", q.String(), maxMemory.String())
	}
	return checkVolumes(t)
}

func podSpec(in Input) corev1.PodSpec {
	t := in.Tool
	user := orDefault(t.Spec.Container.RunAsUser, defaultUser)
	scratch := ptr.Deref(t.Spec.Isolation.ScratchSizeLimit, defaultScratch)
	if scratch.Sign() <= 0 {
		scratch = defaultScratch // zero means no limit of its own to the kubelet
	}
	spec := corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To(int64(TimeoutSeconds(t)) + GraceSeconds),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		// No resolver at all: the kubelet wants at least one address.
		DNSPolicy: corev1.DNSNone,
		DNSConfig: &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:   ptr.To(true),
			RunAsUser:      ptr.To(user),
			RunAsGroup:     ptr.To(user),
			FSGroup:        ptr.To(user),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		ImagePullSecrets: t.Spec.Container.ImagePullSecrets,
		Volumes: []corev1.Volume{
			{Name: runnerVolume, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: in.RunnerImage, PullPolicy: corev1.PullIfNotPresent}}},
			memoryVolume("callgate-state", resource.MustParse("64Ki")),
			memoryVolume("scratch", scratch),
		},
		Containers: []corev1.Container{{
			Name:      Container,
			Image:     t.Spec.Container.Image,
			Command:   []string{runnerFolder("") + runnerName},
			Stdin:     true,
			StdinOnce: true,
			Env:       env(t, in.Probe),
			Resources: resources(t, scratch),
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false),
				ReadOnlyRootFilesystem:   ptr.To(true),
				RunAsNonRoot:             ptr.To(true),
				Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{
				{Name: runnerVolume, MountPath: runnerFolder(""), ReadOnly: true},
				{Name: "callgate-state", MountPath: stateMount},
				{Name: "scratch", MountPath: "/tmp"},
			},
		}},
	}
	if t.Spec.Isolation.Network.DNS == v1alpha1.DNSCluster {
		spec.DNSPolicy, spec.DNSConfig = corev1.DNSClusterFirst, nil
	}
	if rc := (RuntimeClasses{Default: in.DefaultRuntimeClass}).Of(t); rc != "" {
		spec.RuntimeClassName = &rc
	}
	if !in.NoUserNamespace {
		spec.HostUsers = ptr.To(false)
	}
	addVolumes(&spec, t)
	return spec
}

func memoryVolume(name string, limit resource.Quantity) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &limit}}}
}

// env doubles every $ in a value, so that the kubelet expands nothing.
func env(t *v1alpha1.Tool, proof Proof) []corev1.EnvVar {
	out := []corev1.EnvVar{{Name: podUIDVariable, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}},
		{Name: writableVariable, Value: strings.Join(writablePaths(t), ":")}}
	if proof != NoProof {
		out = append(out, corev1.EnvVar{Name: probeVariable, Value: string(proof)})
	}
	for _, v := range t.Spec.Container.Env {
		if v.Name == podUIDVariable || v.Name == probeVariable || v.Name == writableVariable {
			continue // the CRD reserves the name; the kubelet would let the last one win
		}
		e := corev1.EnvVar{Name: v.Name, Value: strings.ReplaceAll(ptr.Deref(v.Value, ""), "$", "$$")}
		if from := v.ValueFrom; from != nil {
			e = corev1.EnvVar{Name: v.Name, ValueFrom: &corev1.EnvVarSource{}}
			if s := from.SecretKeyRef; s != nil {
				e.ValueFrom.SecretKeyRef = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: s.Name}, Key: s.Key}
			}
			if c := from.ConfigMapKeyRef; c != nil {
				e.ValueFrom.ConfigMapKeyRef = &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: c.Name}, Key: c.Key}
			}
		}
		out = append(out, e)
	}
	return out
}

// resources sets limits and requests always, so that a quota which demands
// them is met, and requests never to the limits, so that waiting sandboxes fit
// on a node. The memory limit is the Tool's, and room for /tmp, which is in
// memory, and for the runner.
func resources(t *v1alpha1.Tool, scratch resource.Quantity) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Limits: corev1.ResourceList{}, Requests: corev1.ResourceList{}}
	for name, q := range defaultLimits {
		out.Limits[name] = q.DeepCopy()
	}
	for name, q := range t.Spec.Container.Resources.Limits {
		// Zero means no limit to the kubelet, so it does not replace a default.
		if _, ours := defaultLimits[name]; !ours || q.Sign() > 0 {
			out.Limits[name] = q.DeepCopy()
		}
	}
	for name, q := range defaultRequests {
		if limit := out.Limits[name]; q.Cmp(limit) > 0 {
			q = limit
		}
		out.Requests[name] = q.DeepCopy()
	}
	for name, q := range t.Spec.Container.Resources.Requests {
		out.Requests[name] = q.DeepCopy()
	}
	memory := out.Limits[corev1.ResourceMemory]
	memory.Add(scratch)
	memory.Add(runnerMemory)
	out.Limits[corev1.ResourceMemory] = memory
	return out
}

// AllowSockets says whether a Tool may open sockets of the network at all.
// Without egress, dns and loopback the runner refuses them from the first
// instruction, and no network plugin has to be waited for.
func AllowSockets(t *v1alpha1.Tool) bool {
	n := t.Spec.Isolation.Network
	return len(n.Egress) > 0 || n.DNS == v1alpha1.DNSCluster || n.Loopback
}

func digest(spec corev1.PodSpec) string {
	sum := sha256.Sum256([]byte(mustJSON(spec)))
	return hex.EncodeToString(sum[:8])
}

// mustJSON is for types that hold nothing that JSON cannot express.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// AnnotationOutput holds [Output] as JSON on a sandbox's Job.
const AnnotationOutput = "callgate.dev/output"

// Output are the rules by which a tool's answer is read, without its schema.
// They stand on the Job, so that a changed or deleted Tool does not change how
// a running call ends.
type Output struct {
	Format      string `json:"format"`
	MaxBytes    int64  `json:"maxBytes"`
	SideEffects string `json:"sideEffects"`
}

// OutputRules are those of a Tool, with its defaults.
func OutputRules(t *v1alpha1.Tool) Output {
	return Output{
		Format:      string(orDefault(t.Spec.Output.Format, v1alpha1.OutputJSON)),
		MaxBytes:    int64(orDefault(t.Spec.Output.MaxBytes, defaultMaxBytes)),
		SideEffects: string(orDefault(t.Spec.SideEffects, v1alpha1.SideEffectsNonIdempotent)),
	}
}
