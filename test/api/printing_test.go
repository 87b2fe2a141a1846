package api

import (
	"net/http"
	"strings"
	"testing"
)

// lines are the lines of kubectl's output, cells apart by one blank.
func lines(output string) []string {
	var out []string
	for line := range strings.Lines(output) {
		out = append(out, strings.Join(strings.Fields(line), " "))
	}
	return out
}

func TestKubectlGet(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	base := "/apis/callgate.dev/v1alpha1/namespaces/" + namespace
	byName := fromYAML(t, manifest("a-by-name", ""))
	byFunction := merged(t, validCall, `{metadata: {name: b-by-function, generateName: null}}`)
	for _, call := range []fields{byName, byFunction, fromYAML(t, manifest("c-fresh", ""))} {
		alice.create(t, callsPath(namespace), call.json(t))
	}
	admin.create(t, base+"/tools", fromYAML(t, validTool).json(t))
	admin.create(t, base+"/tools", fromYAML(t, smallestTool).json(t))
	admin.create(t, base+"/toolpolicies", fromYAML(t, validPolicy).json(t))
	admin.create(t, base+"/toolcallapprovals", merged(t, validApproval, `{metadata: {name: yes-1, generateName: null}}`).json(t))
	const cluster = "/apis/callgate.dev/v1alpha1/clustertoolpolicies"
	admin.create(t, cluster, merged(t, validClusterPolicy, `{metadata: {name: printed}, spec: {mode: Audit}}`).json(t))
	t.Cleanup(func() { admin.do(t, http.MethodDelete, cluster+"/printed", jsonType, "") })

	const now = `"lastTransitionTime":"2026-01-02T03:04:05Z"`
	for _, status := range []struct{ path, status string }{
		{"/toolcalls/a-by-name", `{"observedGeneration":1,"result":{"ok":true,"retryable":false,"data":1},"conditions":[
			{"type":"Complete","status":"True","reason":"Succeeded","message":"m",` + now + `},
			{"type":"Succeeded","status":"True","reason":"Succeeded","message":"exit code 0",` + now + `}]}`},
		{"/toolcalls/b-by-function", `{"result":{"ok":false,"retryable":true,"errorCode":"tool_timeout","message":"long"},"conditions":[
			{"type":"Succeeded","status":"False","reason":"ToolTimeout","message":"tool_timeout after 5 s",` + now + `}]}`},
		{"/tools/word-stats", `{"conditions":[{"type":"Ready","status":"False","reason":"NamespaceNotOpen","message":"label it",` + now + `}]}`},
		{"/toolpolicies/support-agents", `{"conditions":[{"type":"Ready","status":"True","reason":"Ready","message":"",` + now + `}]}`},
	} {
		if answer := admin.do(t, http.MethodPatch, base+status.path+"/status", mergeType, `{"status":`+status.status+`}`); !answer.ok() {
			t.Fatal(answer)
		}
	}

	for _, tc := range []struct {
		name      string
		arguments []string
		want      []string // the lines, without the age at their end
		reason    string
	}{
		{"calls", []string{"toolcalls"}, []string{
			"NAME TOOL STATUS OK REQUESTER AGE",
			"a-by-name echo Succeeded true alice",
			"b-by-function update_order_status ToolTimeout false alice",
			"c-fresh echo alice",
		}, "the tool is shown by whichever name it was called"},
		{"tc", []string{"tc", "--no-headers", "c-fresh"}, []string{"c-fresh echo alice"}, "short name"},
		{"tools", []string{"tools"}, []string{
			"NAME READY REASON FUNCTION SIDE EFFECTS AGE",
			"update-order-status update_order_status Idempotent",
			"word-stats False NamespaceNotOpen NonIdempotent",
		}, "why a tool is not ready stands beside it"},
		{"tpol", []string{"tpol"}, []string{
			"NAME READY MODE RULES AGE",
			"support-agents True Enforce orders",
		}, "short name"},
		{"ctpol", []string{"ctpol"}, []string{
			"NAME READY MODE RULES AGE",
			"printed Audit read",
		}, "short name"},
		{"tca", []string{"tca"}, []string{
			"NAME CALL DECISION APPROVER AGE",
			"yes-1 ship-4821-x7k2p Approve admin",
		}, "who said what to which call"},
		{"callgate", []string{"callgate", "-o", "name"}, []string{
			"tool.callgate.dev/update-order-status", "tool.callgate.dev/word-stats",
			"toolcall.callgate.dev/a-by-name", "toolcall.callgate.dev/b-by-function", "toolcall.callgate.dev/c-fresh",
			"toolcallapproval.callgate.dev/yes-1",
			"toolpolicy.callgate.dev/support-agents", "clustertoolpolicy.callgate.dev/printed",
		}, "the category has all kinds"},
		{"wide", []string{"tc", "b-by-function", "-o", "wide", "--no-headers"}, []string{
			"b-by-function update_order_status ToolTimeout false alice 5s tool_timeout after 5 s",
		}, "the message is there in the wide form"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			output, ok := admin.kubectl(t, "", append([]string{"-n", namespace, "get"}, tc.arguments...)...)
			if !ok {
				t.Fatal(output)
			}
			got := lines(output)
			if tc.name == "callgate" {
				// kubectl prints the kinds of a category in the order of discovery.
				for _, want := range tc.want {
					if !strings.Contains(output, want+"\n") {
						t.Errorf("%s: %q is missing in\n%s", tc.reason, want, output)
					}
				}
				return
			}
			if len(got) != len(tc.want) {
				t.Fatalf("%s: got %d lines, want %d:\n%s", tc.reason, len(got), len(tc.want), output)
			}
			for i, want := range tc.want {
				if tc.name == "wide" {
					want = "b-by-function update_order_status ToolTimeout false alice "
					if !strings.HasSuffix(got[i], " tool_timeout after 5 s") {
						t.Errorf("%s: got %q", tc.reason, got[i])
					}
				}
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("%s: got %q, want it to begin with %q", tc.reason, got[i], want)
				}
			}
		})
	}
	t.Run("wait", func(t *testing.T) {
		// kubectl wait takes a condition only when status.observedGeneration has reached the generation.
		output, ok := alice.kubectl(t, "", "-n", namespace, "wait", "--for=condition=Complete", "--timeout=20s", "tc/a-by-name")
		if !ok {
			t.Error(output)
		}
	})
}
