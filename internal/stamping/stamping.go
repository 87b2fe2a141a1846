// Package stamping proves that the API server writes who asked and who
// approved, whatever a client says. The controller takes no call without that
// proof, and callgate doctor shows it.
package stamping

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// The policies that the proof is about; the binding of each has its name.
const (
	stampPolicy            = "callgate-stamp"             // MutatingAdmissionPolicy
	protectPolicy          = "callgate-protect"           // ValidatingAdmissionPolicy
	stampApprovalsPolicy   = "callgate-stamp-approvals"   // MutatingAdmissionPolicy
	protectApprovalsPolicy = "callgate-protect-approvals" // ValidatingAdmissionPolicy
)

// forgedUser and forgedGroup are what the proof tries to smuggle in.
const (
	forgedUser  = "callgate:forged"
	forgedGroup = "system:masters"
)

// Objects are the policies and bindings that the proof is about, by name only.
func Objects() []client.Object {
	var objects []client.Object
	for _, name := range []string{stampPolicy, stampApprovalsPolicy} {
		objects = append(objects,
			&admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range []string{protectPolicy, protectApprovalsPolicy} {
		objects = append(objects,
			&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}},
			&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return objects
}

// Prove says when one of the objects was changed last, by the API server's
// clock, and what is wrong; the problem is empty if stamping is proven. Nothing
// is created: the trials in the namespace are dry runs. The caller bounds the
// time.
func Prove(ctx context.Context, c client.Client, namespace string) (changed time.Time, problem string) {
	if changed, problem = lastChange(ctx, c); problem == "" {
		problem = probe(ctx, c, namespace)
	}
	return changed, problem
}

// lastChange is the newest time that the objects name, by the API server's clock.
func lastChange(ctx context.Context, c client.Reader) (newest time.Time, problem string) {
	for _, o := range Objects() {
		kind := fmt.Sprintf("%T", o)[len("*v1."):]
		if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
			return newest, fmt.Sprintf("%s %s is missing: install Callgate's admission policies again", kind, o.GetName())
		} else if err != nil {
			return newest, fmt.Sprintf("%s %s cannot be read: %v", kind, o.GetName(), err)
		}
		if t := o.GetCreationTimestamp().Time; t.After(newest) {
			newest = t
		}
		for _, f := range o.GetManagedFields() {
			if f.Time != nil && f.Time.After(newest) {
				newest = f.Time.Time
			}
		}
	}
	return newest, ""
}

// probe tries to create a call and an approval in somebody else's name, as a dry
// run. Stamped means: the answer has our own name, which only the API server
// knows it by.
func probe(ctx context.Context, c client.Writer, namespace string) (problem string) {
	forged := v1alpha1.Requester{Username: forgedUser, UID: ptr.To(""), Groups: []string{forgedGroup}}
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: "stamping-proof-"}
	call := &v1alpha1.ToolCall{ObjectMeta: meta, Spec: v1alpha1.ToolCallSpec{
		ToolRef:   v1alpha1.ToolReference{Name: "stamping-proof"},
		Requester: forged.DeepCopy(),
	}}
	approval := &v1alpha1.ToolCallApproval{ObjectMeta: meta, Spec: v1alpha1.ToolCallApprovalSpec{
		ToolCallRef: v1alpha1.ApprovedCallReference{Name: "stamping-proof", UID: "stamping-proof"},
		Decision:    v1alpha1.DecisionApprove,
		Approver:    forged.DeepCopy(),
	}}
	for _, trial := range []struct {
		what, field, policy string
		object              client.Object
		stamped             **v1alpha1.Requester // in object
	}{
		{"a call", "spec.requester", stampPolicy, call, &call.Spec.Requester},
		{"an approval", "spec.approver", stampApprovalsPolicy, approval, &approval.Spec.Approver},
	} {
		if err := c.Create(ctx, trial.object, client.DryRunAll); err != nil {
			return fmt.Sprintf("the trial creation of %s failed: %v", trial.what, err)
		}
		if q := *trial.stamped; q == nil || q.Username == "" || q.Username == forgedUser {
			return fmt.Sprintf("a forged %s was not overwritten: is MutatingAdmissionPolicy %s in force?", trial.field, trial.policy)
		} else if slices.Contains(q.Groups, forgedGroup) {
			return fmt.Sprintf("forged groups in %s were not overwritten: is MutatingAdmissionPolicy %s in force?", trial.field, trial.policy)
		}
	}
	return ""
}
