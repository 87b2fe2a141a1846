package controllers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
)

// The policies that the proof is about; the binding of each has its name.
const (
	stampPolicy            = "callgate-stamp"             // MutatingAdmissionPolicy
	protectPolicy          = "callgate-protect"           // ValidatingAdmissionPolicy
	stampApprovalsPolicy   = "callgate-stamp-approvals"   // MutatingAdmissionPolicy
	protectApprovalsPolicy = "callgate-protect-approvals" // ValidatingAdmissionPolicy
)

const (
	// forgedUser and forgedGroup are what the proof tries to smuggle in.
	forgedUser  = "callgate:forged"
	forgedGroup = "system:masters"
	// probeRetry is the pause between two proofs while they fail.
	probeRetry = time.Second
	// probeAgain is the pause after a proof that held: what no watch shows, such
	// as a disabled admission plugin, is noticed then.
	probeAgain = time.Minute
	// follows is how long after a change a proof is repeated like a failed one:
	// the API server may follow its own change later than our watch does.
	follows = 15 * time.Second
)

// StampingReconciler proves that the API server writes spec.requester of calls
// and spec.approver of approvals: it watches the admission objects and, whenever
// one changed, tries to create a forged object of each kind, as a dry run.
type StampingReconciler struct {
	client.Client
	Install string

	mu    sync.Mutex
	state gate.Stamping
}

// State is what the last proof showed.
func (r *StampingReconciler) State() gate.Stamping {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// Ready is a readiness check: an error while stamping is not proven.
func (r *StampingReconciler) Ready(*http.Request) error {
	if s := r.State(); !s.Proven {
		return fmt.Errorf("stamping is not proven: %s", s.Message)
	}
	return nil
}

// Reconcile makes one proof.
func (r *StampingReconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	changed, problem := r.lastChange(ctx)
	if problem == "" {
		problem = r.probe(ctx)
	}
	state := gate.Stamping{Proven: problem == "", LastChange: changed, Message: problem}
	r.mu.Lock()
	before := r.state
	r.state = state
	r.mu.Unlock()
	if before.Proven != state.Proven || before.Message != state.Message {
		log.FromContext(ctx).Info("Stamping of spec.requester and spec.approver", "proven", state.Proven, "problem", state.Message)
	}
	if !state.Proven {
		stampingProven.Set(0)
		return ctrl.Result{RequeueAfter: probeRetry}, nil
	}
	stampingProven.Set(1)
	if time.Since(state.LastChange) < follows {
		return ctrl.Result{RequeueAfter: probeRetry}, nil
	}
	return ctrl.Result{RequeueAfter: probeAgain}, nil
}

// lastChange is the newest time that the objects name, by the API server's clock.
func (r *StampingReconciler) lastChange(ctx context.Context) (newest time.Time, problem string) {
	for _, o := range stampingObjects() {
		kind := fmt.Sprintf("%T", o)[len("*v1."):]
		if err := r.Get(ctx, client.ObjectKeyFromObject(o), o); apierrors.IsNotFound(err) {
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
func (r *StampingReconciler) probe(ctx context.Context) (problem string) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	forged := v1alpha1.Requester{Username: forgedUser, UID: ptr.To(""), Groups: []string{forgedGroup}}
	meta := metav1.ObjectMeta{Namespace: r.Install, GenerateName: "stamping-proof-"}
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
		if err := r.Create(ctx, trial.object, client.DryRunAll); err != nil {
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

func stampingObjects() []client.Object {
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

func (r *StampingReconciler) setup(mgr ctrl.Manager) error {
	if err := mgr.AddReadyzCheck("stamping", r.Ready); err != nil {
		return err
	}
	proof := reconcile.Request{NamespacedName: client.ObjectKey{Name: "proof"}}
	enqueue := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{proof} })
	names := map[string]bool{}
	for _, o := range stampingObjects() {
		names[o.GetName()] = true
	}
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return names[o.GetName()] })
	b := ctrl.NewControllerManagedBy(mgr).Named("stamping").
		// A waiting replica must be able to say that it is ready.
		WithOptions(controller.Options{NeedLeaderElection: ptr.To(false)}).
		// Its own objects may all be missing: the install namespace is always there.
		Watches(&corev1.Namespace{}, enqueue,
			builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == r.Install })))
	for _, o := range []client.Object{
		&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{},
		&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{},
	} {
		b = b.Watches(o, enqueue, builder.WithPredicates(named))
	}
	return b.Complete(r)
}
