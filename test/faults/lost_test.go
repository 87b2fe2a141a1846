package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

const (
	// spread is how long the calls of a round go on to be made.
	spread = 30 * time.Second
	// maxLife bounds how long a controller lives before it is killed: about
	// twice as long as it takes to lead, so that some never come to it.
	maxLife = 6 * time.Second
	// maxAfter bounds how long the calls of a round may take after the last kill.
	maxAfter = 2 * time.Minute
)

// kind is one kind of call in the mix, with the one way in which it may end.
type kind struct {
	name string
	n    int
	// tool is the name of the Tool, of which nothing else is in its namespace.
	tool  string
	mods  []func(*v1alpha1.ToolSpec)
	rest  string // of its script, after it told of its start
	group int    // so many calls share an idempotencyKey, and one is run
	args  string
	// code it must end with; "" means ok. retryable goes with it.
	code      v1alpha1.ErrorCode
	retryable bool
	// starts of the tool for each call.
	starts int
	// some of the calls are refused instead, so many in all.
	limited int
}

// The mix: 200 calls of a round. The sandboxes are what takes the time.
var mix = []kind{
	{name: "quick", n: 18, tool: "quick", rest: `echo "\"$CALLGATE_IDEMPOTENCY_KEY\""`, starts: 1},
	{name: "slow", n: 10, tool: "slow", rest: `sleep "$1"; echo "\"$CALLGATE_IDEMPOTENCY_KEY\""`, starts: 1, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(60)}},
	{name: "failing", n: 8, tool: "failing", rest: `echo no >&2; exit 3`, starts: 1, code: v1alpha1.ErrorToolFailed},
	{name: "timeout", n: 4, tool: "timeout", rest: `sleep 1000`, starts: 1, mods: []func(*v1alpha1.ToolSpec){cluster.Timeout(5)}, code: v1alpha1.ErrorToolTimeout},
	{name: "retried", n: 3, tool: "retried", rest: `exit 75`, starts: 2, code: v1alpha1.ErrorToolFailed, retryable: true},
	{name: "in-turn", n: 6, tool: "in-turn", rest: `echo "\"$CALLGATE_IDEMPOTENCY_KEY\""`, starts: 1},
	{name: "rated", n: 8, tool: "rated", rest: `echo "\"$CALLGATE_IDEMPOTENCY_KEY\""`, starts: 1, limited: 4},
	{name: "keyed", n: 40, tool: "keyed", rest: `sleep 0.3; echo "\"$CALLGATE_IDEMPOTENCY_KEY\""`, group: 5, starts: 1},
	{name: "invalid", n: 40, tool: "quick", args: `{"seconds":"2"}`, code: v1alpha1.ErrorInvalidArguments},
	{name: "forbidden", n: 36, tool: "forbidden", rest: `echo 1`, code: v1alpha1.ErrorToolNotAllowed},
	{name: "unknown", n: 27, tool: "absent", code: v1alpha1.ErrorToolNotFound},
}

// The controller is killed at random moments while calls of all kinds are made,
// wait and run. Every call ends as it would have without that, and no tool is
// started once more than it says. ROUNDS sets how often, SEED repeats a run.
func TestControllerKilledAtRandom(t *testing.T) {
	rounds, seed := fromEnv(t, "ROUNDS", 3), fromEnv(t, "SEED", time.Now().UnixNano())
	t.Logf("SEED=%d ROUNDS=%d", seed, rounds)
	takeOver(t)
	agents := moreAgents(t, 2)
	for round := range rounds {
		t.Run(strconv.FormatInt(round+1, 10), func(t *testing.T) {
			killAtRandom(t, rand.New(rand.NewPCG(uint64(seed), uint64(round))), agents)
		})
		if t.Failed() {
			return
		}
	}
}

func killAtRandom(t *testing.T, random *rand.Rand, agents []client.Client) {
	ctx, begin := t.Context(), time.Now()
	controller := startNext(t, nil)
	controller.waitReady()
	namespace := cluster.NewToolsNamespace(ctx, t, "killed-"+strconv.FormatUint(random.Uint64()%1e6, 36))
	prepareMix(ctx, t, namespace)

	calls := proposals(random, namespace)
	made := make(chan error, 1)
	go func() { made <- propose(ctx, random.Uint64(), calls, agents) }()
	kills, deadline := 0, time.Now().Add(spread)
	for time.Now().Before(deadline) {
		time.Sleep(time.Duration(random.Int64N(int64(maxLife))))
		controller.kill()
		kills++
		controller = startNext(t, controller)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	controller.waitReady()
	ended := allEnded(ctx, t, namespace, len(calls))
	t.Logf("%d calls ended %s after the first was made, %d kills", len(ended), time.Since(begin).Round(time.Second), kills)
	checkMix(t, calls, ended)
	nothingLeft(ctx, t, namespace)
	controller.kill()
	dropLeadership(t)
}

// startNext starts a controller in place of one that was killed, without the
// wait for the lease of that.
func startNext(t *testing.T, killed *process, flags ...string) *process {
	t.Helper()
	if killed != nil {
		killed.kill()
	}
	dropLeadership(t)
	return startController(t, "", "", append([]string{"--keep-sandboxes=1s"}, flags...)...)
}

// dropLeadership removes the lease of a controller that is dead.
func dropLeadership(t *testing.T) {
	t.Helper()
	if err := dropLease(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func fromEnv(t *testing.T, name string, otherwise int64) int64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: must be a whole number of at least 1", name, text)
	}
	return n
}

// moreAgents are clients of the agent and of n more in its namespace.
func moreAgents(t *testing.T, n int) []client.Client {
	t.Helper()
	agents := []client.Client{cluster.Agent}
	for i := range n {
		name := fmt.Sprintf("agent-%d", i+2)
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-agent"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: cluster.AgentsNS, Name: name}},
		}
		if err := cluster.Admin.Create(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, clientAs(t, cluster.AgentsNS, name))
	}
	return agents
}

// clientAs is a client of a ServiceAccount.
func clientAs(t *testing.T, namespace, name string) client.Client {
	t.Helper()
	as := rest.CopyConfig(cluster.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	c, err := client.New(as, client.Options{Scheme: cluster.Admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func prepareMix(ctx context.Context, t *testing.T, namespace string) {
	t.Helper()
	names := func(name string) v1alpha1.ToolSelector { return v1alpha1.ToolSelector{Names: []string{name}} }
	var rated int32
	for _, k := range mix {
		if k.tool == "rated" {
			rated = int32(k.n - k.limited)
		}
	}
	policy := &v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "mix"}, Spec: v1alpha1.ToolPolicySpec{
		Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectGroup, Name: "system:serviceaccounts:" + cluster.AgentsNS}},
		Rules: []v1alpha1.PolicyRule{
			{Name: "all", Effect: v1alpha1.EffectAllow, Tools: names("*")},
			{Name: "never", Effect: v1alpha1.EffectDeny, Tools: names("forbidden")},
			{Name: "in-turn", Effect: v1alpha1.EffectLimit, Tools: names("in-turn"),
				Limit: &v1alpha1.RuleLimit{MaxConcurrent: 2, Per: v1alpha1.LimitAll, MaxWaitSeconds: ptr.To[int32](600)}},
			{Name: "rated", Effect: v1alpha1.EffectLimit, Tools: names("rated"),
				Limit: &v1alpha1.RuleLimit{MaxCalls: rated, WindowSeconds: 3600, Per: v1alpha1.LimitAll}},
		},
	}}
	if err := cluster.Admin.Create(ctx, policy); err != nil {
		t.Fatal(err)
	}
	cluster.WaitFor(ctx, t, policy, &v1alpha1.ToolPolicyList{}, func(p *v1alpha1.ToolPolicy) bool { return p.Status.ObservedGeneration == p.Generation },
		func(p *v1alpha1.ToolPolicy) string { return cluster.JSONOf(t, p.Status) })
	for _, k := range mix {
		if k.rest == "" {
			continue
		}
		mods := append([]func(*v1alpha1.ToolSpec){reachesCounter(t), func(s *v1alpha1.ToolSpec) {
			s.InputSchema = cluster.Raw(`{"type":"object","properties":{"seconds":{"type":"number"}}}`)
			// The machine may be slow, and no call is to end by that.
			s.StartDeadlineSeconds, s.TimeoutSeconds, s.MaxConcurrentCalls, s.MaxRetries = 900, 60, 3, ptr.To[int32](1)
		}}, k.mods...)
		cluster.NewToolIn(ctx, t, namespace, k.tool, []string{"sh", "-c", tell + k.rest, "sh", "$(args.seconds)"}, mods...)
	}
}

// proposal is one call of the mix.
type proposal struct {
	kind  kind
	agent int // of its number
	call  *v1alpha1.ToolCall
}

// proposals are the calls of a round in a random order.
func proposals(random *rand.Rand, namespace string) []proposal {
	var all []proposal
	for _, k := range mix {
		for i := range k.n {
			p := proposal{kind: k, agent: i, call: &v1alpha1.ToolCall{
				ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, GenerateName: k.name + "-"},
				Spec:       v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: k.tool, Namespace: namespace}},
			}}
			args := k.args
			if args == "" {
				args = fmt.Sprintf(`{"seconds":%.1f}`, 2+3*random.Float64())
			}
			if k.group > 0 {
				p.agent = i / k.group // a key is the caller's own
				args, p.call.Spec.IdempotencyKey = `{}`, fmt.Sprintf("%s-%d", k.name, p.agent)
			}
			p.call.Spec.Args = ptr.To(cluster.Raw(args))
			all = append(all, p)
		}
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// propose makes the calls, at random moments.
func propose(ctx context.Context, seed uint64, calls []proposal, agents []client.Client) error {
	random := rand.New(rand.NewPCG(seed, 0))
	for _, p := range calls {
		if err := agents[p.agent%len(agents)].Create(ctx, p.call); err != nil {
			return fmt.Errorf("create a call of %s: %w", p.kind.name, err)
		}
		time.Sleep(time.Duration(random.Int64N(2 * int64(spread) / int64(len(calls)))))
	}
	return nil
}

// allEnded waits until n calls to a namespace have ended, and returns them by name.
func allEnded(ctx context.Context, t *testing.T, namespace string, n int) map[string]*v1alpha1.ToolCall {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, maxAfter)
	defer cancel()
	for {
		var list v1alpha1.ToolCallList
		if err := cluster.Admin.List(ctx, &list, client.InNamespace(cluster.AgentsNS)); err != nil {
			t.Fatal(err)
		}
		ended, open := map[string]*v1alpha1.ToolCall{}, []string(nil)
		for i := range list.Items {
			c := &list.Items[i]
			switch {
			case c.Spec.ToolRef.Namespace != namespace:
			case apimeta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionComplete):
				ended[c.Name] = c
			default:
				open = append(open, c.Name+": "+cluster.SucceededReason(c))
			}
		}
		if len(ended) == n {
			return ended
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d calls have ended %s after the last kill; not: %q", len(ended), n, maxAfter, open)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// checkMix compares the ends of all calls, and the starts of all tools, with
// what they are without a fault.
func checkMix(t *testing.T, calls []proposal, ended map[string]*v1alpha1.ToolCall) {
	t.Helper()
	limited, firsts := map[string]int{}, map[string]int{}
	for _, p := range calls {
		call := ended[p.call.Name]
		if call == nil || call.Status.Result == nil || call.UID != p.call.UID {
			t.Errorf("%s: no end of it", p.call.Name)
			continue
		}
		r, ran, starts := call.Status.Result, call.UID, p.kind.starts
		switch first := call.Status.DuplicateOfRef; {
		case first != nil && p.kind.group > 0:
			ran, starts = first.UID, 0
		case p.kind.group > 0:
			firsts[p.call.Spec.IdempotencyKey]++
		case p.kind.limited > 0 && r.ErrorCode == v1alpha1.ErrorRateLimited:
			limited[p.kind.name]++
			started(t, call, 0)
			continue
		}
		if want := `"` + string(ran) + `"`; p.kind.code == "" && (!*r.OK || string(r.Data.Raw) != want) ||
			p.kind.code != "" && (*r.OK || r.ErrorCode != p.kind.code || *r.Retryable != p.kind.retryable) {
			t.Errorf("%s ended with %s; attempts %s", p.call.Name, cluster.JSONOf(t, r), cluster.JSONOf(t, call.Status.Attempts))
		}
		started(t, call, starts)
	}
	for _, k := range mix {
		if limited[k.name] != k.limited {
			t.Errorf("%s: %d calls were refused by the limit, want %d", k.name, limited[k.name], k.limited)
		}
	}
	for key, n := range firsts {
		if n != 1 {
			t.Errorf("%d calls with idempotencyKey %s ran, want 1", n, key)
		}
	}
}

// nothingLeft waits until no sandbox is in a namespace.
func nothingLeft(ctx context.Context, t *testing.T, namespace string) {
	t.Helper()
	var left []string
	err := until(ctx, func() (bool, error) {
		left = nil
		for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}} {
			if err := cluster.Admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
				return false, err
			}
			objects, err := apimeta.ExtractList(list)
			if err != nil {
				return false, err
			}
			for _, o := range objects {
				left = append(left, fmt.Sprintf("%T %s", o, o.(client.Object).GetName()))
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		slices.Sort(left)
		t.Fatalf("left in namespace %s: %v %q", namespace, err, left)
	}
}

// inParallel does something n times, a few at once, and returns when all are done.
func inParallel(n, atOnce int, do func(i int)) {
	var group sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i := range n {
		turn <- struct{}{}
		group.Go(func() { do(i); <-turn })
	}
	group.Wait()
}
