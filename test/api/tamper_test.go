package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Another policy that rewrites the requester after ours does not get through:
// ours runs again, and the validating policy looks last.
func TestLaterMutationCannotForge(t *testing.T) {
	for _, tc := range []struct {
		reinvocation admissionregistrationv1.ReinvocationPolicyType
		mayRefuse    bool
	}{
		{admissionregistrationv1.NeverReinvocationPolicy, false}, // ours has the last word
		// The order of reinvoked policies is not promised: if the other has the last
		// word the call is refused, else it is stamped right.
		{admissionregistrationv1.IfNeededReinvocationPolicy, true},
	} {
		t.Run(string(tc.reinvocation), func(t *testing.T) {
			namespace := newNamespace(t)
			alice := certificateUser(t, "alice", "team-a")
			addRewriter(t, namespace, tc.reinvocation)
			body := fromYAML(t, manifest("x", "")).json(t)
			var got answer
			if err := poll(t.Context(), "the rewriting policy in force", func() (bool, string) {
				got = alice.do(t, http.MethodPost, callsPath(namespace)+"?dryRun=All", jsonType, body)
				return got.object().str("metadata", "labels", "rewritten") != "" || got.code == http.StatusForbidden, got.String()
			}); err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.mayRefuse && got.code == http.StatusForbidden:
				if !strings.Contains(got.message(), "spec.requester is not who sent this request") {
					t.Errorf("the refusal does not say why: %s", got)
				}
			case !got.ok():
				t.Errorf("want it accepted, stamped right: %s", got)
			default:
				wantRequester(t, got.object(), requester("", "alice", "team-a", "system:authenticated"))
			}
		})
	}
}

// addRewriter adds a mutating policy after ours that forges the requester of
// every call in a namespace, for the time of a test.
func addRewriter(t *testing.T, namespace string, reinvocation admissionregistrationv1.ReinvocationPolicyType) {
	t.Helper()
	name := "zz-" + namespace
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: reinvocation,
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{"callgate.dev"}, APIVersions: []string{"*"},
							Resources: []string{"toolcalls"}},
					},
				}},
			},
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[
					JSONPatch{op: "add", path: "/spec/requester", value: Object.spec.requester{username: "rewritten", uid: "", groups: ["system:masters"]}},
					JSONPatch{op: "add", path: "/metadata/labels", value: Object.metadata.labels{rewritten: "yes"}}]`},
			}},
		},
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
	}
	for _, object := range []client.Object{policy, binding} {
		if err := adminClient.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := adminClient.Delete(context.Background(), object); err != nil {
				t.Error(err)
			}
		})
	}
}

// With the stamp gone, nothing but the truth is accepted, and the message says
// what to repair.
func TestWithoutStamp(t *testing.T) {
	namespace := newNamespace(t)
	alice := certificateUser(t, "alice", "team-a")
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "callgate-stamp"},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "callgate-stamp"},
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
	const want = "spec.requester is not who sent this request"
	create := func(spec string) answer {
		return alice.do(t, http.MethodPost, callsPath(namespace)+"?dryRun=All", jsonType, fromYAML(t, manifest("x", spec)).json(t))
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
		{"forged", forged, false},
		{"other name", `, requester: {username: bob, uid: "", groups: [team-a, "system:authenticated"]}`, false},
		{"one group more", `, requester: {username: alice, uid: "", groups: [team-a, "system:authenticated", admins]}`, false},
		{"one group less", `, requester: {username: alice, uid: "", groups: ["system:authenticated"]}`, false},
		{"no groups", `, requester: {username: alice}`, false},
		{"another uid", `, requester: {username: alice, uid: "7", groups: [team-a, "system:authenticated"]}`, false},
		{"the truth", `, requester: {username: alice, groups: [team-a, "system:authenticated"]}`, true},
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
