//go:build cluster && linux

// These tests start and stop real clusters on this machine, as root:
//
//	go test -tags cluster -run TestCluster -timeout 30m -v .
//
// They refuse to run while a cluster is up.

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A checkout is one working copy's cluster, driven as a user drives it.
type checkout struct {
	t            *testing.T
	program, dir string
}

// run calls the program and returns what it printed.
func (c checkout) run(args ...string) (string, error) {
	cmd := exec.Command(c.program, append([]string{"-dir", c.dir}, args...)...)
	out, err := cmd.CombinedOutput()
	c.t.Logf("%s: %s", strings.Join(args, " "), strings.TrimSpace(string(out)))
	return string(out), err
}

func (c checkout) must(args ...string) string {
	c.t.Helper()
	out, err := c.run(args...)
	if err != nil {
		c.t.Fatalf("%s: %v", args[0], err)
	}
	return out
}

func (c checkout) kubectl(input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.dir, "bin", "kubectl"), append([]string{"--kubeconfig", filepath.Join(c.dir, "kubeconfig")}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// pod runs a pod to its end and returns its log.
func (c checkout) pod(name, spec, script string) string {
	c.t.Helper()
	c.create(name, "", spec, script)
	if out, err := c.kubectl("", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s"); err != nil {
		describe, _ := c.kubectl("", "describe", "pod", name) // only to be read by people
		logs, _ := c.kubectl("", "logs", name)                // as above
		c.t.Fatalf("pod %s: %s\n%s\n%s", name, out, describe, logs)
	}
	out, err := c.kubectl("", "logs", name)
	if err != nil {
		c.t.Fatalf("logs of %s: %s", name, out)
	}
	return out
}

// create makes a pod of busybox that runs a shell script. spec is further YAML of
// its spec, labels of its metadata.
func (c checkout) create(name, labels, spec, script string) {
	c.t.Helper()
	ports := ""
	if name == "sleeper-runc" { // so that the port-mapping plugin has something to do
		ports = "{containerPort: 8080, hostPort: 18080}"
	}
	manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: {%s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: callgate.local/busybox:1
    imagePullPolicy: Never
    command: [/busybox, sh, -c, %q]
    ports: [%s]
    volumeMounts: [{name: tools, mountPath: /tools}]
  volumes:
  - name: tools
    image: {reference: callgate.local/busybox:1, pullPolicy: Never}
%s`, name, labels, script, ports, spec)
	if out, err := c.kubectl(manifest, "create", "-f", "-"); err != nil {
		c.t.Fatalf("create pod %s: %s", name, out)
	}
}

func (c checkout) waitRunning(name string) {
	c.t.Helper()
	if out, err := c.kubectl("", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s"); err != nil {
		describe, _ := c.kubectl("", "describe", "pod", name) // only to be read by people
		c.t.Fatalf("pod %s: %s\n%s", name, out, describe)
	}
}

// componentProcesses returns the process IDs by name.
func componentProcesses(t *testing.T) map[string]process {
	t.Helper()
	all, err := mountedHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := componentsCgroup(all)
	if err != nil {
		t.Fatal(err)
	}
	return running(cgroup)
}

// killEverything is kill -9 of every process of the cluster, shims and pods too.
func killEverything(t *testing.T) {
	t.Helper()
	all, err := mountedHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	if err := killAll(all); err != nil {
		t.Fatal(err)
	}
}

func TestCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes clusters, it needs root")
	}
	if alive, err := live(); err != nil || alive {
		t.Fatalf("a cluster runs on this machine (%v): take it down first", err)
	}
	if err := installPackages(append([]debPackage{{name: "busybox-static", program: "busybox"}}, runPackages...)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "cluster")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	a := checkout{t, program, filepath.Join(t.TempDir(), "a", ".cluster")}
	// The other one lies deeper than a socket's path may be long.
	b := checkout{t, program, filepath.Join(t.TempDir(), strings.Repeat("deep", 20), ".cluster")}
	t.Cleanup(func() { _, _ = a.run("down"); _, _ = b.run("down") }) // whatever failed
	t.Cleanup(func() {                                               // before the one above
		if !t.Failed() {
			return
		}
		logs, err := filepath.Glob(filepath.Join(a.dir, "log", "*.log"))
		for _, log := range logs {
			t.Logf("%s: %s (%v)", log, logTail(newLayout(a.dir, ""), strings.TrimSuffix(filepath.Base(log), ".log")), err)
		}
	})
	image := filepath.Join(t.TempDir(), "busybox.tar")
	busybox, err := lookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := writeImage(image, "callgate.local/busybox:1", map[string]string{"busybox": busybox}, []string{"/busybox"}); err != nil {
		t.Fatal(err)
	}
	before := snapshot(t)

	a.must("up")
	first := componentProcesses(t)
	a.must("up")
	second := componentProcesses(t)
	for _, component := range components(layout{}) {
		if name := component.name; first[name].pid != second[name].pid {
			t.Errorf("a second up restarted %s", name)
		}
	}
	a.must("status")
	if out := a.must("load", image); !strings.Contains(out, "callgate.local/busybox:1") {
		t.Errorf("load does not name the image: %s", out)
	}
	checkPods(a)
	checkNetworkPolicy(a)
	t.Log("one component killed")
	if err := syscall.Kill(first["containerd"].pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(t, first["containerd"].pid)
	if out, err := a.run("status"); err == nil || !strings.Contains(out, "stopped") {
		t.Error("status does not see that containerd has stopped")
	}
	a.must("up")
	a.pod("again", "", "exit 0")
	if _, err := b.run("load", image); err == nil {
		t.Error("load into another checkout's cluster")
	}
	if out, err := b.run("up"); err == nil || !strings.Contains(out, a.dir) {
		t.Errorf("up beside another checkout's cluster: %v", err)
	}
	if out, err := b.run("down"); err == nil || !strings.Contains(out, a.dir) {
		t.Errorf("down of another checkout's cluster: %v", err)
	}
	a.must("down")
	sameAs(t, "down", before, snapshot(t))
	a.must("down") // nothing there is fine
	sameAs(t, "a second down", before, snapshot(t))

	a.must("up")
	a.must("load", image)
	sleepers(a)
	killEverything(t)
	a.must("down")
	sameAs(t, "down after kill -9", before, snapshot(t))

	a.must("up")
	a.must("load", image)
	sleepers(a)
	killComponents(t)
	a.must("up")
	a.pod("revived", "", "exit 0")
	killComponents(t)
	a.must("down")
	sameAs(t, "down after kill -9 of the components", before, snapshot(t))

	a.must("up")
	a.must("load", image)
	sleepers(a)
	killEverything(t)
	b.must("up")
	b.must("load", image)
	checkPods(b)
	b.must("down")
	a.must("down")
	sameAs(t, "another checkout's up and down after kill -9", before, snapshot(t))

	listener, err := net.Listen("tcp", "127.0.0.1:10250")
	if err != nil {
		t.Fatal(err)
	}
	out, upErr := a.run("up")
	if upErr == nil || !strings.Contains(out, "10250") || !strings.Contains(out, "kubelet") {
		t.Errorf("up with the kubelet's port in use: %v", upErr)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	sameAs(t, "a refused up", before, snapshot(t))
	a.must("up")
	a.must("down")
	sameAs(t, "down at the end", before, snapshot(t))
}

// killComponents is kill -9 of the components; shims, sandboxes and pods live on.
func killComponents(t *testing.T) {
	t.Helper()
	processes := componentProcesses(t)
	for _, component := range components(layout{}) {
		p, ok := processes[component.name]
		if !ok {
			t.Errorf("%s does not run", component.name)
			continue
		}
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitGone(t, p.pid)
	}
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); len(alive([]int{pid})) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d does not end", pid)
		}
	}
}

// sleepers leaves pods of every kind running.
func sleepers(c checkout) {
	c.t.Helper()
	for name, spec := range map[string]string{"runc": "", "gvisor": "  runtimeClassName: gvisor", "userns": "  hostUsers: false"} {
		c.create("sleeper-"+name, "net: none", spec, "/busybox sleep 100000 & /busybox sleep 100000")
	}
	if out, err := c.kubectl(denyAll, "apply", "-f", "-"); err != nil {
		c.t.Fatal(out)
	}
	for _, name := range []string{"runc", "gvisor", "userns"} {
		c.waitRunning("sleeper-" + name)
	}
}

func checkPods(c checkout) {
	c.t.Helper()
	host, err := os.ReadFile("/proc/version")
	if err != nil {
		c.t.Fatal(err)
	}
	if got := c.pod("plain", "", "/busybox cat /proc/version"); got != string(host) {
		c.t.Errorf("a plain pod sees the kernel %q, the host is %q", got, host)
	}
	if got := c.pod("gvisor", "  runtimeClassName: gvisor", "/busybox dmesg"); !strings.Contains(got, "Starting gVisor") {
		c.t.Errorf("the kernel log of a gvisor pod is %q", got)
	}
	if got := strings.Fields(c.pod("userns", "  hostUsers: false", "/busybox cat /proc/self/uid_map")); len(got) != 3 || got[0] != "0" || got[1] == "0" {
		c.t.Errorf("uid_map of a hostUsers: false pod is %q", got)
	}
	for name, spec := range map[string]string{"volume": "", "volume-gvisor": "  runtimeClassName: gvisor", "volume-userns": "  hostUsers: false"} {
		got := c.pod(name, spec, "/tools/busybox echo from the volume; /busybox touch /tools/x || /tools/busybox echo read-only")
		if !strings.Contains(got, "from the volume") || !strings.Contains(got, "\nread-only") {
			c.t.Errorf("pod %s printed %q", name, got)
		}
	}
	if _, err := c.kubectl("", "delete", "pods", "--all", "--force", "--grace-period=0"); err != nil {
		c.t.Error(err)
	}
}

const denyAll = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-all}
spec:
  podSelector: {matchLabels: {net: none}}
  policyTypes: [Ingress, Egress]
`

func checkNetworkPolicy(c checkout) {
	c.t.Helper()
	if out, err := c.kubectl(denyAll, "apply", "-f", "-"); err != nil {
		c.t.Fatal(out)
	}
	c.create("server", "", "", "/busybox mkdir /www; echo hello > /www/index.html; exec /busybox httpd -f -p 8080 -h /www")
	c.waitRunning("server")
	if out, err := c.kubectl("", "expose", "pod", "server", "--port=80", "--target-port=8080", "--selector=run=server"); err != nil {
		c.t.Fatal(out)
	}
	if out, err := c.kubectl("", "label", "pod", "server", "run=server"); err != nil {
		c.t.Fatal(out)
	}
	address := func(what, path string) string {
		out, err := c.kubectl("", "get", what, "-o", "jsonpath="+path)
		if err != nil {
			c.t.Fatal(out)
		}
		return out
	}
	pod, service := address("pod/server", "{.status.podIP}"), address("service/server", "{.spec.clusterIP}")
	api := address("service/kubernetes", "{.spec.clusterIP}") + " 443"
	// Debian's static busybox crashes on resolving a name, even for wget.
	fetch := func(address string) string {
		return "echo 'GET / HTTP/1.0\\r\\n\\r\\n' | /busybox nc -w 1 " + address
	}
	commands := map[string]string{"pod": fetch(pod + " 8080"), "service": fetch(service + " 80"), "api": fetch(api)}
	// A service and a policy take a moment to reach a new pod: the open pod tries
	// until it is through, and the closed one, made after that, until it is refused
	// and then three times more.
	const until = "n=0; until %s; do n=$((n+1)); [ $n -lt 40 ] || exit 1; /busybox sleep 0.25; done"
	finish := func(name string) {
		if out, err := c.kubectl("", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s"); err != nil {
			logs, _ := c.kubectl("", "logs", name) // only to be read by people
			c.t.Errorf("network of pod %s: %s%s", name, out, logs)
		}
	}
	for name, command := range commands {
		c.create("open-"+name, "", "", fmt.Sprintf(until, command))
	}
	for name := range commands {
		finish("open-" + name)
	}
	for name, command := range commands {
		c.create("closed-"+name, "net: none", "", fmt.Sprintf(until, "! "+command)+fmt.Sprintf("; for i in 1 2 3; do ! %s || exit 1; done", command))
	}
	for name := range commands {
		finish("closed-" + name)
	}
	if got, err := c.kubectl("", "logs", "open-pod"); err != nil || !strings.Contains(got, "hello") {
		c.t.Errorf("the open pod got %q", got)
	}
	for _, kind := range []string{"networkpolicies", "pods", "services/server"} {
		args := []string{"delete", kind, "--force", "--grace-period=0"}
		if !strings.Contains(kind, "/") {
			args = append(args, "--all")
		}
		if out, err := c.kubectl("", args...); err != nil {
			c.t.Error(out)
		}
	}
}
