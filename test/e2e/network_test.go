package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// An answer is one of testtools' netask.
type answer struct {
	Question string
	Yes      bool
	Got      string
	From, To int64
}

func answers(t *testing.T, data string) []answer {
	t.Helper()
	var all []answer
	if err := json.Unmarshal([]byte(data), &all); err != nil || len(all) == 0 {
		t.Fatalf("no answers of netask: %v: %.300s", err, data)
	}
	return all
}

// A question is one of netask with the answer it should get.
type question struct {
	reason, question string
	yes              bool
}

// askFrom calls a new Tool that asks, and compares what it got.
func askFrom(ctx context.Context, t *testing.T, name string, network v1alpha1.ToolNetwork, runtimeClass string, questions ...question) {
	t.Helper()
	command := []string{"netask"}
	for _, q := range questions {
		command = append(command, q.question)
	}
	tool := newTool(ctx, t, name, command, testTools, timeout(80), func(s *v1alpha1.ToolSpec) {
		s.Isolation.Network, s.Isolation.RuntimeClassName = network, runtimeClass
	})
	got := answers(t, succeeded(t, callOf(ctx, t, tool, "")))
	for i, q := range questions {
		if got[i].Yes != q.yes {
			t.Errorf("%s: %s: %s: yes is %v (%s)", name, q.reason, q.question, got[i].Yes, got[i].Got)
		}
	}
}

// askPod is a pod of the agents' namespace that no policy selects; it runs netask.
func askPod(ctx context.Context, t *testing.T, name string, spec corev1.PodSpec, questions ...string) *corev1.Pod {
	t.Helper()
	spec.RestartPolicy, spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, ptr.To[int64](2)
	spec.Containers = append([]corev1.Container{{Name: "netask", Image: images["TESTTOOLS"], Env: hostIP(),
		Command: append([]string{"netask"}, questions...)}}, spec.Containers...)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: name, Labels: map[string]string{"app": name}}, Spec: spec}
	if err := admin.Create(ctx, pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(ctx), pod) }) // the namespace goes with what is left
	return pod
}

func waitPod(ctx context.Context, t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) {
	t.Helper()
	waitFor(ctx, t, pod, &corev1.PodList{}, func(p *corev1.Pod) bool { return p.Status.Phase == phase && p.Status.PodIP != "" },
		func(p *corev1.Pod) string { return p.Status.String() })
}

// server is a Service and a pod behind it that takes connections.
func server(ctx context.Context, t *testing.T, name string) (service string, pod *corev1.Pod) {
	t.Helper()
	pod = askPod(ctx, t, name, corev1.PodSpec{}, "serve::8080", "wait:3600")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: agentsNS, Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
	if err := admin.Create(ctx, svc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(ctx), svc) }) // the namespace goes with what is left
	waitPod(ctx, t, pod, corev1.PodRunning)
	return name + "." + agentsNS + ".svc.cluster.local", pod
}

func toPods(app string) networkingv1.NetworkPolicyEgressRule {
	return networkingv1.NetworkPolicyEgressRule{
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: agentsNS}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}},
		Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(8080))}},
	}
}

// dnsService is the address of the cluster's DNS, and that of a pod behind it
// where that one says that it is ready.
func dnsService(ctx context.Context, t *testing.T) (address, ready string) {
	t.Helper()
	svc := &corev1.Service{}
	if err := admin.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "kube-dns"}, svc); err != nil {
		t.Fatalf("the cluster's DNS: %v", err)
	}
	pods := &corev1.PodList{}
	if err := admin.List(ctx, pods, client.InNamespace("kube-system"), client.MatchingLabels{"k8s-app": "kube-dns"}); err != nil || len(pods.Items) == 0 {
		t.Fatalf("the pods of the cluster's DNS: %d, %v", len(pods.Items), err)
	}
	return svc.Spec.ClusterIP + ":53", pods.Items[0].Status.PodIP + ":8181"
}

// Names, and what they stand for, are two permissions.
func TestDNS(t *testing.T) {
	ctx := t.Context()
	api := apiService(t)
	dns, ready := dnsService(ctx, t)
	declared, declaredPod := server(ctx, t, "dns-declared")
	other, _ := server(ctx, t, "dns-other")
	address := declaredPod.Status.PodIP + ":8080"
	egress := []networkingv1.NetworkPolicyEgressRule{toPods("dns-declared")}
	settle := question{"the policy is put in force", "settle:" + api, true}
	for _, runtimeClass := range []string{"", "gvisor"} {
		suffix := strings.TrimSuffix("-"+runtimeClass, "-")
		for _, tc := range []struct {
			name      string
			network   v1alpha1.ToolNetwork
			questions []question
		}{
			{"dns-egress", v1alpha1.ToolNetwork{DNS: v1alpha1.DNSCluster, Egress: egress}, []question{
				settle,
				{"the Service resolves, and the egress reaches it", "tcp:" + declared + ":80", true},
				{"the short form, by the search list", "tcp:dns-declared." + agentsNS + ":80", true},
				{"the DNS over UDP", "dns-udp:" + dns, true},
				{"and over TCP, for long answers", "dns-tcp:" + dns, true},
				{"what is not declared resolves", "lookup:" + other, true},
				{"and is not reached", "tcp:" + other + ":80", false},
				{"the API server stays out of reach", "tcp:" + api, false},
				{"of the DNS pods port 53 alone", "tcp:" + ready, false},
			}},
			{"dns-only", v1alpha1.ToolNetwork{DNS: v1alpha1.DNSCluster}, []question{
				settle,
				{"names resolve", "lookup:" + declared, true},
				{"nothing else is reached by name", "tcp:" + declared + ":80", false},
				{"nor by address", "tcp:" + address, false},
			}},
			{"dns-none", v1alpha1.ToolNetwork{Egress: egress}, []question{
				settle,
				{"the egress is in force", "tcp:" + address, true},
				{"no name resolves", "lookup:" + declared, false},
				{"nor by hand over UDP", "dns-udp:" + dns, false},
				{"nor by hand over TCP", "dns-tcp:" + dns, false},
			}},
			{"dns-loopback", v1alpha1.ToolNetwork{Loopback: true}, []question{
				settle,
				{"no name resolves", "lookup:" + declared, false},
				{"nor by hand over UDP", "dns-udp:" + dns, false},
				{"nor by hand over TCP", "dns-tcp:" + dns, false},
			}},
		} {
			t.Run(tc.name+suffix, func(t *testing.T) {
				askFrom(start(t), t, tc.name+suffix, tc.network, runtimeClass, tc.questions...)
			})
		}
	}
}

// Nobody connects to a sandbox: no other pod, and no sandbox of the same Tool,
// even if that one may reach every pod.
func TestNoIngress(t *testing.T) {
	api := apiService(t)
	for _, runtimeClass := range []string{"", "gvisor"} {
		name := "no-ingress" + strings.TrimSuffix("-"+runtimeClass, "-")
		t.Run(name, func(t *testing.T) {
			ctx := start(t)
			_, open := server(ctx, t, name+"-open")
			tool := newTool(ctx, t, name, []string{"netask", "settle:" + api, "$(args.a)", "$(args.b)", "$(args.c)", "$(args.d)"}, testTools, timeout(120),
				func(s *v1alpha1.ToolSpec) {
					s.InputSchema = raw(`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"},"c":{"type":"string"},"d":{"type":"string"}}}`)
					s.Isolation.RuntimeClassName = runtimeClass
					s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{
						{NamespaceSelector: &metav1.LabelSelector{}}}}}
				})
			serving := propose(ctx, t, tool, `{"a":"serve::8080","b":"wait:40","c":"served:"}`)
			waitReason(ctx, t, serving, "Running")
			sandbox := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: serving.Status.Attempts[0].Pod}}
			waitPod(ctx, t, sandbox, corev1.PodRunning)
			target := sandbox.Status.PodIP + ":8080"

			sibling := propose(ctx, t, tool, fmt.Sprintf(`{"a":"wait:5","b":"tcp:%s:8080","c":"tries:%s"}`, open.Status.PodIP, target))
			neighbour := propose(ctx, t, newTool(ctx, t, name+"-neighbour", tool.Spec.Container.Command, testTools, timeout(120), func(s *v1alpha1.ToolSpec) {
				s.InputSchema, s.Isolation = tool.Spec.InputSchema, tool.Spec.Isolation
			}), string(sibling.Spec.Args.Raw))
			outside := askPod(ctx, t, name+"-outside", corev1.PodSpec{}, "wait:8", "tcp:"+open.Status.PodIP+":8080", "tries:"+target)
			waitPod(ctx, t, outside, corev1.PodSucceeded)

			fromSibling := answers(t, succeeded(t, finish(ctx, t, sibling)))
			fromNeighbour := answers(t, succeeded(t, finish(ctx, t, neighbour)))
			fromOutside := answers(t, podLog(ctx, t, outside))
			inside := answers(t, succeeded(t, finish(ctx, t, serving)))
			served := inside[len(inside)-1]
			if served.Yes {
				t.Errorf("connections into the sandbox: %s", served.Got)
			}
			if serve := inside[1]; !serve.Yes {
				t.Fatalf("it did not listen: %s", serve.Got)
			}
			for who, got := range map[string][]answer{"a sandbox of the same Tool": fromSibling, "one of another Tool": fromNeighbour, "another pod": fromOutside} {
				control, try := got[len(got)-2], got[len(got)-1]
				if !control.Yes {
					t.Errorf("%s does not even reach an open pod: %s", who, control.Got)
				}
				if try.Yes {
					t.Errorf("%s connected to a sandbox", who)
				}
				if try.From < inside[1].To || try.To > served.From {
					t.Errorf("%s tried from %d to %d, the sandbox listened from %d to %d: this shows nothing", who, try.From, try.To, inside[1].To, served.From)
				}
			}
		})
	}
}

func podLog(ctx context.Context, t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := clientset.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: "netask"}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	out, err := io.ReadAll(io.LimitReader(stream, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// metadata is a link-local address that the test puts on the node, on the
// interface that has the node's own address, with a server behind it.
const (
	metadata     = "169.254.254.254"
	metadataPort = "18199"
)

// A Tool that may reach everything reaches no metadata address.
func TestMetadataIsCutOut(t *testing.T) {
	ctx := t.Context()
	// The last container takes the address away again.
	node := askPod(ctx, t, "metadata", corev1.PodSpec{
		HostNetwork: true,
		InitContainers: []corev1.Container{{Name: "add", Image: images["BUSYBOX"], SecurityContext: netAdmin(), Env: hostIP(),
			Command: []string{"sh", "-ec", addressScript("add")}}},
		Containers: []corev1.Container{{Name: "remove", Image: images["BUSYBOX"], SecurityContext: netAdmin(), Env: hostIP(),
			Command: []string{"sh", "-c", "trap '" + addressScript("del") + "; exit' TERM; sleep 300 & wait; " + addressScript("del")}}},
	}, "serve:"+metadata+":"+metadataPort, "serve:$(HOST_IP):"+metadataPort, "wait:300")
	waitPod(ctx, t, node, corev1.PodRunning)
	t.Cleanup(func() { // the address goes before the test's other pods and the namespace do
		ctx := context.WithoutCancel(ctx)
		if err := admin.Delete(ctx, node); err != nil {
			t.Error(err)
		}
	})
	address, host := metadata+":"+metadataPort, node.Status.HostIP+":"+metadataPort
	outside := askPod(ctx, t, "metadata-outside", corev1.PodSpec{}, "tries:"+address)
	waitPod(ctx, t, outside, corev1.PodSucceeded)
	if got := answers(t, podLog(ctx, t, outside)); !got[0].Yes {
		t.Fatalf("a pod without a policy does not reach %s either, so this shows nothing: %s", address, got[0].Got)
	}
	everything := map[string][]networkingv1.NetworkPolicyEgressRule{
		"metadata-empty": {{}},
		"metadata-all":   {{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}}}}},
		"metadata-ports": {{Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(1)), EndPort: ptr.To[int32](65535)}}}},
		"metadata-mixed": {{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "::ffff:169.254.0.0/111"}},
			{IPBlock: &networkingv1.IPBlock{CIDR: "169.254.254.254/32"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/1"}}, {IPBlock: &networkingv1.IPBlock{CIDR: "128.0.0.0/1"}}}}},
	}
	for name, egress := range everything {
		for _, runtimeClass := range []string{"", "gvisor"} {
			if runtimeClass != "" && name != "metadata-all" {
				continue // the policy is the same one
			}
			name := name + strings.TrimSuffix("-"+runtimeClass, "-")
			t.Run(name, func(t *testing.T) {
				askFrom(start(t), t, name, v1alpha1.ToolNetwork{Egress: egress}, runtimeClass,
					question{"the policy is put in force", "settle:" + address, true},
					question{"the address", "tries:" + address, false},
					question{"its IPv4-mapped form", "tcp:[::ffff:" + metadata + "]:" + metadataPort, false},
					question{"the same server at an address that is not forbidden", "tcp:" + host, true})
			})
		}
	}
}

func netAdmin() *corev1.SecurityContext {
	return &corev1.SecurityContext{RunAsUser: ptr.To[int64](0), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}}
}

func hostIP() []corev1.EnvVar {
	return []corev1.EnvVar{{Name: "HOST_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}}
}

func addressScript(do string) string {
	return `ip addr ` + do + ` ` + metadata + `/32 dev $(ip -o -4 addr | grep " $HOST_IP/" | tr -s " " | cut -d " " -f 2)`
}
