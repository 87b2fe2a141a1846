package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// row is a line of the table: a figure of the run with its key, or what one was
// made of.
type row struct {
	what string
	// values are median, p90 and p99, or one value.
	values []float64
	// key of the figure in the file; empty for what is only printed.
	key   string
	value float64
	// target is the most that the value should be, or the least; NaN if none is set.
	target float64
	least  bool
}

// over says whether a figure misses its target.
func (r row) over() bool {
	if r.least {
		return r.value < r.target
	}
	return r.value > r.target
}

func (r row) atMost(target float64) row  { r.target = target; return r }
func (r row) atLeast(target float64) row { r.target, r.least = target, true; return r }

// tabulated makes rows of samples, and notes which ones there are none of.
type tabulated struct {
	samples map[string][]float64
	rows    []row
	missing []string
}

func (t *tabulated) get(name string, q float64) float64 {
	if len(t.samples[name]) == 0 {
		t.missing = append(t.missing, name)
		return math.NaN()
	}
	return quantile(t.samples[name], q)
}

func (t *tabulated) mean(name string) float64 {
	n := float64(len(t.samples[name]))
	if n == 0 {
		return t.get(name, 0)
	}
	var sum float64
	for _, v := range t.samples[name] {
		sum += v
	}
	return sum / n
}

// show adds what figures are made of.
func (t *tabulated) show(name, unit string) {
	t.rows = append(t.rows, row{what: fmt.Sprintf("%s%s (%d samples)", name, unit, len(t.samples[name])),
		values: []float64{t.get(name, 0.5), t.get(name, 0.9), t.get(name, 0.99)}, target: math.NaN()})
}

// figure is a row of one value, which is in the file under key.
func figure(what, key string, value float64) row {
	return row{what: what, key: key, value: value, values: []float64{value}, target: math.NaN()}
}

func (t *tabulated) add(rows ...row) { t.rows = append(t.rows, rows...) }

// table is what a run found. It fails if something was not measured.
func table(samples map[string][]float64, many, most int, withGVisor bool) ([]row, error) {
	t := &tabulated{samples: samples}
	for _, name := range []string{rawPod, noVolumes, noNamespace, rawJob, cold, coldEgress} {
		t.show(name, ", ms")
	}
	t.add(
		figure("cold call over raw Pod", "cold_over_pod", t.get(cold, 0.5)/t.get(rawPod, 0.5)).atMost(1.3),
		figure("cold call with egress over raw Pod", "cold_egress_over_pod", t.get(coldEgress, 0.5)/t.get(rawPod, 0.5)),
		figure("raw Job over cold call", "job_over_cold", t.get(rawJob, 0.5)/t.get(cold, 0.5)).atLeast(4),
	)
	suffixes := []string{""}
	if withGVisor {
		suffixes = append(suffixes, gvisor)
	}
	for _, suffix := range suffixes {
		key := ""
		if suffix == gvisor {
			key = "_gvisor"
		}
		t.show(warmQuiet+suffix, ", ms")
		t.show(warmRefill+suffix, ", ms")
		p50 := figure("warm call, median, ms"+suffix, "warm_p50_ms"+key, t.get(warmQuiet+suffix, 0.5))
		p99 := figure("warm call, p99, ms"+suffix, "warm_p99_ms"+key, t.get(warmQuiet+suffix, 0.99))
		if suffix == "" {
			p50, p99 = p50.atMost(50), p99.atMost(150)
		}
		t.add(p50, p99, figure("warm call while the pool refills, p99, ms"+suffix, "warm_refill_p99_ms"+key, t.get(warmRefill+suffix, 0.99)))
	}
	t.show(refused, ", ms")
	t.show(refusedRate, "")
	t.show(plainRate, "")
	t.add(
		figure("refused call, median, ms", "refused_p50_ms", t.get(refused, 0.5)).atMost(25),
		figure("refused calls over plain create and status update", "refused_rate_ratio", t.get(refusedRate, 0.5)/t.get(plainRate, 0.5)).atLeast(0.7),
	)
	for i, key := range []string{"throughput_ratio_20", "throughput_ratio_60"} {
		n := []int{many, most}[i]
		calls, jobs := fmt.Sprintf(callsRate, n), fmt.Sprintf(jobsRate, n)
		t.show(jobs, "")
		t.show(calls, "")
		t.add(figure(fmt.Sprintf("cold calls over raw Jobs, %d at once", n), key, t.get(calls, 0.5)/t.get(jobs, 0.5)).atLeast(0.85))
	}
	for _, name := range []string{writesFirst, writesTotal} {
		t.show(name, "")
		t.show(name+ofJob, "")
	}
	t.add(
		figure("API writes per call beyond a raw Job's, until the answer", "api_writes_extra_before_answer",
			t.mean(writesFirst)-t.mean(writesFirst+ofJob)).atMost(4),
		figure("API writes per call beyond a raw Job's, in all", "api_writes_extra_total",
			t.mean(writesTotal)-t.mean(writesTotal+ofJob)).atMost(7),
		figure(coldCPU, "cpu_s_per_100_cold", t.mean(coldCPU)),
		figure(warmCPU, "cpu_s_per_100_warm", t.mean(warmCPU)),
		figure(rssMiB+", the most", "controller_rss_mib", t.get(rssMiB, 1)),
	)
	if len(t.missing) > 0 {
		return nil, fmt.Errorf("not measured: %q", t.missing)
	}
	return t.rows, nil
}

// printTable prints the rows, figures with their key.
func printTable(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tMEDIAN\tP90\tP99\tTARGET\tKEY")
	for _, r := range rows {
		cells := [3]string{}
		for i, v := range r.values {
			cells[i] = number(v)
		}
		target := ""
		if !math.IsNaN(r.target) {
			sign := "≤"
			if r.least {
				sign = "≥"
			}
			target = sign + " " + number(r.target)
			if r.over() {
				target += "  over"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.what, cells[0], cells[1], cells[2], target, r.key)
	}
	_ = w.Flush() // standard output
}

// number has three digits or more that mean something.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// figures is the table as one flat JSON object. Every figure must be a positive
// finite number; one that is not was not measured.
func figures(rows []row) ([]byte, error) {
	object := map[string]float64{}
	for _, r := range rows {
		if r.key == "" {
			continue
		}
		if !(r.value > 0) || math.IsInf(r.value, 0) {
			return nil, fmt.Errorf("%s is %v, which is no measure", r.key, r.value)
		}
		object[r.key] = math.Round(r.value*1000) / 1000
	}
	content, err := json.MarshalIndent(object, "", "  ")
	return append(content, '\n'), err
}
