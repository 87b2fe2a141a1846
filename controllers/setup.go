// Package controllers has one reconciler per kind. Each is thin: it observes,
// lets a pure package decide, acts, and writes the status once.
package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/keymutex"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/audit"
	"callgate.dev/callgate/internal/dispatch"
	"callgate.dev/callgate/internal/limit"
	"callgate.dev/callgate/internal/sandbox"
)

// Options are what all reconcilers are told from outside.
type Options struct {
	// Install is the install ID: the namespace that the controller runs in.
	Install string
	// RunnerImage holds the runner; it is mounted into every sandbox.
	RunnerImage string
	// RequireNetworkIsolation: no tool that may open sockets starts before its
	// sandbox has proven that its NetworkPolicy is in force.
	RequireNetworkIsolation bool
	// APIServer is the address of the API server's Service, as host:port.
	APIServer string
	// RuntimeClasses are the default and the minimum of Tools.
	RuntimeClasses sandbox.RuntimeClasses
	// KeepSandboxes is how long the sandbox of a tool that answered stays, so that
	// its log can be read.
	KeepSandboxes time.Duration
	// Retention of finished calls.
	Retention
	// UnfinishedBefore ends calls that were created before it and are unfinished:
	// the time of a restore of the cluster's state. Zero means none.
	UnfinishedBefore time.Time
	// Audit gets a record of each decision and each end.
	Audit *audit.Log
}

// CacheOptions keeps the cache to the objects of this install: other people's
// Jobs, Pods and Leases never enter the controller's memory.
func CacheOptions(install string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelInstall: install})}
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&batchv1.Job{}:                ours,
		&coordinationv1.Lease{}:       ours,
		&corev1.Pod{}:                 ours,
		&networkingv1.NetworkPolicy{}: ours,
		&corev1.Node{}:                {Transform: slimNode},
	}}
}

// ReconcileTimeout bounds one look at one object, and so every request to the
// API server in it. Streams to sandboxes live outside of it.
const ReconcileTimeout = apiTimeout

// retries bounds the pause after an error: a call has deadlines, and an error of
// the API server must not make it sleep past them.
func retries() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond, 3*time.Second)
}

// Setup adds all reconcilers to the manager.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if err := addIndexes(ctx, mgr.GetFieldIndexer(), o.RuntimeClasses); err != nil {
		return fmt.Errorf("add indexes: %w", err)
	}
	clientset, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	schemas, policies := &schemaCache{}, &policyCache{}
	api := &apiServer{reader: mgr.GetAPIReader(), service: o.APIServer, required: o.RequireNetworkIsolation}
	stamping := &StampingReconciler{Client: mgr.GetClient(), Install: o.Install}
	if err := stamping.setup(mgr); err != nil {
		return fmt.Errorf("stamping controller: %w", err)
	}
	if err := (&ToolReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Options: o, schemas: schemas, policies: policies, api: api}).setup(mgr); err != nil {
		return fmt.Errorf("tool controller: %w", err)
	}
	if err := (&ToolPolicyReconciler{Client: mgr.GetClient(), schemas: schemas, policies: policies}).setup(mgr); err != nil {
		return fmt.Errorf("toolpolicy controller: %w", err)
	}
	taken := make(chan event.TypedGenericEvent[types.NamespacedName], 1024)
	pools := &warmPools{Client: mgr.GetClient(), pods: clientset.CoreV1(), woken: func(tool types.NamespacedName) {
		taken <- event.TypedGenericEvent[types.NamespacedName]{Object: tool}
	}}
	if err := (&WarmReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Options: o, api: api, warm: pools}).setup(mgr, taken); err != nil {
		return fmt.Errorf("warm controller: %w", err)
	}
	if err := (&SandboxReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Options: o, warm: pools}).setup(mgr); err != nil {
		return fmt.Errorf("sandbox controller: %w", err)
	}
	if err := (&LeaseReconciler{Client: mgr.GetClient(), APIReader: mgr.GetAPIReader()}).setup(mgr); err != nil {
		return fmt.Errorf("lease controller: %w", err)
	}
	if err := (&RetentionReconciler{Client: mgr.GetClient(), Options: o}).setup(mgr); err != nil {
		return fmt.Errorf("retention controller: %w", err)
	}
	// Sessions end, and places become free, outside of the reconcile of the call
	// that it matters to; the channel brings that call back.
	woken := make(chan event.TypedGenericEvent[types.NamespacedName], 1024)
	wake := func(call types.NamespacedName) {
		woken <- event.TypedGenericEvent[types.NamespacedName]{Object: call}
	}
	results := newResultKey(mgr.GetClient(), mgr.GetAPIReader(), o.Install)
	if err := mgr.Add(results); err != nil {
		return fmt.Errorf("add the key of results: %w", err)
	}
	calls := &ToolCallReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Events: clientset.CoreV1(),
		Recorder: mgr.GetEventRecorder("callgate-controller"), Options: o,
		Stamping: stamping.State, schemas: schemas, policies: policies, api: api, wakeUp: wake,
		queue: &limit.Queue{}, rateLocks: keymutex.NewHashed(0),
		dispatcher: dispatch.New(mgr.GetConfig(), clientset, wake), results: results, warm: pools,
	}
	if err := calls.setup(mgr, woken); err != nil {
		return fmt.Errorf("toolcall controller: %w", err)
	}
	return nil
}
