package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

var created = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func call(mod func(*v1alpha1.ToolCall)) *v1alpha1.ToolCall {
	c := &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "ship-1", UID: "call-uid", CreationTimestamp: metav1.NewTime(created)},
		Spec: v1alpha1.ToolCallSpec{
			ToolRef:   v1alpha1.ToolReference{FunctionName: "update_order_status", Namespace: "tools"},
			Args:      &apiextensionsv1.JSON{Raw: []byte(`{"secret":"marker"}`)},
			Requester: &v1alpha1.Requester{Username: "bob", UID: ptr.To("7"), Groups: []string{"staff"}},
		},
		Status: v1alpha1.ToolCallStatus{ArgsDigest: "sha256:ab", ToolUID: "tool-uid", ToolGeneration: 3},
	}
	mod(c)
	return c
}

func TestRecords(t *testing.T) {
	allowed := &v1alpha1.PolicyDecision{Allowed: ptr.To(true), DecisiveRule: &v1alpha1.RuleReference{Policy: "tools/p", Rule: "r", Effect: "Allow"}}
	denied := &v1alpha1.PolicyDecision{Allowed: ptr.To(false)}
	failed := &v1alpha1.Result{OK: ptr.To(false), ErrorCode: v1alpha1.ErrorToolNotAllowed, Message: "marker", Retryable: ptr.To(false)}
	for _, tc := range []struct {
		reason string
		before v1alpha1.ToolCallStatus
		after  func(*v1alpha1.ToolCall)
		types  []Type
	}{
		{"a wait is no record", v1alpha1.ToolCallStatus{}, func(*v1alpha1.ToolCall) {}, nil},
		{"a first decision", v1alpha1.ToolCallStatus{}, func(c *v1alpha1.ToolCall) { c.Status.Decision = allowed }, []Type{Decision}},
		{"the same decision again", v1alpha1.ToolCallStatus{Decision: allowed.DeepCopy()}, func(c *v1alpha1.ToolCall) { c.Status.Decision = allowed }, nil},
		{"another decision before the dispatch", v1alpha1.ToolCallStatus{Decision: allowed}, func(c *v1alpha1.ToolCall) { c.Status.Decision, c.Status.Result = denied, failed }, []Type{Decision, End}},
		{"a refused call has both at once", v1alpha1.ToolCallStatus{}, func(c *v1alpha1.ToolCall) { c.Status.Decision, c.Status.Result = denied, failed }, []Type{Decision, End}},
		{"an end before any decision", v1alpha1.ToolCallStatus{}, func(c *v1alpha1.ToolCall) { c.Status.Result = failed }, []Type{End}},
		{"an end is recorded once", v1alpha1.ToolCallStatus{Result: failed}, func(c *v1alpha1.ToolCall) { c.Status.Result = failed }, nil},
	} {
		var types []Type
		for _, r := range Records(&tc.before, call(tc.after), created.Add(1500*time.Millisecond)) {
			types = append(types, r.Type)
		}
		if len(types) != len(tc.types) {
			t.Errorf("%s: got %v, want %v", tc.reason, types, tc.types)
			continue
		}
		for i := range types {
			if types[i] != tc.types[i] {
				t.Errorf("%s: got %v, want %v", tc.reason, types, tc.types)
			}
		}
	}
}

// The line is the documented one, and holds no argument and no message.
func TestLine(t *testing.T) {
	c := call(func(c *v1alpha1.ToolCall) {
		c.Status.Decision = &v1alpha1.PolicyDecision{Allowed: ptr.To(true), DecisiveRule: &v1alpha1.RuleReference{Policy: "tools/p", Rule: "r", Effect: "Allow"}}
		c.Status.Attempts = []v1alpha1.Attempt{{Number: 1}}
		c.Status.Result = &v1alpha1.Result{OK: ptr.To(false), ErrorCode: v1alpha1.ErrorToolFailed, Message: "marker", Data: &apiextensionsv1.JSON{Raw: []byte(`"marker"`)}, Retryable: ptr.To(false)}
	})
	var out bytes.Buffer
	for _, r := range Records(&v1alpha1.ToolCallStatus{Decision: c.Status.Decision}, c, created.Add(1500*time.Millisecond)) {
		if err := NewLog(&out).Write(r); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"logger":"audit","version":"callgate.dev/audit/v1alpha1","type":"End","time":"2026-03-01T12:00:01.500000Z",` +
		`"call":{"namespace":"agents","name":"ship-1","uid":"call-uid"},"requester":{"username":"bob","uid":"7"},` +
		`"tool":{"namespace":"tools","functionName":"update_order_status","uid":"tool-uid","generation":3},"argsDigest":"sha256:ab",` +
		`"decision":{"allowed":true,"decisiveRule":{"policy":"tools/p","rule":"r","effect":"Allow"}},"ok":false,"errorCode":"tool_failed","attempts":1,"durationSeconds":1.5}` + "\n"
	if got := out.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if strings.Contains(out.String(), "marker") || !json.Valid(out.Bytes()) {
		t.Errorf("the line leaks or is no JSON: %s", out.String())
	}
}

func TestDurationIsNeverNegative(t *testing.T) {
	c := call(func(c *v1alpha1.ToolCall) { c.Status.Result = &v1alpha1.Result{OK: ptr.To(true)} })
	if r := Records(&v1alpha1.ToolCallStatus{}, c, created.Add(-time.Minute)); *r[0].DurationSeconds != 0 {
		t.Errorf("a clock that is behind gives %v", *r[0].DurationSeconds)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteSaysWhatFailed(t *testing.T) {
	if err := NewLog(full{}).Write(Record{}); err == nil || !strings.Contains(err.Error(), "audit record: disk full") {
		t.Errorf("got %v", err)
	}
}

// Who said yes is in the trail, and what a rule still asked for.
func TestApprovals(t *testing.T) {
	records := Records(&v1alpha1.ToolCallStatus{}, call(func(c *v1alpha1.ToolCall) {
		c.Status.Approvals = []v1alpha1.ApprovalStatus{
			{Policy: "tools/money", Rule: "big", RequiredApprovals: 2, Granted: []string{"alice", "bob"}},
			{Policy: "security", Rule: "prod", RequiredApprovals: 1},
		}
		c.Status.Result = &v1alpha1.Result{OK: ptr.To(false), ErrorCode: v1alpha1.ErrorApprovalExpired, Retryable: ptr.To(true)}
	}), created)
	line, err := json.Marshal(records[0])
	if err != nil {
		t.Fatal(err)
	}
	want := `"approvals":[{"policy":"tools/money","rule":"big","required":2,"granted":["alice","bob"]},{"policy":"security","rule":"prod","required":1}]`
	if len(records) != 1 || !strings.Contains(string(line), want) {
		t.Errorf("the record is %s, want in it %s", line, want)
	}
}
