package abuse

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// report is what the program hostile prints.
type report struct {
	Attack   string
	Attempts []struct {
		What, Got   string
		OK, Control bool
	}
	Numbers map[string]int64
	Notes   []string
}

// Kinds of Tools. All run the program hostile, which gets the attack with its
// arguments.
const (
	closed  = "closed"  // no network at all: no sockets
	open    = "open"    // sockets, for its own helpers
	egress  = "egress"  // sockets, and every address declared
	hurried = "hurried" // no network, three seconds
	texts   = "text"    // answers with text
)

var (
	toolsOnce sync.Mutex
	toolsMade = map[string]*v1alpha1.Tool{}
)

// tool is a Tool of a kind under a runtime. Rows share it: what a tool attacks is
// in its arguments.
func tool(ctx context.Context, t *testing.T, runtime, kind string) *v1alpha1.Tool {
	t.Helper()
	toolsOnce.Lock()
	defer toolsOnce.Unlock()
	key := strings.ToLower(runtime) + "-" + kind
	if made, ok := toolsMade[key]; ok {
		return made.DeepCopy()
	}
	made := cluster.NewTool(ctx, t, key, []string{"hostile"}, func(s *v1alpha1.ToolSpec) {
		s.Container.Image = cluster.Images["HOSTILE"]
		s.TimeoutSeconds = 60
		s.MaxConcurrentCalls = 50
		s.Output.MaxBytes = 256 << 10
		s.Container.Env = []v1alpha1.EnvVar{{Name: "OWN", Value: new("own")}}
		if runtime == GVisorRuntime {
			s.Isolation.RuntimeClassName = "gvisor"
		}
		switch kind {
		case open:
			s.Isolation.Network.Loopback = true
		case egress:
			s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{
				{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}}}}}
		case hurried:
			s.TimeoutSeconds = 3
		case texts:
			s.Output.Format = v1alpha1.OutputText
		}
	})
	toolsMade[key] = made
	return made.DeepCopy()
}

// arguments of the program.
type arguments struct {
	Attack  string   `json:"attack"`
	Targets []string `json:"targets,omitempty"`
	Seconds int64    `json:"seconds,omitempty"`
	Mark    string   `json:"mark,omitempty"`
	Data    string   `json:"data,omitempty"`
}

// inside makes one attack and returns its report.
func (r *row) inside(ctx context.Context, kind string, a arguments) report {
	r.t.Helper()
	return r.read(cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, kind), cluster.JSONOf(r.t, a)))
}

// read takes the report of a call that ended well.
func (r *row) read(call *v1alpha1.ToolCall) report {
	r.t.Helper()
	return r.parse(cluster.Succeeded(r.t, call))
}

func (r *row) parse(data string) report {
	r.t.Helper()
	var rep report
	if err := json.Unmarshal([]byte(data), &rep); err != nil {
		r.t.Fatalf("the answer is no report: %.300s", data)
	}
	for _, n := range rep.Notes {
		r.t.Logf("%s under %s: %s", r.name, r.runtime, n)
	}
	return rep
}

// refused judges a report: what is a control must have succeeded, all else must
// have failed, but for what is allowed by name.
func (r *row) refused(rep report, allowed ...string) {
	r.t.Helper()
	tried, controls := 0, 0
	errnos := map[string]int{}
	for _, a := range rep.Attempts {
		switch {
		case a.Control && !a.OK:
			r.untried("%s: %s, but it must succeed", a.What, a.Got)
		case a.Control:
			controls++
		case a.OK && slices.ContainsFunc(allowed, func(p string) bool { return strings.HasPrefix(a.What, p) }):
			r.t.Logf("%s under %s: %s is allowed", r.name, r.runtime, a.What)
		case a.OK:
			tried++
			r.breach("%s succeeded", a.What)
		default:
			tried++
			errnos[a.Got]++
			r.t.Logf("%s under %s: %s: %s", r.name, r.runtime, a.What, a.Got)
		}
	}
	if tried == 0 || controls == 0 {
		r.untried("%d attempts, %d controls", tried, controls)
	}
	var got []string
	for errno, n := range errnos {
		if len(errno) > 60 {
			errno = errno[:60]
		}
		got = append(got, fmt.Sprintf("%s ×%d", errno, n))
	}
	slices.Sort(got)
	r.gotf("%s", strings.Join(got, ", "))
}

// number is one of a report, and must be there.
func (r *row) number(rep report, name string) int64 {
	r.t.Helper()
	n, ok := rep.Numbers[name]
	if !ok {
		r.untried("the report has no number %s", name)
	}
	return n
}

// atMost judges a number of a report.
func (r *row) atMost(rep report, name string, limit int64) {
	r.t.Helper()
	n := r.number(rep, name)
	r.gotf("%d %s", n, name)
	if n > limit {
		r.breach("%d %s, allowed are %d", n, name, limit)
	}
}

// neighbour is the Tool whose calls must go on.
var neighbour = sync.OnceValues(func() (*v1alpha1.Tool, error) {
	n := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: "neighbour"},
		Spec: v1alpha1.ToolSpec{
			InputSchema:        cluster.Raw(`{"type":"object"}`),
			Container:          v1alpha1.ToolContainer{Image: cluster.Images["BUSYBOX"], Command: []string{"cat"}},
			MaxConcurrentCalls: 100,
			TimeoutSeconds:     20,
		},
	}
	return n, cluster.Admin.Create(context.Background(), n)
})

// neighbourBound is the longest that a call of the neighbour may take, from its
// creation to its result: a second or two, as long as nobody harms it.
const neighbourBound = 25 * time.Second

// bombs bounds how many bombs go off at once: the node has two cores.
var bombs = make(chan struct{}, 3)

// beside makes a bomb's call and, as long as it lasts, calls of a neighbour, each
// of which must end well within its bound. The tool of one of them at least must
// be started while the bomb goes off.
func (r *row) beside(ctx context.Context, kind string, a arguments) *v1alpha1.ToolCall {
	r.t.Helper()
	bombs <- struct{}{}
	defer func() { <-bombs }()
	other, err := neighbour()
	if err != nil {
		r.t.Fatal(err)
	}
	bomb := cluster.Propose(ctx, r.t, tool(ctx, r.t, r.runtime, kind), cluster.JSONOf(r.t, a))
	cluster.WaitFor(ctx, r.t, bomb, &v1alpha1.ToolCallList{}, func(c *v1alpha1.ToolCall) bool { return len(c.Status.Attempts) > 0 || complete(c) },
		func(c *v1alpha1.ToolCall) string { return fmt.Sprintf("%+v", c.Status) })
	r.limits(ctx, bomb)
	type span struct {
		started time.Time // the neighbour's tool
		took    time.Duration
	}
	var calls []span
	for !complete(bomb) {
		begin := time.Now()
		call := cluster.CallOf(ctx, r.t, other, `{"hello":"neighbour"}`)
		s := span{took: time.Since(begin)}
		if at := call.Status.Attempts; len(at) > 0 && at[0].StartTime != nil {
			s.started = at[0].StartTime.Time
		}
		if !*call.Status.Result.OK {
			r.breach("a call of a neighbour ended %s: %s", call.Status.Result.ErrorCode, call.Status.Result.Message)
		}
		if s.took > neighbourBound {
			r.breach("a call of a neighbour took %s, allowed are %s", s.took, neighbourBound)
		}
		calls = append(calls, s)
		if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(bomb), bomb); err != nil {
			r.t.Fatal(err)
		}
	}
	n, longest := 0, time.Duration(0)
	for _, at := range bomb.Status.Attempts {
		begin, end := at.SendTime.Time, time.Now()
		if at.EndTime != nil {
			end = at.EndTime.Time
		}
		if at.StartTime != nil && at.FinishTime != nil {
			begin, end = at.StartTime.Time, at.FinishTime.Time
		}
		for _, s := range calls {
			if s.started.After(begin) && s.started.Before(end) {
				n++
				longest = max(longest, s.took)
			}
		}
	}
	if n == 0 {
		r.untried("the tool of none of %d calls of a neighbour was started while it lasted", len(calls))
	}
	r.gotf("%d neighbour calls ok, %.1f s at most", n, longest.Seconds())
	return bomb
}

func complete(c *v1alpha1.ToolCall) bool {
	return apimeta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionComplete)
}

// limits stops the test if a sandbox has none: a bomb in it would hit the machine.
func (r *row) limits(ctx context.Context, call *v1alpha1.ToolCall) {
	r.t.Helper()
	if len(call.Status.Attempts) == 0 {
		r.t.Fatalf("no sandbox: %s", cluster.JSONOf(r.t, call.Status.Result))
	}
	a := call.Status.Attempts[0]
	pod := &corev1.Pod{}
	err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: a.Namespace, Name: a.Pod}, pod)
	if client.IgnoreNotFound(err) != nil {
		r.t.Fatal(err)
	}
	if err != nil {
		return // it has ended
	}
	limits := pod.Spec.Containers[0].Resources.Limits
	if limits.Memory().Value() <= 0 || limits.Memory().Value() > 512<<20 || limits.Cpu().MilliValue() <= 0 || limits.Cpu().MilliValue() > 1000 {
		_ = cluster.Admin.Delete(ctx, pod, client.GracePeriodSeconds(0)) // the test fails anyway
		r.breach("a sandbox with the limits %v", limits)
		r.t.FailNow()
	}
}

// ownNode skips what looks at the node, unless the node is this machine.
func ownNode(t *testing.T) bool {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", "../../.cluster/kubeconfig")
	return err == nil && config.Host == cluster.Config.Host && os.Geteuid() == 0
}

// onNode says whether a process with the word in its command line runs here.
func onNode(word string) bool {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), word) && strings.Contains(string(line), "hostile") {
			return true
		}
	}
	return false
}

// attacked runs an attack under each of its runtimes, beside others.
func attacked(t *testing.T, name string, f func(context.Context, *row)) {
	t.Helper()
	i := slices.IndexFunc(Attacks, func(a Attack) bool { return a.Name == name })
	if i < 0 {
		t.Fatalf("%s is not in the list of attacks", name)
	}
	runtimes := Attacks[i].Runtimes
	if runtimes == nil {
		runtimes = []string{outside}
	}
	for _, runtime := range runtimes {
		t.Run(name+"/"+runtime, func(t *testing.T) {
			ctx := cluster.Start(t)
			f(ctx, newRow(t, name, runtime))
		})
	}
}
