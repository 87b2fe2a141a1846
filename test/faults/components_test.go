package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// ownCluster skips what needs the cluster of this checkout, on this machine.
func ownCluster(t *testing.T) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", "../../.cluster/kubeconfig")
	if err != nil || config.Host != cluster.Config.Host || os.Geteuid() != 0 {
		t.Skip("the cluster is not the one that make cluster-up starts on this machine: its processes are out of reach")
	}
}

// settle waits for the end of a call, whatever happens to watches.
func settle(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if err := until(t.Context(), func() (bool, error) {
		err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(call), call)
		return err == nil && call.Status.Result != nil, nil
	}); err != nil {
		t.Fatalf("call %s does not end: %s", call.Name, cluster.JSONOf(t, call.Status))
	}
}

// clusterProgram is hack/cluster, built once.
var clusterProgram = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "callgate-faults-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "cluster")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Dir = "../../hack/cluster"
	build.Stderr = os.Stderr
	return path, build.Run()
})

// Each component of the cluster is killed and started again, with calls in
// every state: before their sandbox is there, in the middle of their frame,
// running, and printing their result.
func restartedCluster(t *testing.T) {
	ownCluster(t)
	program, err := clusterProgram()
	if err != nil {
		t.Fatal(err)
	}
	whole := t
	p := first(t, "")
	tool := countingTool(t, "restarted")
	for _, tc := range []struct {
		component string
		// lost: an answer may be lost on its way.
		lost bool
	}{{"kubelet", false}, {"containerd", true}, {"kube-apiserver", false}, {"etcd", false}} {
		ok := t.Run(tc.component, func(t *testing.T) {
			p.t = t
			const large = 200_000
			running := cluster.Propose(t.Context(), t, tool, countingArgs(8, 0))
			printing := cluster.Propose(t.Context(), t, tool, countingArgs(1.5, large))
			waitStarted(t, running)
			p.arm(t, "half-frame:2s")
			sending := cluster.Propose(t.Context(), t, tool, countingArgs(0, 0))
			p.waitPassed(t)
			waiting := cluster.Propose(t.Context(), t, tool, countingArgs(0, 0))
			restart := exec.Command(program, "restart", tc.component)
			restart.Dir = "../../hack/cluster"
			begin := time.Now()
			if out, err := restart.CombinedOutput(); err != nil {
				t.Fatalf("restart %s: %v: %s", tc.component, err, out)
			}
			t.Logf("restarted in %s", time.Since(begin).Round(100*time.Millisecond))
			select {
			case <-p.exited: // it could not renew its Lease
				p = startArmed(whole, "")
				p.t = t
			default:
			}
			for name, call := range map[string]*v1alpha1.ToolCall{"running": running, "printing": printing, "sending": sending, "waiting": waiting} {
				settle(t, call)
				bytes := 0
				if call == printing {
					bytes = large
				}
				if r := call.Status.Result; tc.lost && r.ErrorCode == v1alpha1.ErrorOutcomeUnknown {
					t.Logf("%s: %s", name, r.Message)
					if n := starts(t, call); n > 1 {
						t.Errorf("the tool of the %s call was started %d times", name, n)
					}
					continue
				}
				t.Logf("%s: %d attempts", name, len(call.Status.Attempts))
				done(t, call, bytes)
			}
		})
		if !ok {
			return
		}
	}
}
