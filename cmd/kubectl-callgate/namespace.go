package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

const openUsage = `Usage: kubectl callgate namespace open NAME [--install-namespace NAMESPACE] [--dry-run]

Lets Callgate run tools in the namespace NAME, which must exist: binds the ClusterRole callgate-tool-namespace to the
controller's ServiceAccount there, and sets the labels callgate.dev/tools=enabled and
pod-security.kubernetes.io/enforce=restricted; another value of the latter stays. What is there already is left alone. It
takes a cluster administrator.

`

const (
	controllerAccount = "callgate-controller"
	controllerRole    = "callgate-tool-namespace"
	openBinding       = "callgate" // the RoleBinding's name
	labelPodSecurity  = "pod-security.kubernetes.io/enforce"
	podSecurity       = "restricted" // what every sandbox meets
)

// openManifest has the namespace and the install namespace as arguments.
const openManifest = `apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
  labels:
    ` + v1alpha1.LabelTools + `: ` + v1alpha1.LabelToolsEnabled + `
    ` + labelPodSecurity + `: ` + podSecurity + `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: ` + openBinding + `
  namespace: %[1]s
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: ` + controllerRole + `
subjects:
- kind: ServiceAccount
  name: ` + controllerAccount + `
  namespace: %[2]s
`

// namespace is `kubectl callgate namespace`.
func namespace(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("namespace open", flag.ContinueOnError)
	flags.SetOutput(stderr)
	loading := clientcmd.NewDefaultClientConfigLoadingRules()
	var overrides clientcmd.ConfigOverrides
	connectionFlags(flags, loading, &overrides)
	install := flags.String("install-namespace", "callgate-system", "namespace that Callgate is installed in")
	dryRun := flags.Bool("dry-run", false, "print the manifest of what would be there, and ask and change nothing")
	flags.Usage = func() {
		fmt.Fprint(stderr, openUsage)
		flags.PrintDefaults()
	}
	words, err := parseAnyOrder(flags, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil: // the flag set has printed it
		return exitUsage
	case len(words) == 0 || words[0] != "open":
		fmt.Fprint(stderr, openUsage)
		return exitUsage
	}
	fail := func(code int, err error) int {
		fmt.Fprintf(stderr, "kubectl callgate namespace open: %v\n", err)
		return code
	}
	if len(words) != 2 {
		return fail(exitUsage, fmt.Errorf("want the NAME of one namespace, got %d", len(words)-1))
	}
	name := words[1]
	for _, n := range []string{name, *install} {
		if problems := validation.IsDNS1123Label(n); len(problems) > 0 {
			return fail(exitUsage, fmt.Errorf("%q is no name of a namespace: %s", n, problems[0]))
		}
	}
	if name == *install {
		return fail(exitUsage, fmt.Errorf("namespace %s is where Callgate itself is: tools run in another one", name))
	}
	if *dryRun {
		fmt.Fprintf(stdout, openManifest, name, *install)
		return exitOK
	}
	c, _, err := connect(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(loading, &overrides))
	if err != nil {
		return fail(exitError, err)
	}
	if err := openNamespace(context.Background(), c, name, *install, stdout); err != nil {
		return fail(exitError, err)
	}
	return exitOK
}

// openNamespace opens a namespace and prints what it did. The label comes last:
// without it nothing runs there.
func openNamespace(ctx context.Context, c client.Client, name, install string, stdout io.Writer) error {
	namespace := &corev1.Namespace{}
	switch err := c.Get(ctx, client.ObjectKey{Name: name}, namespace); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no namespace %s: make it with kubectl create namespace %s", name, name)
	case err != nil:
		return mayNot(err)
	case namespace.DeletionTimestamp != nil:
		return fmt.Errorf("namespace %s is being deleted", name)
	}
	switch err := c.Get(ctx, client.ObjectKey{Namespace: install, Name: controllerAccount}, &corev1.ServiceAccount{}); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no ServiceAccount %s in namespace %s: say with --install-namespace where Callgate is installed", controllerAccount, install)
	case err != nil:
		return mayNot(err)
	}
	if namespace.Labels[v1alpha1.LabelTools] != v1alpha1.LabelToolsEnabled {
		if err := nothingRemembered(ctx, c, name); err != nil {
			return mayNot(err)
		}
	}
	did, err := bindController(ctx, c, name, install)
	if err != nil {
		return mayNot(err)
	}
	fmt.Fprintf(stdout, "rolebinding/%s %s: ServiceAccount %s/%s has ClusterRole %s in %s\n", openBinding, did, install, controllerAccount, controllerRole, name)

	before := namespace.DeepCopy()
	if namespace.Labels == nil {
		namespace.Labels = map[string]string{}
	}
	namespace.Labels[v1alpha1.LabelTools] = v1alpha1.LabelToolsEnabled
	level := namespace.Labels[labelPodSecurity]
	if level == "" {
		namespace.Labels[labelPodSecurity] = podSecurity
	}
	did = "unchanged"
	if before.Labels[v1alpha1.LabelTools] != v1alpha1.LabelToolsEnabled || level == "" {
		if err := c.Patch(ctx, namespace, client.MergeFrom(before)); err != nil {
			return mayNot(err)
		}
		did = "labeled"
	}
	fmt.Fprintf(stdout, "namespace/%s %s: %s=%s, %s=%s\n", name, did,
		v1alpha1.LabelTools, v1alpha1.LabelToolsEnabled, labelPodSecurity, namespace.Labels[labelPodSecurity])
	if level != "" && level != podSecurity {
		fmt.Fprintf(stdout, "%s stays %s, as it was set before; every sandbox meets %s\n", labelPodSecurity, level, podSecurity)
	}
	return nil
}

// nothingRemembered refuses a namespace with Leases that Callgate would take for its
// own memory of calls: before it is opened, anybody who may write there could have
// made them, with results in them.
func nothingRemembered(ctx context.Context, c client.Client, name string) error {
	var leases coordinationv1.LeaseList
	if err := c.List(ctx, &leases, client.InNamespace(name)); err != nil {
		return err
	}
	for i := range leases.Items {
		if lease := leases.Items[i].Name; strings.HasPrefix(lease, "callgate-") {
			return fmt.Errorf("namespace %s has Lease %s already, and Callgate would take it for what it remembers of a call: "+
				"open a new namespace, or delete it with kubectl -n %s delete lease %s. If the namespace was open before, and closed only for a while, the Lease may be Callgate's own: "+
				"then set the label %s=%s yourself", name, lease, name, lease, v1alpha1.LabelTools, v1alpha1.LabelToolsEnabled)
		}
	}
	return nil
}

// bindController lets the controller into a namespace, and says what it did.
func bindController(ctx context.Context, c client.Client, name, install string) (did string, err error) {
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: controllerRole}
	controller := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: install, Name: controllerAccount}
	binding := &rbacv1.RoleBinding{}
	err = c.Get(ctx, client.ObjectKey{Namespace: name, Name: openBinding}, binding)
	switch {
	case apierrors.IsNotFound(err):
		return "created", c.Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: openBinding},
			RoleRef:    role, Subjects: []rbacv1.Subject{controller},
		})
	case err != nil:
		return "", err
	case binding.RoleRef != role:
		return "", fmt.Errorf("RoleBinding %s in namespace %s binds %s %s, and a RoleBinding cannot change that: delete it, or bind ClusterRole %s under another name, see --dry-run",
			openBinding, name, binding.RoleRef.Kind, binding.RoleRef.Name, controllerRole)
	case slices.Contains(binding.Subjects, controller):
		return "unchanged", nil
	}
	binding.Subjects = append(binding.Subjects, controller)
	return "changed", c.Update(ctx, binding)
}

// mayNot says what a right is missing for, in one line.
func mayNot(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	why, _, _ := strings.Cut(err.Error(), "\n")
	return fmt.Errorf("opening a namespace takes the rights to change it and to bind ClusterRole %s in it, as a cluster administrator has: %s",
		controllerRole, strings.TrimSuffix(why, ":"))
}
