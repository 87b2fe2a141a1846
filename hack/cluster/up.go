//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"
)

//go:embed manifests/cluster.yaml
var clusterManifest string

//go:embed manifests/dns.yaml
var dnsManifest string

//go:embed manifests/probe.yaml
var probeManifest string

// up brings the cluster to where its node is Ready and a pod has run, whatever
// of it is there already.
func up(l layout) error {
	begin := time.Now()
	if err := installPackages(runPackages); err != nil {
		return err
	}
	unlock, err := lockMachine()
	if err != nil {
		return err
	}
	defer unlock()
	u, err := prepare(&l)
	if err != nil {
		return err
	}
	if len(u.started) < len(components(l)) {
		for _, c := range components(l) {
			if err := u.start(c); err != nil {
				return err
			}
		}
	}
	if err := u.waitReady(); err != nil {
		return err
	}
	say("up in %.1f s: export KUBECONFIG=%s (kubectl is %s)", time.Since(begin).Seconds(), l.kubeconfig(), l.path("bin", "kubectl"))
	return nil
}

// An upRun is one run of up.
type upRun struct {
	layout
	cgroup string
	client *http.Client
	// started holds the components that run; the channel, nil for those that ran
	// before, closes when one ends.
	started map[string]<-chan struct{}
}

// prepare makes everything the components need, after it has made sure that the
// machine is this checkout's to use. It may change l's binaries to those a
// running cluster was started with.
func prepare(l *layout) (*upRun, error) {
	all, err := mountedHierarchies()
	if err != nil {
		return nil, err
	}
	u := &upRun{started: map[string]<-chan struct{}{}}
	if u.cgroup, err = componentsCgroup(all); err != nil {
		return nil, err
	}
	machine, err := readRecord(runDir)
	if err != nil {
		return nil, err
	}
	alive, err := live()
	if err != nil {
		return nil, err
	}
	if alive && machine != nil && machine.State != l.state && exists(machine.State) {
		return nil, fmt.Errorf("the cluster of %s runs on this machine, and there can be one only; use it (KUBECONFIG=%s/kubeconfig), or take it down there",
			machine.State, machine.State)
	}
	if err := claimState(l.state); err != nil {
		return nil, err
	}
	processes := running(u.cgroup)
	if len(processes) > 0 && machine != nil && machine.State == l.state {
		if machine.Bin != l.bin {
			say("the running cluster was started from %s and keeps its versions; down and up changes them", machine.Bin)
			l.bin = machine.Bin
		}
		for _, c := range components(*l) {
			if _, ok := processes[c.name]; ok {
				u.started[c.name] = nil
				continue
			}
			say("%s does not run: starting it again", c.name)
			if err := checkPorts(c); err != nil {
				return nil, err
			}
		}
	} else if err := u.fresh(l, machine); err != nil {
		return nil, err
	}
	u.layout = *l
	if err := prepareKernel(); err != nil {
		return nil, err
	}
	if err := makeCgroups(all); err != nil {
		return nil, err
	}
	if err := makeBridge(); err != nil {
		return nil, err
	}
	return u, u.writeFiles()
}

// fresh clears away what a cluster of ours that is not running any more has
// left, and records that this one begins.
func (u *upRun) fresh(l *layout, machine *record) error {
	leftovers := machine
	own, err := readRecord(l.state)
	if err != nil {
		return err
	}
	if leftovers == nil {
		leftovers = afterRestart(own)
	}
	if machine != nil {
		say("clearing away what the cluster of %s left when it stopped", machine.State)
	}
	if err := sweep(leftovers); err != nil {
		return fmt.Errorf("clearing away the leftovers of an earlier cluster: %w", err)
	}
	for _, c := range components(*l) {
		if err := checkPorts(c); err != nil {
			return err
		}
	}
	return writeRecord(record{State: l.state, Bin: l.bin, Made: absent(outsidePaths), Sysctl: readSysctls()})
}

func (u *upRun) writeFiles() error {
	for _, dir := range []string{"log", "config", "tmp", "pod-logs"} {
		if err := os.MkdirAll(u.path(dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Remove(u.path("bin")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(u.bin, u.path("bin")); err != nil {
		return err
	}
	if err := makePKI(u.layout); err != nil {
		return err
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	if err := writeConfig(settings{layout: u.layout, RestrictOOM: !mayLowerOOMScore(string(own))}); err != nil {
		return err
	}
	u.client, err = apiClient(u.layout)
	return err
}

// start starts a component unless it runs, and waits for those that the next
// ones need.
func (u *upRun) start(c component) error {
	if _, ok := u.started[c.name]; !ok {
		ended, err := start(u.layout, c, u.cgroup)
		if err != nil {
			return err
		}
		u.started[c.name] = ended
	}
	switch c.name {
	case "etcd":
		return u.wait("etcd", 30*time.Second, func(ctx context.Context) error {
			return get(ctx, http.DefaultClient, "http://127.0.0.1:2379/health", nil)
		})
	case "containerd":
		if err := u.wait("containerd", 30*time.Second, func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, u.program("ctr"), "--address", containerdSocket, "version").CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, tail(out, 2))
			}
			return nil
		}); err != nil {
			return err
		}
		return loadImages(u.layout)
	case "kube-apiserver":
		if err := u.wait("kube-apiserver", 60*time.Second, func(ctx context.Context) error {
			return get(ctx, u.client, apiServer+"/readyz", nil)
		}); err != nil {
			return err
		}
		// Before kube-router starts, which needs its role.
		if err := u.kubectl(clusterManifest+"---\n"+dnsManifest, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
			return errComponent(u.layout, "kube-apiserver", "did not take the cluster's own objects: "+err.Error())
		}
	case "kube-proxy":
		// kube-router, the next one, ends when there is no Node yet.
		return u.wait("kubelet", 60*time.Second, func(ctx context.Context) error { return get(ctx, u.client, nodeURL, nil) })
	}
	return nil
}

// waitReady waits for the node and runs a pod.
func (u *upRun) waitReady() error {
	if err := u.wait("kubelet", 90*time.Second, func(ctx context.Context) error {
		var node object
		if err := get(ctx, u.client, nodeURL, &node); err != nil {
			return err
		}
		return node.ready()
	}); err != nil {
		return err
	}
	// The controller manager makes the service account every pod needs.
	if err := u.wait("kube-controller-manager", 60*time.Second, func(ctx context.Context) error {
		return errors.Join(
			get(ctx, u.client, apiServer+"/api/v1/namespaces/default/serviceaccounts/default", nil),
			get(ctx, u.client, apiServer+"/api/v1/namespaces/kube-system/serviceaccounts/default", nil))
	}); err != nil {
		return err
	}
	if err := u.kubectl("", "delete", "-n", "kube-system", "pod", "callgate-cluster-probe", "--ignore-not-found", "--force", "--grace-period=0"); err != nil {
		return err
	}
	if err := u.kubectl(probeManifest, "create", "-f", "-"); err != nil {
		return err
	}
	if err := u.wait("kubelet", 90*time.Second, func(ctx context.Context) error {
		var pod object
		if err := get(ctx, u.client, apiServer+"/api/v1/namespaces/kube-system/pods/callgate-cluster-probe", &pod); err != nil {
			return err
		}
		return pod.ready()
	}); err != nil {
		return fmt.Errorf("a first pod does not run: %w", err)
	}
	if err := u.kubectl("", "delete", "-n", "kube-system", "pod", "callgate-cluster-probe", "--grace-period=0", "--force"); err != nil {
		return err
	}
	if err := u.wait("kube-proxy", 90*time.Second, resolve); err != nil {
		return fmt.Errorf("no name resolves (kubectl -n kube-system describe pods -l k8s-app=kube-dns): %w", err)
	}
	for _, name := range []string{"kube-proxy", "kube-router", "kube-scheduler"} {
		if err := u.check(name); err != nil {
			return err
		}
	}
	return nil
}

// wait asks again and again until done returns nil. It gives up after limit, or
// as soon as a component has ended.
func (u *upRun) wait(name string, limit time.Duration, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		for started := range u.started {
			if err := u.check(started); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return errComponent(u.layout, name, fmt.Sprintf("is not ready after %s: %v", limit, err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// check returns an error when a component started by this run has ended.
func (u *upRun) check(name string) error {
	ended := u.started[name]
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return errComponent(u.layout, name, "ended")
	default:
		return nil
	}
}

func (u *upRun) kubectl(input string, args ...string) error {
	cmd := exec.Command(u.program("kubectl"), append([]string{"--kubeconfig", u.kubeconfig(), "--request-timeout=30s"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = append(os.Environ(), "NO_PROXY="+nodeIP, "no_proxy="+nodeIP)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, tail(out, 5))
	}
	return nil
}
