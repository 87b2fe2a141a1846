package dispatch

import (
	"bufio"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"callgate.dev/callgate/internal/wire"
)

const (
	testToken = "controller-token"
	testUID   = types.UID("9b2f1c4e-0000-4000-8000-00000000ca11")
	testPod   = types.UID("9b2f1c4e-0000-4000-8000-000000000b0d")
	// patience bounds every wait of a test; no test that passes waits for it.
	patience = 20 * time.Second
)

var testCall = types.NamespacedName{Namespace: "agents", Name: "say-hello"}

var (
	testKey  = wire.Key(strings.Repeat("k", wire.KeyBytes))
	testSeal = wire.Seal{CallUID: string(testUID), Attempt: 1, PodUID: string(testPod), Key: testKey}
)

func testTarget() Target {
	return Target{Call: testCall, CallUID: testUID, Attempt: 1, Namespace: "tools", Pod: "callgate-x-1-abcde", PodUID: testPod, Timeout: patience, Key: testKey}
}

func testFrame() wire.Call {
	return wire.Call{Argv: []string{"echo"}, Stdin: []byte(`{"text":"hello"}`), MaxStdoutBytes: 1 << 19, TimeoutMillis: 8000}
}

// sandboxServer plays the API server and, behind it, one sandbox.
type sandboxServer struct {
	t *testing.T
	// attach is the sandbox's side of an attach stream; the stream is closed when
	// it returns.
	attach func(stdin io.Reader, stdout io.Writer)
	// log answers a request for the container's log.
	log http.HandlerFunc
	// refuse answers an attach request instead of attach.
	refuse http.HandlerFunc

	http *httptest.Server
}

func (s *sandboxServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if got := r.Header.Get("Authorization"); got != "Bearer "+testToken {
		s.t.Errorf("%s %s as %q", r.Method, r.URL, got)
	}
	if q.Get("container") != "tool" {
		s.t.Errorf("%s names container %q, not tool", r.URL, q.Get("container"))
	}
	switch strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/tools/pods/callgate-x-1-abcde/") {
	case "attach":
		if q.Get("stdin") != "true" || q.Get("stdout") != "true" || q.Get("stderr") == "true" || q.Get("tty") == "true" {
			s.t.Errorf("attach asks for %v, want stdin and stdout only", q)
		}
		if s.refuse != nil {
			s.refuse(w, r)
			return
		}
		conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
			wsstream.ReadChannel, wsstream.WriteChannel, wsstream.IgnoreChannel, wsstream.WriteChannel, wsstream.IgnoreChannel}}})
		_, streams, err := conn.Open(w, r)
		if err != nil {
			s.t.Errorf("open the attach stream: %v", err)
			return
		}
		s.attach(streams[0], streams[1])
		_ = conn.Close() // the client may have closed it
	case "log":
		if q.Get("follow") != "true" || q.Get("tailLines") != "" || q.Get("sinceTime") != "" {
			s.t.Errorf("log asks for %v, want all of it, followed", q)
		}
		s.log(w, r)
	default:
		s.t.Errorf("unexpected request %s", r.URL)
	}
}

// TestMain fails if a goroutine of a session is left at the end. Those of
// client-go's heartbeat go up to five seconds later, which is why this is not
// looked at after each test.
func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	for start := time.Now(); code == 0 && runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			stacks := make([]byte, 1<<20)
			fmt.Printf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
			code = 1
		}
	}
	os.Exit(code)
}

// newDispatcher returns a Dispatcher in front of s, and the names it notifies.
func newDispatcher(t *testing.T, s *sandboxServer) (*Dispatcher, <-chan types.NamespacedName) {
	t.Helper()
	s.t, s.http = t, httptest.NewTLSServer(s)
	config := &rest.Config{Host: s.http.URL, BearerToken: testToken, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})}}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		t.Fatal(err)
	}
	notified := make(chan types.NamespacedName, 100)
	d := New(config, set, func(n types.NamespacedName) { notified <- n })
	t.Cleanup(func() {
		client.CloseIdleConnections()
		s.http.Close()
	})
	return d, notified
}

// ended waits for the next notification, which comes when a session has ended.
func ended(t *testing.T, d *Dispatcher, notified <-chan types.NamespacedName) Snapshot {
	t.Helper()
	select {
	case name := <-notified:
		if name != testCall {
			t.Errorf("notified %s, want %s", name, testCall)
		}
	case <-time.After(patience):
		t.Fatal("the session does not end")
	}
	snap, ok := d.Get(testUID, 1)
	if !ok || !snap.Done || snap.EndTime.IsZero() {
		t.Fatalf("notified, and the session is %+v, known %v", snap, ok)
	}
	return snap
}

// within waits for an event of the test's own.
func within(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s: did not happen", what)
	}
}

// accept is a runner's beginning: it takes the call that is meant for its pod.
func accept(t *testing.T, stdin io.Reader, stdout io.Writer) wire.Call {
	check(t, wire.WriteReady(stdout))
	h, call, err := wire.ReadCall(bufio.NewReader(stdin), string(testPod))
	if err != nil {
		t.Errorf("the runner reads: %v", err)
		return call
	}
	check(t, wire.WriteAccepted(stdout, h.CallUID, h.Attempt))
	return call
}

// report is a runner's end.
func report(t *testing.T, w io.Writer, stdout string) {
	check(t, wire.WriteResult(w, testSeal, wire.Result{Stdout: []byte(stdout), StdoutBytes: int64(len(stdout))}))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("the runner writes: %v", err)
	}
}

func flush(w http.ResponseWriter) { w.(http.Flusher).Flush() }
