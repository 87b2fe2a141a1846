package e2e

import (
	"context"
	"encoding/json"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/test/cluster"
)

// The helpers of these tests by short names.
var (
	patience     = cluster.Patience
	start        = cluster.Start
	newTool      = cluster.NewTool
	shell        = cluster.Shell
	text         = cluster.Text
	timeout      = cluster.Timeout
	propose      = cluster.Propose
	finish       = cluster.Finish
	callOf       = cluster.CallOf
	raw          = cluster.Raw
	succeeded    = cluster.Succeeded
	failed       = cluster.Failed
	unquote      = cluster.Unquote
	jsonOf       = cluster.JSONOf
	quantity     = cluster.Quantity
	waitReason   = cluster.WaitReason
	waitGone     = cluster.WaitGone
	cancelCall   = cluster.Cancel
	waitAccepted = cluster.WaitAccepted
)

func waitFor[T any, P interface {
	*T
	client.Object
}](ctx context.Context, t *testing.T, o P, list client.ObjectList, done func(P) bool, show func(P) string) {
	t.Helper()
	cluster.WaitFor(ctx, t, o, list, done, show)
}

// unquoteField is the string in field v of an object.
func unquoteField(t *testing.T, data string) string {
	t.Helper()
	var o struct{ V string }
	if err := json.Unmarshal([]byte(data), &o); err != nil {
		t.Fatalf("data is no object with v: %.200s", data)
	}
	return o.V
}
