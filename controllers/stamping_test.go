package controllers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/controllers"
)

// settle is how much younger than the last change of the policies a call must be.
const settle = 10 * time.Second

// waitUntilCallsAreTaken waits until stamping is proven and calls are young
// enough, by asking: the answer of a call that is taken here is tool_not_found.
func waitUntilCallsAreTaken() error {
	ctx := context.Background()
	if err := poll(ctx, "the controller ready", func() (bool, any) {
		code, body := readyz()
		return code == http.StatusOK, body
	}); err != nil {
		return err
	}
	return poll(ctx, "calls taken", func() (bool, any) {
		call := callObject(agentsNamespace, "none")
		if err := agent.Create(ctx, call); err != nil {
			return false, err // not installed everywhere yet
		}
		err := poll(ctx, "a first answer", func() (bool, any) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(call), call)
			return err == nil && complete(call), err
		})
		return err == nil && call.Status.Result.ErrorCode == v1alpha1.ErrorToolNotFound, call.Status
	})
}

// readyz asks the controller's readiness check about stamping.
func readyz() (code int, body string) { return readyzOf(controller) }

func readyzOf(m *manager) (code int, body string) {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get("http://" + m.health + "/readyz/stamping")
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	content, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	return response.StatusCode, fmt.Sprint(string(content), err)
}

// provenMetric is the value of callgate_stamping_proven.
func provenMetric(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "callgate_stamping_proven" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no metric callgate_stamping_proven")
	return 0
}

func waitForProof(t *testing.T, proven bool) {
	t.Helper()
	code, value := http.StatusInternalServerError, 0.0
	if proven {
		code, value = http.StatusOK, 1
	}
	eventually(t, fmt.Sprintf("stamping proven: %t", proven), func() (bool, any) {
		got, body := readyz()
		metric := provenMetric(t)
		return got == code && metric == value, fmt.Sprintf("readyz %d %s, metric %v", got, body, metric)
	})
}

// waitForProblem waits until the readiness check says why nothing is proven.
func waitForProblem(t *testing.T, parts ...string) {
	t.Helper()
	eventually(t, "stamping not proven: "+strings.Join(parts, ", "), func() (bool, any) {
		code, body := readyz()
		for _, part := range parts {
			if !contains(body, part) {
				return false, body
			}
		}
		return code == http.StatusInternalServerError, body
	})
	waitForProof(t, false)
}

// The tests of stamping take policies away, so they are not parallel, and leave
// only when calls are taken again.
func TestStamping(t *testing.T) {
	waitForProof(t, true)
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	judged := newCall(t, tools, "tool")
	waitForReason(t, judged, v1alpha1.ReasonStarting)
	if judged = waitForCall(t, judged, "the digest", func(c *v1alpha1.ToolCall) bool { return c.Status.ArgsDigest != "" }); judged.Spec.Requester.Username != agentName {
		t.Fatalf("requester is %s", show(judged.Spec.Requester))
	}

	// Calls can still be created, and are stamped: only the proof is missing.
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
	if !get(t, client.ObjectKey{Name: "callgate-protect"}, binding) {
		t.Fatal("no binding")
	}
	remove(t, binding)
	waitForProof(t, false)
	waitingCall := newCall(t, tools, "tool")
	message := waitForReason(t, waitingCall, v1alpha1.ReasonPending)
	if !contains(message, "ValidatingAdmissionPolicyBinding callgate-protect is missing") {
		t.Errorf("the wait does not name what is missing: %s", message)
	}
	if now := waitForCall(t, waitingCall, "startTime", func(c *v1alpha1.ToolCall) bool { return c.Status.StartTime != nil }); now.Status.ArgsDigest != "" {
		t.Error("judged although stamping is not proven")
	}

	binding.ResourceVersion, binding.UID = "", ""
	create(t, binding)
	waitForProof(t, true)
	want{code: v1alpha1.ErrorToolNotAllowed, message: []string{"create it again"}}.check(t, waitForEnd(t, waitingCall))
	// Younger than the change, but not by 10 s.
	want{code: v1alpha1.ErrorToolNotAllowed, message: []string{"create it again"}}.check(t, waitForEnd(t, newCall(t, tools, "tool")))
	// What was judged before is not revoked by a later change.
	startPod(t, judged, prints(`"done"`, 0))
	want{}.check(t, waitForEnd(t, judged))

	if err := waitUntilCallsAreTaken(); err != nil {
		t.Fatal(err)
	}
	// Any change counts, also one of metadata only, and by its time, not by that of the object's creation.
	patch(t, admin, &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "callgate-stamp"}},
		`{"metadata":{"annotations":{"example.dev/touched":"yes"}}}`)
	touched := time.Now()
	eventually(t, "calls refused after a policy was touched", func() (bool, any) {
		call := waitForEnd(t, newCall(t, tools, "none"))
		return call.Status.Result.ErrorCode == v1alpha1.ErrorToolNotAllowed, call.Status
	})
	if err := waitUntilCallsAreTaken(); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(touched); waited < settle-2*time.Second {
		t.Errorf("calls were taken %s after the change, want about %s", waited, settle)
	}
}

// Each of the eight objects, when missing, is named by the readiness check.
func TestStampingNamesWhatIsMissing(t *testing.T) {
	for _, name := range []string{"callgate-stamp", "callgate-protect", "callgate-stamp-approvals", "callgate-protect-approvals"} {
		objects := []client.Object{&admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}}
		if strings.HasPrefix(name, "callgate-protect") {
			objects = []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}}
		}
		for _, object := range objects {
			kind := fmt.Sprintf("%T", object)[len("*v1."):]
			if !get(t, client.ObjectKey{Name: name}, object) {
				t.Fatalf("no %s %s", kind, name)
			}
			remove(t, object)
			waitForProblem(t, kind+" "+name+" is missing")
			object.SetResourceVersion("")
			object.SetUID("")
			create(t, object)
			waitForProof(t, true)
		}
	}
	if err := waitUntilCallsAreTaken(); err != nil {
		t.Fatal(err)
	}
}

// Policies that are there and do nothing are noticed, and what they leave open
// is named: for calls, and for approvals.
func TestStampingOutOfForce(t *testing.T) {
	for _, tc := range []struct{ suffix, what, field string }{
		{"", "a call", "spec.requester"},
		{"-approvals", "an approval", "spec.approver"},
	} {
		stamp := &admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "callgate-stamp" + tc.suffix}}
		protect := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "callgate-protect" + tc.suffix}}
		const never = `{"spec":{"matchConditions":[{"name":"never","expression":"false"}]}}`
		if !get(t, keyOf(stamp), stamp) {
			t.Fatal("no policy")
		}
		conditions, err := json.Marshal(stamp.Spec.MatchConditions)
		if err != nil {
			t.Fatal(err)
		}
		patch(t, admin, stamp, never)
		waitForProblem(t, "the trial creation of "+tc.what+" failed", tc.field+" is not who sent this request")
		patch(t, admin, protect, never)
		waitForProblem(t, "a forged "+tc.field+" was not overwritten", "callgate-stamp"+tc.suffix)
		patch(t, admin, stamp, `{"spec":{"matchConditions":`+string(conditions)+`}}`)
		patch(t, admin, protect, `{"spec":{"matchConditions":null}}`)
		waitForProof(t, true)
	}
	if err := waitUntilCallsAreTaken(); err != nil {
		t.Fatal(err)
	}
}

// A proof that fails for another reason than a change of the policies makes
// calls wait, and lets them go on after.
func TestStampingProofFails(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	trial := authorizationv1.ResourceAttributes{Namespace: install, Verb: "create", Group: "callgate.dev", Resource: "toolcalls"}
	role := &rbacv1.RoleBinding{}
	if !get(t, client.ObjectKey{Namespace: install, Name: "callgate-controller"}, role) {
		t.Fatal("no RoleBinding")
	}
	// Elections go on, the trial creation does not.
	elect := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: "elect"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}}}}
	elector := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: install, Name: "elect"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "elect"}, Subjects: role.Subjects}
	restartController(t, func() {
		create(t, elect)
		create(t, elector)
		remove(t, role)
		waitForAccess(t, false, trial)
	})
	waitForProof(t, false)
	call := newCall(t, tools, "tool")
	if message := waitForReason(t, call, v1alpha1.ReasonPending); !contains(message, "the trial creation of a call failed") {
		t.Errorf("the wait does not say why: %s", message)
	}
	role.ResourceVersion, role.UID = "", ""
	create(t, role)
	waitForProof(t, true)
	waitForReason(t, call, v1alpha1.ReasonStarting)
	// So that no other test has a right that config/rbac does not give.
	remove(t, elector)
	remove(t, elect)
}

// restartController stops the controller, lets between happen, and starts it again.
func restartController(t *testing.T, between func(), changes ...func(*controllers.Options)) {
	t.Helper()
	if err := controller.stop(); err != nil {
		t.Fatal(err)
	}
	between()
	next, err := startController(environment.Config, changes...)
	if err != nil {
		t.Fatal(err)
	}
	controller = next
}
