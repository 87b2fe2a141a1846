package limit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// start of the time of every test.
var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

// counted is a record with a call named after each of the times.
func counted(seconds ...float64) Window {
	var w Window
	for _, s := range seconds {
		w, _, _ = w.Take(types.UID(fmt.Sprint(s)), at(s), len(seconds), time.Hour)
	}
	return w
}

func TestTakeWindow(t *testing.T) {
	const window = 60 * time.Second
	for _, row := range []struct {
		reason string
		window Window
		uid    types.UID
		now    float64
		max    int
		ok     bool
		retry  float64 // with ok false
		size   int     // entries afterwards
	}{
		{reason: "the first call fits", uid: "new", now: 0, max: 1, ok: true, size: 1},
		{reason: "there is room below maxCalls", window: counted(0, 1), uid: "new", now: 2, max: 3, ok: true, size: 3},
		{reason: "at maxCalls the oldest must go first", window: counted(0, 1), uid: "new", now: 2, max: 2, retry: 60, size: 2},
		{reason: "a call is within the window to its last millisecond", window: counted(0), uid: "new", now: 59.999, max: 1, retry: 60, size: 1},
		{reason: "at retry the call fits", window: counted(0), uid: "new", now: 60, max: 1, ok: true, size: 1},
		{reason: "a fraction of a millisecond counts for the limit", window: counted(0.0005), uid: "new", now: 60.0001, max: 1, retry: 60.001, size: 1},
		{reason: "what is older than the window goes", window: counted(0, 1, 2, 30), uid: "new", now: 62, max: 5, ok: true, size: 2},
		{reason: "a call that is counted is ok while the window is full", window: counted(0, 1), uid: "1", now: 2, max: 2, ok: true, size: 2},
		{reason: "a call that is counted changes nothing, not even what is old", window: counted(0, 30), uid: "30", now: 62, max: 2, ok: true, size: 2},
		{reason: "a call that is counted is ok above a lowered maxCalls", window: counted(0, 1, 2), uid: "2", now: 3, max: 1, ok: true, size: 3},
		{reason: "a call counted before the window is counted anew", window: counted(0), uid: "0", now: 70, max: 1, ok: true, size: 1},
		{reason: "with maxCalls lowered, all but one too many must go", window: counted(0, 1, 2, 3), uid: "new", now: 4, max: 2, retry: 62, size: 4},
		{reason: "with maxCalls lowered to 1, all must go", window: counted(0, 1, 2, 3), uid: "new", now: 4, max: 1, retry: 63, size: 4},
		{reason: "an entry from the future is one of now", window: counted(300), uid: "new", now: 10, max: 1, retry: 70, size: 1},
		{reason: "an entry from the future counts", window: counted(0, 300), uid: "new", now: 10, max: 3, ok: true, size: 3},
		{reason: "a call counted in the future is counted", window: counted(300), uid: "300", now: 10, max: 1, ok: true, size: 1},
		{reason: "maxCalls 0 lets no call pass", uid: "new", now: 0, max: 0, retry: 60, size: 0},
		{reason: "a negative maxCalls lets no call pass", window: counted(1), uid: "new", now: 2, max: -3, retry: 62, size: 1},
	} {
		before := row.window.String()
		after, ok, retry := row.window.Take(row.uid, at(row.now), row.max, window)
		if ok != row.ok || len(after.entries) != row.size {
			t.Errorf("%s: ok %t, %d entries, want %t, %d", row.reason, ok, len(after.entries), row.ok, row.size)
		}
		if ok && (!retry.IsZero() || !after.Counted(row.uid, at(row.now), window)) {
			t.Errorf("%s: ok, with retry %v, counted %t", row.reason, retry, after.Counted(row.uid, at(row.now), window))
		}
		if !ok && !retry.Equal(at(row.retry)) {
			t.Errorf("%s: retry %v, want %v", row.reason, retry, at(row.retry))
		}
		if row.window.String() != before {
			t.Errorf("%s: Take changed the record that it was called on", row.reason)
		}
		if back, err := ParseWindow(after.String()); err != nil || !slices.Equal(back.entries, after.entries) {
			t.Errorf("%s: %q reads as %v, %v", row.reason, after, back, err)
		}
	}
}

func TestCounted(t *testing.T) {
	w := counted(0, 300)
	for _, row := range []struct {
		reason string
		uid    types.UID
		now    float64
		want   bool
	}{
		{"a call is counted at once", "0", 0, true},
		{"a call is counted within the window", "0", 59.999, true},
		{"not after it", "0", 60, false},
		{"a call from the future is counted", "300", 10, true},
		{"another call is not", "1", 10, false},
	} {
		if got := w.Counted(row.uid, at(row.now), time.Minute); got != row.want {
			t.Errorf("%s: %t", row.reason, got)
		}
	}
}

// An entry from the future that is stored as one of now stays one window and no
// longer.
func TestFutureEndsWhenStored(t *testing.T) {
	w := counted(1e6)
	w, ok, retry := w.Take("new", at(0), 1, time.Minute)
	if ok || !retry.Equal(at(60)) {
		t.Fatalf("ok %t, retry %v", ok, retry)
	}
	if _, ok, _ = w.Take("new", at(59.999), 1, time.Minute); ok {
		t.Error("the entry vanished before its window was over")
	}
	if _, ok, _ = w.Take("new", retry, 1, time.Minute); !ok {
		t.Error("the entry stayed longer than its window")
	}
}

func TestParseWindow(t *testing.T) {
	one := "1795953600000-00000000000000ab"
	for _, row := range []struct{ reason, text, err string }{
		{"the empty text is the empty record", "", ""},
		{"one entry", one, ""},
		{"equal times", one + " " + one[:29] + "c", ""},
		{"the oldest possible time", "0-00000000000000ab", ""},
		{"another text", "hello", "entry 1 of 1"},
		{"cut off", one + " " + one[:20], "entry 2 of 2"},
		{"no hash", "1795953600000", "damaged"},
		{"a hash that is too long", one + "0", "damaged"},
		{"upper case", "1795953600000-00000000000000AB", "damaged"},
		{"a sign", "+1795953600000-00000000000000ab", "damaged"},
		{"a time before 1970", "-1-00000000000000ab", "damaged"},
		{"a leading zero", "01795953600000-00000000000000ab", "damaged"},
		{"a time after the year 9999", "253402300800000-00000000000000ab", "damaged"},
		{"a time beyond 64 bits", "99999999999999999999-00000000000000ab", "damaged"},
		{"two spaces", one + "  " + one, "damaged"},
		{"a space at the end", one + " ", "damaged"},
		{"a line end", one + "\n", "damaged"},
		{"newest first", one + " 1795953599999-00000000000000ab", "entry 2 of 2"},
		{"as many entries as are read", strings.Repeat(one+" ", 1999) + one, ""},
		{"one more entry", strings.Repeat(one+" ", 2000) + one, "2001 entries, at most 2000"},
		{"too long", strings.Repeat("x", 131073), "131073 bytes, at most 131072"},
	} {
		w, err := ParseWindow(row.text)
		switch {
		case row.err == "" && err != nil:
			t.Errorf("%s: %v", row.reason, err)
		case row.err == "" && w.String() != row.text:
			t.Errorf("%s: reads as %q", row.reason, w)
		case row.err != "" && (err == nil || !strings.Contains(err.Error(), row.err)):
			t.Errorf("%s: %v, want an error with %q", row.reason, err, row.err)
		case err != nil && (len(w.entries) > 0 || len(err.Error()) > 300):
			t.Errorf("%s: %d entries, error of %d bytes", row.reason, len(w.entries), len(err.Error()))
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	f.Add("1795953600000-00000000000000ab 1795953600001-00000000000000ac")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWindow(text)
		if err != nil {
			return
		}
		if w.String() != text {
			t.Errorf("%q reads as %q", text, w)
		}
		after, _, _ := w.Take("new", start, 3, time.Minute)
		if _, err := ParseWindow(after.String()); err != nil {
			t.Errorf("after %q: %v", text, err)
		}
	})
}

// The record of the largest limit fits beside others in an annotation, and what
// Take writes can always be read.
func TestWindowSize(t *testing.T) {
	var w Window
	for i := range 3000 {
		w, _, _ = w.Take(types.UID(fmt.Sprint(i)), at(float64(i)/1000), 3000, time.Hour)
		if i == 999 && len(w.String()) >= 40<<10 {
			t.Errorf("1000 entries take %d bytes", len(w.String()))
		}
	}
	if _, err := ParseWindow(w.String()); err != nil || len(w.entries) != MaxWindowEntries {
		t.Errorf("%d entries: %v", len(w.entries), err)
	}
}

func TestTakesInARow(t *testing.T) {
	for _, maxCalls := range []int{1, 20, 199, 200, 1000} {
		record, oks := "", 0
		for i := range 200 {
			w, err := ParseWindow(record)
			if err != nil {
				t.Fatal(err)
			}
			after, ok, _ := w.Take(types.UID(fmt.Sprint(i)), at(float64(i)/100), maxCalls, time.Minute)
			if ok {
				oks++
			}
			record = after.String()
		}
		if oks != min(200, maxCalls) {
			t.Errorf("maxCalls %d: %d of 200 ok", maxCalls, oks)
		}
	}
}

// Random calls at random times, some asked about again, against every moment's
// count; also that a call that is refused would have been one too many, and that
// retry is the first moment at which it is not.
func TestWindowAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		maxCalls, window := 1+random.IntN(8), time.Duration(1+random.IntN(3000))*time.Millisecond
		now, w, passed := start, Window{}, []time.Time(nil)
		within := func(now time.Time) (n int) {
			for _, p := range passed {
				if now.Sub(p) < window {
					n++
				}
			}
			return n
		}
		for i := range 200 {
			now = now.Add(time.Duration(random.Int64N(int64(window) / int64(maxCalls))))
			uid := types.UID(fmt.Sprint(i - random.IntN(2)))
			again := w.Counted(uid, now, window)
			after, ok, retry := w.Take(uid, now, maxCalls, window)
			switch {
			case again && (!ok || after.String() != w.String()):
				t.Fatalf("call %s, counted, asked again: ok %t", uid, ok)
			case again:
			case ok:
				passed = append(passed, now)
				if n := within(now); n > maxCalls {
					t.Fatalf("%d calls in %v, the limit is %d", n, window, maxCalls)
				}
			default:
				// A time is kept to the millisecond, to the safe side.
				if n := within(now.Add(-time.Millisecond)); n < maxCalls {
					t.Fatalf("refused, with %d calls in %v, the limit is %d", n, window, maxCalls)
				}
				if _, ok, _ := after.Take("other", retry, maxCalls, window); !ok {
					t.Fatalf("refused at %v, and again at retry, %v", now, retry)
				}
				if _, ok, _ := after.Take("other", retry.Add(-1), maxCalls, window); ok {
					t.Fatalf("refused at %v until %v, and there was room before", now, retry)
				}
			}
			w = after
		}
	}
}

// Controllers with clocks that differ by up to skew follow each other: a window
// may be shorter or longer by that, no more, and nobody is locked out.
func TestWindowUnderSkew(t *testing.T) {
	const maxCalls, window, skew = 5, 10 * time.Second, 3 * time.Second
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		now, clock, w, passed := start, time.Duration(0), Window{}, []time.Time(nil)
		for i := range 300 {
			now = now.Add(time.Duration(random.Int64N(int64(2 * time.Second))))
			if random.IntN(20) == 0 {
				clock = time.Duration(random.Int64N(int64(skew)))
			}
			var ok bool
			if w, ok, _ = w.Take(types.UID(fmt.Sprint(i)), now.Add(clock), maxCalls, window); ok {
				passed = append(passed, now)
			}
			n := len(passed)
			if ok && n > maxCalls && now.Sub(passed[n-1-maxCalls]) < window-skew {
				t.Fatalf("more than %d calls in %v", maxCalls, now.Sub(passed[n-1-maxCalls]))
			}
			if !ok && now.Sub(passed[n-maxCalls]) > window+skew {
				t.Fatalf("refused, with fewer than %d calls in %v", maxCalls, window+skew)
			}
		}
	}
}

func BenchmarkWindow(b *testing.B) {
	var w Window
	for i := range 1000 {
		w, _, _ = w.Take(types.UID(fmt.Sprint(i)), at(float64(i)/1000), 1000, time.Hour)
	}
	record := w.String()
	for b.Loop() {
		w, err := ParseWindow(record)
		if err != nil {
			b.Fatal(err)
		}
		after, ok, _ := w.Take("new", at(3600), 1000, time.Hour)
		if !ok || after.String() == record {
			b.Fatal("no room")
		}
	}
}
