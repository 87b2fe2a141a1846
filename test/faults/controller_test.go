package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/test/cluster"
)

const (
	install        = "callgate-system"
	controllerName = "callgate-controller"
)

// takeOver stops the Deployment's controller until the end of the test: the
// test runs controllers of its own, as processes that it can kill and freeze.
func takeOver(t *testing.T) {
	t.Helper()
	scale := func(ctx context.Context, replicas int32) error {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: controllerName}}
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		if err := cluster.Admin.Patch(ctx, d, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			return err
		}
		return until(ctx, func() (bool, error) {
			if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
				return false, err
			}
			var pods corev1.PodList
			err := cluster.Admin.List(ctx, &pods, client.InNamespace(install), client.MatchingLabels(d.Spec.Selector.MatchLabels))
			return err == nil && int32(len(pods.Items)) == replicas && d.Status.ReadyReplicas == replicas, err
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := errors.Join(dropLease(ctx), scale(ctx, 1)); err != nil {
			t.Errorf("give the controller back: %v", err)
		}
	})
	if err := scale(t.Context(), 0); err != nil {
		t.Fatalf("stop the Deployment's controller: %v", err)
	}
}

// dropLease removes the leader's Lease, which a controller that was killed holds
// for some seconds more. The dead do nothing any more; a frozen one would.
func dropLease(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: controllerName}}
	return client.IgnoreNotFound(cluster.Admin.Delete(ctx, lease))
}

// until asks every 100 ms, until done or the context's end, at most two minutes.
func until(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// process is a controller that runs beside the tests.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}
	health string
	log    string
}

// binary builds the controller with its named points, once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "callgate-faults-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "callgate")
	build := exec.Command("go", "build", "-tags", "faults", "-o", path, "../../cmd/callgate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the controller: %w: %s", err, out)
	}
	return path, nil
})

// startController starts one. fault is CALLGATE_FAULT (see internal/fault), or
// empty; server is the API server's address, or that of something in front of
// it, empty for the cluster's own. flags are added to those of the Deployment.
func startController(t *testing.T, fault, server string, flags ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	health, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{}
	if err := cluster.Admin.Get(t.Context(), client.ObjectKey{Namespace: install, Name: controllerName}, d); err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "controller-*.log")
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat(d.Spec.Template.Spec.Containers[0].Args, []string{"--metrics-bind-address=0", "--health-probe-bind-address=" + health}, flags)
	p := &process{t: t, cmd: exec.Command(path, args...), exited: make(chan struct{}), health: health, log: log.Name()}
	p.cmd.Env = append(os.Environ(), "POD_NAMESPACE="+install, "KUBECONFIG="+controllerKubeconfig(t, server), "CALLGATE_FAULT="+fault)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is what the test is about
		_ = log.Close()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			content, err := os.ReadFile(p.log)
			t.Logf("log of the controller (%v):\n%s", err, content[max(0, len(content)-20_000):])
		}
	})
	return p
}

// controllerKubeconfig is a kubeconfig of the controller's ServiceAccount.
func controllerKubeconfig(t *testing.T, server string) string {
	t.Helper()
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](7200)}}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: controllerName}}
	if err := cluster.Admin.SubResource("token").Create(t.Context(), sa, token); err != nil {
		t.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: cluster.Config.Host, CertificateAuthorityData: cluster.Config.CAData, CertificateAuthority: cluster.Config.CAFile}
	if server != "" {
		// Over TLS, or the token would not be sent; it is this test's own.
		c.Clusters["c"] = &clientcmdapi.Cluster{Server: server, InsecureSkipTLSVerify: true}
	}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// waitReady waits until it leads and takes calls.
func (p *process) waitReady() {
	p.t.Helper()
	err := until(p.t.Context(), func() (bool, error) {
		select {
		case <-p.exited:
			return false, errors.New("it exited")
		default:
		}
		response, err := http.Get("http://" + p.health + "/readyz")
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		p.t.Fatalf("the controller is not ready: %v", err)
	}
}

// waitExit waits until it has ended by itself.
func (p *process) waitExit() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		p.t.Fatal("the controller did not come to the point at which it was to die")
	}
}

// waitStopped waits until it has stopped itself (SIGSTOP).
func (p *process) waitStopped() {
	p.t.Helper()
	err := until(p.t.Context(), func() (bool, error) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return false, err
		}
		var pid int
		var name, state string
		_, err = fmt.Sscan(string(stat), &pid, &name, &state)
		return state == "T", err
	})
	if err != nil {
		p.t.Fatalf("the controller did not come to the point at which it was to stop: %v", err)
	}
}

func (p *process) kill()   { p.signal(syscall.SIGKILL); <-p.exited }
func (p *process) freeze() { p.signal(syscall.SIGSTOP) }
func (p *process) thaw()   { p.signal(syscall.SIGCONT) }

// signal sends one to the process, which this test started, unless it has ended.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.exited:
	default:
		_ = p.cmd.Process.Signal(s) // it may end in this moment
	}
}
