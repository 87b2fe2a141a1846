// Package warm decides about the sandboxes that wait for calls, purely: which
// ones are to be made, replaced and removed, and which one a call takes.
package warm

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
)

const (
	// RefillPause is the pause between the moment in which a call takes a sandbox
	// and the creation of the next one, whose work would be in the call's way.
	RefillPause = 100 * time.Millisecond
	// burst bounds the sandboxes of one pool that are starting at once.
	burst = 10
	// firstPause is how long a sandbox that failed stays, from its creation, before
	// another one is made in its place; each further failure doubles it, up to maxPause.
	firstPause = 10 * time.Second
	maxPause   = 5 * time.Minute
	// maxFailures is where maxPause is reached for sure.
	maxFailures = 6
	// longLived is the age from which on a sandbox that ends is no failure to start.
	longLived = 2 * time.Minute
)

// annotationFailures holds how many sandboxes before this one failed in a row.
const annotationFailures = "callgate.dev/failures"

// Sandbox is one sandbox that was made before its call, as it was observed.
type Sandbox struct {
	Job *batchv1.Job
	// Pod of the Job; nil if it is not there.
	Pod *corev1.Pod
	// NodeLeft: the node of the pod is cordoned, or is not there.
	NodeLeft bool
	// Taken: a call has it, or had it.
	Taken bool
	// TakeTime is when it was taken; zero if that is not known.
	TakeTime time.Time
	// Unproven: it is not known whether a call that is gone was accepted in it. Used:
	// one was.
	Unproven, Used bool
}

// Pool is everything that the decision about a Tool's sandboxes looks at.
type Pool struct {
	Now time.Time
	// Want is a waiting sandbox as it is rendered now; nil if none may wait: the Tool
	// is gone, or cannot be called for good.
	Want *batchv1.Job
	// Hold: no sandbox may be made now, because the Tool is not Ready.
	Hold bool
	// Replicas is how many should wait, MaxIdle how long each one does.
	Replicas int
	MaxIdle  time.Duration
	// StartDeadline is how long one may take to start.
	StartDeadline time.Duration
	// CallTime is what a call may take, all told.
	CallTime time.Duration
	// Sandboxes of the Tool, of this pool and of earlier ones.
	Sandboxes []Sandbox
}

// Plan is what is to be done to a pool.
type Plan struct {
	// Create is how many sandboxes to make, each with Failures noted on it.
	Create, Failures int
	// Delete are the sandboxes to remove, gently: a call may just get one of them.
	Delete []*batchv1.Job
	// Ready is how many wait and can be taken; Starting how many will be.
	Ready, Starting int
	// After is when to look again although nothing changed; zero means never.
	After time.Duration
}

// state is what one sandbox is to its pool.
type state int

const (
	// going: taken, or being deleted; nothing to the pool any more.
	going state = iota
	// fresh: it was taken a moment ago, and is replaced after RefillPause.
	fresh
	// useless: it can serve no call; to be removed at once.
	useless
	// failed: it ended, or did not start in time; to be replaced after a pause.
	failed
	// starting: it will be ready.
	starting
	// ready: it can be taken.
	ready
	// idle: it can be taken, and has waited for so long that it is to be replaced.
	idle
)

// Decide decides about a pool.
func Decide(p Pool) Plan {
	var plan Plan
	by := map[state][]*batchv1.Job{}
	look := func(at time.Time) {
		if d := max(at.Sub(p.Now), time.Millisecond); plan.After == 0 || d < plan.After {
			plan.After = d
		}
	}
	for _, s := range p.Sandboxes {
		is, until := judge(p, s)
		by[is] = append(by[is], s.Job)
		if !until.IsZero() {
			look(until)
		}
	}
	for _, list := range by {
		slices.SortFunc(list, older)
	}
	plan.Delete = by[useless]
	resting := by[failed]
	if p.Want != nil {
		resting = nil
	}
	plan.Delete = append(plan.Delete, resting...)
	again := 0
	if p.Want != nil {
		for _, job := range by[failed] {
			n := failures(job)
			if end := job.CreationTimestamp.Add(pause(n)); end.After(p.Now) {
				resting = append(resting, job)
				look(end)
				continue
			}
			plan.Delete = append(plan.Delete, job)
			if p.Now.Sub(job.CreationTimestamp.Time) < max(longLived, 2*pause(n)) {
				n++
			} else {
				n = 0
			}
			again = max(again, min(n, maxFailures))
		}
	}

	// One idle sandbox at a time is replaced, and not removed before there is
	// another one, so that the pool never runs low for it.
	waiting := slices.Concat(by[idle], by[ready]) // the ones to go first
	surplus := max(len(waiting)-p.Replicas, 0)
	plan.Delete = append(plan.Delete, waiting[:surplus]...)
	waiting = waiting[surplus:]
	target := p.Replicas
	if len(by[idle]) > surplus {
		target++
	}
	pending := by[starting]
	have := len(waiting) + len(pending) + len(resting) + len(by[fresh])
	if over := min(have-target, len(pending)); over > 0 {
		// The youngest has the longest way to go.
		plan.Delete = append(plan.Delete, pending[len(pending)-over:]...)
		pending = pending[:len(pending)-over]
		have -= over
	}
	if over := min(have-target, len(resting)); over > 0 {
		plan.Delete = append(plan.Delete, resting[:over]...)
		have -= over
	}
	if p.Want != nil && !p.Hold {
		plan.Create = max(min(target-have, burst-len(pending)), 0)
		plan.Failures = again
	}
	plan.Ready, plan.Starting = len(waiting), len(pending)
	return plan
}

// judge says what a sandbox is to its pool, and until when at most.
func judge(p Pool, s Sandbox) (is state, until time.Time) {
	if s.Taken {
		if end := s.TakeTime.Add(RefillPause); s.Job.DeletionTimestamp == nil && end.After(p.Now) && samePool(s.Job, p.Want) {
			return fresh, end
		}
		return going, until
	}
	if s.Job.DeletionTimestamp != nil {
		return going, until
	}
	if s.Used || !samePool(s.Job, p.Want) || s.NodeLeft && s.Pod != nil && s.Pod.Spec.NodeName != "" {
		return useless, until
	}
	observed := sandbox.Observe(s.Job, s.Pod, nil)
	started := observed.Phase == sandbox.PhaseRunning && podReady(s.Pod)
	switch {
	case observed.Ended():
		return failed, until
	case observed.Disrupted:
		return useless, until
	case s.Pod != nil && sandbox.Differs(s.Pod, sandbox.Named(p.Want, s.Job.Name).Spec.Template) != "":
		return failed, until
	case !started, s.Unproven:
		// A node that was silent for a while counts anew.
		late := since(s).Add(p.StartDeadline)
		if late.After(p.Now) {
			return starting, late
		}
		return failed, until
	}
	last := p.Now.Add(sandbox.Left(s.Job, p.Now) - p.CallTime)
	end := s.Job.CreationTimestamp.Add(p.MaxIdle)
	switch {
	case !last.After(p.Now):
		return useless, until
	case !end.After(p.Now):
		return idle, last
	case end.After(last):
		return ready, last
	}
	return ready, end
}

// since is when a sandbox that is not ready began to be so. Both times are
// taken for not later than now.
func since(s Sandbox) time.Time {
	at := s.Job.CreationTimestamp.Time
	if s.Pod == nil {
		return at
	}
	for _, c := range s.Pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue && s.Pod.Status.Phase == corev1.PodRunning && c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// Failed notes on a sandbox that is to be made how many before it failed in a row.
func Failed(job *batchv1.Job, n int) {
	if n > 0 {
		job.Annotations[annotationFailures] = strconv.Itoa(n)
	}
}

func failures(job *batchv1.Job) int {
	n, err := strconv.Atoi(job.Annotations[annotationFailures])
	if err != nil || n < 0 {
		return 0
	}
	return min(n, maxFailures)
}

func pause(failures int) time.Duration { return min(firstPause<<failures, maxPause) }

func samePool(job, want *batchv1.Job) bool {
	if want == nil {
		return false
	}
	for _, l := range []string{v1alpha1.LabelInstall, v1alpha1.LabelToolUID, v1alpha1.LabelPool} {
		if job.Labels[l] != want.Labels[l] {
			return false
		}
	}
	return true
}

func podReady(pod *corev1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func older(a, b *batchv1.Job) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}

// Choose returns the sandboxes that a call may take, the best first: those that
// have waited longest, since they are the next to be replaced. want is a waiting
// sandbox as it is rendered for this call; callTime what the call may take. Of
// one that is Unproven it has to be found out before it is taken.
func Choose(now time.Time, want *batchv1.Job, callTime time.Duration, sandboxes []Sandbox) []Sandbox {
	// An idle one serves a call as well as any.
	p := Pool{Now: now, Want: want, CallTime: callTime}
	var usable []Sandbox
	for _, s := range sandboxes {
		proven := s
		proven.Unproven = false
		if is, _ := judge(p, proven); is == ready || is == idle {
			usable = append(usable, s)
		}
	}
	slices.SortFunc(usable, func(a, b Sandbox) int { return older(a.Job, b.Job) })
	return usable
}
