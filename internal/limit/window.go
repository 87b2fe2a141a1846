// Package limit counts calls for the limits of Tools and of policies: how many
// began in a sliding window of time (Window), and how many run at once, first
// come first served (Queue). Both are in memory and know nothing of Kubernetes
// but names and UIDs.
package limit

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds of the text of a Window. The API allows 1,000 calls per window; a
// Kubernetes object holds 256 KiB of annotations.
const (
	MaxWindowBytes   = 128 << 10
	MaxWindowEntries = 2000
)

// maxMilli is the end of the year 9999: a later time in a record is damage.
const maxMilli = 253402300799999

// Window is the record of one rate limit: the calls that it counted, for as long
// as they are within the window. It is a value: no method changes it. The zero
// value is the empty record.
type Window struct {
	entries []entry // by time, oldest first
}

type entry struct {
	// milli is when the call was counted: Unix time in milliseconds, rounded up,
	// so that an entry is never taken for older than it is.
	milli int64
	// call is a hash of the call's UID. The API server makes UIDs up, nobody can
	// choose two with one hash; by chance it happens to one in 10^16 calls.
	call uint64
}

func callHash(uid types.UID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uid)) // a hash never fails
	return h.Sum64()
}

// ParseWindow reads what String wrote, at most MaxWindowBytes and
// MaxWindowEntries. The empty text is the empty record; anything else that String
// does not write is an error: a record that cannot be read must not pass for one
// that counted nothing.
func ParseWindow(annotation string) (Window, error) {
	if annotation == "" {
		return Window{}, nil
	}
	if len(annotation) > MaxWindowBytes {
		return Window{}, fmt.Errorf("the record of a rate limit has %d bytes, at most %d are read", len(annotation), MaxWindowBytes)
	}
	n := strings.Count(annotation, " ") + 1
	if n > MaxWindowEntries {
		return Window{}, fmt.Errorf("the record of a rate limit has %d entries, at most %d are read", n, MaxWindowEntries)
	}
	entries := make([]entry, 0, n)
	for text := range strings.SplitSeq(annotation, " ") {
		e, ok := parseEntry(text)
		if !ok || len(entries) > 0 && e.milli < entries[len(entries)-1].milli {
			// The text is not repeated: it may be long, and anything.
			return Window{}, fmt.Errorf("the record of a rate limit is damaged at entry %d of %d: want the Unix time in milliseconds, "+
				"a hyphen and 16 lower-case hexadecimal digits, oldest entry first", len(entries)+1, n)
		}
		entries = append(entries, e)
	}
	return Window{entries}, nil
}

func parseEntry(text string) (entry, bool) {
	before, after, _ := strings.Cut(text, "-")
	milli, err := strconv.ParseInt(before, 10, 64)
	if err != nil || milli < 0 || milli > maxMilli {
		return entry{}, false
	}
	call, err := strconv.ParseUint(after, 16, 64)
	if err != nil {
		return entry{}, false
	}
	e := entry{milli, call}
	// The parsers take more than one spelling of a number (+1, 01, upper case).
	return e, string(e.appendTo(nil)) == text
}

func (e entry) appendTo(b []byte) []byte {
	b = strconv.AppendInt(b, e.milli, 10)
	b = append(b, "-0000000000000000"...)
	var digits [16]byte
	hash := strconv.AppendUint(digits[:0], e.call, 16)
	copy(b[len(b)-len(hash):], hash)
	return b
}

// String is the record as text: per call its time (Unix, milliseconds), a hyphen
// and 16 hexadecimal digits that stand for its UID, separated by spaces, oldest
// first. 31 bytes per call.
func (w Window) String() string {
	b := make([]byte, 0, 31*len(w.entries))
	for i, e := range w.entries {
		if i > 0 {
			b = append(b, ' ')
		}
		b = e.appendTo(b)
	}
	return string(b)
}

// Counted says whether the record has the call within the window that ends now.
func (w Window) Counted(uid types.UID, now time.Time, window time.Duration) bool {
	call, expired := callHash(uid), lastExpired(now, window)
	return slices.ContainsFunc(w.entries, func(e entry) bool { return e.call == call && e.milli > expired })
}

// Take counts a call at now, if that makes no more than maxCalls in any window
// of that length (half-open: a call exactly one window after another one is no
// longer with it). A call that the record has within the window is ok and is not
// counted again. maxCalls is at least 1 (below it no call fits), at most
// MaxWindowEntries (above it counts as that); window has whole milliseconds, at
// least one.
//
// If not ok, retry is the first moment at which one more call fits, provided that
// nobody else is counted before; else it is the zero time. It has milliseconds:
// round it up where it is written in seconds.
//
// after is the record to store, without what is older than the window; store it
// also if not ok, when its text is another. Entries of a later time than now come
// from a clock that is ahead, or ours was set back: they were counted before now
// at the latest, so they become entries of now. Stored, that ends: they stay for
// one window from then on, neither for ever nor too short.
func (w Window) Take(uid types.UID, now time.Time, maxCalls int, window time.Duration) (after Window, ok bool, retry time.Time) {
	expired := lastExpired(now, window)
	stamp := min(max(0, now.Add(time.Millisecond-1).UnixMilli()), maxMilli) // rounded up, see entry

	call := callHash(uid)
	entries := make([]entry, 0, len(w.entries)+1)
	for _, e := range w.entries {
		e.milli = min(e.milli, stamp)
		if e.milli <= expired {
			continue
		}
		if e.call == call {
			return w, true, time.Time{}
		}
		entries = append(entries, e)
	}
	maxCalls = min(maxCalls, MaxWindowEntries)
	if n := len(entries); n >= maxCalls {
		// The newest of those that must go before there is room: with maxCalls lowered
		// since, that is more than the oldest one.
		last := stamp
		if maxCalls >= 1 {
			last = entries[n-maxCalls].milli
		}
		return Window{entries}, false, time.UnixMilli(last + windowMilli(window)).UTC()
	}
	return Window{append(entries, entry{stamp, call})}, true, time.Time{}
}

// lastExpired is the time, in Unix milliseconds, of the youngest entries that are
// no longer within the window that ends now.
func lastExpired(now time.Time, window time.Duration) int64 {
	return now.UnixMilli() - windowMilli(window)
}

func windowMilli(window time.Duration) int64 {
	return max(1, window.Milliseconds())
}
