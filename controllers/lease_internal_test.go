package controllers

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/idempotency"
)

// The key of a call that is gone, or has ended and did not say so, does not stay
// for ever; a Lease that is not the call's learns nothing of it.
func TestKeyThatHasNoEnd(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	answer := &v1alpha1.Result{OK: ptr.To(true), Retryable: ptr.To(false)}
	for _, tc := range []struct {
		reason    string
		namespace string // of the Lease
		damaged   bool   // it names no call
		gone      bool
		result    *v1alpha1.Result
		sent      bool
		forbidden bool

		stays bool
		ended bool
		kept  bool
		after bool
	}{
		{reason: "the call is under way", stays: true, after: true},
		{reason: "it is gone and was not sent", gone: true},
		{reason: "it is gone and was sent: it may have run", gone: true, sent: true, stays: true, ended: true},
		{reason: "it has ended before it started", result: gate.Failure(v1alpha1.ErrorCancelled, false, "")},
		{reason: "it has ended with an answer", result: answer, sent: true, stays: true, ended: true, kept: true},
		{reason: "it has ended with an answer, and the Lease is in another namespace than its Tool", namespace: "other", result: answer, sent: true, stays: true, after: true},
		{reason: "it names no call", damaged: true},
		{reason: "the controller may not remove it", gone: true, forbidden: true, stays: true, after: true},
		{reason: "the controller may not write it", gone: true, sent: true, forbidden: true, stays: true, after: true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: idempotency.LeasePrefix + "1"},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("u")}}
			if tc.namespace != "" {
				lease.Namespace = tc.namespace
			}
			if !tc.damaged {
				lease.Annotations = map[string]string{v1alpha1.AnnotationCall: "agents/call"}
			}
			if tc.sent {
				idempotency.Send(lease, 1)
			}
			objects := []client.Object{lease}
			if !tc.gone {
				call := &v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "call", UID: "u"}}
				call.Spec.ToolRef.Namespace = "tools"
				call.Status.Result = tc.result
				objects = append(objects, call)
			}
			no := apierrors.NewForbidden(coordinationv1.Resource("leases"), lease.Name, nil)
			funcs := interceptor.Funcs{}
			if tc.forbidden {
				funcs.Delete = func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return no }
				funcs.Update = func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return no }
			}
			funcs.Get = func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if key.Name == "" {
					t.Error("a request for an object without a name")
				}
				return c.Get(ctx, key, o, opts...)
			}
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
			r := &LeaseReconciler{Client: c, APIReader: c}
			result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(lease)})
			if err != nil {
				t.Fatal(err)
			}
			if result.RequeueAfter > 0 != tc.after || tc.after && result.RequeueAfter < time.Minute {
				t.Errorf("looked at again after %s", result.RequeueAfter)
			}
			err = c.Get(t.Context(), client.ObjectKeyFromObject(lease), lease)
			if client.IgnoreNotFound(err) != nil || (err == nil) != tc.stays {
				t.Fatalf("the Lease: %v; want it to stay: %v", err, tc.stays)
			}
			if record := idempotency.Read(lease); tc.stays && (!record.Ended.IsZero() != tc.ended || (record.Result != nil) != tc.kept) {
				t.Errorf("the Lease says %+v", record)
			}
		})
	}
}

// Only calls that wait are remembered: a Lease may stay as it is for a day.
func TestWaitersForget(t *testing.T) {
	var w waiters
	lease, one, two := client.ObjectKey{Name: "lease"}, client.ObjectKey{Name: "one"}, client.ObjectKey{Name: "two"}
	w.add(lease, one)
	w.add(lease, two)
	w.remove(lease, one)
	w.remove(client.ObjectKey{Name: "another"}, one)
	if len(w.calls[lease]) != 1 {
		t.Errorf("after one of two was removed: %v", w.calls)
	}
	woken := w.wake(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}})
	if len(woken) != 1 || woken[0].NamespacedName != two {
		t.Errorf("woken: %v", woken)
	}
	w.add(lease, one)
	w.remove(lease, one)
	if len(w.calls) != 0 {
		t.Errorf("left: %v", w.calls)
	}
}
