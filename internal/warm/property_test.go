package warm

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"callgate.dev/callgate/internal/sandbox"
)

func anySandbox(r *rand.Rand) Sandbox {
	age := time.Duration(r.IntN(900)) * time.Second
	pick := func(of ...func(*Sandbox)) func(*Sandbox) { return of[r.IntN(len(of))] }
	nothing := func(*Sandbox) {}
	s := job(age, pick(running, running, running, pending, exited(0), exited(67)))
	if r.IntN(6) == 0 {
		s.Pod = nil
	}
	changes := []func(*Sandbox){otherPool, otherTool, cordoned, taken, unproven, used, failedBefore(r.IntN(9)),
		takenBefore(time.Duration(r.IntN(200)) * time.Millisecond), deadline(time.Duration(r.IntN(500)) * time.Second), nothing, nothing, nothing, nothing}
	if s.Pod != nil {
		changes = append(changes, leaving, evicted, mutated)
		if len(s.Pod.Status.Conditions) > 0 {
			changes = append(changes, notReady)
		}
	}
	pick(changes...)(&s)
	return s
}

// What holds for every pool, however its sandboxes are.
func TestDecideAlways(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 1500 {
		p := newPool(r.IntN(6))
		for range r.IntN(10) {
			p.Sandboxes = append(p.Sandboxes, anySandbox(r))
		}
		if r.IntN(8) == 0 {
			p.Want = nil
		}
		p.Hold = r.IntN(8) == 0
		plan := Decide(p)
		fail := func(words string) { t.Fatalf("seed %d: %s: %+v of %+v", seed, words, plan, p) }

		removed := map[string]bool{}
		for _, j := range plan.Delete {
			if removed[j.Name] {
				fail("a sandbox is removed twice")
			}
			removed[j.Name] = true
		}
		usableBefore, usable := 0, 0
		for _, s := range p.Sandboxes {
			is, _ := judge(p, s)
			switch {
			case s.Taken && removed[s.Job.Name]:
				fail("a sandbox with a call is removed")
			case s.Job.DeletionTimestamp != nil && removed[s.Job.Name]:
				fail("a sandbox that goes is removed")
			case p.Want == nil && !s.Taken && !removed[s.Job.Name]:
				fail("a sandbox waits for no Tool")
			}
			if is == ready || is == idle {
				usableBefore++
				if !removed[s.Job.Name] {
					usable++
				}
			}
		}
		switch {
		case usable != plan.Ready:
			fail("not all that can be taken are counted")
		case usable > p.Replicas:
			fail("more wait than should")
		case usable < min(usableBefore, p.Replicas):
			fail("the pool runs lower than it need")
		case plan.Ready+plan.Starting+plan.Create > p.Replicas+1:
			fail("more are made than should wait, and one that replaces another")
		case plan.Create > 0 && plan.Starting+plan.Create > burst:
			fail("too many at once")
		case plan.Create > 0 && (p.Hold || p.Want == nil):
			fail("one is made that must not be")
		}
		for _, s := range Choose(p.Now, theTemplate, p.CallTime, p.Sandboxes) {
			if s.Taken || s.Used || s.NodeLeft || s.Pod.DeletionTimestamp != nil || s.Job.DeletionTimestamp != nil ||
				sandbox.Left(s.Job, p.Now) < p.CallTime || s.Job.Labels["callgate.dev/pool"] != theTemplate.Labels["callgate.dev/pool"] {
				t.Fatalf("seed %d: a call would get %+v", seed, s)
			}
		}
	}
}

// A pool comes to rest: with as many as should wait and nothing to do, from
// wherever it begins. While time passes, there are never fewer.
func TestDecideComesToRest(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 12 {
		p := newPool(r.IntN(13))
		for range r.IntN(10) {
			p.Sandboxes = append(p.Sandboxes, anySandbox(r))
		}
		limit := *p.Want.Spec.ActiveDeadlineSeconds
		// What is not known stays so here, and one whose time is over goes without a
		// replacement.
		p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(s Sandbox) bool { return s.Unproven || *s.Job.Spec.ActiveDeadlineSeconds != limit })
		full := false
		made := 0
		for step := range 1000 {
			plan := Decide(p)
			p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(s Sandbox) bool { return slices.Contains(plan.Delete, s.Job) })
			if full && plan.Ready < p.Replicas {
				t.Fatalf("seed %d: at step %d only %d of %d wait", seed, step, plan.Ready, p.Replicas)
			}
			full = full || plan.Ready == p.Replicas
			for i := range p.Sandboxes {
				if s := &p.Sandboxes[i]; !s.Taken && s.Pod != nil && s.Pod.Status.Phase == "Pending" {
					running(s)
				}
			}
			for range plan.Create {
				s := job(0, pending)
				s.Job.CreationTimestamp.Time, s.Job.Status.StartTime.Time = p.Now, p.Now
				p.Sandboxes = append(p.Sandboxes, s)
				made++
			}
			p.Now = p.Now.Add(2 * time.Second)
		}
		if !full && p.Replicas > 0 {
			t.Fatalf("seed %d: never as many as should wait: %+v", seed, Decide(p))
		}
		// Each is replaced about once in MaxIdle; the pool begins with up to ten more.
		if most := p.Replicas*(2000/int(testMaxIdle/time.Second)+2) + 10; made > most {
			t.Errorf("seed %d: %d were made for %d replicas in 2000 s, at most %d were needed", seed, made, p.Replicas, most)
		}
	}
}

// A pool that cannot start anything asks ever more rarely.
func TestDecideBacksOff(t *testing.T) {
	for _, ends := range []func(*Sandbox){exited(67), pending} {
		p := newPool(1)
		var made []time.Duration
		var live []*batchv1.Job
		for look := range 720 {
			p.Now = now.Add(time.Duration(look) * 5 * time.Second)
			plan := Decide(p)
			p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(s Sandbox) bool { return slices.Contains(plan.Delete, s.Job) })
			for range plan.Create {
				s := job(0)
				s.Job.CreationTimestamp.Time = p.Now
				ends(&s)
				Failed(s.Job, plan.Failures)
				p.Sandboxes = append(p.Sandboxes, s)
				live, made = append(live, s.Job), append(made, p.Now.Sub(now))
			}
			if len(p.Sandboxes) > 1 {
				t.Fatalf("%d sandboxes at once", len(p.Sandboxes))
			}
		}
		if len(live) < 5 || len(live) > 40 {
			t.Errorf("%d sandboxes in an hour, at %v; want some and not many", len(live), made)
		}
	}
}
