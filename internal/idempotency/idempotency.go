// Package idempotency makes calls that mean the same action one call. What is
// remembered of a key is a Lease in the Tool's namespace: the API server lets
// exactly one of several creators win. It outlives the ToolCall, and no caller
// can change it.
package idempotency

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

const (
	// LeasePrefix begins the name of every Lease of a key.
	LeasePrefix = "callgate-key-"
	// MaxResultBytes bounds the result that a Lease keeps: all annotations of an
	// object together may have 256 KiB.
	MaxResultBytes = 64 << 10
	// keepSeconds is how long a key is remembered after the end of its call, at least.
	keepSeconds = 24 * 60 * 60
)

// Annotations of the Lease of a key, beside v1alpha1.AnnotationCall.
const (
	annotationArgs   = "callgate.dev/args-digest"
	annotationSent   = "callgate.dev/sent"
	annotationResult = "callgate.dev/result"
)

// Key is one reason for calls to be one.
type Key struct {
	// Lease is the name of the Lease, in the Tool's namespace.
	Lease string
	// Explicit: the caller's idempotencyKey, which other arguments conflict with.
	// Else it is the arguments themselves, of a Tool that deduplicates.
	Explicit bool
	// KeepSeconds is how long the key is remembered after the call's end.
	KeepSeconds int32
}

// Keys of a call, in the order in which they are taken; argsDigest is that of
// the canonical arguments. Two calls never wait for each other: only the last
// key of a call can be one that a call with another first key holds.
func Keys(call *v1alpha1.ToolCall, tool *v1alpha1.Tool, argsDigest string) []Key {
	var window int32
	if d := tool.Spec.Deduplicate; d != nil {
		window = d.WindowSeconds
	}
	var keys []Key
	if k := call.Spec.IdempotencyKey; k != "" {
		keys = append(keys, Key{Lease: leaseName(tool.UID, call, "key", k), Explicit: true, KeepSeconds: max(keepSeconds, window)})
	}
	if window > 0 {
		keys = append(keys, Key{Lease: leaseName(tool.UID, call, "args", argsDigest), KeepSeconds: window})
	}
	return keys
}

// leaseName is a digest of Tool, caller and key: what a caller chooses never
// becomes a name, and no caller finds the key of another.
func leaseName(tool types.UID, call *v1alpha1.ToolCall, kind, key string) string {
	h := sha256.New()
	for _, part := range []string{string(tool), call.Spec.Requester.Username, kind, key} {
		// With its length, so that no two lists of parts are one text.
		_, _ = fmt.Fprintf(h, "%d:%s,", len(part), part) // a hash never fails
	}
	return LeasePrefix + hex.EncodeToString(h.Sum(nil)[:20])
}

// Record is what a Lease says of a key.
type Record struct {
	// Holder is the UID of the first call, Call its namespace and name.
	Holder types.UID
	Call   types.NamespacedName
	// ArgsDigest of the first call.
	ArgsDigest string
	// Sent: the first call was about to be sent to a sandbox, so it may have run.
	Sent bool
	// Ended is when the first call ended, zero before.
	Ended time.Time
	// Expires is when the key is free again, zero as long as the call is under way.
	Expires time.Time
	// Result of the first call; nil if it has none yet, or one over MaxResultBytes.
	Result *v1alpha1.Result
}

// New is the Lease of a key that a call takes.
func New(k Key, tool *v1alpha1.Tool, call *v1alpha1.ToolCall, argsDigest, install string, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: tool.Namespace, Name: k.Lease}}
	Take(l, k, tool, call, argsDigest, install, now)
	return l
}

// Take makes a Lease, which is new or free, that of a call.
func Take(l *coordinationv1.Lease, k Key, tool *v1alpha1.Tool, call *v1alpha1.ToolCall, argsDigest, install string, now time.Time) {
	l.Labels = map[string]string{v1alpha1.LabelInstall: install, v1alpha1.LabelToolUID: string(tool.UID)}
	l.Annotations = map[string]string{
		v1alpha1.AnnotationCall: call.Namespace + "/" + call.Name,
		annotationArgs:          argsDigest,
	}
	l.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To(string(call.UID)),
		LeaseDurationSeconds: ptr.To(k.KeepSeconds),
		AcquireTime:          ptr.To(metav1.NewMicroTime(now)),
	}
}

// Send notes that the call is about to be sent. The number of the attempt makes
// each one a change of the Lease: whoever read it before, and takes the call for
// one that ended with an earlier attempt, cannot free the key any more.
func Send(l *coordinationv1.Lease, attempt int32) {
	annotate(l, annotationSent, strconv.Itoa(int(attempt)))
}

// annotate writes into a Lease, which somebody may have damaged.
func annotate(l *coordinationv1.Lease, key, value string) {
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[key] = value
}

// End notes the end of the call, and its result if that is not too large. From
// now on the key expires.
func End(l *coordinationv1.Lease, result *v1alpha1.Result, now time.Time) error {
	l.Spec.RenewTime = ptr.To(metav1.NewMicroTime(now))
	if result == nil {
		return nil
	}
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("keep the result of an idempotencyKey: %w", err)
	}
	if len(text) <= MaxResultBytes {
		annotate(l, annotationResult, string(text))
	}
	return nil
}

// Read is what a Lease says. It is lenient: what cannot be read of a Lease that
// somebody damaged is as if it had never been written, and a call that may have
// run counts as sent.
func Read(l *coordinationv1.Lease) Record {
	r := Record{
		Holder:     types.UID(ptr.Deref(l.Spec.HolderIdentity, "")),
		ArgsDigest: l.Annotations[annotationArgs],
		Sent:       l.Annotations[annotationSent] != "",
	}
	r.Call.Namespace, r.Call.Name, _ = strings.Cut(l.Annotations[v1alpha1.AnnotationCall], "/")
	if t := l.Spec.RenewTime; t != nil {
		r.Ended = t.Time
		r.Expires = t.Add(time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, keepSeconds)) * time.Second)
	}
	if text := l.Annotations[annotationResult]; text != "" {
		result := &v1alpha1.Result{}
		if err := json.Unmarshal([]byte(text), result); err == nil && result.OK != nil && result.Retryable != nil {
			r.Result = result
		}
	}
	return r
}
