package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func testTools(s *v1alpha1.ToolSpec) { s.Container.Image = images["TESTTOOLS"] }

// apiService is the address of the API server inside the cluster.
func apiService(t *testing.T) string {
	t.Helper()
	svc := &corev1.Service{}
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, svc); err != nil {
		t.Fatal(err)
	}
	return svc.Spec.ClusterIP + ":443"
}

// connect is a script that says whether it reaches an address, with its first
// packet: the runner has proven that the policy is in force.
func connect(address string) string {
	return nc(address) + " && echo connected || echo refused"
}

// connectSoon asks again for what is allowed, which a plugin may learn later.
func connectSoon(address string) string {
	return "for i in 1 2 3 4 5 6 7 8 9 10; do " + nc(address) + " && echo connected && exit; sleep 1; done; echo refused"
}

func nc(address string) string {
	host, port, _ := strings.Cut(address, ":")
	return "nc -w 2 " + host + " " + port + " </dev/null"
}

// A Tool without egress has no network from its first instruction.
func TestNoNetwork(t *testing.T) {
	api := apiService(t)
	for _, tc := range []struct {
		name, reason string
		command      []string
		mod          func(*v1alpha1.ToolSpec)
		want         string
	}{
		{"no-sockets", "the filter refuses the socket itself", []string{"netprobe", api}, nil, "address family not supported"},
		{"no-sockets-gvisor", "the same inside gVisor", []string{"netprobe", api}, gvisor, "address family not supported"},
		{"no-sockets-int80", "the 32-bit entry of the kernel does not walk around it", []string{"int80"}, nil, "function not implemented"},
		{"no-sockets-int80-gvisor", "nor inside gVisor", []string{"int80"}, gvisor, `"socket":false`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := start(t)
			mods := []func(*v1alpha1.ToolSpec){testTools, timeout(20)}
			if tc.mod != nil {
				mods = append(mods, tc.mod)
			}
			tool := newTool(ctx, t, tc.name, tc.command, mods...)
			data := succeeded(t, callOf(ctx, t, tool, ""))
			if !strings.Contains(data, tc.want) || strings.Contains(data, `"connected":true`) || strings.Contains(data, `"socket":true`) {
				t.Errorf("%s: got %s", tc.reason, data)
			}
		})
	}
	t.Run("no-sockets-386", func(t *testing.T) {
		// Every call of a whole 32-bit program is refused, so it cannot even say so.
		ctx := start(t)
		tool := newTool(ctx, t, "no-sockets-386", []string{"sockets386"}, testTools)
		failed(t, callOf(ctx, t, tool, ""), v1alpha1.ErrorToolFailed, false, "signal")
	})
	t.Run("policy", func(t *testing.T) {
		// With sockets allowed the NetworkPolicy refuses.
		ctx := start(t)
		tool := shell(ctx, t, "policy", connect(api), text, timeout(20),
			func(s *v1alpha1.ToolSpec) { s.Isolation.Network.Loopback = true })
		if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != "refused\n" {
			t.Errorf("got %q", data)
		}
	})
	t.Run("loopback", func(t *testing.T) {
		ctx := start(t)
		tool := shell(ctx, t, "loopback", "(echo hello | nc -l -p 8080) & sleep 1; nc 127.0.0.1 8080 </dev/null", text, timeout(20),
			func(s *v1alpha1.ToolSpec) { s.Isolation.Network.Loopback = true })
		if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != "hello\n" {
			t.Errorf("a tool with loopback got %q from its own helper", data)
		}
	})
}

// A Tool reaches what its egress names, and nothing else.
func TestEgress(t *testing.T) {
	ctx := start(t)
	server := func(name string) string {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: images["BUSYBOX"],
				Command: []string{"sh", "-c", "while :; do nc -l -p 8080 </dev/null; done"}}}},
		}
		if err := admin.Create(ctx, pod); err != nil {
			t.Fatal(err)
		}
		waitFor(ctx, t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" },
			func(p *corev1.Pod) string { return p.Status.String() })
		return pod.Status.PodIP + ":8080"
	}
	declared, other := server("declared"), server("other")
	port := intstr.FromInt32(8080)
	egress := func(s *v1alpha1.ToolSpec) {
		s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: agentsNS}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "declared"}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
		}}
	}
	for _, tc := range []struct {
		name, script, want string
	}{
		{"egress-declared", connectSoon(declared), "connected\n"},
		{"egress-other", connect(other), "refused\n"},
		{"egress-api", connect(apiService(t)), "refused\n"},
	} {
		tool := shell(ctx, t, tc.name, tc.script, text, timeout(20), egress)
		if words := readyWords(tool); strings.Contains(words, "not proven") {
			t.Errorf("%s: Ready says %q", tc.name, words)
		}
		if data := unquote(t, succeeded(t, callOf(ctx, t, tool, ""))); data != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, data, tc.want)
		}
	}
}

// The sandbox is what the design says, seen from inside.
func TestSandboxFromInside(t *testing.T) {
	ctx := start(t)
	tool := shell(ctx, t, "inside", `
		echo "uid=$(id -u) gid=$(id -g)"
		touch /x 2>/dev/null && echo "root is writable"
		touch /tmp/x && echo "tmp is writable"
		head -c 100000000 /dev/zero > /tmp/fill 2>/dev/null || echo "tmp is bounded"
		[ -e /var/run/secrets ] && echo "has a token"
		cat /proc/1/environ >/dev/null 2>&1 && echo "reads the environment of PID 1"
		ls /proc/1/fd >/dev/null 2>&1 && echo "reads the files of PID 1"
		grep NoNewPrivs /proc/self/status
		grep CapEff /proc/self/status
		head -1 /proc/self/uid_map
	`, text)
	got := unquote(t, succeeded(t, callOf(ctx, t, tool, "")))
	for _, want := range []string{"uid=65532 gid=65532", "tmp is writable", "tmp is bounded", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	for _, not := range []string{"root is writable", "has a token", "reads the", "         0          0 4294967295"} {
		if strings.Contains(got, not) {
			t.Errorf("has %q:\n%s", not, got)
		}
	}
}

// Under the RuntimeClass the kernel is gVisor's, which is not the node's. Under
// runc it is the node's, and users are those of a namespace of their own.
func TestKernelAndUsers(t *testing.T) {
	kernel := ""
	{
		var nodes corev1.NodeList
		if err := admin.List(t.Context(), &nodes); err != nil || len(nodes.Items) == 0 {
			t.Fatalf("no nodes: %v", err)
		}
		kernel = nodes.Items[0].Status.NodeInfo.KernelVersion
	}
	under(t, func(t *testing.T, name string, class func(*v1alpha1.ToolSpec)) {
		ctx := start(t)
		tool := shell(ctx, t, "kernel-"+name, "uname -r; dmesg 2>/dev/null | tr '\n' ' '; echo; head -1 /proc/self/uid_map", text, class)
		message := tool.Status.Conditions[0].Message
		call := callOf(ctx, t, tool, "")
		lines := strings.Split(unquote(t, succeeded(t, call)), "\n")
		if len(lines) < 3 {
			t.Fatalf("the tool saw %q", lines)
		}
		if gvisor := strings.Contains(lines[1], "gVisor"); gvisor != (name == "gvisor") || (lines[0] != kernel) != gvisor {
			t.Errorf("the tool's kernel is %s (the node's is %s) and says %.300s", lines[0], kernel, lines[1])
		}
		t.Logf("%s: kernel %s, uid_map %q; %s", name, lines[0], lines[2], message)
		if name == "gvisor" {
			if !strings.Contains(message, "without a user namespace") {
				t.Errorf("the Tool says: %s", message)
			}
			return
		}
		// container, node, how many
		users := strings.Fields(lines[2])
		if len(users) != 3 || users[0] != "0" || users[1] == "0" || users[2] != "65536" || !strings.Contains(message, "in a user namespace (hostUsers: false)") {
			t.Errorf("uid_map is %q, and the Tool says: %s", users, message)
		}
	})
}
