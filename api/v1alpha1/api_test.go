package v1alpha1

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

func TestEnvelope(t *testing.T) {
	for _, tc := range []struct {
		reason string
		result Result
		want   string
	}{
		{"success", Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{Raw: []byte(`{"n":9007199254740993}`)}, Retryable: ptr.To(false)},
			`{"ok":true,"data":{"n":9007199254740993},"error_code":null,"message":null,"retryable":false}`},
		{"a null answer", Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{}, Retryable: ptr.To(false)},
			`{"ok":true,"data":null,"error_code":null,"message":null,"retryable":false}`},
		{"failure", Result{OK: ptr.To(false), ErrorCode: ErrorToolTimeout, Message: "too long", Retryable: ptr.To(true)},
			`{"ok":false,"data":null,"error_code":"tool_timeout","message":"too long","retryable":true}`},
		{"what is no JSON is no success", Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{Raw: []byte(`{`)}, Retryable: ptr.To(false)},
			`{"ok":false,"data":null,"error_code":"internal_error","message":"the result's data is no JSON","retryable":false}`},
	} {
		if got := tc.result.Envelope(); got != tc.want {
			t.Errorf("%s: got %s\nwant %s", tc.reason, got, tc.want)
		}
	}
}

func TestErrorCodeReason(t *testing.T) {
	for code, want := range map[ErrorCode]string{ErrorToolNotFound: "ToolNotFound", ErrorOutcomeUnknown: "OutcomeUnknown", ErrorCancelled: "Cancelled"} {
		if got := code.Reason(); got != want {
			t.Errorf("%s: got %s, want %s", code, got, want)
		}
	}
}
