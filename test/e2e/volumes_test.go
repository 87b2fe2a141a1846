package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// under runs a test under each kind of isolation there is.
func under(t *testing.T, run func(t *testing.T, name string, class func(*v1alpha1.ToolSpec))) {
	t.Helper()
	for name, class := range map[string]string{"runc": "", "gvisor": "gvisor"} {
		t.Run(name, func(t *testing.T) {
			run(t, name, func(s *v1alpha1.ToolSpec) { s.Isolation.RuntimeClassName = class })
		})
	}
}

func volumes(v ...v1alpha1.Volume) func(*v1alpha1.ToolSpec) {
	return func(s *v1alpha1.ToolSpec) { s.Container.Volumes = v }
}

func made(ctx context.Context, t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := admin.Create(ctx, o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// Files of a Secret, a ConfigMap and an image are there to read, for the tool's
// group, and nothing of them can be written.
func TestReadOnlyVolumes(t *testing.T) {
	under(t, func(t *testing.T, name string, class func(*v1alpha1.ToolSpec)) {
		ctx := start(t)
		name = "files-" + name
		made(ctx, t,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: name}, StringData: map[string]string{"token": "s3cret-of-the-orders", "other": "x"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: name}, Data: map[string]string{"url": "http://orders"}})
		tool := shell(ctx, t, name, `
			echo "secret: $(wc -c < /etc/orders/a/token) bytes, mode $(stat -L -c %a /etc/orders/a/token), others: $(ls /etc/orders)"
			echo "config: $(cat /config/url)"
			echo "image: $(/image/bin/busybox echo runs)"
			for f in /etc/orders/a/token /etc/orders/new /config/url /config/new /image/new; do
				(echo x > $f) 2>/dev/null && echo "can write $f"
			done
			[ -e /var/run/secrets ] && echo "has a token"
			true
		`, text, class, volumes(
			v1alpha1.Volume{Name: "secret", MountPath: "/etc/orders", Secret: &v1alpha1.SecretVolumeSource{SecretName: name, Items: []v1alpha1.KeyToPath{{Key: "token", Path: "a/token"}}}},
			v1alpha1.Volume{Name: "config", MountPath: "/config", ConfigMap: &v1alpha1.ConfigMapVolumeSource{Name: name}},
			v1alpha1.Volume{Name: "image", MountPath: "/image", Image: &v1alpha1.ImageVolumeSource{Reference: images["BUSYBOX"]}},
		))
		got := unquote(t, succeeded(t, callOf(ctx, t, tool, "")))
		want := "secret: 20 bytes, mode 440, others: a\nconfig: http://orders\nimage: runs\n"
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// What a tool writes to a claim is there in its next call, and a Tool that only
// reads it cannot write.
func TestClaim(t *testing.T) {
	ctx := start(t)
	size := corev1.ResourceList{corev1.ResourceStorage: quantity("1Mi")}
	host := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}
	// onNode runs a command as root in the node's /tmp, where the claim's folder is.
	onNode := func(ctx context.Context, name, command string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: name}, Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes:       []corev1.Volume{{Name: "folder", VolumeSource: host}},
			Containers: []corev1.Container{{Name: "c", Image: images["BUSYBOX"], Command: []string{"sh", "-c", command},
				SecurityContext: &corev1.SecurityContext{RunAsUser: ptr.To[int64](0)},
				VolumeMounts:    []corev1.VolumeMount{{Name: "folder", MountPath: "/folder"}}}},
		}}
		made(ctx, t, pod)
		waitFor(ctx, t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded },
			func(p *corev1.Pod) string { return p.Status.String() })
	}
	onNode(ctx, "claim-before", "mkdir -m 777 /folder/"+toolsNS)
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: toolsNS}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + toolsNS}},
		ClaimRef:               &corev1.ObjectReference{Namespace: toolsNS, Name: "kept"},
	}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "kept"}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: volume.Spec.AccessModes, Resources: corev1.VolumeResourceRequirements{Requests: size}, VolumeName: volume.Name, StorageClassName: ptr.To(""),
	}}
	made(ctx, t, volume, claim)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		onNode(ctx, "claim-after", "rm -rf /folder/"+toolsNS)
		if err := admin.Delete(ctx, volume); err != nil {
			t.Error(err)
		}
	})
	kept := func(readOnly *bool) func(*v1alpha1.ToolSpec) {
		return volumes(v1alpha1.Volume{Name: "kept", MountPath: "/kept", ReadOnly: readOnly,
			PersistentVolumeClaim: &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "kept"}})
	}
	writer := shell(ctx, t, "claim-writer", "echo call >> /kept/log; wc -l < /kept/log", text, kept(ptr.To(false)))
	for i := range 2 {
		if got := unquote(t, succeeded(t, callOf(ctx, t, writer, ""))); got != fmt.Sprintf("%d\n", i+1) {
			t.Errorf("call %d found %q lines", i+1, got)
		}
	}
	reader := shell(ctx, t, "claim-reader", "wc -l < /kept/log; (echo x > /kept/log) 2>/dev/null || echo refused", text, kept(nil))
	if got := unquote(t, succeeded(t, callOf(ctx, t, reader, ""))); got != "2\nrefused\n" {
		t.Errorf("the reader got %q", got)
	}
}

// What is missing is named in the call's message, in the cluster's words.
func TestMissingVolume(t *testing.T) {
	for name, volume := range map[string]v1alpha1.Volume{
		"missing-secret":    {Secret: &v1alpha1.SecretVolumeSource{SecretName: "no-such-thing"}},
		"missing-configmap": {ConfigMap: &v1alpha1.ConfigMapVolumeSource{Name: "no-such-thing"}},
		"missing-claim":     {PersistentVolumeClaim: &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "no-such-thing"}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := start(t)
			volume.Name, volume.MountPath = "missing", "/missing"
			tool := shell(ctx, t, name, "cat", volumes(volume), func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = 20 })
			call := callOf(ctx, t, tool, "")
			failed(t, call, v1alpha1.ErrorToolUnavailable, *call.Status.Result.Retryable, `"no-such-thing" not found`)
		})
	}
	t.Run("optional-secret", func(t *testing.T) {
		ctx := start(t)
		tool := shell(ctx, t, "optional-secret", "ls /missing", text, volumes(v1alpha1.Volume{Name: "missing", MountPath: "/missing",
			Secret: &v1alpha1.SecretVolumeSource{SecretName: "no-such-thing", Optional: true}}))
		if got := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); got != "" {
			t.Errorf("the volume holds %q", got)
		}
	})
}

// A tool with a ServiceAccount has a token of it that ends soon.
func TestServiceAccountToken(t *testing.T) {
	under(t, func(t *testing.T, name string, class func(*v1alpha1.ToolSpec)) {
		ctx := start(t)
		name = "token-" + name
		made(ctx, t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: name}})
		tool := shell(ctx, t, name, `cd /var/run/secrets/kubernetes.io/serviceaccount; cat namespace; echo; grep -c BEGIN ca.crt; base64 token | tr -d '\n'`,
			text, class, func(s *v1alpha1.ToolSpec) { s.Container.ServiceAccountName = name })
		// The token is encoded on its way, as a value that is masked would not come back.
		lines := strings.Split(unquote(t, succeeded(t, callOf(ctx, t, tool, ""))), "\n")
		if len(lines) != 3 || lines[0] != toolsNS || lines[1] != "1" {
			t.Fatalf("namespace and certificates are %q", lines[:min(len(lines), 2)])
		}
		claims := claimsOf(t, decoded(t, lines[2]))
		if claims.Sub != "system:serviceaccount:"+toolsNS+":"+name || claims.Exp-claims.Iat > 600 {
			t.Errorf("the token is that of %s, for %d s", claims.Sub, claims.Exp-claims.Iat)
		}
	})
}

func decoded(t *testing.T, text string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatalf("no base64: %v", err)
	}
	return string(b)
}

type claims struct {
	Sub      string
	Iat, Exp int64
}

func claimsOf(t *testing.T, token string) (c claims) {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no token: %d parts", len(parts))
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		t.Fatalf("no claims: %v", err)
	}
	return c
}
