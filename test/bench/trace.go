package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The steps of a call, in their order. What a client saw has the client's clock,
// what the call's status says those of the controller and of the node.
var steps = []string{
	"the API server has the call, and its answer is here",
	"a Job for it is seen",
	"a pod for it is seen",
	"the pod has a node",
	"the pod has its network",
	"the container's start is seen",
	"the controller decides to send (sendTime)",
	"the tool starts (startTime)",
	"the tool ends (finishTime)",
	"the controller has the result (endTime)",
	"a client sees the result",
}

// trace notes when each step of a call was reached. What the watch did not show
// in a state of its own came together with the next step.
func (b *bench) trace(name string, t timed) {
	a := t.Status.Attempts[0]
	reached := make([]time.Duration, len(steps))
	known := make([]bool, len(steps))
	at := func(step int, d time.Duration, is bool) { reached[step], known[step] = d, is }
	at(0, t.created.Sub(t.sent), true)
	for step, what := range []string{"job/" + a.Sandbox, "pod/" + a.Pod, "pod/" + a.Pod + "/scheduled", "pod/" + a.Pod + "/network", "pod/" + a.Pod + "/running"} {
		d, seen := b.world.since(t.sent, what)
		at(1+step, d, seen && d > 0) // of a warm call they were before it
	}
	at(6, a.SendTime.Sub(t.sent), true)
	for step, time := range []*metav1.MicroTime{a.StartTime, a.FinishTime, a.EndTime} {
		if time != nil {
			at(7+step, time.Sub(t.sent), true)
		}
	}
	at(10, t.took(), true)
	for step := range steps {
		if known[step] {
			b.addTime(stepOf(name, step), reached[step])
		}
	}
}

func stepOf(name string, step int) string { return fmt.Sprintf("%s: %d", name, step) }

// breakdown prints when the steps of a kind of call were reached, in the median,
// and how long after the one before.
func (b *bench) breakdown(out io.Writer, name string) {
	if len(b.samples[name]) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "ms\tafter the one before\t  %s, median of %d\n", name, len(b.samples[name]))
	var before float64
	for step, what := range steps {
		values := b.samples[stepOf(name, step)]
		if len(values) == 0 {
			continue
		}
		at := quantile(values, 0.5)
		fmt.Fprintf(w, "%.0f\t%.0f\t  %s\n", at, at-before, what)
		before = at
	}
	_ = w.Flush() // standard output
	fmt.Fprintln(out)
}

// quantile is the smallest value that at least the part q of the values does not
// exceed; there must be one.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	i := int(float64(len(sorted))*q+0.999999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
