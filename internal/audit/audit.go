// Package audit writes the record of what was decided and how calls ended: one
// line of JSON each, never an argument or a result. docs/audit.md describes the
// lines for those who read them.
package audit

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"callgate.dev/callgate/api/v1alpha1"
)

// Version of the records. A field may be added under the same version; one that
// changes its meaning or goes makes a new one.
const Version = "callgate.dev/audit/v1alpha1"

// Type says what a record is about.
type Type string

// The types of records.
const (
	// Decision: the policies decided about a call, for the first time or anew.
	Decision Type = "Decision"
	// End: a call is complete.
	End Type = "End"
)

// Record is one line of the audit log.
type Record struct {
	// Logger is "audit": it tells the lines from others of the same stream.
	Logger string `json:"logger"`
	// Version is the constant of that name.
	Version string `json:"version"`
	Type    Type   `json:"type"`
	// Time of the controller when the record was made, RFC 3339 with microseconds, UTC.
	Time string `json:"time"`

	Call      Call      `json:"call"`
	Requester Requester `json:"requester"`
	Tool      Tool      `json:"tool"`
	// ArgsDigest stands for the arguments: SHA-256 of their canonical form.
	ArgsDigest string `json:"argsDigest,omitempty"`
	// Decision of the policies; absent if the call ended before they were asked.
	Decision *v1alpha1.PolicyDecision `json:"decision,omitempty"`

	// Approvals that the rules asked for, and who had given them; absent if none did.
	Approvals []Approval `json:"approvals,omitempty"`

	// OK, ErrorCode, Attempts and DurationSeconds are set in End records.
	OK        *bool              `json:"ok,omitempty"`
	ErrorCode v1alpha1.ErrorCode `json:"errorCode,omitempty"`
	// Attempts that were sent to a sandbox.
	Attempts *int `json:"attempts,omitempty"`
	// DurationSeconds from the call's creation, which has whole seconds, to its end.
	DurationSeconds *float64 `json:"durationSeconds,omitempty"`
}

// Approval is what one rule asked for, and who had approved.
type Approval struct {
	Policy   string   `json:"policy"`
	Rule     string   `json:"rule"`
	Required int32    `json:"required"`
	Granted  []string `json:"granted,omitempty"`
}

// Call names the call of a record.
type Call struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Requester is who created the call, as the API server stamped it.
type Requester struct {
	Username string `json:"username"`
	UID      string `json:"uid,omitempty"`
}

// Tool is what was called: as the call refers to it, and what was found.
type Tool struct {
	Namespace    string `json:"namespace"`
	Name         string `json:"name,omitempty"`
	FunctionName string `json:"functionName,omitempty"`
	// UID and Generation are absent if no such Tool was found.
	UID        string `json:"uid,omitempty"`
	Generation int64  `json:"generation,omitempty"`
}

// Log writes records to a stream, whole lines only. It is safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	out io.Writer
}

// NewLog returns a Log that writes to out.
func NewLog(out io.Writer) *Log { return &Log{out: out} }

// Write writes one record.
func (l *Log) Write(r Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode an audit record: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write an audit record: %w", err)
	}
	return nil
}

// Records are what the change of a call's status from before to call's own gives
// to record: a decision that is new or another, and an end.
func Records(before *v1alpha1.ToolCallStatus, call *v1alpha1.ToolCall, now time.Time) []Record {
	var out []Record
	if d := call.Status.Decision; d != nil && !same(before.Decision, d) {
		out = append(out, about(Decision, call, now))
	}
	if result := call.Status.Result; result != nil && before.Result == nil {
		r := about(End, call, now)
		attempts := len(call.Status.Attempts)
		duration := math.Round(max(0, now.Sub(call.CreationTimestamp.Time).Seconds())*1000) / 1000
		r.OK, r.ErrorCode, r.Attempts, r.DurationSeconds = result.OK, result.ErrorCode, &attempts, &duration
		out = append(out, r)
	}
	return out
}

func about(t Type, call *v1alpha1.ToolCall, now time.Time) Record {
	r := Record{
		Logger: "audit", Version: Version, Type: t, Time: now.UTC().Format("2006-01-02T15:04:05.000000Z"),
		Call: Call{Namespace: call.Namespace, Name: call.Name, UID: string(call.UID)},
		Tool: Tool{
			Namespace: call.Spec.ToolRef.Namespace, Name: call.Spec.ToolRef.Name, FunctionName: call.Spec.ToolRef.FunctionName,
			UID: string(call.Status.ToolUID), Generation: call.Status.ToolGeneration,
		},
		ArgsDigest: call.Status.ArgsDigest, Decision: call.Status.Decision,
	}
	if r.Tool.Namespace == "" {
		r.Tool.Namespace = call.Namespace
	}
	for _, a := range call.Status.Approvals {
		r.Approvals = append(r.Approvals, Approval{Policy: a.Policy, Rule: a.Rule, Required: a.RequiredApprovals, Granted: a.Granted})
	}
	if q := call.Spec.Requester; q != nil {
		r.Requester.Username = q.Username
		if q.UID != nil {
			r.Requester.UID = *q.UID
		}
	}
	return r
}

func same(a, b *v1alpha1.PolicyDecision) bool {
	return a != nil && equality.Semantic.DeepEqual(a, b)
}
