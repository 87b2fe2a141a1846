package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// sizes says how much of everything a run does.
type sizes struct {
	// rounds, each of one raw Pod, one raw Job, one cold call and one with egress,
	// after warmUps that do not count.
	rounds, warmUps int
	// warmBursts per round and RuntimeClass; each is quietCalls calls, and every
	// second one has refillCalls more.
	warmBursts, pool int
	// refused calls per round, one after the other; and of rate, by workers at once.
	refused, rate int
	// many and most at once, and how often.
	many, most, times int
	// writes: calls and Jobs whose writes are counted.
	writes int
}

const (
	// quietCalls come before a pool makes the first one's sandbox again, which is
	// [warm.RefillPause] after that was taken; refillCalls while it does.
	quietCalls, refillCalls = 2, 2
	rateWorkers             = 8
)

var full = sizes{rounds: 20, warmUps: 1, warmBursts: 5, pool: 6, refused: 10, rate: 40, many: 20, most: 60, times: 2, writes: 10}

// check only shows that everything can be measured.
var check = sizes{rounds: 1, warmBursts: 2, pool: 4, refused: 4, rate: 16, many: 2, most: 4, times: 1, writes: 1}

// What samples are named.
const (
	rawPod      = "raw Pod, create to first byte of its log"
	noVolumes   = "raw Pod without the volumes"
	noNamespace = "raw Pod without the volumes and the user namespace"
	rawJob      = "raw Job, create to Complete"
	cold        = "cold call"
	coldEgress  = "cold call of a Tool with egress"
	warmQuiet   = "warm call"
	warmRefill  = "warm call while the pool refills"
	gvisor      = ", gVisor"
	refused     = "refused call"
	refusedRate = "refused calls per second"
	plainRate   = "plain create and status update per second"
	callsRate   = "cold calls per second, %d at once"
	jobsRate    = "raw Jobs per second, %d at once"
	writesFirst = "writes until the first output"
	writesTotal = "writes in all"
	ofJob       = ", raw Job"
	coldCPU     = "CPU seconds of the controller per 100 cold calls"
	warmCPU     = "CPU seconds of the controller per 100 warm calls"
	rssMiB      = "resident memory of the controller, MiB"
)

// all measures everything: rounds of small things, with the large ones between.
func (b *bench) all(progress func(string)) error {
	for range b.sizes.warmUps {
		progress("warm-up")
		if err := b.round(0); err != nil {
			return err
		}
	}
	b.mu.Lock()
	b.samples = map[string][]float64{}
	b.mu.Unlock()
	for i := range b.sizes.rounds {
		progress(fmt.Sprintf("round %d of %d", i+1, b.sizes.rounds))
		if err := b.round(i); err != nil {
			return err
		}
		// The large things stand between the rounds, evenly.
		for t := range b.sizes.times {
			if i == (2*t+1)*b.sizes.rounds/(2*b.sizes.times) {
				for _, n := range []int{b.sizes.many, b.sizes.most} {
					progress(fmt.Sprintf("%d at once", n))
					if err := b.manyAtOnce(n, t); err != nil {
						return err
					}
				}
			}
		}
	}
	progress("API writes")
	return b.countAll()
}

// round takes one sample of each kind, in another order each time.
func (b *bench) round(i int) error {
	single := func(name string, do func() (time.Duration, error)) func() error {
		return func() error {
			if err := b.rest(); err != nil {
				return err
			}
			took, err := do()
			b.addTime(name, took)
			return err
		}
	}
	call := func(tool, name string) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			t, err := b.call(tool, goodArgs, "")
			if err == nil {
				b.trace(name, t)
			}
			return t.took(), err
		}
	}
	kinds := []func() error{
		single(rawPod, func() (time.Duration, error) { return b.pod() }),
		single(noVolumes, func() (time.Duration, error) { return b.pod(volumes) }),
		single(noNamespace, func() (time.Duration, error) { return b.pod(volumes, userNamespace) }),
		single(cold, call("echo", cold)), single(rawJob, b.job), single(coldEgress, call("egress", coldEgress)),
	}
	for k := range kinds {
		if err := kinds[(k+i)%len(kinds)](); err != nil {
			return err
		}
	}
	if err := b.clear(); err != nil {
		return err
	}
	if err := b.refusals(i); err != nil {
		return err
	}
	if err := b.clear(); err != nil {
		return err
	}
	before, err := b.controller()
	if err != nil {
		return err
	}
	calls := 0
	for burst := range b.sizes.warmBursts {
		for _, pool := range []struct{ tool, suffix string }{{"warm", ""}, {"warm-gvisor", gvisor}} {
			n, err := b.burst(pool.tool, pool.suffix, (burst+i)%2 == 0)
			if err != nil {
				return err
			}
			calls += n
		}
	}
	after, err := b.controller()
	if err != nil {
		return err
	}
	b.add(warmCPU, (after.cpuSeconds-before.cpuSeconds)*100/float64(calls))
	return b.clear()
}

// burst makes a few warm calls one after the other, on a pool that is full and at
// rest, and waits until it is so again.
func (b *bench) burst(tool, suffix string, refill bool) (calls int, err error) {
	if b.tools[tool] == nil {
		return 0, nil
	}
	calls = quietCalls
	if refill {
		calls += refillCalls
	}
	for i := range calls {
		name := warmQuiet + suffix
		if i >= quietCalls {
			name = warmRefill + suffix
		}
		t, err := b.call(tool, goodArgs, "")
		if err != nil {
			return 0, err
		}
		if a := t.Status.Attempts; len(a) != 1 || !sandbox.IsWarm(a[0].Sandbox) {
			return 0, fmt.Errorf("call %s did not get a sandbox that waited, although %d did: %+v", t.Name, b.sizes.pool, a)
		}
		b.world.use(t.Status.Attempts[0].Sandbox)
		b.trace(name, t)
		b.addTime(name, t.took())
	}
	return calls, b.poolsFull()
}

// refusals makes calls that are refused, by a policy and by the schema in turn:
// one after the other, and as many as come from some clients at once, beside
// what a plain client does with as many of the same object.
func (b *bench) refusals(round int) error {
	refuse := func(i int) (timed, error) {
		if i%2 == 0 {
			return b.call("denied", goodArgs, v1alpha1.ErrorToolNotAllowed)
		}
		return b.call("echo", `{"text":5}`, v1alpha1.ErrorInvalidArguments)
	}
	var last timed
	for i := range b.sizes.refused {
		t, err := refuse(i)
		if err != nil {
			return err
		}
		b.addTime(refused, t.took())
		last = t
	}
	rates := []func() error{
		func() error {
			took, err := atOnce(b.sizes.rate, rateWorkers, func(i int) error { _, err := refuse(i); return err })
			b.add(refusedRate, float64(b.sizes.rate)/took.Seconds())
			return err
		},
		func() error {
			took, err := atOnce(b.sizes.rate, rateWorkers, func(int) error { return b.plain(last.Status) })
			b.add(plainRate, float64(b.sizes.rate)/took.Seconds())
			return err
		},
	}
	for k := range rates {
		if err := rates[(k+round)%2](); err != nil {
			return err
		}
		if err := b.rest(); err != nil {
			return err
		}
	}
	return nil
}

// plain is what a plain client does to have the same object: it creates it, and
// writes its status. The call is one that waits for its turn, of which the
// controller writes nothing in the first second.
func (b *bench) plain(status v1alpha1.ToolCallStatus) error {
	call := b.proposal("held", goodArgs)
	if err := cluster.Agent.Create(b.ctx, call); err != nil {
		return fmt.Errorf("create a plain object: %w", err)
	}
	call.Status = *status.DeepCopy()
	if err := cluster.Admin.Status().Update(b.ctx, call); err != nil {
		return fmt.Errorf("update the status of a plain object: %w", err)
	}
	return nil
}

// manyAtOnce measures n cold calls at once, and n raw Jobs.
func (b *bench) manyAtOnce(n, round int) error {
	kinds := []func() error{
		func() error {
			took, err := atOnce(n, n, func(int) error { _, err := b.job(); return err })
			b.add(fmt.Sprintf(jobsRate, n), float64(n)/took.Seconds())
			return err
		},
		func() error {
			before, err := b.controller()
			if err != nil {
				return err
			}
			took, err := atOnce(n, n, func(int) error { _, err := b.call("echo", goodArgs, ""); return err })
			if err != nil {
				return err
			}
			b.add(fmt.Sprintf(callsRate, n), float64(n)/took.Seconds())
			if err := b.clear(); err != nil {
				return err
			}
			after, err := b.controller()
			b.add(coldCPU, (after.cpuSeconds-before.cpuSeconds)*100/float64(n))
			return err
		},
	}
	for k := range kinds {
		if err := kinds[(k+round)%2](); err != nil {
			return err
		}
		if err := b.clear(); err != nil {
			return err
		}
	}
	return nil
}

// countAll counts the writes of cold calls and of raw Jobs: until a client can see
// the first output, and until nothing of them is left.
func (b *bench) countAll() error {
	first := map[string]float64{}
	count := func(suffix string, until func() error) error {
		if err := b.clear(); err != nil {
			return err
		}
		start, err := b.writes()
		if err != nil {
			return err
		}
		for range b.sizes.writes {
			before, err := b.writes()
			if err != nil {
				return err
			}
			if err := until(); err != nil {
				return err
			}
			after, err := b.writes()
			if err != nil {
				return err
			}
			first[suffix] += after - before
			if err := b.settled(); err != nil {
				return err
			}
		}
		// Used sandboxes go by themselves first, as they do when calls are kept.
		if _, err := b.world.until(b.ctx, "the removal of used sandboxes", func() bool { return b.world.busy(b.isHeldOrRaw) == 0 }); err != nil {
			return err
		}
		if err := b.clear(); err != nil {
			return err
		}
		end, err := b.writes()
		if err != nil {
			return err
		}
		b.add(writesFirst+suffix, first[suffix]/float64(b.sizes.writes))
		b.add(writesTotal+suffix, (end-start)/float64(b.sizes.writes))
		return nil
	}
	if err := count("", func() error { _, err := b.call("echo", goodArgs, ""); return err }); err != nil {
		return err
	}
	return count(ofJob, func() error {
		job := b.rawJob()
		if err := cluster.Admin.Create(b.ctx, job); err != nil {
			return fmt.Errorf("create a raw Job: %w", err)
		}
		return b.firstByte("raw Job "+job.Name, func() *corev1.Pod {
			for _, p := range b.world.pods {
				if metav1.IsControlledBy(p, job) {
					return p
				}
			}
			return nil
		})
	})
}

func (b *bench) isHeldOrRaw(labels map[string]string) bool {
	return b.isHeld(labels) || labels[v1alpha1.LabelInstall] == ""
}

// settled waits until every Job but the held call's has ended, so that what comes
// after the first output is not counted for the next one.
func (b *bench) settled() error {
	_, err := b.world.until(b.ctx, "the end of the Jobs", func() bool {
		for _, j := range b.world.jobs {
			if !waits(j.Labels, j.Name, b.world) && !b.isHeld(j.Labels) && !jobComplete(j) && j.DeletionTimestamp == nil {
				return false
			}
		}
		return true
	})
	return err
}

// hold makes the call that runs all the time, for which others wait their turn.
func (b *bench) hold() error {
	call := b.proposal("held", goodArgs)
	if err := cluster.Agent.Create(b.ctx, call); err != nil {
		return fmt.Errorf("create the call that others wait for: %w", err)
	}
	b.held = call
	_, err := b.world.until(b.ctx, "the start of call "+call.Name, func() bool {
		c := b.world.calls[call.Name]
		return c != nil && len(c.Status.Attempts) > 0
	})
	return err
}

// release ends it and waits until its pod is gone: with its namespace alone it
// would go only when its long grace period is over.
func (b *bench) release() error {
	if b.held == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), patience)
	defer cancel()
	if err := cluster.Admin.Delete(ctx, b.held); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete call %s: %w", b.held.Name, err)
	}
	if err := poll(ctx, func() (bool, error) {
		var pods corev1.PodList
		err := cluster.Admin.List(ctx, &pods, client.InNamespace(cluster.ToolsNS), client.MatchingLabels{v1alpha1.LabelCallUID: string(b.held.UID)})
		return len(pods.Items) == 0, err
	}); err != nil {
		return fmt.Errorf("the sandbox of call %s is not gone: %w", b.held.Name, err)
	}
	return nil
}
