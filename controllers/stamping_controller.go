package controllers

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/stamping"
)

const (
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
	changed, problem := r.prove(ctx)
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

// prove makes one proof, in bounded time.
func (r *StampingReconciler) prove(ctx context.Context) (changed time.Time, problem string) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	return stamping.Prove(ctx, r.Client, r.Install)
}

func (r *StampingReconciler) setup(mgr ctrl.Manager) error {
	if err := mgr.AddReadyzCheck("stamping", r.Ready); err != nil {
		return err
	}
	proof := reconcile.Request{NamespacedName: client.ObjectKey{Name: "proof"}}
	enqueue := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{proof} })
	names := map[string]bool{}
	for _, o := range stamping.Objects() {
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
