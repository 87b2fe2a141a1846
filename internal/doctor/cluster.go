package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/stamping"
)

// maxList bounds the namespaces and RuntimeClasses that are looked at.
const maxList = 50

// expectedPolicies are the admission objects of config/admission. A test
// compares the two.
var expectedPolicies = []policyObject{
	{Kind: "MutatingAdmissionPolicy", Name: "callgate-stamp"},
	{Kind: "MutatingAdmissionPolicyBinding", Name: "callgate-stamp"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-protect"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-protect"},
	{Kind: "MutatingAdmissionPolicy", Name: "callgate-stamp-approvals"},
	{Kind: "MutatingAdmissionPolicyBinding", Name: "callgate-stamp-approvals"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-protect-approvals"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-protect-approvals"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-leases"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-leases"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-leases-controller"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-connect"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-connect"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-jobs"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-jobs"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-pods"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-pods"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-networkpolicies"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-networkpolicies"},
	{Kind: "ValidatingAdmissionPolicy", Name: "callgate-tools"},
	{Kind: "ValidatingAdmissionPolicyBinding", Name: "callgate-tools"},
}

// CheckCluster makes the checks that need no pod.
func (d *Doctor) CheckCluster(ctx context.Context) []Row {
	var rows []Row
	check := func(name string, f func(context.Context) ([]Row, error)) {
		d.say("%s", name)
		ctx, cancel := context.WithTimeoutCause(ctx, apiTime, fmt.Errorf("the API server did not answer within %s", apiTime))
		defer cancel()
		made, err := f(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = errors.Join(err, context.Cause(ctx))
			}
			made = []Row{broken(name, err)}
		}
		rows = append(rows, made...)
	}
	check("Kubernetes version", func(context.Context) ([]Row, error) {
		info, err := d.Set.Discovery().ServerVersion()
		if err != nil {
			return nil, err
		}
		return []Row{judgeVersion(info.GitVersion)}, nil
	})
	check("who asked is stamped", func(ctx context.Context) ([]Row, error) {
		_, problem := stamping.Prove(ctx, d.Client, d.Namespace)
		return []Row{judgeStamping(problem)}, nil
	})
	check("admission policies in place", func(ctx context.Context) ([]Row, error) {
		objects, err := d.policies(ctx)
		return []Row{judgePolicies(objects)}, err
	})
	check("admission policies in force", func(ctx context.Context) ([]Row, error) {
		return []Row{judgeForgeries(d.forgeries(ctx))}, nil
	})
	check("opened namespaces", func(ctx context.Context) ([]Row, error) {
		opened, err := d.openedNamespaces(ctx)
		return []Row{judgePodSecurity(opened), judgeControllerRights(opened)}, err
	})
	check("controller's rights elsewhere", func(ctx context.Context) ([]Row, error) {
		excess, err := d.controllerExcess(ctx)
		return []Row{judgeControllerExcess(excess)}, err
	})
	return rows
}

// policies looks for each of the expected admission objects.
func (d *Doctor) policies(ctx context.Context) ([]policyObject, error) {
	objects := slices.Clone(expectedPolicies)
	for i := range objects {
		o := &objects[i]
		var err error
		switch key := (client.ObjectKey{Name: o.Name}); o.Kind {
		case "MutatingAdmissionPolicy":
			p := &admissionv1.MutatingAdmissionPolicy{}
			err = d.Client.Get(ctx, key, p)
			o.Weak = lenient(p.Spec.FailurePolicy)
		case "ValidatingAdmissionPolicy":
			p := &admissionv1.ValidatingAdmissionPolicy{}
			err = d.Client.Get(ctx, key, p)
			o.Weak = lenient(p.Spec.FailurePolicy)
		case "MutatingAdmissionPolicyBinding":
			err = d.Client.Get(ctx, key, &admissionv1.MutatingAdmissionPolicyBinding{})
		case "ValidatingAdmissionPolicyBinding":
			b := &admissionv1.ValidatingAdmissionPolicyBinding{}
			err = d.Client.Get(ctx, key, b)
			if !slices.Contains(b.Spec.ValidationActions, admissionv1.Deny) {
				o.Weak = "does not have Deny in spec.validationActions"
			}
		}
		if apierrors.IsNotFound(err) {
			o.Missing = true
		} else if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

func lenient(p *admissionv1.FailurePolicyType) string {
	if ptr.Deref(p, admissionv1.Fail) != admissionv1.Fail {
		return "has failurePolicy Ignore"
	}
	return ""
}

// forgeries tries to create, as dry runs in the doctor's own namespace, what
// only the controller may, and a Tool with a Secret that its author may not
// read. RBAC lets the doctor do it there, so that a refusal is the policy's.
func (d *Doctor) forgeries(ctx context.Context) []forgery {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: d.Namespace, Name: name} }
	pod := d.trialPod("forged", "/callgate")
	pod.Name = "callgate-forged"
	var forgeries []forgery
	for _, trial := range []struct {
		what, policy string
		object       client.Object
	}{
		{"a record of a call (Lease)", "callgate-leases",
			&coordinationv1.Lease{ObjectMeta: named("callgate-key-forged"), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("forged")}}},
		{"a sandbox's Job", "callgate-jobs",
			&batchv1.Job{ObjectMeta: named("callgate-forged"), Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod.Spec}}}},
		{"a sandbox's pod", "callgate-pods", pod},
		{"a sandbox's NetworkPolicy", "callgate-networkpolicies", &networkingv1.NetworkPolicy{ObjectMeta: named("callgate-forged")}},
		{"a Tool with a Secret that its author may not get", "callgate-tools",
			&v1alpha1.Tool{ObjectMeta: named("forged"), Spec: v1alpha1.ToolSpec{
				Description: "A trial of callgate doctor, never stored.",
				InputSchema: apiextensionsv1.JSON{Raw: []byte(`{"type":"object"}`)},
				Container: v1alpha1.ToolContainer{Image: d.Image, Command: []string{"/callgate"}, Env: []v1alpha1.EnvVar{
					{Name: "FORGED", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "forged", Key: "forged"}}}}}}}},
	} {
		f := forgery{What: trial.what, Policy: trial.policy}
		if err := d.Client.Create(ctx, trial.object, client.DryRunAll); err != nil {
			f.Err = err.Error()
		}
		forgeries = append(forgeries, f)
	}
	return forgeries
}

// openedNamespaces lists the namespaces that are opened for tools, but the
// doctor's own, with what the controller lacks there.
func (d *Doctor) openedNamespaces(ctx context.Context) ([]openedNamespace, error) {
	var list corev1.NamespaceList
	if err := d.Client.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelTools: v1alpha1.LabelToolsEnabled}, client.Limit(maxList)); err != nil {
		return nil, err
	}
	var role rbacv1.ClusterRole
	if err := d.Client.Get(ctx, client.ObjectKey{Name: "callgate-tool-namespace"}, &role); err != nil {
		return nil, err
	}
	var opened []openedNamespace
	for _, ns := range list.Items {
		if ns.Name == d.Namespace || ns.DeletionTimestamp != nil {
			continue
		}
		o := openedNamespace{Name: ns.Name, Enforce: ns.Labels["pod-security.kubernetes.io/enforce"]}
		for _, right := range rights(role.Rules) {
			right.Namespace = ns.Name
			may, err := d.controllerMay(ctx, right)
			if err != nil {
				return nil, err
			}
			if !may {
				o.Lacks = append(o.Lacks, describe(right))
			}
		}
		opened = append(opened, o)
	}
	return opened, nil
}

// rights are the single rights that rules grant.
func rights(rules []rbacv1.PolicyRule) []authorizationv1.ResourceAttributes {
	var out []authorizationv1.ResourceAttributes
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					name, sub, _ := strings.Cut(resource, "/")
					out = append(out, authorizationv1.ResourceAttributes{Group: group, Resource: name, Subresource: sub, Verb: verb})
				}
			}
		}
	}
	return out
}

func describe(r authorizationv1.ResourceAttributes) string {
	s := r.Verb + " " + r.Resource
	if r.Subresource != "" {
		s += "/" + r.Subresource
	}
	return s
}

// controllerExcess asks, for all namespaces at once, for rights that the
// controller has in opened ones only, or nowhere.
func (d *Doctor) controllerExcess(ctx context.Context) (excess []string, err error) {
	for _, right := range []authorizationv1.ResourceAttributes{
		{Group: "batch", Resource: "jobs", Verb: "create"},
		{Resource: "pods", Verb: "create"},
		{Resource: "pods", Subresource: "attach", Verb: "create"},
		{Resource: "pods", Subresource: "exec", Verb: "create"},
		{Resource: "secrets", Verb: "get"},
		{Resource: "secrets", Verb: "list"},
	} {
		may, err := d.controllerMay(ctx, right)
		if err != nil {
			return nil, err
		}
		if may {
			excess = append(excess, describe(right))
		}
	}
	return excess, nil
}

func (d *Doctor) controllerMay(ctx context.Context, right authorizationv1.ResourceAttributes) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + d.ControllerNamespace + ":callgate-controller",
		Groups:             []string{"system:serviceaccounts", "system:serviceaccounts:" + d.ControllerNamespace, "system:authenticated"},
		ResourceAttributes: &right,
	}}
	if err := d.Client.Create(ctx, review); err != nil {
		return false, err
	}
	return review.Status.Allowed, nil
}

// runtimeClasses lists the RuntimeClasses, with what the nodes say of their handlers.
func (d *Doctor) runtimeClasses(ctx context.Context) ([]runtimeClass, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTime, fmt.Errorf("the API server did not answer within %s", apiTime))
	defer cancel()
	var list nodev1.RuntimeClassList
	var nodes corev1.NodeList
	if err := errors.Join(d.Client.List(ctx, &list, client.Limit(maxList)), d.Client.List(ctx, &nodes)); err != nil {
		return nil, err
	}
	classes := make([]runtimeClass, 0, len(list.Items))
	for _, rc := range list.Items {
		classes = append(classes, runtimeClass{Name: rc.Name, Handler: rc.Handler, UserNamespaces: userNamespaces(nodes.Items, rc.Handler)})
	}
	return classes, nil
}

// userNamespaces is what the nodes report of a handler.
func userNamespaces(nodes []corev1.Node, handler string) string {
	yes, no := 0, 0
	for _, n := range nodes {
		for _, h := range n.Status.RuntimeHandlers {
			if h.Name == handler && h.Features != nil && h.Features.UserNamespaces != nil {
				if *h.Features.UserNamespaces {
					yes++
				} else {
					no++
				}
			}
		}
	}
	switch {
	case yes > 0 && no > 0:
		return "on some nodes"
	case yes > 0:
		return "yes"
	case no > 0:
		return "no"
	}
	return "unknown"
}
