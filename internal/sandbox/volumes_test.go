package sandbox

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func withVolumes(volumes ...v1alpha1.Volume) func(*v1alpha1.Tool) {
	return func(t *v1alpha1.Tool) { t.Spec.Container.Volumes = volumes }
}

func claim(name, path string, readOnly *bool) v1alpha1.Volume {
	return v1alpha1.Volume{Name: name, MountPath: path, ReadOnly: readOnly,
		PersistentVolumeClaim: &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}
}

func TestVolumes(t *testing.T) {
	keys := []v1alpha1.KeyToPath{{Key: "token", Path: "a/token"}}
	podKeys := []corev1.KeyToPath{{Key: "token", Path: "a/token"}}
	for _, tc := range []struct {
		reason   string
		volume   v1alpha1.Volume
		want     corev1.VolumeSource
		writable bool
	}{
		{"a Secret's files are the tool's group's to read, nobody else's",
			v1alpha1.Volume{Secret: &v1alpha1.SecretVolumeSource{SecretName: "orders", Items: keys}},
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "orders", Items: podKeys, DefaultMode: ptr.To[int32](0o440), Optional: ptr.To(false)}}, false},
		{"one that may be missing, and whose readOnly the CRD did not check",
			v1alpha1.Volume{ReadOnly: ptr.To(false), Secret: &v1alpha1.SecretVolumeSource{SecretName: "orders", Optional: true}},
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "orders", DefaultMode: ptr.To[int32](0o440), Optional: ptr.To(true)}}, false},
		{"a ConfigMap",
			v1alpha1.Volume{ConfigMap: &v1alpha1.ConfigMapVolumeSource{Name: "settings", Items: keys}},
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: podKeys, DefaultMode: ptr.To[int32](0o444)}}, false},
		{"a claim is read-only unless asked otherwise", claim("", "", nil),
			corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim", ReadOnly: true}}, false},
		{"a claim to write", claim("", "", ptr.To(false)),
			corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}, true},
		{"an image without a tag is looked for each time",
			v1alpha1.Volume{Image: &v1alpha1.ImageVolumeSource{Reference: "registry.example:5000/data"}},
			corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example:5000/data", PullPolicy: corev1.PullAlways}}, false},
		{"an image with a tag is not",
			v1alpha1.Volume{Image: &v1alpha1.ImageVolumeSource{Reference: "registry.example:5000/data:7"}},
			corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example:5000/data:7", PullPolicy: corev1.PullIfNotPresent}}, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tc.volume.Name, tc.volume.MountPath = "own", "/data/own"
			spec := Job(testInput(testTool(withVolumes(tc.volume)))).Spec.Template.Spec
			i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "own" })
			if i < 0 || !equality.Semantic.DeepEqual(spec.Volumes[i].VolumeSource, tc.want) {
				t.Errorf("rendered as %s, want %s", mustJSON(spec.Volumes), mustJSON(tc.want))
			}
			want := corev1.VolumeMount{Name: "own", MountPath: "/data/own", ReadOnly: !tc.writable}
			if got := spec.Containers[0].VolumeMounts; !slices.ContainsFunc(got, func(m corev1.VolumeMount) bool { return equality.Semantic.DeepEqual(m, want) }) {
				t.Errorf("mounted as %s, want %s", mustJSON(got), mustJSON(want))
			}
			if got := spec.SecurityContext.FSGroupChangePolicy; (got != nil) != (tc.want.PersistentVolumeClaim != nil) {
				t.Errorf("fsGroupChangePolicy is %v", got)
			}
		})
	}
}

// What the API server makes of volumes and token is no change of power.
func TestVolumesAreNoDifference(t *testing.T) {
	tool := testTool(withVolumes(
		v1alpha1.Volume{Name: "secret", MountPath: "/secret", Secret: &v1alpha1.SecretVolumeSource{SecretName: "orders"}},
		v1alpha1.Volume{Name: "config", MountPath: "/config", ConfigMap: &v1alpha1.ConfigMapVolumeSource{Name: "settings"}},
		v1alpha1.Volume{Name: "image", MountPath: "/image", Image: &v1alpha1.ImageVolumeSource{Reference: "data"}},
		claim("claim", "/claim", ptr.To(false)),
	))
	tool.Spec.Container.ServiceAccountName = "deployer"
	template := Job(testInput(tool)).Spec.Template
	pod := livePod(t, template)
	pod.Spec.ServiceAccountName = "deployer"
	if diff := Differs(pod, template); diff != "" {
		t.Error(diff)
	}
	pod.Spec.ServiceAccountName = "default"
	if diff := Differs(pod, template); !strings.Contains(diff, "serviceAccountName") {
		t.Errorf("another ServiceAccount: Differs says %q", diff)
	}
}

// TestNoImageKnowsWhereTheRunnerIs: an image can declare volumes of any depth at
// links to anywhere, so what keeps them from the runner is a name that is made for
// one sandbox.
func TestNoImageKnowsWhereTheRunnerIs(t *testing.T) {
	for _, tool := range []*v1alpha1.Tool{testTool(), testTool(withVolumes(claim("claim", "/claim", nil)))} {
		seen := map[string]bool{}
		for _, uid := range []types.UID{"7d1c", "8e2d"} {
			for _, attempt := range []int32{1, 2} {
				in := testInput(tool)
				in.CallUID, in.Attempt = uid, attempt
				command := Job(in).Spec.Template.Spec.Containers[0].Command[0]
				folder := strings.Split(command, "/")[1] // all that is in the root of the image
				if !strings.HasPrefix(folder, ".callgate") || seen[folder] {
					t.Errorf("the runner of call %s, attempt %d, is at %s, where another one is, too", uid, attempt, command)
				}
				seen[folder] = true
			}
		}
	}
}

func TestServiceAccount(t *testing.T) {
	token := func(change func(*v1alpha1.ToolSpec)) (*corev1.PodSpec, *corev1.ProjectedVolumeSource) {
		tool := testTool(func(t *v1alpha1.Tool) { change(&t.Spec) })
		spec := &Job(testInput(tool)).Spec.Template.Spec
		for _, v := range spec.Volumes {
			if v.Projected != nil {
				return spec, v.Projected
			}
		}
		return spec, nil
	}
	if spec, projected := token(func(*v1alpha1.ToolSpec) {}); projected != nil || spec.ServiceAccountName != "" || *spec.AutomountServiceAccountToken {
		t.Errorf("a Tool without a ServiceAccount gets a token: %s", mustJSON(spec))
	}
	for _, tc := range []struct {
		reason         string
		start, timeout int32
		life           int64
	}{
		{"the shortest that the API server gives", 120, 8, 600},
		{"start and run, with what they may take longer", 600, 900, 600 + 900 + 10 + 60},
	} {
		spec, projected := token(func(s *v1alpha1.ToolSpec) {
			s.Container.ServiceAccountName, s.StartDeadlineSeconds, s.TimeoutSeconds = "deployer", tc.start, tc.timeout
		})
		if spec.ServiceAccountName != "deployer" || *spec.AutomountServiceAccountToken {
			t.Errorf("%s: serviceAccountName %q, automount %v", tc.reason, spec.ServiceAccountName, *spec.AutomountServiceAccountToken)
		}
		if projected == nil || len(projected.Sources) != 3 || *projected.Sources[0].ServiceAccountToken.ExpirationSeconds != tc.life ||
			projected.Sources[0].ServiceAccountToken.Audience != "" {
			t.Errorf("%s: token is %s", tc.reason, mustJSON(projected))
		}
		mounts := spec.Containers[0].VolumeMounts
		if i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == tokenVolume }); i < 0 || !mounts[i].ReadOnly ||
			mounts[i].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
			t.Errorf("%s: mounts are %s", tc.reason, mustJSON(mounts))
		}
	}
}

func TestCheckVolumes(t *testing.T) {
	for _, tc := range []struct{ reason, first, second, want string }{
		{"beside each other", "/data/a", "/data/b", ""},
		{"a longer name is not in the shorter one", "/data", "/data2", ""},
		{"in the first", "/data", "/data/b", `spec.container.volumes[1].mountPath is /data/b, which is in volume "v0" at /data`},
		{"in the second", "/data/a/b", "/data", `spec.container.volumes[0].mountPath is /data/a/b, which is in volume "v1" at /data`},
		{"the same", "/data", "/data", `spec.container.volumes[1].mountPath is /data`},
	} {
		err := Check(testTool(withVolumes(claim("v0", tc.first, nil), claim("v1", tc.second, nil))))
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
		}
	}
}

func TestSecretPaths(t *testing.T) {
	secret := func(path string) v1alpha1.Volume {
		return v1alpha1.Volume{Name: "s", MountPath: path, Secret: &v1alpha1.SecretVolumeSource{SecretName: "s"}}
	}
	got := SecretPaths(testTool(withVolumes(secret("/a"), claim("c", "/b", nil), secret("/c"))))
	if !slices.Equal(got, []string{"/a", "/c"}) {
		t.Errorf("got %q", got)
	}
	if got := SecretPaths(testTool()); len(got) > 0 {
		t.Errorf("a Tool without volumes has %q", got)
	}
}
