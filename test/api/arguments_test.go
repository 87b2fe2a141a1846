package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const callWithArgs = `{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"x"},"spec":{"toolRef":{"name":"echo"},"args":%s}}`

// rawArgs are the stored args of a call, byte for byte but for the order of
// keys.
func rawArgs(t *testing.T, body []byte) string {
	t.Helper()
	var call struct {
		Spec struct {
			Args json.RawMessage `json:"args"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(body, &call); err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, call.Spec.Args); err != nil {
		t.Fatalf("%v in %s", err, call.Spec.Args)
	}
	return compact.String()
}

// What the API server changes in arguments before anybody can see them, the
// controller included. docs/call-a-tool.md says the same.
func TestWhatTheAPIServerChangesInArguments(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	for _, tc := range []struct{ name, sent, stored, reason string }{
		{"integers of 64 bits", `{"a":9007199254740993,"b":-9223372036854775808,"c":9223372036854775807}`, "", "exact"},
		{"strings", `{"a":"\u0000\u001f \"\\/ ünï 😀"}`, `{"a":"\u0000\u001f \"\\/ ünï 😀"}`, "NUL and everything valid stays"},
		{"null, empty, nesting", `{"a":null,"b":{},"c":[],"d":"","e":[null,[{}]]}`, "", "null is a value"},
		{"keys like fields", `{"apiVersion":"v1","kind":"x","metadata":{"name":"y"},"x-y":{"":1}}`, "", "args are not pruned"},
		{"fractions", `{"a":0.1,"b":1.5e-7,"c":0.12345678901234567}`, `{"a":0.1,"b":1.5e-7,"c":0.12345678901234566}`, "the shortest text of the same 64-bit float"},
		{"whole fraction", `{"a":1.0,"b":1e2,"c":-0.0}`, `{"a":1,"b":100,"c":0}`, "becomes an integer"},
		{"fraction past 17 digits", `{"a":0.1000000000000000055511151231257827}`, `{"a":0.1}`, "a 64-bit float"},
		{"integer past int64", `{"a":9223372036854775808,"b":12345678901234567890}`, `{"a":9223372036854776000,"b":12345678901234567000}`, "a 64-bit float, and so not exact"},
		{"integer past 1e21", `{"a":1000000000000000000000}`, `{"a":1e+21}`, "reads as a float from then on"},
		{"large integer with a fraction", `{"a":9007199254740993.0}`, `{"a":9007199254740992}`, "rounded to a 64-bit float"},
		{"lone surrogate", `{"a":"x\ud800y"}`, `{"a":"x` + "\ufffd" + `y"}`, "becomes U+FFFD, without an error"},
		{"invalid UTF-8", "{\"a\":\"x\xffy\"}", `{"a":"x` + "\ufffd" + `y"}`, "becomes U+FFFD, without an error"},
		{"duplicate key", `{"a":1,"a":2}`, `{"a":2}`, "the last one, unless validation is Strict"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.stored
			if want == "" {
				want = tc.sent
			}
			answer := alice.do(t, http.MethodPost, callsPath(namespace), jsonType, fmt.Sprintf(callWithArgs, tc.sent))
			if !answer.ok() {
				t.Fatal(answer)
			}
			// Read again: an answer to a create may hold more than what is stored.
			answer = alice.do(t, http.MethodGet, callsPath(namespace)+"/x", jsonType, "")
			if got := rawArgs(t, answer.body); got != want {
				t.Errorf("%s: sent %s, stored %s, want %s", tc.reason, tc.sent, got, want)
			}
			alice.do(t, http.MethodDelete, callsPath(namespace)+"/x", jsonType, "")
		})
	}

	for _, tc := range []struct {
		name, args, query string
		code              int
		says              string
	}{
		{"duplicate key, strict", `{"a":1,"a":2}`, "?fieldValidation=Strict", http.StatusBadRequest, `duplicate field "spec.args.a"`},
		{"number no float can hold", `{"a":1e400}`, "", http.StatusBadRequest, "1e400"},
		{"nested 10,001 deep", `{"a":` + strings.Repeat("[", 10001) + strings.Repeat("]", 10001) + `}`, "", http.StatusBadRequest, "max depth"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := alice.do(t, http.MethodPost, callsPath(namespace)+tc.query, jsonType, fmt.Sprintf(callWithArgs, tc.args))
			if answer.code != tc.code || !strings.Contains(answer.message(), tc.says) {
				t.Errorf("want %d with %q, got %s", tc.code, tc.says, answer)
			}
		})
	}
}

// What kubectl makes of arguments on the way.
func TestArgumentsThroughKubectl(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	document := strings.Replace(manifest("x", ""), `{count: 1, keep: "x"}`, `{n: 1, none: null, one: 1.0, big: 12345678901234567890, word: "yes"}`, 1)
	if !strings.Contains(document, "none") {
		t.Fatal("the manifest of this test is not what it should be")
	}
	// A bare n is the boolean false in the YAML of kubectl. Client-side apply drops what is null.
	for _, tc := range []struct {
		name      string
		arguments []string
		want      string
	}{
		{"create", []string{"create", "-f", "-"}, `{"big":12345678901234567000,"false":1,"none":null,"one":1,"word":"yes"}`},
		{"client-side apply", []string{"apply", "-f", "-"}, `{"big":12345678901234567000,"false":1,"one":1,"word":"yes"}`},
		{"server-side apply", []string{"apply", "--server-side", "-f", "-"}, `{"big":12345678901234567000,"false":1,"none":null,"one":1,"word":"yes"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for again := range 2 {
				output, ok := alice.kubectl(t, document, append([]string{"-n", namespace}, tc.arguments...)...)
				if again == 1 && tc.name == "create" {
					break // exists
				}
				if !ok {
					t.Fatalf("time %d: %s", again+1, output)
				}
				answer := alice.do(t, http.MethodGet, callsPath(namespace)+"/x", jsonType, "")
				if got := rawArgs(t, answer.body); got != tc.want {
					t.Errorf("time %d: stored %s, want %s", again+1, got, tc.want)
				}
			}
			alice.do(t, http.MethodDelete, callsPath(namespace)+"/x", jsonType, "")
		})
	}
	t.Run("null in an update", func(t *testing.T) {
		alice.create(t, callsPath(namespace), fmt.Sprintf(callWithArgs, `{"a":null,"b":1}`))
		answer := alice.do(t, http.MethodPatch, callsPath(namespace)+"/x", mergeType, `{"spec":{"args":{"a":null}}}`)
		if answer.ok() || !strings.Contains(answer.message(), immutable) {
			t.Errorf("a merge patch takes null for a removal, so it must be refused: %s", answer)
		}
	})
}

// Stored with every call and sent with every event: managedFields must not grow
// with the arguments or the result.
func TestManagedFieldsStaySmall(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	values := map[string]any{}
	for i := range 4000 {
		values[fmt.Sprintf("argument-%04d", i)] = map[string]any{"value": i, "text": "abcdef"}
	}
	args := asJSON(values)
	if len(args) < 178_000 {
		t.Fatalf("args have %d bytes only", len(args))
	}
	document := fmt.Sprintf(callWithArgs, args)
	for _, answer := range []answer{
		alice.do(t, http.MethodPatch, callsPath(namespace)+"/x?fieldManager=alice", applyType, document),
		admin.do(t, http.MethodPatch, callsPath(namespace)+"/x/status?fieldManager=callgate", mergeType,
			`{"status":{"result":{"ok":true,"retryable":false,"data":`+args+`}}}`),
		admin.do(t, http.MethodPost, "/apis/callgate.dev/v1alpha1/namespaces/"+namespace+"/tools?fieldManager=platform", jsonType,
			`{"apiVersion":"callgate.dev/v1alpha1","kind":"Tool","metadata":{"name":"t"},"spec":{"inputSchema":{"properties":`+args+
				`},"outputSchema":{"properties":`+args+`},"container":{"image":"i","command":["/c"]}}}`),
	} {
		if !answer.ok() {
			t.Fatal(answer)
		}
		fieldsOf := answer.object().at("metadata", "managedFields")
		if size := len(asJSON(fieldsOf)); size > 2048 {
			t.Errorf("managedFields have %d bytes: %.500s", size, asJSON(fieldsOf))
		}
	}
}
