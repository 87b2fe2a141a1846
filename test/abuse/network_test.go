package abuse

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// hosts are what a tool must not reach.
type hosts struct {
	api, kubelet, dns, pod string
}

// theHosts looks them up and starts a pod beside the sandboxes; it goes with its
// namespace.
var theHosts = sync.OnceValues(func() (hosts, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Patience)
	defer cancel()
	var h hosts
	service := &corev1.Service{}
	if err := cluster.Admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, service); err != nil {
		return h, err
	}
	h.api = service.Spec.ClusterIP + ":443"
	// The usual address: the tenth of the Services'. Whether there is a DNS does not matter, see dns-exfiltration.
	h.dns = service.Spec.ClusterIP + "0:53"
	var nodes corev1.NodeList
	if err := cluster.Admin.List(ctx, &nodes); err != nil {
		return h, err
	}
	for _, a := range nodes.Items[0].Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			h.kubelet = net.JoinHostPort(a.Address, "10250")
		}
	}
	pod := plainPod("server", arguments{Attack: "serve", Seconds: 3000})
	if err := cluster.Admin.Create(ctx, pod); err != nil {
		return h, err
	}
	watcher, err := cluster.Admin.Watch(ctx, &corev1.PodList{}, client.InNamespace(pod.Namespace))
	if err != nil {
		return h, err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if p, ok := event.Object.(*corev1.Pod); ok && p.Name == pod.Name && p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			h.pod = p.Status.PodIP
			return h, nil
		}
	}
	return h, fmt.Errorf("the pod %s did not run within %s", pod.Name, cluster.Patience)
})

// plainPod runs the program without any sandbox around it, as the agent might.
// It does nothing but what a control needs.
func plainPod(name string, a arguments) *corev1.Pod {
	args, err := json.Marshal(a)
	if err != nil {
		panic(err) // nothing in arguments cannot be marshalled
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "c", Image: cluster.Images["HOSTILE"], Command: []string{"hostile", string(args)}}},
		},
	}
}

// reachable shows that the targets are there, for a pod that is no sandbox.
func (r *row) reachable(ctx context.Context, targets ...string) {
	r.t.Helper()
	controls := make([]string, len(targets))
	for i, target := range targets {
		controls[i] = "!" + target
	}
	pod := plainPod("control-"+r.name+"-"+strings.ToLower(r.runtime), arguments{Attack: "connect", Targets: controls})
	if err := cluster.Admin.Create(ctx, pod); err != nil {
		r.t.Fatal(err)
	}
	cluster.WaitFor(ctx, r.t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}, func(p *corev1.Pod) string { return p.Status.String() })
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		r.t.Fatal(err)
	}
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).Stream(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	defer stream.Close()
	log, err := io.ReadAll(io.LimitReader(stream, 1<<20))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range r.parse(string(log)).Attempts {
		if !a.OK {
			r.untried("a pod that is no sandbox cannot %s either: %s", a.What, a.Got)
		}
	}
}

// What a tool reaches over the network.
func TestNetwork(t *testing.T) {
	t.Parallel()
	attacked(t, "first-packet", func(ctx context.Context, r *row) {
		h := r.hosts()
		// Three at once: a network plugin is the slower, the more there is to do.
		targets := []string{"tcp:" + h.api, "tcp:" + h.pod + ":8080"}
		r.reachable(ctx, targets...)
		args := cluster.JSONOf(r.t, arguments{Attack: "connect", Targets: targets})
		same := tool(ctx, r.t, r.runtime, open)
		one, two, three := cluster.Propose(ctx, r.t, same, args), cluster.Propose(ctx, r.t, same, args), cluster.Propose(ctx, r.t, same, args)
		for _, call := range []reader{r.reader(ctx, one), r.reader(ctx, two), r.reader(ctx, three)} {
			r.refused(call())
		}
	})
	attacked(t, "network", func(ctx context.Context, r *row) {
		h := r.hosts()
		targets := []string{"tcp:" + h.api, "tcp:" + h.kubelet, "tcp:" + h.pod + ":8080", "udp:" + h.pod + ":5353"}
		r.reachable(ctx, targets...)
		r.refused(r.inside(ctx, open, arguments{Attack: "connect", Seconds: 5, Targets: append(targets, "udp:"+h.dns, "tcp:"+h.dns)}))
		r.refused(r.inside(ctx, closed, arguments{Attack: "connect", Targets: append(targets, "udp:"+h.dns, "tcp:127.0.0.1:80", "tcp:[::1]:80")}))
	})
	attacked(t, "dns-exfiltration", func(ctx context.Context, r *row) {
		h := r.hosts()
		// The server of these tests answers like a name server, so silence is a refusal.
		answers := "udp:" + h.pod + ":5353"
		r.reachable(ctx, answers)
		targets := []string{answers, "udp:" + h.dns, "tcp:" + h.dns, "udp:8.8.8.8:53", "udp:[2001:4860:4860::8888]:53",
			"resolve:secret.attacker.test", "resolve:kubernetes.default.svc.cluster.local", "resolve:kubernetes.default.svc"}
		r.refused(r.inside(ctx, closed, arguments{Attack: "connect", Targets: targets}))
		r.refused(r.inside(ctx, open, arguments{Attack: "connect", Seconds: 5, Targets: targets}))
	})
	attacked(t, "metadata", func(ctx context.Context, r *row) {
		h := r.hosts()
		served := serveMetadata(r.t)
		r.reachable(ctx, "tcp:"+served+":80")
		targets := []string{"!tcp:" + h.pod + ":8080"} // declared, like every address
		for _, address := range []string{served, "::ffff:" + served, "169.254.169.254", "::ffff:169.254.169.254", "169.254.170.2", "169.254.170.23",
			"100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe"} {
			targets = append(targets, "tcp:"+net.JoinHostPort(address, "80"))
		}
		slices.Sort(targets)
		targets = append(slices.Compact(targets), "resolve:metadata.google.internal", "resolve:0xA9FEA9FE")
		r.refused(r.inside(ctx, egress, arguments{Attack: "connect", Seconds: 5, Targets: targets}))
	})
}

type reader func() report

func (r *row) reader(ctx context.Context, call *v1alpha1.ToolCall) reader {
	return func() report { return r.read(cluster.Finish(ctx, r.t, call)) }
}

func (r *row) hosts() hosts {
	r.t.Helper()
	h, err := theHosts()
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

var metadata struct {
	sync.Mutex
	users    int
	listener net.Listener
}

// serveMetadata plays a metadata service on the node: at the address of a cloud
// that this machine is not in.
func serveMetadata(t *testing.T) string {
	t.Helper()
	const address = "100.100.100.200"
	if !ownNode(t) {
		t.Skip("no metadata service can be played on a node that is not this machine: without one a refusal proves nothing")
	}
	metadata.Lock()
	defer metadata.Unlock()
	if metadata.users == 0 {
		if out, err := exec.Command("ip", "address", "replace", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("ip address replace: %v: %s", err, out)
		}
		listener, err := net.Listen("tcp", address+":80")
		if err != nil {
			t.Fatal(err)
		}
		metadata.listener = listener
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				c.Close()
			}
		}()
	}
	metadata.users++
	t.Cleanup(func() {
		metadata.Lock()
		defer metadata.Unlock()
		if metadata.users--; metadata.users == 0 {
			metadata.listener.Close()
			if out, err := exec.Command("ip", "address", "del", address+"/32", "dev", "lo").CombinedOutput(); err != nil {
				t.Errorf("ip address del: %v: %s", err, out)
			}
		}
	})
	return address
}
