package v1alpha1

import "encoding/json"

// Envelope is the result as every surface for agents prints it: one line of
// JSON, {"ok","data","error_code","message","retryable"}, null for what is
// empty.
func (r *Result) Envelope() string {
	envelope := struct {
		OK        bool            `json:"ok"`
		Data      json.RawMessage `json:"data"`
		ErrorCode *ErrorCode      `json:"error_code"`
		Message   *string         `json:"message"`
		Retryable bool            `json:"retryable"`
	}{OK: r.OK != nil && *r.OK, Retryable: r.Retryable != nil && *r.Retryable}
	if r.Data != nil {
		envelope.Data = r.Data.Raw
	}
	if r.ErrorCode != "" {
		envelope.ErrorCode = &r.ErrorCode
	}
	if r.Message != "" {
		envelope.Message = &r.Message
	}
	b, err := json.Marshal(envelope)
	if err != nil {
		// Only data that is no JSON does this; the API server stores none.
		return `{"ok":false,"data":null,"error_code":"internal_error","message":"the result's data is no JSON","retryable":false}`
	}
	return string(b)
}
