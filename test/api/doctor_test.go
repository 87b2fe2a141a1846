package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/doctor"
)

// The doctor with no more rights than config/doctor gives it: what it says of a
// good install, and of one that lacks something.
func TestDoctor(t *testing.T) {
	ctx := t.Context()
	for _, file := range []string{"namespace.yaml", "rbac.yaml"} {
		objects, err := readObjects("../../config/doctor/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if err := adminClient.Create(ctx, o); err != nil {
				t.Fatal(err)
			}
			// The label makes admission policies hold there, for other tests, too; a
			// namespace never goes in an API server without controllers.
			t.Cleanup(func() { deleteDoctors(t, o) })
		}
	}
	d := newDoctor(t)
	opened := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doctor-tools", Labels: map[string]string{
		v1alpha1.LabelTools: v1alpha1.LabelToolsEnabled, "pod-security.kubernetes.io/enforce": "restricted"}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: opened.Name, Name: "callgate"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-tool-namespace"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "callgate-system", Name: "callgate-controller"}},
	}
	for _, o := range []client.Object{opened, binding} {
		if err := adminClient.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { closeNamespace(t, opened) })

	const version, stamped, inPlace, inForce, podSecurity, where, elsewhere = "Kubernetes version", "who asked is stamped", "admission policies in place",
		"admission policies in force", "Pod Security of opened namespaces", "controller's rights where tools run", "controller's rights elsewhere"
	good := map[string]doctor.Result{version: doctor.OK, stamped: doctor.OK, inPlace: doctor.OK, inForce: doctor.OK,
		podSecurity: doctor.OK, where: doctor.OK, elsewhere: doctor.OK}
	if err := d.waitFor(ctx, good, ""); err != nil {
		t.Fatal(err)
	}

	leases, stamp := &admissionv1.ValidatingAdmissionPolicyBinding{}, &admissionv1.MutatingAdmissionPolicyBinding{}
	for name, o := range map[string]client.Object{"callgate-leases": leases, "callgate-stamp": stamp} {
		if err := adminClient.Get(ctx, client.ObjectKey{Name: name}, o); err != nil {
			t.Fatal(err)
		}
	}
	actions := func(action string) func() error {
		return func() error {
			return adminClient.Patch(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: leases.Name}},
				client.RawPatch(types.MergePatchType, []byte(`{"spec":{"validationActions":["`+action+`"]}}`)))
		}
	}
	excess := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "doctor-excess"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-tool-namespace"},
		Subjects:   binding.Subjects,
	}
	lax := opened.DeepCopy()
	delete(lax.Labels, "pod-security.kubernetes.io/enforce")

	for _, tc := range []struct {
		reason     string
		broken     func() error
		mended     func() error
		want       map[string]doctor.Result
		seen       string
		stillSound bool
	}{
		{"a binding is gone, so what it refused is taken",
			func() error { return adminClient.Delete(ctx, leases.DeepCopy()) }, func() error { return createAgain(ctx, leases) },
			map[string]doctor.Result{inPlace: doctor.Failed, inForce: doctor.Failed}, "a record of a call (Lease) was taken", false},
		{"a binding only warns",
			actions("Warn"), actions("Deny"),
			map[string]doctor.Result{inPlace: doctor.Failed, inForce: doctor.Failed}, "does not have Deny", false},
		{"nobody stamps",
			func() error { return adminClient.Delete(ctx, stamp.DeepCopy()) }, func() error { return createAgain(ctx, stamp) },
			map[string]doctor.Result{stamped: doctor.Failed, inPlace: doctor.Failed}, "MutatingAdmissionPolicyBinding callgate-stamp is missing", false},
		{"a half-opened namespace",
			func() error { return adminClient.Delete(ctx, binding.DeepCopy()) }, func() error { return createAgain(ctx, binding) },
			map[string]doctor.Result{where: doctor.Failed}, "doctor-tools: may not create jobs", false},
		{"the controller may run Jobs everywhere",
			func() error { return adminClient.Create(ctx, excess) }, func() error { return adminClient.Delete(ctx, excess) },
			map[string]doctor.Result{elsewhere: doctor.Failed}, "create jobs, create pods/attach", false},
		{"no Pod Security label",
			func() error { return adminClient.Update(ctx, lax) }, func() error { return nil },
			map[string]doctor.Result{podSecurity: doctor.Warning}, "not doctor-tools (no label)", true},
	} {
		want := map[string]doctor.Result{}
		for check, result := range good {
			want[check] = result
		}
		for check, result := range tc.want {
			want[check] = result
		}
		if err := tc.broken(); err != nil {
			t.Fatal(tc.reason, err)
		}
		if err := d.waitFor(ctx, want, tc.seen); err != nil {
			t.Errorf("%s: %v", tc.reason, err)
		}
		if sound := doctor.Sound(d.CheckCluster(ctx)); sound != tc.stillSound {
			t.Errorf("%s: sound is %t", tc.reason, sound)
		}
		if err := tc.mended(); err != nil {
			t.Fatal(tc.reason, err)
		}
	}
	good[podSecurity] = doctor.Warning
	if err := d.waitFor(ctx, good, ""); err != nil {
		t.Fatal("put back: ", err)
	}
}

// A doctor that was not given its rights says so, and never that all is well.
func TestDoctorWithoutRights(t *testing.T) {
	err := newDoctor(t).waitFor(t.Context(), map[string]doctor.Result{"Kubernetes version": doctor.OK, "who asked is stamped": doctor.Failed,
		"admission policies in place": doctor.Failed, "admission policies in force": doctor.Failed, "opened namespaces": doctor.Failed,
		"controller's rights elsewhere": doctor.Failed}, "is forbidden")
	if err != nil {
		t.Error(err)
	}
}

type trialDoctor struct{ doctor.Doctor }

// newDoctor acts as the ServiceAccount of config/doctor.
func newDoctor(t *testing.T) *trialDoctor {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	as := rest.CopyConfig(environment.Config)
	as.QPS = -1
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:callgate-doctor:callgate-doctor",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:callgate-doctor", "system:authenticated"}}
	c, err := client.New(as, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	set, err := kubernetes.NewForConfig(as)
	if err != nil {
		t.Fatal(err)
	}
	return &trialDoctor{doctor.Doctor{Client: c, Set: set, Config: as, Namespace: "callgate-doctor", ControllerNamespace: "callgate-system", Image: "registry.example/controller:1", Progress: io.Discard}}
}

// waitFor waits until the rows have these results, since policies and roles are
// in force a moment after they changed, and one of them has seen.
func (d *trialDoctor) waitFor(ctx context.Context, want map[string]doctor.Result, seen string) error {
	return poll(ctx, "the doctor's rows", func() (bool, string) {
		rows := d.CheckCluster(ctx)
		got, found := map[string]doctor.Result{}, false
		for _, r := range rows {
			got[r.Check] = r.Result
			found = found || strings.Contains(r.Seen, seen)
		}
		return fmt.Sprint(got) == fmt.Sprint(want) && found, fmt.Sprintf("%q", rows)
	})
}

func createAgain(ctx context.Context, o client.Object) error {
	o.SetResourceVersion("")
	o.SetUID("")
	return adminClient.Create(ctx, o)
}

func deleteDoctors(t *testing.T, o client.Object) {
	t.Helper()
	if o.GetObjectKind().GroupVersionKind().Kind == "Namespace" {
		closeNamespace(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.GetName()}})
	} else if err := adminClient.Delete(context.WithoutCancel(t.Context()), o); err != nil {
		t.Error(err)
	}
}

// closeNamespace takes away the label by which a namespace is opened.
func closeNamespace(t *testing.T, ns *corev1.Namespace) {
	t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"callgate.dev/tools":null}}}`))
	if err := adminClient.Patch(context.WithoutCancel(t.Context()), ns, patch); err != nil {
		t.Error(err)
	}
}
