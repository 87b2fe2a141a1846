package main

import (
	"strings"
	"testing"
)

const expected = "order-x\tsupport-agent\tok\t\"updated\":true\tan order is shipped\n" +
	"failed-y\tanalyst-agent\ttool_failed\tKeyError: 'tea pot'\ta traceback\n"

func calls(requester, result1, result2 string) string {
	return `{"seconds":1.2,"call":{"metadata":{"name":"order-x"},"spec":{"toolRef":{"functionName":"update_order_status"},
		"requester":{"username":"system:serviceaccount:agents:` + requester + `"}},"status":{` + result1 + `}}}
		{"seconds":0.9,"call":{"metadata":{"name":"failed-y"},"spec":{"toolRef":{"name":"run-python"},
		"requester":{"username":"system:serviceaccount:agents:analyst-agent"}},"status":{` + result2 + `}}}`
}

func TestReport(t *testing.T) {
	const (
		good = `"result":{"ok":true,"data":{ "updated" : true },"retryable":false}`
		bad  = `"result":{"ok":false,"errorCode":"tool_failed","message":"exit code 1: KeyError: 'tea pot' <x>","retryable":false}`
	)
	tests := []struct {
		reason, calls string
		wantOK        bool
		wantErr       bool
		wantText      string
	}{
		{"a success is one envelope, compact, nulls for what is empty", calls("support-agent", good, bad), true, false,
			`{"ok":true,"data":{"updated":true},"error_code":null,"message":null,"retryable":false}`},
		{"a failure too; its message is not escaped for HTML", calls("support-agent", good, bad), true, false,
			`{"ok":false,"data":null,"error_code":"tool_failed","message":"exit code 1: KeyError: 'tea pot' <x>","retryable":false}`},
		{"another requester", calls("intern-agent", good, bad), false, false, "DIFFERENT: spec.requester is"},
		{"another outcome", calls("support-agent", bad, bad), false, false, "DIFFERENT: the outcome is tool_failed, expected ok"},
		{"other data", calls("support-agent", strings.Replace(good, "true }", "null }", 1), bad), false, false, `does not contain "updated":true`},
		{"another message", calls("support-agent", good, strings.Replace(bad, "tea pot", "lamp", 1)), false, false, "does not contain KeyError"},
		{"no result at all", calls("support-agent", "", bad), false, false, "the outcome is no result"},
		{"a call is missing", "", false, true, ""},
		{"no JSON", "x", false, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.reason, func(t *testing.T) {
			var out strings.Builder
			ok, err := report(&out, strings.NewReader(tt.calls), []byte(expected))
			if ok != tt.wantOK || (err != nil) != tt.wantErr || !strings.Contains(out.String(), tt.wantText) {
				t.Errorf("ok %v, error %v, want %v, %v and %q in:\n%s", ok, err, tt.wantOK, tt.wantErr, tt.wantText, out.String())
			}
		})
	}
	if _, err := report(&strings.Builder{}, strings.NewReader(calls("a", good, bad)), []byte("x\ty\n")); err == nil {
		t.Error("an expectation with two fields was accepted")
	}
}
