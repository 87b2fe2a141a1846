package faults

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"callgate.dev/callgate/test/cluster"
)

// proxy stands between a controller and the API server. It passes on everything,
// but for the writes that rules are about and the watches that are held.
type proxy struct {
	url     string
	forward *httputil.ReverseProxy

	mu    sync.Mutex
	rules []*rule
	// held has a lock for each resource whose watches may be held.
	held map[string]*sync.RWMutex
}

// rule is about the first write that matches.
type rule struct {
	matches func(r *http.Request, body string) bool
	answer  answer
	applied chan struct{}
}

// answer is what a client gets; pass brings its request to the API server.
type answer func(w http.ResponseWriter, pass func(http.ResponseWriter))

// newProxy starts one, until the end of the test.
func newProxy(t *testing.T, resources ...string) *proxy {
	t.Helper()
	target, err := url.Parse(cluster.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	// Only whom to trust: who asks is the controller's own token.
	tls, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: cluster.Config.CAData, CAFile: cluster.Config.CAFile}})
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{held: map[string]*sync.RWMutex{}}
	for _, resource := range resources {
		p.held[resource] = &sync.RWMutex{}
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		// HTTP/1.1, which can be upgraded to a WebSocket.
		Transport:      &http.Transport{TLSClientConfig: tls, MaxIdleConnsPerHost: 100},
		FlushInterval:  -1,
		ModifyResponse: p.hold,
	}
	server := httptest.NewTLSServer(p)
	t.Cleanup(func() {
		server.CloseClientConnections() // watches do not end by themselves
		server.Close()
	})
	p.url = server.URL
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		p.forward.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	pass := func(w http.ResponseWriter) { p.forward.ServeHTTP(w, r) }
	if rule := p.take(r, string(body)); rule != nil {
		defer close(rule.applied)
		rule.answer(w, pass)
		return
	}
	pass(w)
}

func (p *proxy) take(r *http.Request, body string) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, rule := range p.rules {
		if rule.matches(r, body) {
			p.rules = append(p.rules[:i], p.rules[i+1:]...)
			return rule
		}
	}
	return nil
}

// on adds a rule.
func (p *proxy) on(matches func(r *http.Request, body string) bool, a answer) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &rule{matches: matches, answer: a, applied: make(chan struct{})}
	p.rules = append(p.rules, r)
	return r
}

// waitApplied waits until the write has come.
func (r *rule) waitApplied(t *testing.T) {
	t.Helper()
	select {
	case <-r.applied:
	case <-time.After(cluster.Patience):
		t.Fatal("the write that was to fail did not come")
	}
}

// hold keeps what a watch says from its client as long as the resource's lock is held.
func (p *proxy) hold(r *http.Response) error {
	lock := p.held[path.Base(r.Request.URL.Path)]
	if w := r.Request.URL.Query().Get("watch"); lock != nil && (w == "1" || w == "true") {
		r.Body = heldBody{r.Body, lock}
	}
	return nil
}

type heldBody struct {
	io.ReadCloser
	lock *sync.RWMutex
}

func (b heldBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.lock.RLock()
	defer b.lock.RUnlock()
	return n, err
}

// lost does what was asked, and the answer never comes.
func lost(_ http.ResponseWriter, pass func(http.ResponseWriter)) {
	pass(httptest.NewRecorder())
	panic(http.ErrAbortHandler)
}

// timeout does nothing, and never answers.
func timeout(http.ResponseWriter, func(http.ResponseWriter)) {
	time.Sleep(2 * time.Second)
	panic(http.ErrAbortHandler)
}

func refuse(code int, reason string) answer {
	return func(w http.ResponseWriter, _ func(http.ResponseWriter)) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"refused by the test","reason":%q,"code":%d}`, reason, code)
	}
}

// write matches a kind of write, by its path and by what is in its body and what is not.
func write(method, pathPart string, in []string, notIn ...string) func(*http.Request, string) bool {
	return func(r *http.Request, body string) bool {
		if r.Method != method || !strings.Contains(r.URL.Path, pathPart) {
			return false
		}
		for _, s := range in {
			if !strings.Contains(body, s) {
				return false
			}
		}
		for _, s := range notIn {
			if strings.Contains(body, s) {
				return false
			}
		}
		return true
	}
}
