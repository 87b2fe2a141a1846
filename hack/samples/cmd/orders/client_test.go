package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"callgate.dev/callgate/hack/samples/orderapi"
)

// shop serves the real API, so that the tool and the API cannot drift apart.
func shop(t *testing.T) (*httptest.Server, *orderapi.Store) {
	t.Helper()
	store, err := orderapi.Open(t.Context(), filepath.Join(t.TempDir(), "orders.db"))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(orderapi.NewHandler(store, "s3cret", slog.New(slog.DiscardHandler)))
	t.Cleanup(func() {
		srv.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv, store
}

func TestRun(t *testing.T) {
	srv, store := shop(t)
	refused, err := net.Listen("tcp", "127.0.0.1:0") // a port that nobody listens on any more
	if err != nil {
		t.Fatal(err)
	}
	refusedURL := "http://" + refused.Addr().String()
	if err := refused.Close(); err != nil {
		t.Fatal(err)
	}
	var leaked string // the token, if a redirect's target ever sees it
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		leaked = r.Header.Get("Authorization")
	}))
	defer elsewhere.Close()
	redirect := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	hangUp := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer hangUp.Close()
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"order_id":1,"status":"packed"}`))
	}))
	defer liar.Close()

	const stdin = `{"order_id": 4822, "status": "delivered"}`
	tests := []struct {
		reason, args, stdin, url, token string
		wantExit                        int
		wantStderr                      string
	}{
		{"argv", "set-status 4821 --to=shipped", "", srv.URL, "s3cret", 0, ""},
		{"stdin", "set-status", stdin, srv.URL, "s3cret", 0, ""},
		{"the same again is no error", "set-status", stdin, srv.URL, "s3cret", 0, ""},
		{"a refused connection did nothing", "set-status", stdin, refusedURL, "s3cret", 75, "connection refused"},
		{"a connection lost after sending may have done something", "set-status", stdin, hangUp.URL, "s3cret", 1, "EOF"},
		{"a wrong token", "set-status", stdin, srv.URL, "guess", 1, "401 Unauthorized"},
		{"an unknown order", "set-status 7 --to=shipped", "", srv.URL, "s3cret", 1, "there is no order 7"},
		{"an unknown status", "set-status 4821 --to=lost", "", srv.URL, "s3cret", 1, "packed, shipped, delivered"},
		{"redirects are not followed", "set-status", stdin, redirect.URL, "s3cret", 1, "307 Temporary Redirect"},
		{"an answer about another order", "set-status", stdin, liar.URL, "s3cret", 1, "asked for was order 4822"},
		{"no API given", "set-status", stdin, "", "s3cret", 1, "ORDERS_URL"},
		{"no token given", "set-status", stdin, srv.URL, "", 1, "API_TOKEN"},
		{"no subcommand", "", stdin, srv.URL, "s3cret", 1, "usage"},
		{"a broken object", "set-status", `{"order_id":`, srv.URL, "s3cret", 1, "one JSON object"},
		{"an ID that is no number", "set-status x --to=shipped", "", srv.URL, "s3cret", 1, "usage"},
		{"a negative ID", "set-status -1 --to=shipped", "", srv.URL, "s3cret", 1, "positive integer"},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			env := map[string]string{"ORDERS_URL": tt.url, "API_TOKEN": tt.token}
			var stdout, stderr bytes.Buffer
			got := run(strings.Fields(tt.args), strings.NewReader(tt.stdin), &stdout, &stderr, func(k string) string { return env[k] })
			if got != tt.wantExit || !strings.Contains(stderr.String(), tt.wantStderr) {
				t.Fatalf("exit %d, stderr %q; want %d with %q", got, stderr.String(), tt.wantExit, tt.wantStderr)
			}
			if strings.Contains(stderr.String(), "s3cret") {
				t.Error("the token is in the error")
			}
			if tt.wantExit != 0 {
				if strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
					t.Errorf("want one line on stderr and nothing on stdout, got %q and %q", stderr.String(), stdout.String())
				}
				return
			}
			var out struct {
				Updated bool `json:"updated"`
			}
			if err := json.Unmarshal(stdout.Bytes(), &out); err != nil || !out.Updated {
				t.Errorf("stdout %q, %v", stdout.String(), err)
			}
		})
	}
	for id, want := range map[int64]string{4821: "shipped", 4822: "delivered", 4820: "delivered"} {
		if o, err := store.Get(t.Context(), id); err != nil || o.Status != want {
			t.Errorf("order %d is %q in the database, want %q (%v)", id, o.Status, want, err)
		}
	}
	if leaked != "" {
		t.Error("the token went to a redirect's target")
	}
}
