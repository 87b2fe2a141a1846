package controllers

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestRetentionDue(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	// A call that ended so long ago, and wishes to be kept so many seconds.
	type finished struct {
		ago  time.Duration
		wish *int32
	}
	const never = -1000 * time.Hour // not finished
	for _, tc := range []struct {
		reason    string
		retention Retention
		calls     []finished
		due       []string // UIDs: the index of the call as a letter
		next      time.Duration
	}{
		{reason: "no calls"},
		{reason: "one that is under way stays, however old", calls: []finished{{never, ptr.To[int32](0)}}},
		{reason: "no wish: the default", calls: []finished{{time.Hour, nil}, {time.Hour - time.Second, nil}}, due: []string{"a"}, next: time.Second},
		{reason: "a shorter wish", calls: []finished{{time.Minute, ptr.To[int32](60)}, {59 * time.Second, ptr.To[int32](60)}}, due: []string{"a"}, next: time.Second},
		{reason: "a longer wish", calls: []finished{{90 * time.Minute, ptr.To[int32](7200)}}, next: 30 * time.Minute},
		{reason: "not longer than the bound", calls: []finished{{3 * time.Hour, ptr.To[int32](2592000)}}, due: []string{"a"}},
		{reason: "the default, too, keeps to the bound", retention: Retention{DefaultTTL: 10 * time.Hour, MaxTTL: time.Hour, MaxFinished: 100},
			calls: []finished{{time.Hour, nil}}, due: []string{"a"}},
		{reason: "a wish for nothing", calls: []finished{{0, ptr.To[int32](0)}}, due: []string{"a"}},
		{reason: "above the cap the oldest end goes first, whatever it wishes", retention: Retention{DefaultTTL: time.Hour, MaxTTL: 3 * time.Hour, MaxFinished: 2},
			calls: []finished{{time.Minute, nil}, {3 * time.Minute, ptr.To[int32](7200)}, {2 * time.Minute, nil}, {4 * time.Minute, nil}}, due: []string{"d", "b"}, next: 58 * time.Minute},
		{reason: "those under way do not count for the cap", retention: Retention{DefaultTTL: time.Hour, MaxTTL: time.Hour, MaxFinished: 1},
			calls: []finished{{never, nil}, {time.Minute, nil}, {never, nil}}, next: 59 * time.Minute},
		{reason: "what is due by its time counts for the cap, and frees it", retention: Retention{DefaultTTL: time.Hour, MaxTTL: time.Hour, MaxFinished: 2},
			calls: []finished{{2 * time.Hour, nil}, {time.Minute, nil}, {2 * time.Minute, nil}}, due: []string{"a"}, next: 58 * time.Minute},
		{reason: "what is due by its time frees the cap also if it is younger", retention: Retention{DefaultTTL: time.Hour, MaxTTL: time.Hour, MaxFinished: 2},
			calls: []finished{{3 * time.Minute, nil}, {time.Minute, ptr.To[int32](1)}, {2 * time.Minute, nil}}, due: []string{"b"}, next: 57 * time.Minute},
		{reason: "an end in the future, by a clock that was ahead, is not early", calls: []finished{{-5 * time.Minute, ptr.To[int32](0)}}, next: 5 * time.Minute},
		{reason: "nor does it push out one that ended before", retention: Retention{DefaultTTL: time.Hour, MaxTTL: time.Hour, MaxFinished: 1},
			calls: []finished{{-5 * time.Minute, nil}, {time.Minute, nil}}, due: []string{"b"}, next: 65 * time.Minute},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			r := tc.retention
			if r == (Retention{}) {
				r = Retention{DefaultTTL: time.Hour, MaxTTL: 2 * time.Hour, MaxFinished: 100}
			}
			var calls []v1alpha1.ToolCall
			for i, f := range tc.calls {
				call := v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{UID: types.UID(rune('a' + i))}}
				call.Spec.TTLSecondsAfterFinished = f.wish
				if f.ago != never {
					call.Status.CompletionTime = ptr.To(metav1.NewTime(now.Add(-f.ago)))
				}
				calls = append(calls, call)
			}
			due, next := r.due(calls, now)
			var uids []string
			for _, call := range due {
				uids = append(uids, string(call.UID))
			}
			if !slices.Equal(uids, tc.due) {
				t.Errorf("due are %v, want %v", uids, tc.due)
			}
			if next.IsZero() != (tc.next == 0) || !next.IsZero() && next.Sub(now) != tc.next {
				t.Errorf("the next is due %s, want in %s", next, tc.next)
			}
		})
	}
	// What is being deleted is not deleted again.
	gone := v1alpha1.ToolCall{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: now}}}
	gone.Status.CompletionTime = ptr.To(metav1.NewTime(now.Add(-time.Hour)))
	if due, _ := (Retention{}).due([]v1alpha1.ToolCall{gone}, now); len(due) > 0 {
		t.Error("a call that is being deleted is due")
	}
}
