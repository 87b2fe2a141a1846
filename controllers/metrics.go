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
	stampingProven = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "callgate_stamping_proven",
		Help: "1 while it is proven that the API server writes spec.requester and spec.approver, else 0 and all calls wait.",
	})
)

func init() { metrics.Registry.MustRegister(callsTotal, auditFailures, stampingProven) }
