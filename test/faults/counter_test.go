package faults

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// The tools of these tests tell a server outside of their sandbox that they were
// started, before they do anything else. What Callgate says of a call is
// compared with what that server has seen.

// serve is an HTTP server that keeps one line for each start.
const serve = `mkdir -p /tmp/www/cgi-bin && cd /tmp/www && : >starts &&
printf '#!/bin/sh\necho "$QUERY_STRING" >>/tmp/www/starts\nprintf "Content-Type: text/plain\\r\\n\\r\\nok"\n' >cgi-bin/start &&
chmod 755 cgi-bin/start && exec httpd -f -p 8080 -h /tmp/www`

// tell tells of the start until the server has heard of it. A start has a name
// of its own, so that one is one, however often it is told.
const tell = `start="$CALLGATE_IDEMPOTENCY_KEY/$(cat /proc/sys/kernel/random/uuid)"
until printf 'GET /cgi-bin/start?%s HTTP/1.0\r\n\r\n' "$start" | nc -w 2 ${COUNTER%:*} ${COUNTER#*:} | grep -q ^ok; do sleep 0.1; done
`

const count = tell + `sleep "$1"; head -c "$2" /dev/zero | tr '\0' x; echo done`

const counterPort = 8080

// counter is the server's address, for tools that countingTool makes.
var counter = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cluster.Patience)
	defer cancel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: "counter", Labels: map[string]string{"app": "counter"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "counter", Image: cluster.Images["BUSYBOX"], Command: []string{"sh", "-c", serve},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/starts", Port: intstr.FromInt32(counterPort)}}}}}},
	}
	if err := cluster.Admin.Create(ctx, pod); err != nil {
		return "", err
	}
	err := until(ctx, func() (bool, error) {
		if err := cluster.Admin.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return false, err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return "", fmt.Errorf("start the server that counts: %w", err)
	}
	return fmt.Sprintf("%s:%d", pod.Status.PodIP, counterPort), nil
})

// countingTool is a Tool that counts its starts, sleeps as many seconds and
// prints as many bytes as its arguments say, and "done".
func countingTool(t *testing.T, name string, mods ...func(*v1alpha1.ToolSpec)) *v1alpha1.Tool {
	t.Helper()
	all := []func(*v1alpha1.ToolSpec){cluster.Text, cluster.Timeout(60), reachesCounter(t), func(s *v1alpha1.ToolSpec) {
		s.InputSchema = cluster.Raw(`{"type":"object","properties":{"seconds":{"type":"number"},"bytes":{"type":"integer"}},"required":["seconds","bytes"]}`)
		s.MaxConcurrentCalls = 100
		s.Output.MaxBytes = 256 << 10
	}}
	return cluster.NewTool(t.Context(), t, name, []string{"sh", "-c", count, "sh", "$(args.seconds)", "$(args.bytes)"}, append(all, mods...)...)
}

// reachesCounter lets a Tool whose script begins with tell reach the server.
func reachesCounter(t *testing.T) func(*v1alpha1.ToolSpec) {
	t.Helper()
	address, err := counter()
	if err != nil {
		t.Fatal(err)
	}
	port := intstr.FromInt32(counterPort)
	return func(s *v1alpha1.ToolSpec) {
		s.Container.Env = []v1alpha1.EnvVar{{Name: "COUNTER", Value: &address}}
		s.Isolation.Network.Egress = []networkingv1.NetworkPolicyEgressRule{{
			To: []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: cluster.AgentsNS}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "counter"}},
			}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
		}}
	}
}

func countingArgs(seconds float64, bytes int) string {
	return fmt.Sprintf(`{"seconds":%v,"bytes":%d}`, seconds, bytes)
}

// starts is how often the tool was started for a call, as the server has seen it.
func starts(t *testing.T, call *v1alpha1.ToolCall) int {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var content []byte
	if err := until(ctx, func() (bool, error) { // an API server that starts again is no answer
		content, err = clientset.CoreV1().RESTClient().Get().Namespace(cluster.AgentsNS).Resource("pods").
			Name(fmt.Sprintf("counter:%d", counterPort)).SubResource("proxy").Suffix("starts").DoRaw(ctx)
		return err == nil, nil
	}); err != nil {
		t.Fatalf("ask the server that counts: %v", err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, string(call.UID)+"/") {
			seen[line] = true
		}
	}
	return len(seen)
}

// started fails the test unless the tool was started so often for a call.
func started(t *testing.T, call *v1alpha1.ToolCall, want int) {
	t.Helper()
	if got := starts(t, call); got != want {
		t.Errorf("the tool of call %s was started %d times, want %d: %s", call.Name, got, want, cluster.JSONOf(t, call.Status))
	}
}

// waitStarted waits until the tool was started for a call.
func waitStarted(t *testing.T, call *v1alpha1.ToolCall) {
	t.Helper()
	if err := until(t.Context(), func() (bool, error) { return starts(t, call) > 0, nil }); err != nil {
		t.Fatalf("the tool of call %s was not started: %v", call.Name, err)
	}
}

// done fails the test unless a call ended with what its tool printed, and its
// tool was started once.
func done(t *testing.T, call *v1alpha1.ToolCall, bytes int) {
	t.Helper()
	if got := cluster.Unquote(t, cluster.Succeeded(t, call)); got != strings.Repeat("x", bytes)+"done\n" {
		t.Errorf("the answer is %d bytes: %.40q", len(got), got)
	}
	started(t, call, 1)
}
