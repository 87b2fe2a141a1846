package controllers_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/audit"
)

// auditLines is what the controller of this suite recorded.
var auditLines lines

type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// of are the records about one call, in order.
func (l *lines) of(t *testing.T, uid string) (records []audit.Record) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range bytes.Split(bytes.TrimSpace(l.all.Bytes()), []byte("\n")) {
		var r audit.Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("a line of the audit log is no JSON: %s", line)
		}
		if r.Call.UID == uid {
			records = append(records, r)
		}
	}
	return records
}

// Every decision and every end has one line, also of calls that never ran, and
// no line has an argument.
func TestAuditRecords(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) {
		s.InputSchema = rawJSON(`{"type":"object","properties":{"v":{"type":"string"}}}`)
	})
	create(t, policyObject(tools, "deny", v1alpha1.EffectDeny, "denied"))
	newTool(t, tools, "denied")
	for _, test := range []struct {
		reason string
		call   *v1alpha1.ToolCall
		code   v1alpha1.ErrorCode
		types  []audit.Type
	}{
		{"denied", callObject(tools, "denied", withArgs(`{"v":"audit-marker"}`)), v1alpha1.ErrorToolNotAllowed, []audit.Type{audit.Decision, audit.End}},
		{"invalid arguments", callObject(tools, "tool", withArgs(`{"v":["audit-marker"]}`)), v1alpha1.ErrorInvalidArguments, []audit.Type{audit.End}},
		{"no such Tool", callObject(tools, "absent"), v1alpha1.ErrorToolNotFound, []audit.Type{audit.End}},
	} {
		call := waitForEnd(t, propose(t, agent, test.call))
		var records []audit.Record
		eventually(t, "the audit records of a call", func() (bool, any) {
			records = auditLines.of(t, string(call.UID))
			return len(records) >= len(test.types), records
		})
		for i, r := range records {
			if i >= len(test.types) || r.Type != test.types[i] || r.Version != audit.Version || r.Requester.Username != agentName {
				t.Errorf("%s: record %d is %s", test.reason, i, show(r))
			}
		}
		if last := records[len(records)-1]; last.ErrorCode != test.code || last.OK == nil || *last.OK || *last.Attempts != 0 {
			t.Errorf("%s: the end is %s", test.reason, show(last))
		}
		if text := show(records); strings.Contains(text, "audit-marker") {
			t.Errorf("%s: an argument stands in %s", test.reason, text)
		}
	}
}
