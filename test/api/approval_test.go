package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func approvalsPath(namespace string) string { return resourcePath(namespace, "toolcallapprovals") }

// approval is one, with more fields of spec as YAML flow.
func approval(name, spec string) string {
	return fmt.Sprintf(`apiVersion: callgate.dev/v1alpha1
kind: ToolCallApproval
metadata: {name: %s}
spec: {toolCallRef: {name: refund-7, uid: "u-7"}, decision: Approve%s}
`, name, spec)
}

// forgedApprover is what somebody writes who wants another one to have approved.
const forgedApprover = `, approver: {username: "system:admin", uid: "0", groups: ["system:masters"]}`

// newApprovalNamespace makes a namespace in which every authenticated user has
// every right on approvals: what is refused there, admission refuses.
func newApprovalNamespace(t *testing.T) string {
	t.Helper()
	namespace := newNamespace(t)
	for _, object := range []client.Object{
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "approvals"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"callgate.dev"}, Resources: []string{"toolcallapprovals"}, Verbs: []string{"*"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "approvals"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "approvals"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"}},
		},
	} {
		if err := adminClient.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	if err := poll(t.Context(), "rights on approvals in "+namespace, func() (bool, string) {
		return may(t, "anybody", "create", "callgate.dev", "toolcallapprovals", "", namespace), "no right"
	}); err != nil {
		t.Fatal(err)
	}
	return namespace
}

func TestEveryApproverIsStamped(t *testing.T) {
	namespace := newApprovalNamespace(t)
	robot := serviceAccountUser(t, namespace, "robot")
	account := admin.get(t, "/api/v1/namespaces/"+namespace+"/serviceaccounts/robot")
	boss := certificateUser(t, "boss", "system:masters")
	for _, tc := range []struct {
		name, reason string
		who          *user
		want         v1alpha1.Requester
	}{
		{"person", "rules name persons and groups",
			certificateUser(t, "frida", "finance"), requester("", "frida", "finance", "system:authenticated")},
		{"service-account", "a rule may name one as approver",
			robot, requester(account.str("metadata", "uid"), "system:serviceaccount:"+namespace+":robot",
				"system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")},
		{"impersonated", "an approval on behalf of somebody is that person's",
			impersonating(t, boss, rest.ImpersonationConfig{UserName: "frida", UID: "u-1", Groups: []string{"finance"}}),
			requester("u-1", "frida", "finance", "system:authenticated")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, spec := range []string{"", forgedApprover} {
				got := tc.who.create(t, approvalsPath(namespace), fromYAML(t, approval("x", spec)).json(t))
				wantStamp(t, got, "approver", tc.want)
				wantStamp(t, admin.get(t, approvalsPath(namespace)+"/x"), "approver", tc.want)
				if answer := tc.who.do(t, http.MethodDelete, approvalsPath(namespace)+"/x", jsonType, ""); !answer.ok() {
					t.Fatalf("%s: delete: %s", tc.reason, answer)
				}
			}
		})
	}
}

// The requester of a call who may write approvals cannot make one look like
// another person's.
func TestForgingAnApprover(t *testing.T) {
	namespace := newApprovalNamespace(t)
	frida := certificateUser(t, "frida", "finance")
	mallory := certificateUser(t, "mallory", "team-m")
	fridaIs := requester("", "frida", "finance", "system:authenticated")
	malloryIs := requester("", "mallory", "team-m", "system:authenticated")
	item := approvalsPath(namespace) + "/x"

	for _, tc := range waysToCreate(t, mallory, namespace, "toolcallapprovals") {
		for _, spec := range []string{"", forgedApprover, `, approver: null`, `, approver: {username: frida, groups: [finance]}`} {
			t.Run(tc.name+spec, func(t *testing.T) {
				if answer := tc.send(approval("x", spec)); !answer.ok() {
					t.Fatalf("%s: refused, want it created and stamped: %s", tc.reason, answer)
				}
				wantStamp(t, admin.get(t, item), "approver", malloryIs)
				if strings.Contains(tc.name, "apply") {
					if answer := tc.send(approval("x", spec)); !answer.ok() {
						t.Errorf("the same manifest again was refused: %s", answer)
					}
					wantStamp(t, admin.get(t, item), "approver", malloryIs)
				}
				if answer := admin.do(t, http.MethodDelete, item, jsonType, ""); !answer.ok() {
					t.Fatal(answer)
				}
			})
		}
	}

	kubectl := func(who *user, document string, arguments ...string) answer {
		return kubectlAnswer(t, who, document, append([]string{"-n", namespace}, arguments...)...)
	}
	replace := func(who *user, spec string) answer {
		object := fromYAML(t, approval("x", spec))
		object["metadata"] = map[string]any{"name": "x", "resourceVersion": admin.get(t, item).str("metadata", "resourceVersion")}
		return who.do(t, http.MethodPut, item, jsonType, object.json(t))
	}
	patch := func(contentType, body string) answer {
		return mallory.do(t, http.MethodPatch, item, contentType, body)
	}
	for _, tc := range []struct {
		name, reason string
		send         func() answer
		refused      string // a part of the message; empty: accepted, and the approver is still frida
	}{
		{"replace with a forged approver", "the old one comes back",
			func() answer { return replace(mallory, `, approver: {username: mallory}`) }, ""},
		{"replace by the approver", "a manifest does not hold the approver",
			func() answer { return replace(frida, "") }, ""},
		{"kubectl apply by somebody else", "it stays frida's",
			func() answer { return kubectl(mallory, approval("x", ""), "apply", "-f", "-") }, ""},
		{"kubectl apply --server-side of a forged approver", "with the fields of another manager forced",
			func() answer {
				return kubectl(mallory, approval("x", forgedApprover), "apply", "--server-side", "--force-conflicts", "-f", "-")
			}, ""},
		{"merge patch", "one field of the approver",
			func() answer { return patch(mergeType, `{"spec":{"approver":{"username":"mallory"}}}`) }, ""},
		{"merge patch that removes", "null removes it",
			func() answer { return patch(mergeType, `{"spec":{"approver":null}}`) }, ""},
		{"JSON patch", "one group",
			func() answer {
				return patch(jsonPatchType, `[{"op":"replace","path":"/spec/approver/groups/0","value":"team-m"}]`)
			}, ""},
		{"JSON patch that removes", "the whole approver",
			func() answer { return patch(jsonPatchType, `[{"op":"remove","path":"/spec/approver"}]`) }, ""},
		{"label", "metadata may change",
			func() answer { return patch(mergeType, `{"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}`) }, ""},
		{"the same spec", "says nothing new",
			func() answer {
				return patch(mergeType, `{"spec":{"decision":"Approve","toolCallRef":{"name":"refund-7"}}}`)
			}, ""},
		{"strategic merge patch", "custom resources know none; the API server says so",
			func() answer { return patch(strategicType, `{"spec":{"decision":"Deny"}}`) }, "unknown format"},
		{"forged approver together with another decision", "the rest is judged without the approver",
			func() answer { return replace(mallory, `, approver: {username: mallory}, reason: fine`) }, "Changed: spec.reason"},
		{"spec taken away", "the schema's word",
			func() answer { return patch(jsonPatchType, `[{"op":"remove","path":"/spec"}]`) }, "spec: Required value"},
	} {
		t.Run("update/"+tc.name, func(t *testing.T) {
			frida.create(t, approvalsPath(namespace), fromYAML(t, approval("x", "")).json(t))
			before := asJSON(admin.get(t, item).at("spec"))
			switch answer := tc.send(); {
			case tc.refused == "" && !answer.ok():
				t.Errorf("%s: refused, want it accepted without effect: %s", tc.reason, answer)
			case tc.refused != "" && (answer.ok() || !strings.Contains(string(answer.body), tc.refused)):
				t.Errorf("%s: want it refused with %q: %s", tc.reason, tc.refused, answer)
			}
			wantStamp(t, admin.get(t, item), "approver", fridaIs)
			if after := asJSON(admin.get(t, item).at("spec")); after != before {
				t.Errorf("spec is now %s", after)
			}
			if answer := admin.do(t, http.MethodDelete, item, jsonType, ""); !answer.ok() {
				t.Fatal(answer)
			}
		})
	}
}

func TestApprovalIsImmutable(t *testing.T) {
	namespace := newApprovalNamespace(t)
	frida := certificateUser(t, "frida", "finance")
	item := approvalsPath(namespace) + "/x"
	frida.create(t, approvalsPath(namespace), fromYAML(t, `
apiVersion: callgate.dev/v1alpha1
kind: ToolCallApproval
metadata: {name: x}
spec: {toolCallRef: {name: refund-7, uid: "u-7", approvalDigest: d}, decision: Approve, reason: fine}`).json(t))
	before := asJSON(frida.get(t, item).at("spec"))
	tried := map[string]bool{"approver": true} // TestForgingAnApprover
	for _, tc := range []struct{ field, name, patch, reason string }{
		{"toolCallRef", "name", `{"spec":{"toolCallRef":{"name":"refund-8"}}}`, "another call"},
		{"toolCallRef", "uid", `{"spec":{"toolCallRef":{"uid":"u-8"}}}`, "another call"},
		{"toolCallRef", "digest", `{"spec":{"toolCallRef":{"approvalDigest":"e"}}}`, "another Tool than was shown"},
		{"toolCallRef", "digest removed", `{"spec":{"toolCallRef":{"approvalDigest":null}}}`, "any Tool, not the one shown"},
		{"decision", "changed", `{"spec":{"decision":"Deny"}}`, "a no is another approval"},
		{"reason", "changed", `{"spec":{"reason":"other"}}`, "the caller reads it"},
		{"reason", "removed", `{"spec":{"reason":null}}`, "the caller reads it"},
	} {
		tried[tc.field] = true
		t.Run(tc.field+"/"+tc.name, func(t *testing.T) {
			// An administrator cannot either: only a new approval says something new.
			for _, who := range []*user{frida, admin} {
				answer := who.do(t, http.MethodPatch, item, mergeType, tc.patch)
				if want := "delete this approval and create a new one. Changed: spec." + tc.field; answer.code != http.StatusUnprocessableEntity ||
					!strings.Contains(answer.message(), want) {
					t.Errorf("%s: want 422 with %q, got %s", tc.reason, want, answer)
				}
			}
			if after := asJSON(frida.get(t, item).at("spec")); after != before {
				t.Fatalf("spec is now %s", after)
			}
		})
	}
	frida.create(t, approvalsPath(namespace), fromYAML(t, approval("small", "")).json(t))
	for field, value := range map[string]string{"reason": `"late"`, "toolCallRef": `{"approvalDigest":"late"}`} {
		answer := frida.do(t, http.MethodPatch, approvalsPath(namespace)+"/small", mergeType, `{"spec":{"`+field+`":`+value+`}}`)
		if answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), "Changed: spec."+field) {
			t.Errorf("adding to %s later: want 422 and why: %s", field, answer)
		}
	}
	// A field that is added to the API needs a row above.
	specType := reflect.TypeFor[v1alpha1.ToolCallApprovalSpec]()
	for i := range specType.NumField() {
		if name, _, _ := strings.Cut(specType.Field(i).Tag.Get("json"), ","); !tried[name] {
			t.Errorf("no change of spec.%s is tried: add a row", name)
		}
	}
}

// With the stamp gone, no approval in another's name is accepted.
func TestApprovalWithoutStamp(t *testing.T) {
	namespace := newApprovalNamespace(t)
	frida := certificateUser(t, "frida", "finance")
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "callgate-stamp-approvals"},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "callgate-stamp-approvals"},
	}
	if err := adminClient.Delete(t.Context(), binding.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := adminClient.Create(context.Background(), binding); err != nil {
			t.Error(err)
		}
		if err := waitForStamping(context.Background()); err != nil {
			t.Error(err)
		}
	})
	const want = "spec.approver is not who sent this request"
	create := func(spec string) answer {
		return frida.do(t, http.MethodPost, approvalsPath(namespace)+"?dryRun=All", jsonType, fromYAML(t, approval("x", spec)).json(t))
	}
	if err := poll(t.Context(), "the end of stamping", func() (bool, string) {
		got := create("")
		return got.code == http.StatusForbidden && strings.Contains(got.message(), want), got.String()
	}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, spec string
		accepted   bool
	}{
		{"forged", forgedApprover, false},
		{"other name", `, approver: {username: bob, uid: "", groups: [finance, "system:authenticated"]}`, false},
		{"one group more", `, approver: {username: frida, uid: "", groups: [finance, "system:authenticated", board]}`, false},
		{"another uid", `, approver: {username: frida, uid: "7", groups: [finance, "system:authenticated"]}`, false},
		{"the truth", `, approver: {username: frida, groups: [finance, "system:authenticated"]}`, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			switch got := create(tc.spec); {
			case tc.accepted && !got.ok():
				t.Errorf("refused: %s", got)
			case !tc.accepted && (got.code != http.StatusForbidden || !strings.Contains(got.message(), want)):
				t.Errorf("want 403 with %q: %s", want, got)
			}
		})
	}
}
