package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	// callsTotal has one series per error code, and "ok": no names, no callers.
	callsTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "callgate_calls_total",
		Help: "Finished calls by error code; ok for those that succeeded.",
	}, []string{"code"})
	auditFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "callgate_audit_failures_total",
		Help: "Audit records that could not be written; the controller's log says why.",
	})
	// dispatchesTotal tells the hit rate: warm, of warm and miss.
	dispatchesTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "callgate_dispatches_total",
		Help: "Calls sent, by their sandbox: warm, one that waited; miss, one made for the call although its Tool keeps warm ones; cold, one of a Tool that keeps none.",
	}, []string{"sandbox"})
	warmSandboxes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "callgate_warm_sandboxes",
		Help: "Sandboxes that wait for calls, over all Tools: target, how many should wait; ready, how many can be taken at once; starting, how many will.",
	}, []string{"state"})
	stampingProven = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "callgate_stamping_proven",
		Help: "1 while it is proven that the API server writes spec.requester and spec.approver, else 0 and all calls wait.",
	})
)

func init() {
	metrics.Registry.MustRegister(callsTotal, auditFailures, dispatchesTotal, warmSandboxes, stampingProven)
}
