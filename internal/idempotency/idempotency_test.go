package idempotency

import (
	"maps"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func testCall(caller, key string) *v1alpha1.ToolCall {
	return &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: "call", UID: "call-uid"},
		Spec:       v1alpha1.ToolCallSpec{IdempotencyKey: key, Requester: &v1alpha1.Requester{Username: caller}},
	}
}

func testTool(uid string, window int32) *v1alpha1.Tool {
	t := &v1alpha1.Tool{ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "echo"}}
	t.UID = "tool-" + "uid"
	if uid != "" {
		t.UID = "other"
	}
	if window > 0 {
		t.Spec.Deduplicate = &v1alpha1.Deduplicate{WindowSeconds: window}
	}
	return t
}

func TestKeysTellActionsApart(t *testing.T) {
	first := Keys(testCall("alice", "k"), testTool("", 60), "digest")
	if len(first) != 2 || !first[0].Explicit || first[1].Explicit || first[0].Lease == first[1].Lease {
		t.Fatalf("keys %+v", first)
	}
	for _, tc := range []struct {
		reason     string
		keys       []Key
		key, args  bool // equal to the first
		keepsFirst int32
	}{
		{"the same again is the same", Keys(testCall("alice", "k"), testTool("", 60), "digest"), true, true, keepSeconds},
		{"another caller has keys of its own", Keys(testCall("bob", "k"), testTool("", 60), "digest"), false, false, keepSeconds},
		{"so has another Tool, and one that was created again", Keys(testCall("alice", "k"), testTool("other", 60), "digest"), false, false, keepSeconds},
		{"another key is another action, unless the Tool says otherwise", Keys(testCall("alice", "other"), testTool("", 60), "digest"), false, true, keepSeconds},
		{"other arguments conflict under the same key", Keys(testCall("alice", "k"), testTool("", 60), "other"), true, false, keepSeconds},
		{"a key is kept as long as the Tool's window", Keys(testCall("alice", "k"), testTool("", 2*keepSeconds), "digest"), true, true, 2 * keepSeconds},
		{"parts do not flow into one another", Keys(testCall("alice3", ":key,1:k"), testTool("", 60), "digest"), false, false, keepSeconds},
	} {
		if (tc.keys[0].Lease == first[0].Lease) != tc.key || (tc.keys[1].Lease == first[1].Lease) != tc.args || tc.keys[0].KeepSeconds != tc.keepsFirst {
			t.Errorf("%s: %+v", tc.reason, tc.keys)
		}
	}
	if n := len(Keys(testCall("alice", ""), testTool("", 0), "digest")); n != 0 {
		t.Errorf("%d keys without key and window", n)
	}
	if name := first[0].Lease; !strings.HasPrefix(name, LeasePrefix) || len(name) > 63 || strings.Contains(name, "alice") {
		t.Errorf("Lease name %s", name)
	}
}

func TestLeaseTellsTheLifeOfAKey(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	call, tool := testCall("alice", "k"), testTool("", 0)
	lease := New(Keys(call, tool, "digest")[0], tool, call, "digest", "install", now)
	if r := Read(lease); r.Holder != "call-uid" || r.Call.String() != "agents/call" || r.ArgsDigest != "digest" || r.Sent || !r.Ended.IsZero() || !r.Expires.IsZero() || r.Result != nil {
		t.Errorf("taken: %+v", r)
	}
	Send(lease, 1)
	if r := Read(lease); !r.Sent || !r.Expires.IsZero() {
		t.Errorf("sent: %+v", r)
	}
	before := maps.Clone(lease.Annotations)
	if Send(lease, 2); maps.Equal(before, lease.Annotations) || !Read(lease).Sent {
		t.Error("another attempt does not change the Lease: who read it before could free it")
	}
	result := &v1alpha1.Result{OK: ptr.To(true), Data: &apiextensionsv1.JSON{Raw: []byte(`{"n":9007199254740993,"z":null}`)}, Retryable: ptr.To(false)}
	if err := End(lease, result, now.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r := Read(lease); r.Result == nil || string(r.Result.Data.Raw) != `{"n":9007199254740993,"z":null}` || !r.Expires.Equal(now.Add(25*time.Hour)) {
		t.Errorf("ended: %+v", r)
	}
	Take(lease, Keys(call, tool, "digest")[0], tool, call, "digest", "install", now)
	if r := Read(lease); r.Sent || r.Result != nil || !r.Ended.IsZero() {
		t.Errorf("a key that is taken over has still: %+v", r)
	}
	result.Data.Raw = []byte(`"` + strings.Repeat("x", MaxResultBytes) + `"`)
	if err := End(lease, result, now); err != nil {
		t.Fatal(err)
	}
	if r := Read(lease); r.Result != nil || r.Expires.IsZero() {
		t.Errorf("a result over the bound is kept: %v, expires %s", r.Result != nil, r.Expires)
	}
}

// What somebody with rights on Leases wrote into one must not make a call run twice, or panic.
func TestReadIsLenient(t *testing.T) {
	for _, lease := range []*coordinationv1.Lease{
		{},
		{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationResult: `{"ok":`, annotationSent: "no", v1alpha1.AnnotationCall: "x"}}},
		{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationResult: `{}`}}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{}}},
	} {
		if r := Read(lease); r.Result != nil || r.Holder != "" {
			t.Errorf("%+v", r)
		}
		lease.Annotations = nil
		Send(lease, 1)
		if err := End(lease, &v1alpha1.Result{OK: ptr.To(true), Retryable: ptr.To(false)}, time.Unix(1, 0)); err != nil || Read(lease).Result == nil || !Read(lease).Sent {
			t.Errorf("without annotations: %v, %+v", err, Read(lease))
		}
	}
}
