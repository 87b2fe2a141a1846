package api

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
)

// The call whose changes are tried: every field that this version serves.
const wholeCall = `
apiVersion: callgate.dev/v1alpha1
kind: ToolCall
metadata: {name: x, labels: {a: b}}
spec:
  toolRef: {name: echo, namespace: tools}
  args:
    order_id: 4821
    big: 9007199254740993
    ratio: 0.5
    nothing: null
    nested: {a: 1, b: {c: [1, {d: 2}]}}
    text: "1"
  timeoutSeconds: 5
  idempotencyKey: refund-17
  deadlineSeconds: 60
  context: {run: r-17, step: "2"}
`

// A change of wholeCall, as a JSON patch.
type specChange struct {
	field  string // of spec
	name   string
	patch  string
	reason string
	says   string // in the refusal, when another rule than immutability refuses first
}

var specChanges = []specChange{
	{field: "toolRef", name: "name", patch: `[{"op":"replace","path":"/spec/toolRef/name","value":"refund"}]`,
		reason: "another tool is another call"},
	{field: "toolRef", name: "namespace removed", patch: `[{"op":"remove","path":"/spec/toolRef/namespace"}]`,
		reason: "the default is another Tool"},
	{field: "toolRef", name: "function name instead",
		patch:  `[{"op":"replace","path":"/spec/toolRef","value":{"functionName":"echo","namespace":"tools"}}]`,
		reason: "the same Tool today, another one tomorrow"},
	{field: "args", name: "value", patch: `[{"op":"replace","path":"/spec/args/order_id","value":4822}]`,
		reason: "another order"},
	{field: "args", name: "key renamed", patch: `[{"op":"move","from":"/spec/args/order_id","path":"/spec/args/customer_id"}]`,
		reason: "same number of keys: equality of a CRD rule does not see it"},
	{field: "args", name: "nested key renamed", patch: `[{"op":"move","from":"/spec/args/nested/a","path":"/spec/args/nested/z"}]`,
		reason: "the same, deeper"},
	{field: "args", name: "key renamed in a list",
		patch:  `[{"op":"move","from":"/spec/args/nested/b/c/1/d","path":"/spec/args/nested/b/c/1/e"}]`,
		reason: "the same, inside a list"},
	{field: "args", name: "key with null renamed", patch: `[{"op":"move","from":"/spec/args/nothing","path":"/spec/args/anything"}]`,
		reason: "null and absent must not be the same"},
	{field: "args", name: "null removed", patch: `[{"op":"remove","path":"/spec/args/nothing"}]`,
		reason: "null and absent must not be the same"},
	{field: "args", name: "key added", patch: `[{"op":"add","path":"/spec/args/force","value":true}]`,
		reason: "an option more"},
	{field: "args", name: "type number to string", patch: `[{"op":"replace","path":"/spec/args/order_id","value":"4821"}]`,
		reason: "the schema may accept both"},
	{field: "args", name: "type string to number", patch: `[{"op":"replace","path":"/spec/args/text","value":1}]`,
		reason: "the schema may accept both"},
	{field: "args", name: "number to boolean", patch: `[{"op":"replace","path":"/spec/args/nested/a","value":true}]`,
		reason: "1 is not true"},
	{field: "args", name: "large integer to its neighbour",
		patch:  `[{"op":"replace","path":"/spec/args/big","value":9007199254740992}]`,
		reason: "both are integers of 64 bits"},
	{field: "args", name: "large integer to the nearest float",
		patch:  `[{"op":"replace","path":"/spec/args/big","value":9007199254740992.0}]`,
		reason: "an integer and a float are compared as floats, where these two are equal; 9007199254740992 would be stored"},
	{field: "args", name: "list longer", patch: `[{"op":"add","path":"/spec/args/nested/b/c/-","value":3}]`,
		reason: "one more element"},
	{field: "args", name: "removed", patch: `[{"op":"remove","path":"/spec/args"}]`,
		reason: "no arguments are the arguments {}"},
	{field: "args", name: "emptied", patch: `[{"op":"replace","path":"/spec/args","value":{}}]`,
		reason: "other arguments"},
	{field: "timeoutSeconds", name: "changed", patch: `[{"op":"replace","path":"/spec/timeoutSeconds","value":6}]`,
		reason: "longer than asked for"},
	{field: "timeoutSeconds", name: "removed", patch: `[{"op":"remove","path":"/spec/timeoutSeconds"}]`,
		reason: "longer than asked for"},
	{field: "deadlineSeconds", name: "changed", patch: `[{"op":"replace","path":"/spec/deadlineSeconds","value":6000}]`,
		reason: "later than asked for"},
	{field: "deadlineSeconds", name: "removed", patch: `[{"op":"remove","path":"/spec/deadlineSeconds"}]`,
		reason: "later than asked for"},
	{field: "context", name: "value", patch: `[{"op":"replace","path":"/spec/context/run","value":"r-18"}]`,
		reason: "rules may read it"},
	{field: "context", name: "key renamed", patch: `[{"op":"move","from":"/spec/context/run","path":"/spec/context/ran"}]`,
		reason: "same number of keys"},
	{field: "context", name: "removed", patch: `[{"op":"remove","path":"/spec/context"}]`,
		reason: "rules may read it"},
	{field: "idempotencyKey", name: "changed", patch: `[{"op":"replace","path":"/spec/idempotencyKey","value":"refund-18"}]`,
		reason: "another key lets the action run again"},
	{field: "idempotencyKey", name: "removed", patch: `[{"op":"remove","path":"/spec/idempotencyKey"}]`,
		reason: "without a key nothing is remembered"},
	{field: "ttlSecondsAfterFinished", name: "added", patch: `[{"op":"add","path":"/spec/ttlSecondsAfterFinished","value":1}]`,
		reason: "how long a call is kept is asked for when it is made"},
}

const immutable = "spec is immutable: create a new ToolCall; only spec.cancel may change, from false to true"

func TestSpecIsImmutable(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	item := callsPath(namespace) + "/x"
	alice.create(t, callsPath(namespace), fromYAML(t, wholeCall).json(t))
	before := asJSON(alice.get(t, item).at("spec"))

	tried := map[string]bool{}
	for _, tc := range specChanges {
		tried[tc.field] = true
		t.Run(tc.field+"/"+tc.name, func(t *testing.T) {
			want := []string{immutable, "Changed: spec." + tc.field}
			if tc.says != "" {
				want = []string{tc.says}
			}
			// With cancel and without: cancelling must not carry another change along.
			patches := []string{tc.patch, strings.TrimSuffix(tc.patch, "]") + `,{"op":"add","path":"/spec/cancel","value":true}]`,
				strings.TrimSuffix(tc.patch, "]") + `,{"op":"add","path":"/spec/cancel","value":false}]`}
			for _, patch := range patches {
				answer := alice.do(t, http.MethodPatch, item, jsonPatchType, patch)
				if answer.code != http.StatusUnprocessableEntity {
					t.Fatalf("%s: want 422, got %s", tc.reason, answer)
				}
				for _, part := range want {
					if !strings.Contains(answer.message(), part) {
						t.Errorf("the message lacks %q: %s", part, answer.message())
					}
				}
			}
			if after := asJSON(alice.get(t, item).at("spec")); after != before {
				t.Fatalf("spec is now %s", after)
			}
		})
	}

	// A field that is added to the API needs a row above: somebody must have
	// thought about who may change it.
	specType := reflect.TypeFor[v1alpha1.ToolCallSpec]()
	for i := range specType.NumField() {
		name, _, _ := strings.Cut(specType.Field(i).Tag.Get("json"), ",")
		switch name {
		case "cancel": // TestCancel
		case "requester": // TestForgingARequester
		default:
			if !tried[name] {
				t.Errorf("no change of spec.%s is tried: add a row to specChanges", name)
			}
		}
	}
}

func TestFieldAddedToSpecLater(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	item := callsPath(namespace) + "/small"
	alice.create(t, callsPath(namespace), fromYAML(t, `
apiVersion: callgate.dev/v1alpha1
kind: ToolCall
metadata: {name: small}
spec: {toolRef: {name: echo}}`).json(t))
	for field, value := range map[string]string{
		"args": `{}`, "timeoutSeconds": `5`, "deadlineSeconds": `5`, "idempotencyKey": `"k"`, "context": `{"a":"b"}`,
	} {
		t.Run(field, func(t *testing.T) {
			answer := alice.do(t, http.MethodPatch, item, mergeType, `{"spec":{"`+field+`":`+value+`}}`)
			if answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), immutable) {
				t.Errorf("adding %s: want 422 and why: %s", field, answer)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	for _, tc := range []struct {
		name, at, patch, reason string
		refused                 string
	}{
		{"absent to true", "", `{"spec":{"cancel":true}}`, "how a call is cancelled", ""},
		{"false to true", ", cancel: false", `{"spec":{"cancel":true}}`, "how a call is cancelled", ""},
		{"absent to false", "", `{"spec":{"cancel":false}}`, "says the same", ""},
		{"false to absent", ", cancel: false", `{"spec":{"cancel":null}}`, "says the same", ""},
		{"true again", ", cancel: true", `{"spec":{"cancel":true}}`, "repeating it is harmless", ""},
		{"true to false", ", cancel: true", `{"spec":{"cancel":false}}`, "it may have ended already", "spec.cancel may change from false to true only"},
		{"true to absent", ", cancel: true", `{"spec":{"cancel":null}}`, "the same as false", "spec.cancel may change from false to true only"},
		{"no boolean", "", `{"spec":{"cancel":"yes"}}`, "the schema's word", "spec.cancel: Invalid value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			alice.create(t, callsPath(namespace), fromYAML(t, manifest("x", tc.at)).json(t))
			item := callsPath(namespace) + "/x"
			answer := alice.do(t, http.MethodPatch, item, mergeType, tc.patch)
			switch {
			case tc.refused == "" && !answer.ok():
				t.Errorf("%s: refused: %s", tc.reason, answer)
			case tc.refused != "" && (answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), tc.refused)):
				t.Errorf("%s: want 422 with %q: %s", tc.reason, tc.refused, answer)
			}
			if answer := alice.do(t, http.MethodDelete, item, jsonType, ""); !answer.ok() {
				t.Fatal(answer)
			}
		})
	}
}

func TestWhatMayChange(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	item := callsPath(namespace) + "/x"
	alice.create(t, callsPath(namespace), fromYAML(t, wholeCall).json(t))
	generation := alice.get(t, item).at("metadata", "generation")
	for _, tc := range []struct{ name, patch string }{
		{"label", `{"metadata":{"labels":{"a":"c","d":"e"}}}`},
		{"annotation", `{"metadata":{"annotations":{"note":"n"}}}`},
		{"finalizer", `{"metadata":{"finalizers":["example.com/keep"]}}`},
		{"finalizer gone", `{"metadata":{"finalizers":null}}`},
		{"the same args again", `{"spec":{"args":{"order_id":4821,"ratio":0.5}}}`},
		{"the same numbers written otherwise", `{"spec":{"args":{"order_id":4821.0,"ratio":5e-1},"timeoutSeconds":5}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if answer := alice.do(t, http.MethodPatch, item, mergeType, tc.patch); !answer.ok() {
				t.Errorf("refused: %s", answer)
			}
		})
	}
	if got := alice.get(t, item).at("metadata", "generation"); got != generation {
		t.Errorf("generation went from %v to %v: spec changed", generation, got)
	}
	t.Run("status beside a label", func(t *testing.T) {
		answer := alice.do(t, http.MethodPatch, item, mergeType,
			`{"metadata":{"labels":{"s":"t"}},"status":{"result":{"ok":true,"retryable":false},"observedGeneration":7}}`)
		if got := asJSON(answer.object().at("status")); !answer.ok() || got != `{"observedGeneration":-1}` {
			t.Errorf("a caller must not write how the call went: status %s, %s", got, answer)
		}
	})
	t.Run("big args", func(t *testing.T) {
		call := fromYAML(t, manifest("big", ""))
		args := map[string]any{}
		for i := range 4000 {
			args[strings.Repeat("k", 20)+string(rune('a'+i%26))+asJSON(i)] = map[string]any{"v": i, "w": []any{0.5, nil, "text"}}
		}
		call["spec"].(map[string]any)["args"] = args
		alice.create(t, callsPath(namespace), call.json(t))
		answer := alice.do(t, http.MethodPatch, callsPath(namespace)+"/big", mergeType, `{"metadata":{"labels":{"a":"b"}}}`)
		if !answer.ok() {
			t.Errorf("a label on a call with %d bytes of args: the rule must not run out of its cost budget: %s", len(call.json(t)), answer)
		}
		answer = alice.do(t, http.MethodPatch, callsPath(namespace)+"/big", mergeType, `{"spec":{"cancel":true}}`)
		if !answer.ok() {
			t.Errorf("cancelling a call with %d bytes of args: %s", len(call.json(t)), answer)
		}
	})
	t.Run("deep args", func(t *testing.T) {
		const depth = 5000
		deep := strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
		alice.create(t, callsPath(namespace), `{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"deep"},
			"spec":{"toolRef":{"name":"echo"},"args":`+deep+`}}`)
		answer := alice.do(t, http.MethodPatch, callsPath(namespace)+"/deep", mergeType, `{"spec":{"cancel":true}}`)
		if !answer.ok() {
			t.Errorf("cancelling a call with args nested %d deep: %s", depth, answer)
		}
	})
}
