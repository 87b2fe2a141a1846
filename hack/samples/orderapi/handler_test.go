package orderapi

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

func newServer(t *testing.T) (*httptest.Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orders with space.db")
	store, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(NewHandler(store, "s3cret", slog.New(slog.DiscardHandler)))
	t.Cleanup(func() {
		srv.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv, path
}

func TestHandler(t *testing.T) {
	tests := []struct {
		reason, method, path, token, body string
		wantCode                          int
		wantBody                          string // part of the answer
	}{
		{"a row is returned", "GET", "/orders/4821", "s3cret", "", 200, `"status":"packed"`},
		{"health needs no token", "GET", "/healthz", "", "", 200, `"ok":true`},
		{"no token", "GET", "/orders/4821", "", "", 401, "Bearer"},
		{"a wrong token changes nothing", "PUT", "/orders/4821/status", "guess", `{"status":"shipped"}`, 401, "Bearer"},
		{"an unknown order", "GET", "/orders/1", "s3cret", "", 404, "no order 1"},
		{"an unknown order is not made by a PUT", "PUT", "/orders/1/status", "s3cret", `{"status":"shipped"}`, 404, "no order 1"},
		{"an ID that is no number", "GET", "/orders/x", "s3cret", "", 400, "positive integer"},
		{"an ID past int64", "GET", "/orders/9223372036854775808", "s3cret", "", 400, "positive integer"},
		{"an unknown status", "PUT", "/orders/4821/status", "s3cret", `{"status":"lost"}`, 400, "packed, shipped, delivered"},
		{"a body that is no object", "PUT", "/orders/4821/status", "s3cret", `shipped`, 400, "the body must be"},
		{"a body over the limit", "PUT", "/orders/4821/status", "s3cret", `{"status":"` + strings.Repeat("x", maxBody) + `"}`, 400, "too large"},
		{"a field we do not know", "PUT", "/orders/4821/status", "s3cret", `{"status":"shipped","x":1}`, 400, "unknown field"},
		{"a status is set", "PUT", "/orders/4822/status", "s3cret", `{"status":"shipped"}`, 200, `"previous_status":"packed"`},
	}
	srv, _ := newServer(t)
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.path, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if tt.token != "" {
				req.Header.Set("Authorization", "Bearer "+tt.token)
			}
			res, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err := errorsFirst(err, res.Body.Close()); err != nil {
				t.Fatal(err)
			}
			// The encoder escapes quotes of a nested message only; compare unescaped.
			if res.StatusCode != tt.wantCode || !strings.Contains(string(body), tt.wantBody) {
				t.Errorf("got %d %s, want %d with %q", res.StatusCode, body, tt.wantCode, tt.wantBody)
			}
			if !json.Valid(body) {
				t.Errorf("the answer is not JSON: %s", body)
			}
		})
	}
}

func errorsFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestStatusIsInTheFile(t *testing.T) {
	srv, path := newServer(t)
	put := func(status string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", srv.URL+"/orders/4821/status", strings.NewReader(`{"status":"`+status+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer s3cret")
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil || res.StatusCode != 200 {
			t.Fatal(res.Status, err)
		}
	}
	put("delivered")

	other, err := OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	got, err := other.Get(t.Context(), 4821)
	if err != nil || got.Status != "delivered" || got.Customer != "Grace" {
		t.Fatalf("a second reader of the file sees %+v, %v", got, err)
	}
	if _, _, err := other.SetStatus(t.Context(), 4821, "packed"); err == nil {
		t.Error("a read-only store wrote")
	}

	again, err := Open(t.Context(), path) // a restarted server
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if got, err := again.Get(t.Context(), 4821); err != nil || got.Status != "delivered" {
		t.Errorf("opening again reset the row: %+v, %v", got, err)
	}
}
