package warm

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"callgate.dev/callgate/internal/sandbox"
)

func names(jobs []*batchv1.Job) (out []string) {
	for _, j := range jobs {
		out = append(out, j.Name)
	}
	slices.Sort(out)
	return out
}

func TestDecide(t *testing.T) {
	callTime := sandbox.CallTime(testTool())
	for _, tc := range []struct {
		reason    string
		replicas  int
		change    func(*Pool)
		sandboxes []Sandbox
		create    int
		failures  int
		remove    []int // of sandboxes
		ready     int
		starting  int
		after     time.Duration // 0: not compared
	}{
		{reason: "an empty pool is filled", replicas: 2, create: 2},
		{reason: "not all at once", replicas: 100, create: burst},
		{reason: "those that start count", replicas: 100, sandboxes: slices.Repeat([]Sandbox{job(time.Second)}, burst-1), create: 1, starting: burst - 1},
		{reason: "a full pool stays, until one has waited for long", replicas: 2, sandboxes: []Sandbox{waits(time.Minute), waits(2 * time.Minute)}, ready: 2, after: testMaxIdle - 2*time.Minute},
		{reason: "a taken one is not made up for at once", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, takenBefore(40*time.Millisecond))}, after: 60 * time.Millisecond},
		{reason: "but a moment later, while the call runs", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, takenBefore(RefillPause))}, create: 1},
		{reason: "one taken at a time that is not known", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, taken)}, create: 1},
		{reason: "a pod that ended with its call is not the pool's", replicas: 1, sandboxes: []Sandbox{job(time.Minute, exited(0), taken)}, create: 1},
		{reason: "another template rolls the pool", replicas: 2, sandboxes: []Sandbox{waits(time.Minute, otherPool), waits(time.Minute)}, create: 1, remove: []int{0}, ready: 1},
		{reason: "so does another Tool of the name", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, otherTool)}, create: 1, remove: []int{0}},
		{reason: "the call of an old one goes on", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, otherPool, takenBefore(0))}, create: 1},
		{reason: "a Tool that is not Ready gets none, and keeps those that fit", replicas: 2, change: func(p *Pool) { p.Hold = true },
			sandboxes: []Sandbox{waits(time.Minute), waits(time.Minute, otherPool)}, remove: []int{1}, ready: 1},
		{reason: "a deleted Tool: all that wait go, those with a call do not", change: func(p *Pool) { p.Want = nil },
			sandboxes: []Sandbox{waits(time.Minute), job(time.Second), job(time.Second, exited(1)), waits(time.Minute, takenBefore(0))}, remove: []int{0, 1, 2}},
		{reason: "fewer replicas: the oldest go first, they are the next to be replaced", replicas: 1,
			sandboxes: []Sandbox{waits(time.Minute), waits(2 * time.Minute), job(time.Second)}, remove: []int{1, 2}, ready: 1},
		{reason: "no replicas", replicas: 0, sandboxes: []Sandbox{waits(time.Minute), job(time.Second)}, remove: []int{0, 1}},
		{reason: "a drained pod is replaced at once", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, evicted)}, create: 1, remove: []int{0}},
		{reason: "so is one that is deleted", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, leaving)}, create: 1, remove: []int{0}},
		{reason: "and one on a cordoned node", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, cordoned)}, create: 1, remove: []int{0}},
		{reason: "a pod that no node has yet is on none that is cordoned", replicas: 1, sandboxes: []Sandbox{job(time.Second, pending, cordoned)}, starting: 1},
		{reason: "a node that is silent may come back", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, notReady)}, starting: 1},
		{reason: "not for ever", replicas: 1, sandboxes: []Sandbox{waits(testStart, notReady)}, create: 1, failures: 0, remove: []int{0}},
		{reason: "an unschedulable one is waited for, and nothing more is made", replicas: 1, sandboxes: []Sandbox{job(30*time.Second, pending)}, starting: 1, after: testStart - 30*time.Second},
		{reason: "one that failed stays for a while", replicas: 1, sandboxes: []Sandbox{job(4*time.Second, exited(67))}, after: firstPause - 4*time.Second},
		{reason: "then it is replaced", replicas: 1, sandboxes: []Sandbox{job(firstPause, exited(67))}, create: 1, failures: 1, remove: []int{0}},
		{reason: "each time after twice as long", replicas: 1, sandboxes: []Sandbox{job(firstPause, exited(67), failedBefore(2))}, after: 3 * firstPause},
		{reason: "up to a bound", replicas: 1, sandboxes: []Sandbox{job(maxPause, exited(67), failedBefore(1000))}, create: 1, failures: maxFailures, remove: []int{0}},
		{reason: "one that waited for long before it ended is no failure to start", replicas: 1, sandboxes: []Sandbox{job(longLived, exited(137))}, create: 1, failures: 0, remove: []int{0}},
		{reason: "a pod that was changed on its way has failed, too", replicas: 1, sandboxes: []Sandbox{waits(time.Second, mutated)}, after: firstPause - time.Second},
		{reason: "a Tool with fewer replicas needs no replacement", replicas: 1, sandboxes: []Sandbox{job(time.Second, exited(67)), waits(time.Minute)}, remove: []int{0}, ready: 1},
		{reason: "one that has waited for long stays until there is another", replicas: 1, sandboxes: []Sandbox{waits(testMaxIdle)}, create: 1, ready: 1},
		{reason: "still starting", replicas: 1, sandboxes: []Sandbox{waits(testMaxIdle), job(time.Second)}, ready: 1, starting: 1},
		{reason: "then it goes", replicas: 1, sandboxes: []Sandbox{waits(testMaxIdle), waits(time.Second)}, remove: []int{0}, ready: 1},
		{reason: "one after the other", replicas: 3, sandboxes: []Sandbox{waits(testMaxIdle), waits(testMaxIdle), waits(testMaxIdle)}, create: 1, ready: 3},
		{reason: "one with less left than a call may take is of no use", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, deadline(callTime-time.Second))}, create: 1, remove: []int{0}},
		{reason: "until then it is looked at again", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, deadline(callTime+time.Second))}, ready: 1, after: time.Second},
		{reason: "whether one of an earlier process was used is found out first", replicas: 1, sandboxes: []Sandbox{waits(time.Second, unproven)}, starting: 1},
		{reason: "a used one goes", replicas: 1, sandboxes: []Sandbox{waits(time.Minute, used)}, create: 1, remove: []int{0}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			p := newPool(tc.replicas, tc.sandboxes...)
			if tc.change != nil {
				tc.change(&p)
			}
			plan := Decide(p)
			var remove []*batchv1.Job
			for _, i := range tc.remove {
				remove = append(remove, tc.sandboxes[i].Job)
			}
			if plan.Create != tc.create || plan.Create > 0 && plan.Failures != tc.failures || plan.Ready != tc.ready || plan.Starting != tc.starting {
				t.Errorf("create %d (failures %d), ready %d, starting %d; want %d (%d), %d, %d",
					plan.Create, plan.Failures, plan.Ready, plan.Starting, tc.create, tc.failures, tc.ready, tc.starting)
			}
			if got, want := names(plan.Delete), names(remove); !slices.Equal(got, want) {
				t.Errorf("removes %q, want %q", got, want)
			}
			if tc.after > 0 && plan.After != tc.after {
				t.Errorf("looks again after %s, want %s", plan.After, tc.after)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	callTime := sandbox.CallTime(testTool())
	for _, tc := range []struct {
		reason string
		change func(*Sandbox)
		usable bool
	}{
		{"it waits", func(*Sandbox) {}, true},
		{"it has waited for long, and there is no other yet", func(s *Sandbox) { *s = waits(testMaxIdle + time.Minute) }, true},
		{"another call has it", taken, false},
		{"a call that is gone had it", used, false},
		{"that is not known: it is found out", unproven, true},
		{"it does not run yet", pending, false},
		{"it has ended", exited(64), false},
		{"its node is silent", notReady, false},
		{"its node is cordoned", cordoned, false},
		{"it is drained", evicted, false},
		{"it is being deleted", leaving, false},
		{"its Job is", func(s *Sandbox) {
			leaving(s)
			s.Job.DeletionTimestamp, s.Pod.DeletionTimestamp = s.Pod.DeletionTimestamp, nil
		}, false},
		{"its pod was changed", mutated, false},
		{"it is of an earlier Tool", otherPool, false},
		{"it is of another Tool", otherTool, false},
		{"a call would not have its time", deadline(callTime - time.Second), false},
		{"it would just", deadline(callTime + time.Second), true},
		{"its Job has not started, as far as is known", func(s *Sandbox) { s.Job.Status.StartTime = nil }, false},
	} {
		s := waits(time.Minute)
		tc.change(&s)
		if got := Choose(now, theTemplate, callTime, []Sandbox{s}); (len(got) == 1) != tc.usable {
			t.Errorf("%s: %d sandboxes, want usable %t", tc.reason, len(got), tc.usable)
		}
	}
	first, second, third := waits(time.Second), waits(3*time.Second), waits(2*time.Second)
	var order []string
	for _, s := range Choose(now, theTemplate, callTime, []Sandbox{first, second, third}) {
		order = append(order, s.Job.Name)
	}
	if want := []string{second.Job.Name, third.Job.Name, first.Job.Name}; !slices.Equal(order, want) {
		t.Errorf("in the order %q, want the oldest first: %q", order, want)
	}
}
