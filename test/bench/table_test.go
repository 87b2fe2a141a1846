package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, test := range []struct {
		reason string
		values []float64
		q      float64
		want   float64
	}{
		{"one value is every quantile", []float64{7}, 0.99, 7},
		{"the median of an even number is the lower one", []float64{4, 1, 3, 2}, 0.5, 2},
		{"the median of an odd number", []float64{3, 1, 2}, 0.5, 2},
		{"99 of 100 do not exceed it", hundred, 0.99, 99},
		{"the most", hundred, 1, 100},
		{"the least", hundred, 0, 1},
	} {
		if got := quantile(test.values, test.q); got != test.want {
			t.Errorf("%s: %v, want %v", test.reason, got, test.want)
		}
	}
}

// everything are samples of one value of each kind.
func everything() map[string][]float64 {
	samples := map[string][]float64{
		rawPod: {100}, noVolumes: {90}, noNamespace: {80}, rawJob: {500}, cold: {120}, coldEgress: {150}, refused: {20}, refusedRate: {80}, plainRate: {100},
		writesFirst: {12}, writesFirst + ofJob: {9}, writesTotal: {20}, writesTotal + ofJob: {14}, coldCPU: {3}, warmCPU: {2}, rssMiB: {50, 60},
	}
	for _, suffix := range []string{"", gvisor} {
		samples[warmQuiet+suffix], samples[warmRefill+suffix] = []float64{40}, []float64{60}
	}
	for _, n := range []int{20, 60} {
		samples[fmt.Sprintf(callsRate, n)], samples[fmt.Sprintf(jobsRate, n)] = []float64{4}, []float64{5}
	}
	return samples
}

func TestFigures(t *testing.T) {
	rows, err := table(everything(), 20, 60, true)
	if err != nil {
		t.Fatal(err)
	}
	content, err := figures(rows)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]float64
	if err := json.Unmarshal(content, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"cold_over_pod": 1.2, "cold_egress_over_pod": 1.5, "job_over_cold": 4.167,
		"warm_p50_ms": 40, "warm_p99_ms": 40, "warm_refill_p99_ms": 60,
		"warm_p50_ms_gvisor": 40, "warm_p99_ms_gvisor": 40, "warm_refill_p99_ms_gvisor": 60,
		"refused_p50_ms": 20, "refused_rate_ratio": 0.8, "throughput_ratio_20": 0.8, "throughput_ratio_60": 0.8,
		"api_writes_extra_before_answer": 3, "api_writes_extra_total": 6,
		"cpu_s_per_100_cold": 3, "cpu_s_per_100_warm": 2, "controller_rss_mib": 60,
	}
	if !maps.Equal(got, want) {
		t.Errorf("figures are %v,\nwant %v", got, want)
	}

	var printed strings.Builder
	printTable(&printed, rows)
	var over []string
	for line := range strings.Lines(printed.String()) {
		if strings.Contains(line, " over  ") { // not the words of a ratio
			fields := strings.Fields(line)
			over = append(over, fields[len(fields)-1])
		}
	}
	if want := []string{"throughput_ratio_20", "throughput_ratio_60"}; !slices.Equal(over, want) {
		t.Errorf("over their target are %q, want %q, in:\n%s", over, want, &printed)
	}
}

func TestNotMeasured(t *testing.T) {
	for name := range everything() {
		samples := everything()
		delete(samples, name)
		if _, err := table(samples, 20, 60, true); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without samples of %q: %v", name, err)
		}
	}
	if rows, err := table(everything(), 20, 60, false); err != nil || slices.ContainsFunc(rows, func(r row) bool { return strings.HasSuffix(r.key, "gvisor") }) {
		t.Errorf("without gVisor there are rows of it, or the rest fails: %v", err)
	}
	for _, value := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := figures([]row{{key: "k", value: value}}); err == nil {
			t.Errorf("%v passes for a measure", value)
		}
	}
}

func TestCountWrites(t *testing.T) {
	const text = `# HELP apiserver_request_total Counter of apiserver requests
apiserver_request_total{code="201",component="apiserver",dry_run="",group="callgate.dev",resource="toolcalls",scope="resource",subresource="",verb="POST",version="v1alpha1"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="callgate.dev",resource="toolcalls",scope="resource",subresource="status",verb="PUT",version="v1alpha1"} 6
apiserver_request_total{code="409",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 1
apiserver_request_total{code="200",component="apiserver",dry_run="",group="batch",resource="jobs",scope="resource",subresource="",verb="GET",version="v1"} 100
apiserver_request_total{code="201",component="apiserver",dry_run="",group="events.k8s.io",resource="events",scope="resource",subresource="",verb="POST",version="v1"} 100
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 1e+06
apiserver_request_total{code="0",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="attach",verb="CONNECT",version="v1"} 7
`
	if got, err := countWrites([]byte(text)); err != nil || got != 10 {
		t.Errorf("%v writes (%v), want 10", got, err)
	}
	if _, err := countWrites([]byte("other 1\n")); err == nil {
		t.Error("metrics without apiserver_request_total pass")
	}
}
