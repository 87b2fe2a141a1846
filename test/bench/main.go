// Command bench measures Callgate on a real cluster: what docs/performance.md
// describes. A figure that misses its target is printed so; only a run that could
// not measure fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

// install is the namespace of the controller.
const install = "callgate-system"

func main() {
	out := flag.String("out", "", "file for the figures, as one JSON object")
	few := flag.Bool("check", false, "measure a little of everything, only to see that it can be measured")
	rounds := flag.Int("rounds", full.rounds, "rounds, each of one raw Pod, Job and cold call, and ten warm calls of each kind")
	limit := flag.Duration("timeout", 30*time.Minute, "how long the run may take")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, *limit)
	code := cluster.Main("bench", func() int {
		if err := run(ctx, *few, *rounds, *out); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			return 1
		}
		return 0
	})
	if err := namespacesGone(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	cancel()
	stop()
	os.Exit(code)
}

func run(ctx context.Context, few bool, rounds int, out string) (err error) {
	b := &bench{ctx: ctx, sizes: full, samples: map[string][]float64{}}
	b.sizes.rounds = rounds
	if few {
		b.sizes = check
	}
	if b.set, err = kubernetes.NewForConfig(cluster.Config); err != nil {
		return err
	}
	if b.world, err = watchWorld(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.release()) }()
	if err := b.setUp(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.all(func(what string) { fmt.Fprintf(os.Stderr, "  %4.0f s  %s\n", time.Since(began).Seconds(), what) }); err != nil {
		return err
	}
	rows, err := table(b.samples, b.sizes.many, b.sizes.most, b.tools["warm-gvisor"] != nil)
	if err != nil {
		return err
	}
	for _, name := range []string{cold, coldEgress, warmQuiet, warmQuiet + gvisor} {
		b.breakdown(os.Stdout, name)
	}
	printTable(os.Stdout, rows)
	content, err := figures(rows)
	if err != nil || out == "" {
		return err
	}
	return os.WriteFile(out, content, 0o644)
}

// setUp makes the Tools, and the template that they share with raw Pods and Jobs.
func (b *bench) setUp() error {
	if err := b.makeTools(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	var nodes corev1.NodeList
	if err := cluster.Admin.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	namespace, _ := sandbox.Users(nil, nodes.Items)
	b.template = rawTemplate(sandbox.Job(sandbox.Input{
		Tool: b.tools["echo"], Install: install, RunnerImage: cluster.Images["RUNNER"], CallUID: "raw",
		Call: types.NamespacedName{Namespace: "raw", Name: "raw"}, Attempt: 1, NoUserNamespace: !namespace,
	}))
	if err := b.hold(); err != nil {
		return err
	}
	return b.poolsFull()
}

func (b *bench) makeTools() error {
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	pool := &v1alpha1.WarmPool{Replicas: ptr.To(int32(b.sizes.pool)), MaxIdleSeconds: 86400}
	schema := `{"type":"object","properties":{"text":{"type":"string"}},"required":["text"],"additionalProperties":false}`
	changes := map[string]func(*v1alpha1.ToolSpec){
		"echo": func(*v1alpha1.ToolSpec) {},
		"egress": func(s *v1alpha1.ToolSpec) {
			s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{
				To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24"}}}, // nobody's
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(443))}},
			}}
		},
		"warm":        func(s *v1alpha1.ToolSpec) { s.Warm = pool },
		"warm-gvisor": func(s *v1alpha1.ToolSpec) { s.Warm, s.Isolation.RuntimeClassName = pool, "gvisor" },
		"denied":      func(*v1alpha1.ToolSpec) {},
		"held": func(s *v1alpha1.ToolSpec) {
			s.MaxConcurrentCalls, s.TimeoutSeconds, s.Container.Command = 1, 3600, []string{"sleep", "3600"}
		},
	}
	err := cluster.Admin.Get(ctx, client.ObjectKey{Name: "gvisor"}, &nodev1.RuntimeClass{})
	if apierrors.IsNotFound(err) {
		fmt.Fprintln(os.Stderr, "  there is no RuntimeClass gvisor: the figures that end with _gvisor are left out")
		delete(changes, "warm-gvisor")
	} else if err != nil {
		return fmt.Errorf("read RuntimeClass gvisor: %w", err)
	}
	if err := cluster.Admin.Create(ctx, &v1alpha1.ToolPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: "denied"},
		Spec: v1alpha1.ToolPolicySpec{
			Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: cluster.AgentsNS, Name: cluster.AgentName}},
			Rules:    []v1alpha1.PolicyRule{{Name: "never", Effect: v1alpha1.EffectDeny, Tools: v1alpha1.ToolSelector{Names: []string{"denied"}}}},
		},
	}); err != nil {
		return fmt.Errorf("create a policy: %w", err)
	}
	b.tools = map[string]*v1alpha1.Tool{}
	for name, change := range changes {
		tool := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: name}}
		tool.Spec.InputSchema.Raw = []byte(schema)
		tool.Spec.Container = v1alpha1.ToolContainer{Image: cluster.Images["BUSYBOX"], Command: []string{"cat"}}
		tool.Spec.MaxConcurrentCalls = 1000
		change(&tool.Spec)
		if err := cluster.Admin.Create(ctx, tool); err != nil {
			return fmt.Errorf("create Tool %s: %w", name, err)
		}
		b.tools[name] = tool
	}
	for name, tool := range b.tools {
		if err := waitReady(ctx, tool); err != nil {
			return fmt.Errorf("wait until Tool %s is Ready: %w", name, err)
		}
	}
	return nil
}

// waitReady polls: nothing is measured yet.
func waitReady(ctx context.Context, tool *v1alpha1.Tool) error {
	return poll(ctx, func() (bool, error) {
		if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(tool), tool); err != nil {
			return false, err
		}
		ready := apimeta.FindStatusCondition(tool.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == tool.Generation, nil
	})
}

// namespacesGone waits until the namespaces of this run, which are being deleted,
// are gone with all that was in them.
func namespacesGone() error {
	if cluster.Admin == nil || cluster.ToolsNS == "" {
		return nil // it did not come that far
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, name := range []string{cluster.AgentsNS, cluster.ToolsNS} {
		if err := poll(ctx, func() (bool, error) {
			err := cluster.Admin.Get(ctx, client.ObjectKey{Name: name}, &corev1.Namespace{})
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}); err != nil {
			return fmt.Errorf("namespace %s is not gone within %s: %w", name, patience, err)
		}
	}
	return nil
}

// poll asks until done says so, at most for patience, outside of what is measured.
func poll(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %s", patience)
		}
	}
}
