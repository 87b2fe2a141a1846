package sandbox

import (
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

const (
	tokenVolume = "callgate-token"
	// ServiceAccountMount is the folder in which a tool with a ServiceAccount finds
	// the files token, ca.crt and namespace, as any pod does.
	ServiceAccountMount = "/var/run/secrets/kubernetes.io/serviceaccount"
	// minTokenSeconds is the shortest life that the API server gives a token.
	minTokenSeconds = 600

	// Who may read the files: the tool, by its group, which is the pod's fsGroup.
	secretMode    = 0o440
	configMapMode = 0o444
)

// runnerFolder is where the runner's image is mounted in the sandbox of a name. An
// image can have a symbolic link at the mountPath of a Tool's volume, or of a volume
// that the image itself declares (VOLUME, which containerd mounts with the image's
// content), and container runtimes follow it: a volume that lands over the runner
// would be PID 1 in its place. So no image knows the folder: it has the name of one
// sandbox.
func runnerFolder(name string) string { return runnerMount + name }

// Named returns a sandbox under another name, with its runner in the folder of that
// name.
func Named(job *batchv1.Job, name string) *batchv1.Job {
	job = job.DeepCopy()
	job.Name = name
	c := &job.Spec.Template.Spec.Containers[0]
	c.Command = []string{runnerFolder(name) + runnerName}
	for i := range c.VolumeMounts {
		if m := &c.VolumeMounts[i]; m.Name == runnerVolume {
			m.MountPath = runnerFolder(name)
		}
	}
	return job
}

// writableVariable holds the folders of the claims that a tool may write to,
// separated by colons, which no mountPath has. The runner refuses to take a call
// where anything else can be written to; the tool does not get the variable.
const writableVariable = "CALLGATE_WRITABLE"

func writablePaths(t *v1alpha1.Tool) []string {
	var paths []string
	for _, v := range t.Spec.Container.Volumes {
		if v.PersistentVolumeClaim != nil && !ptr.Deref(v.ReadOnly, true) {
			paths = append(paths, v.MountPath)
		}
	}
	return paths
}

// checkVolumes refuses what the CRD cannot: a volume in another one, whose mount
// point would have to be made in what cannot be written.
func checkVolumes(t *v1alpha1.Tool) error {
	for i, v := range t.Spec.Container.Volumes {
		for j, other := range t.Spec.Container.Volumes {
			if i != j && (i > j && v.MountPath == other.MountPath || strings.HasPrefix(v.MountPath, other.MountPath+"/")) {
				return fmt.Errorf("spec.container.volumes[%d].mountPath is %s, which is in volume %q at %s: mount them beside each other",
					i, v.MountPath, other.Name, other.MountPath)
			}
		}
	}
	return nil
}

// addVolumes mounts a Tool's own volumes, and its token, in front of ours: of
// mounts of one depth the later one is on top. All defaults of the API server
// are spelled out, since the live pod is compared.
func addVolumes(spec *corev1.PodSpec, t *v1alpha1.Tool) {
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	for _, v := range t.Spec.Container.Volumes {
		source := volumeSource(v)
		volumes = append(volumes, corev1.Volume{Name: v.Name, VolumeSource: source})
		writable := source.PersistentVolumeClaim != nil && !ptr.Deref(v.ReadOnly, true)
		mounts = append(mounts, corev1.VolumeMount{Name: v.Name, MountPath: v.MountPath, ReadOnly: !writable})
		if source.PersistentVolumeClaim != nil {
			// Not through all of a large volume before each call.
			spec.SecurityContext.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
		}
	}
	if name := t.Spec.Container.ServiceAccountName; name != "" {
		spec.ServiceAccountName = name
		volumes = append(volumes, tokenOf(t))
		mounts = append(mounts, corev1.VolumeMount{Name: tokenVolume, MountPath: ServiceAccountMount, ReadOnly: true})
	}
	spec.Volumes = append(volumes, spec.Volumes...)
	spec.Containers[0].VolumeMounts = append(mounts, spec.Containers[0].VolumeMounts...)
}

func volumeSource(v v1alpha1.Volume) corev1.VolumeSource {
	switch {
	case v.Secret != nil:
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
			SecretName: v.Secret.SecretName, Items: items(v.Secret.Items), DefaultMode: ptr.To[int32](secretMode), Optional: ptr.To(v.Secret.Optional)}}
	case v.ConfigMap != nil:
		return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.ConfigMap.Name}, Items: items(v.ConfigMap.Items), DefaultMode: ptr.To[int32](configMapMode)}}
	case v.PersistentVolumeClaim != nil:
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: v.PersistentVolumeClaim.ClaimName, ReadOnly: ptr.Deref(v.ReadOnly, true)}}
	default:
		image := ptr.Deref(v.Image, v1alpha1.ImageVolumeSource{})
		return corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image.Reference, PullPolicy: pullPolicy(image.Reference)}}
	}
}

func items(keys []v1alpha1.KeyToPath) []corev1.KeyToPath {
	var out []corev1.KeyToPath
	for _, k := range keys {
		out = append(out, corev1.KeyToPath{Key: k.Key, Path: k.Path})
	}
	return out
}

// pullPolicy is the API server's default for an image.
func pullPolicy(reference string) corev1.PullPolicy {
	name, _, digest := strings.Cut(reference, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":")
	if digest || tagged && tag != "latest" {
		return corev1.PullIfNotPresent
	}
	return corev1.PullAlways
}

// tokenOf is the volume with the token of a Tool's ServiceAccount. The token is
// good as long as a call can take, and dies with the pod.
func tokenOf(t *v1alpha1.Tool) corev1.Volume {
	life := max(int64(StartDeadlineSeconds(t))+int64(TimeoutSeconds(t))+GraceSeconds+60, minTokenSeconds)
	return corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](secretMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &life, Path: "token"}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}}}
}
