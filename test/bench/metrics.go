package main

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/test/cluster"
)

const metricsTimeout = 15 * time.Second

// writes is how many writes of the objects that a call or a Job needs the API
// server has had. Events do not count, nor do Leases, which leaders and nodes
// renew all the time: the calls measured here have none.
func (b *bench) writes() (float64, error) {
	ctx, cancel := context.WithTimeout(b.ctx, metricsTimeout)
	defer cancel()
	text, err := b.set.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return countWrites(text)
}

var (
	requests = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} (\S+)$`)
	label    = regexp.MustCompile(`(\w+)="([^"]*)"`)
	writing  = []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}
	counted  = []string{"toolcalls", "jobs", "pods", "tools", "networkpolicies"}
)

func countWrites(text []byte) (float64, error) {
	if !bytes.Contains(text, []byte("apiserver_request_total{")) {
		return 0, fmt.Errorf("the API server's metrics have no apiserver_request_total")
	}
	var sum float64
	for _, line := range requests.FindAllSubmatch(text, -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllSubmatch(line[1], -1) {
			labels[string(l[1])] = string(l[2])
		}
		if !slices.Contains(writing, labels["verb"]) || !slices.Contains(counted, labels["resource"]) {
			continue
		}
		n, err := strconv.ParseFloat(string(line[2]), 64)
		if err != nil {
			return 0, fmt.Errorf("the API server's metrics: apiserver_request_total: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// controller is the state of the controller's process.
type controller struct{ cpuSeconds, rssBytes float64 }

// controller reads what the controller says of its own process.
func (b *bench) controller() (controller, error) {
	ctx, cancel := context.WithTimeout(b.ctx, metricsTimeout)
	defer cancel()
	var pods corev1.PodList
	if err := cluster.Admin.List(ctx, &pods, client.InNamespace(install),
		client.MatchingLabels{"app.kubernetes.io/component": "controller"}); err != nil {
		return controller{}, fmt.Errorf("find the controller: %w", err)
	}
	running := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || !podIs(&p, corev1.PodReady) })
	if len(running) != 1 {
		return controller{}, fmt.Errorf("there are %d controllers that are ready in namespace %s; one is measured", len(running), install)
	}
	text, err := b.set.CoreV1().RESTClient().Get().Namespace(install).Resource("pods").Name(running[0].Name + ":8080").
		SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return controller{}, fmt.Errorf("read the controller's metrics: %w", err)
	}
	var c controller
	for name, to := range map[string]*float64{"process_cpu_seconds_total": &c.cpuSeconds, "process_resident_memory_bytes": &c.rssBytes} {
		found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
		if found == nil {
			return controller{}, fmt.Errorf("the controller's metrics have no %s", name)
		}
		if *to, err = strconv.ParseFloat(string(found[1]), 64); err != nil {
			return controller{}, fmt.Errorf("the controller's metrics: %s: %w", name, err)
		}
	}
	b.add(rssMiB, c.rssBytes/(1<<20))
	return c, nil
}
