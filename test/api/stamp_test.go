package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"callgate.dev/callgate/api/v1alpha1"
)

// stampOf is the requester of a stored call, or the approver of an approval.
func stampOf(t *testing.T, object fields, field string) v1alpha1.Requester {
	t.Helper()
	content, err := json.Marshal(object.at("spec", field))
	if err != nil {
		t.Fatal(err)
	}
	var requester v1alpha1.Requester
	if err := json.Unmarshal(content, &requester); err != nil {
		t.Fatalf("%s %s: %v", field, content, err)
	}
	return requester
}

func wantRequester(t *testing.T, call fields, want v1alpha1.Requester) {
	t.Helper()
	wantStamp(t, call, "requester", want)
}

func wantStamp(t *testing.T, object fields, field string, want v1alpha1.Requester) {
	t.Helper()
	if got := stampOf(t, object, field); !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %s, want %s", field, asJSON(got), asJSON(want))
	}
}

func asJSON(value any) string {
	content, _ := json.Marshal(value) // the types here have no value that fails
	return string(content)
}

func requester(uid, username string, groups ...string) v1alpha1.Requester {
	return v1alpha1.Requester{Username: username, UID: &uid, Groups: groups}
}

// manifest is a call, with more fields of spec as YAML flow.
func manifest(name, spec string) string {
	return fmt.Sprintf(`apiVersion: callgate.dev/v1alpha1
kind: ToolCall
metadata: {name: %s}
spec: {toolRef: {name: echo}, args: {count: 1, keep: "x"}%s}
`, name, spec)
}

// forged is what somebody who wants to be somebody else writes.
const forged = `, requester: {username: "system:admin", uid: "0", groups: ["system:masters"]}`

func TestEveryKindOfUserIsStamped(t *testing.T) {
	namespace := newNamespace(t)
	agent := serviceAccountUser(t, namespace, "support-agent")
	account := fields{}
	if answer := admin.do(t, http.MethodGet, "/api/v1/namespaces/"+namespace+"/serviceaccounts/support-agent", jsonType, ""); answer.ok() {
		account = answer.object()
	}
	boss := certificateUser(t, "boss", "system:masters")
	manyGroups := make([]string, 300)
	for i := range manyGroups {
		manyGroups[i] = fmt.Sprintf("group-%03d", i)
	}
	for _, tc := range []struct {
		name, reason string
		who          *user
		want         v1alpha1.Requester
	}{
		{"person", "a certificate has no UID: it is stamped as the empty string",
			certificateUser(t, "alice", "team-a", "team-b"),
			requester("", "alice", "team-a", "team-b", "system:authenticated")},
		{"person-in-no-group", "groups is never empty: system:authenticated is always there",
			certificateUser(t, "bob"), requester("", "bob", "system:authenticated")},
		{"service-account", "an agent is its ServiceAccount, with its UID and the groups policies use",
			agent, requester(account.str("metadata", "uid"), "system:serviceaccount:"+namespace+":support-agent",
				"system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")},
		{"impersonated", "a call on behalf of an end user is that user's, never the impersonator's",
			impersonating(t, boss, rest.ImpersonationConfig{UserName: "end-user", UID: "u-123", Groups: []string{"customers"}}),
			requester("u-123", "end-user", "customers", "system:authenticated")},
		{"impersonated-service-account", "impersonating a ServiceAccount gives its groups",
			impersonating(t, boss, rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":other"}),
			requester("", "system:serviceaccount:"+namespace+":other",
				"system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")},
		{"many-groups", "all groups are stamped: a Deny for the last one must hold",
			impersonating(t, boss, rest.ImpersonationConfig{UserName: "joiner", Groups: manyGroups}),
			requester("", "joiner", append(slices.Clone(manyGroups), "system:authenticated")...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, spec := range []string{"", forged} {
				call := tc.who.create(t, callsPath(namespace), fromYAML(t, manifest("x", spec+", cancel: false")).json(t)+"\n")
				wantRequester(t, call, tc.want)
				wantRequester(t, admin.get(t, callsPath(namespace)+"/x"), tc.want)
				if answer := tc.who.do(t, http.MethodDelete, callsPath(namespace)+"/x", jsonType, ""); !answer.ok() {
					t.Fatalf("delete: %s", answer)
				}
			}
		})
	}
}

// A requester that does not fit is refused whole: with one group cut off, a
// Deny for that group would not hold.
func TestRequesterThatDoesNotFit(t *testing.T) {
	namespace := newNamespace(t)
	boss := certificateUser(t, "boss", "system:masters")
	groups := make([]string, 1024)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%d", i)
	}
	for _, tc := range []struct {
		name, says string
		as         rest.ImpersonationConfig
	}{
		{"1,025 groups", "spec.requester.groups: Too many: 1025", rest.ImpersonationConfig{UserName: "joiner", Groups: groups}},
		{"long name", "spec.requester.username: Too long", rest.ImpersonationConfig{UserName: strings.Repeat("x", 1025)}},
		{"long group", "spec.requester.groups[0]: Too long", rest.ImpersonationConfig{UserName: "a", Groups: []string{strings.Repeat("x", 1025)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := impersonating(t, boss, tc.as).do(t, http.MethodPost, callsPath(namespace), jsonType, fromYAML(t, manifest("x", "")).json(t))
			if answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), tc.says) {
				t.Errorf("want 422 with %q: %s", tc.says, answer)
			}
		})
	}
}

// kubectlAnswer is what kubectl printed, as an answer.
func kubectlAnswer(t *testing.T, who *user, document string, arguments ...string) answer {
	t.Helper()
	output, ok := who.kubectl(t, document, arguments...)
	if !ok {
		return answer{code: 599, body: []byte(output)}
	}
	return answer{code: 200, body: []byte(output)}
}

// A way to create the object x from a manifest.
type wayToCreate struct {
	name, reason string
	send         func(document string) answer
}

// waysToCreate are all ways that there are to create an object, named x.
func waysToCreate(t *testing.T, who *user, namespace, resource string) []wayToCreate {
	t.Helper()
	path := resourcePath(namespace, resource)
	kubectl := func(document string, arguments ...string) answer {
		return kubectlAnswer(t, who, document, append([]string{"-n", namespace}, arguments...)...)
	}
	return []wayToCreate{
		{"create", "the plain way",
			func(document string) answer {
				return who.do(t, http.MethodPost, path, jsonType, fromYAML(t, document).json(t))
			}},
		{"kubectl create", "the plain way of a person",
			func(document string) answer { return kubectl(document, "create", "-f", "-") }},
		{"kubectl apply", "client-side apply of something new is a create",
			func(document string) answer { return kubectl(document, "apply", "-f", "-") }},
		{"kubectl apply --server-side", "server-side apply of something new is a create by PATCH",
			func(document string) answer { return kubectl(document, "apply", "--server-side", "-f", "-") }},
		{"apply patch", "the same, in one request",
			func(document string) answer {
				return who.do(t, http.MethodPatch, path+"/x?fieldManager=mallory&force=true", applyType, document)
			}},
		{"kubectl replace --force", "deletes and creates",
			func(document string) answer { return kubectl(document, "replace", "--force", "-f", "-") }},
	}
}

func TestForgingARequester(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice", "team-a")
	mallory := certificateUser(t, "mallory", "team-m")
	aliceIs := requester("", "alice", "team-a", "system:authenticated")
	malloryIs := requester("", "mallory", "team-m", "system:authenticated")
	item := callsPath(namespace) + "/x"

	replace := func(who *user, spec string) answer {
		object := fromYAML(t, manifest("x", spec))
		stored := admin.get(t, item)
		object["metadata"] = map[string]any{"name": "x", "resourceVersion": stored.str("metadata", "resourceVersion")}
		return who.do(t, http.MethodPut, item, jsonType, object.json(t))
	}
	kubectl := func(who *user, document string, arguments ...string) answer {
		return kubectlAnswer(t, who, document, append([]string{"-n", namespace}, arguments...)...)
	}

	for _, tc := range waysToCreate(t, mallory, namespace, "toolcalls") {
		for _, spec := range []string{"", forged, `, requester: null`, `, requester: {username: alice, groups: [team-a]}`} {
			t.Run(tc.name+spec, func(t *testing.T) {
				if answer := tc.send(manifest("x", spec)); !answer.ok() {
					t.Fatalf("%s: refused, want it created and stamped: %s", tc.reason, answer)
				}
				wantRequester(t, admin.get(t, item), malloryIs)
				// The same manifest again, the same way, must stay accepted: GitOps tools do it all day.
				if strings.Contains(tc.name, "apply") {
					if answer := tc.send(manifest("x", spec)); !answer.ok() {
						t.Errorf("the same manifest again was refused: %s", answer)
					}
					wantRequester(t, admin.get(t, item), malloryIs)
				}
				if answer := admin.do(t, http.MethodDelete, item, jsonType, ""); !answer.ok() {
					t.Fatal(answer)
				}
			})
		}
	}

	for _, tc := range []struct {
		name, reason string
		send         func() answer
		refused      string // a part of the message; empty: accepted, and the requester is still alice
	}{
		{"replace with a forged requester", "the old one comes back; a manifest with a stale requester stays usable",
			func() answer { return replace(mallory, forged) }, ""},
		{"replace without a requester", "kubectl replace of the manifest that created the call",
			func() answer { return replace(mallory, "") }, ""},
		{"replace by the creator", "the same",
			func() answer { return replace(alice, "") }, ""},
		{"kubectl replace", "the same with kubectl",
			func() answer { return kubectl(alice, manifest("x", ""), "replace", "-f", "-") }, ""},
		{"kubectl apply by somebody else", "a team mate re-applies the manifest: it stays the creator's call",
			func() answer { return kubectl(mallory, manifest("x", ""), "apply", "-f", "-") }, ""},
		{"kubectl apply of a forged requester", "three-way merge patch",
			func() answer { return kubectl(mallory, manifest("x", forged), "apply", "-f", "-") }, ""},
		{"kubectl apply --server-side of a forged requester", "with the fields of another manager forced",
			func() answer {
				return kubectl(mallory, manifest("x", forged), "apply", "--server-side", "--force-conflicts", "-f", "-")
			}, ""},
		{"merge patch", "one field of the requester",
			func() answer {
				return mallory.do(t, http.MethodPatch, item, mergeType, `{"spec":{"requester":{"username":"mallory"}}}`)
			}, ""},
		{"merge patch that removes", "null removes the requester",
			func() answer {
				return mallory.do(t, http.MethodPatch, item, mergeType, `{"spec":{"requester":null}}`)
			}, ""},
		{"JSON patch replace", "one group",
			func() answer {
				return mallory.do(t, http.MethodPatch, item, jsonPatchType,
					`[{"op":"replace","path":"/spec/requester/groups/0","value":"team-m"}]`)
			}, ""},
		{"JSON patch remove", "the whole requester",
			func() answer {
				return mallory.do(t, http.MethodPatch, item, jsonPatchType, `[{"op":"remove","path":"/spec/requester"}]`)
			}, ""},
		{"strategic merge patch", "custom resources know none; the API server says so",
			func() answer {
				return mallory.do(t, http.MethodPatch, item, strategicType, `{"spec":{"requester":{"username":"mallory"}}}`)
			}, "unknown format"},
		{"forged requester together with other args", "the requester comes back, and the rest is judged without it",
			func() answer { return replace(mallory, forged+`, timeoutSeconds: 3`) }, "spec.timeoutSeconds"},
		{"status", "agents have no right on status",
			func() answer {
				return mallory.do(t, http.MethodPatch, item+"/status", mergeType, `{"spec":{"requester":{"username":"mallory"}}}`)
			}, "cannot patch resource"},
	} {
		t.Run("update/"+tc.name, func(t *testing.T) {
			alice.create(t, callsPath(namespace), fromYAML(t, manifest("x", "")).json(t))
			switch answer := tc.send(); {
			case tc.refused == "" && !answer.ok():
				t.Errorf("%s: refused, want it accepted without effect: %s", tc.reason, answer)
			case tc.refused != "" && (answer.ok() || !strings.Contains(string(answer.body), tc.refused)):
				t.Errorf("%s: want it refused with %q: %s", tc.reason, tc.refused, answer)
			}
			wantRequester(t, admin.get(t, item), aliceIs)
			if answer := admin.do(t, http.MethodDelete, item, jsonType, ""); !answer.ok() {
				t.Fatal(answer)
			}
		})
	}

	t.Run("status by somebody who may", func(t *testing.T) {
		alice.create(t, callsPath(namespace), fromYAML(t, manifest("x", "")).json(t))
		answer := admin.do(t, http.MethodPatch, item+"/status", mergeType,
			`{"spec":{"requester":{"username":"mallory"},"args":{"count":2}},"status":{"argsDigest":"d"}}`)
		if !answer.ok() {
			t.Fatalf("the controller's way to write status was refused: %s", answer)
		}
		call := admin.get(t, item)
		wantRequester(t, call, aliceIs)
		if got := asJSON(call.at("spec", "args")); got != `{"count":1,"keep":"x"}` {
			t.Errorf("args changed through status: %s", got)
		}
		if call.str("status", "argsDigest") != "d" {
			t.Errorf("status was not written: %s", asJSON(call.at("status")))
		}
	})
}

func TestCallWithoutSpec(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice")
	const head = `{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"x"}`
	for _, tc := range []struct{ name, body, want string }{
		{"absent", head + `}`, "spec: Required value"},
		{"null", head + `,"spec":null}`, "spec: "},
		{"a string", head + `,"spec":"run"}`, "spec: Invalid value"},
		{"a list", head + `,"spec":[]}`, "spec: Invalid value"},
		{"empty", head + `,"spec":{}}`, "spec.toolRef: Required value"},
		{"requester that is a string", head + `,"spec":{"toolRef":{"name":"echo"},"requester":"system:admin"}}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := alice.do(t, http.MethodPost, callsPath(namespace)+"?dryRun=All", jsonType, tc.body)
			switch {
			case tc.want == "" && !answer.ok():
				t.Errorf("want it stamped: %s", answer)
			case tc.want != "" && (answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), tc.want)):
				t.Errorf("want 422 with %q, got: %s", tc.want, answer)
			case tc.want != "" && strings.Contains(answer.message(), "JSON patch"):
				t.Errorf("the message speaks of our patch, not of the caller's mistake: %s", answer)
			}
		})
	}
	t.Run("taken away later", func(t *testing.T) {
		alice.create(t, callsPath(namespace), fromYAML(t, manifest("x", "")).json(t))
		answer := alice.do(t, http.MethodPatch, callsPath(namespace)+"/x", jsonPatchType, `[{"op":"remove","path":"/spec"}]`)
		if answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), "spec: Required value") {
			t.Errorf("want 422 with spec: Required value, got: %s", answer)
		}
	})
}
