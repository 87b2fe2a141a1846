package controllers_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

const nodeName = "node"

// toolFunc is a tool, as its runner sees it.
type toolFunc func(wire.Call) wire.Result

// prints is a tool that prints text and exits.
func prints(text string, exitCode int) toolFunc {
	return func(wire.Call) wire.Result {
		now := time.Now()
		return wire.Result{ExitCode: exitCode, Stdout: []byte(text), StdoutBytes: int64(len(text)), Start: now, End: now}
	}
}

// node stands for the kubelet of the only node. It starts no container: the
// tests write the status of pods. It serves attach and the log, so that a call
// goes its whole way through the API server, and it lets deleted pods go.
type node struct {
	mu   sync.Mutex
	pods map[string]*container // by namespace/name
	// broken says which call reached a pod that its status did not name.
	broken error
}

type container struct {
	pod      *corev1.Pod
	tool     toolFunc
	lingers  chan struct{} // if set, it ends only after this is closed
	other    string        // if set, it works on this other call
	attached int
	over     bool // if set, the log ends with the result
	log      strings.Builder
}

var theNode = &node{pods: map[string]*container{}}

func startKubelet() (stop func(), err error) {
	server := httptest.NewUnstartedServer(theNode)
	server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	address := server.Listener.Addr().(*net.TCPAddr)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	ctx, cancel := context.WithCancel(context.Background())
	stop = func() { cancel(); server.CloseClientConnections(); server.Close() }
	if err := admin.Create(ctx, object); err != nil {
		return stop, err
	}
	object.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.IP.String()}}
	object.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
	if err := admin.Status().Update(ctx, object); err != nil {
		return stop, err
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(adminSet.CoreV1().RESTClient(), "pods", metav1.NamespaceAll,
			func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=" + nodeName }),
		ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
			pod := o.(*corev1.Pod)
			if pod.DeletionTimestamp == nil {
				return
			}
			theNode.mu.Lock()
			c := theNode.pods[pod.Namespace+"/"+pod.Name]
			theNode.mu.Unlock()
			if c == nil || c.lingers == nil {
				letGo(ctx, pod)
				return
			}
			go func() {
				<-c.lingers
				letGo(ctx, pod)
			}()
		}},
	})
	go informer.RunWithContext(ctx)
	return stop, nil
}

// letGo ends a deleted pod, as a kubelet does: status first, then the object.
func letGo(ctx context.Context, pod *corev1.Pod) {
	pod = pod.DeepCopy()
	ran := pod.Status.Phase == corev1.PodRunning
	if ran {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: sandbox.Container, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}}}}
	}
	if ran || pod.Status.Phase == corev1.PodPending {
		pod.Status.Phase = corev1.PodFailed
		_ = admin.Status().Update(ctx, pod) // the pod may be gone
	}
	_ = admin.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
}

// ServeHTTP serves /attach/NAMESPACE/POD/CONTAINER and /containerLogs/….
func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(part) != 4 {
		http.NotFound(w, r)
		return
	}
	n.mu.Lock()
	c := n.pods[part[1]+"/"+part[2]]
	n.mu.Unlock()
	switch {
	case c == nil || c.tool == nil && c.other == "":
		http.Error(w, "the container does not run", http.StatusBadRequest)
	case part[0] == "attach":
		n.attach(w, r, c)
	case part[0] == "containerLogs":
		n.follow(w, r, c)
	default:
		http.NotFound(w, r)
	}
}

// follow serves the log of a container that runs: it does not end by itself, but
// for one that endLog was told of.
func (n *node) follow(w http.ResponseWriter, r *http.Request, c *container) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for sent := 0; ; {
		n.mu.Lock()
		text := c.log.String()[sent:]
		ends := c.over && strings.Contains(c.log.String(), `"type":"result"`)
		n.mu.Unlock()
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		sent += len(text)
		if err := http.NewResponseController(w).Flush(); err != nil || ends || r.URL.Query().Get("follow") != "true" {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

// attach is the runner of a sandbox: one call in, its result out.
func (n *node) attach(w http.ResponseWriter, r *http.Request, c *container) {
	n.mu.Lock()
	c.attached++
	n.mu.Unlock()
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	opened := make(chan httpstream.Stream, 8)
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	if connection == nil {
		return
	}
	defer connection.Close() //nolint:errcheck // nobody is left to be told
	streams := map[string]httpstream.Stream{}
	for len(streams) < 3 { // error, stdin, stdout
		select {
		case s := <-opened:
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-time.After(patience):
			return
		}
	}
	out := io.MultiWriter(streams[corev1.StreamTypeStdout], &logWriter{n, c})
	in := bufio.NewReader(streams[corev1.StreamTypeStdin])
	if c.other != "" {
		busy(in)
		return
	}
	header, call, err := wire.ReadCall(in, string(c.pod.UID))
	if err != nil {
		return
	}
	n.checkRecorded(c, header)
	_ = wire.WriteAccepted(out, header.CallUID, header.Attempt)
	_ = wire.WriteResult(out, call.Seal(header), c.tool(call))
	_, _ = io.Copy(io.Discard, in) // until the controller has it
	_ = json.NewEncoder(streams[corev1.StreamTypeError]).Encode(metav1.Status{Status: metav1.StatusSuccess})
}

// checkRecorded looks whether the call's status named this pod when the first
// byte of the call came. A call that was deleted meanwhile says nothing.
func (n *node) checkRecorded(c *container, header wire.Header) {
	var key client.ObjectKey
	key.Namespace, key.Name, _ = strings.Cut(c.pod.Annotations[v1alpha1.AnnotationCall], "/")
	call := &v1alpha1.ToolCall{}
	var err error
	if warm := c.pod.Labels[v1alpha1.LabelPool] != ""; warm {
		call, err = callWithUID(header.CallUID)
	} else {
		err = client.IgnoreNotFound(admin.Get(context.Background(), key, call))
	}
	if a := call.Status.Attempts; string(call.UID) == header.CallUID && (len(a) == 0 || a[len(a)-1].PodUID != c.pod.UID) {
		err = fmt.Errorf("call %s was sent to pod %s, and its attempts were %s", header.CallUID, c.pod.UID, show(a))
	} else if label := c.pod.Labels[v1alpha1.LabelCallUID]; c.pod.Labels[v1alpha1.LabelPool] == "" && label != header.CallUID {
		err = fmt.Errorf("call %s was sent to pod %s of call %s", header.CallUID, c.pod.UID, label)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.broken = errors.Join(n.broken, err)
}

type logWriter struct {
	n *node
	c *container
}

func (l *logWriter) Write(p []byte) (int, error) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	return l.c.log.Write(p)
}

// startPod binds the pod of a call to the node and says that its container
// runs tool. Without a tool nobody answers an attach.
func startPod(t *testing.T, call *v1alpha1.ToolCall, tool toolFunc) *corev1.Pod {
	t.Helper()
	return runPod(t, podOf(t, call), tool)
}

// startAttempt does so with the pod of a certain attempt.
func startAttempt(t *testing.T, call *v1alpha1.ToolCall, number int, tool toolFunc) *corev1.Pod {
	t.Helper()
	return runPod(t, podOfAttempt(t, call, number), tool)
}

func runPod(t *testing.T, pod *corev1.Pod, tool toolFunc) *corev1.Pod {
	t.Helper()
	bind(t, pod)
	c := &container{pod: pod, tool: tool}
	_ = wire.WriteReady(&c.log) // a strings.Builder takes everything
	theNode.mu.Lock()
	theNode.pods[pod.Namespace+"/"+pod.Name] = c
	theNode.mu.Unlock()
	setPod(t, pod, running())
	return pod
}

func bind(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := adminSet.CoreV1().Pods(pod.Namespace).Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("bind the pod: %v", err)
	}
}

// setPod writes a pod's status.
func setPod(t *testing.T, pod *corev1.Pod, status corev1.PodStatus) {
	t.Helper()
	base := &corev1.Pod{}
	eventually(t, "the status of pod "+pod.Name+" written", func() (bool, any) {
		if err := admin.Get(t.Context(), client.ObjectKeyFromObject(pod), base); err != nil {
			return false, err
		}
		base.Status = status
		err := admin.Status().Update(t.Context(), base)
		return err == nil, err
	})
}

func running() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.Now()), ContainerStatuses: []corev1.ContainerStatus{{
		Name: sandbox.Container, ImageID: "registry.example/tool@sha256:1",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}}
}

func waiting(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
		Name: sandbox.Container, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
	}}}
}

func terminated(exitCode int32, reason string) corev1.PodStatus {
	phase := corev1.PodFailed
	if exitCode == 0 {
		phase = corev1.PodSucceeded
	}
	return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
		Name: sandbox.Container, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: exitCode, Reason: reason, StartedAt: metav1.Now(), FinishedAt: metav1.Now()}},
	}}}
}

func unschedulable(message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message}}}
}

type (
	toolCall   = wire.Call
	toolResult = wire.Result
)
