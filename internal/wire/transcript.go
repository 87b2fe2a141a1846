package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// Accepted names the call a runner has taken.
type Accepted struct {
	CallUID string
	Attempt int32
}

// State is what a runner's output says so far. What is missing in it proves
// nothing: a log may be rotated or cut.
type State struct {
	// Ready: the runner waited for a call.
	Ready bool
	// NoCall is the runner's reason for taking no call; empty if it gave none.
	NoCall string
	// Accepted is the call the runner has taken: from its accepted frame, or from a
	// result that opens, which proves more.
	Accepted *Accepted
	// Stderr is the beginning of the tool's stderr, at most MaxLiveStderrBytes.
	Stderr []byte
	// Result is set once all its parts came in order, the digest fits, and it opens
	// with the transcript's Seal. It does not change after that.
	Result *Result
	// Damaged says why a result that has started is not whole (yet: more parts, or
	// the whole result once more, may still come). Empty if there is a Result or
	// none has started.
	Damaged string
	// Bytes counts everything that was written.
	Bytes int64
}

// Transcript puts together what a runner printed, from an attach stream or a
// container log. It may begin in the middle of a line, hold foreign lines,
// frames it does not know and damage: all of that is passed over. Memory is
// bounded whatever comes. The zero value is ready to use, and opens no result.
//
// One goroutine writes. Others look through Snapshot and the two channels; the
// fields of State may be read directly only when nobody writes any more.
type Transcript struct {
	State
	// Seal opens the result of one attempt in one pod; what others print is never
	// taken for it. Set before the first Write.
	Seal Seal

	mu        sync.Mutex
	line      []byte // the line under way
	skip      bool   // the line under way is too long
	parts     assembly
	stderrEnd int64 // offset behind the last stderr byte seen
	accepted  chan struct{}
	result    chan struct{}
}

// assembly is a result under way: parts 1 to next-1 of total are there.
type assembly struct {
	next, total int
	sha256      string
	payload     []byte
}

// framePrefix begins every frame. Inside a frame it cannot occur, since JSON
// escapes quotes: the last one in a line begins the frame even if the line has
// the torn end of an earlier stream before it.
var framePrefix = []byte(`{"version":`)

// Write takes the next bytes, cut anywhere. It never fails.
func (t *Transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Bytes += int64(len(p))
	for rest := p; len(rest) > 0; {
		piece, after, ended := bytes.Cut(rest, []byte{'\n'})
		rest = after
		if len(t.line)+len(piece) >= MaxLineBytes {
			t.skip = true
		}
		if !t.skip {
			t.line = append(t.line, piece...)
		}
		if !ended {
			break
		}
		if !t.skip {
			t.takeLine(t.line)
		}
		t.line, t.skip = t.line[:0], false
	}
	return len(p), nil
}

// Snapshot is the state so far, safe while another goroutine writes. The caller
// must not change what Accepted and Result point to.
func (t *Transcript) Snapshot() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.State
	s.Stderr = slices.Clone(s.Stderr)
	return s
}

// AcceptedSeen is closed once Accepted is set.
func (t *Transcript) AcceptedSeen() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signal()
	return t.accepted
}

// ResultSeen is closed once Result is set.
func (t *Transcript) ResultSeen() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signal()
	return t.result
}

// signal brings the channels in line with the state. The caller holds the lock.
func (t *Transcript) signal() {
	closeIf := func(c *chan struct{}, reached bool) {
		if *c == nil {
			*c = make(chan struct{})
		}
		if !reached {
			return
		}
		select {
		case <-*c:
		default:
			close(*c)
		}
	}
	closeIf(&t.accepted, t.Accepted != nil)
	closeIf(&t.result, t.Result != nil)
}

func (t *Transcript) takeLine(line []byte) {
	start := bytes.LastIndex(line, framePrefix)
	if start < 0 {
		return
	}
	var f frame
	if err := json.Unmarshal(line[start:], &f); err != nil || f.Version != Version {
		return
	}
	switch f.Type {
	case frameReady:
		t.Ready = true
	case frameNoCall:
		t.NoCall = clip(f.Reason)
	case frameAccepted:
		t.accept(f)
	case frameStderr:
		t.takeStderr(f)
	case frameResult:
		if t.Result == nil {
			t.takePart(f)
		}
	}
}

// accept keeps the first call named: a sandbox serves one, ever.
func (t *Transcript) accept(f frame) {
	if t.Accepted == nil && validateUID(f.CallUID) == nil && f.Attempt > 0 {
		t.Accepted = &Accepted{CallUID: f.CallUID, Attempt: f.Attempt}
		t.signal()
	}
}

func (t *Transcript) takeStderr(f frame) {
	data := f.Data
	end := f.Offset + int64(len(data))
	if f.Offset < 0 || end <= t.stderrEnd {
		return // seen before: a log read again from its beginning
	}
	if f.Offset < t.stderrEnd {
		data = data[t.stderrEnd-f.Offset:]
	}
	t.stderrEnd = end
	t.Stderr = append(t.Stderr, data[:min(len(data), MaxLiveStderrBytes-len(t.Stderr))]...)
}

func (t *Transcript) takePart(f frame) {
	a := &t.parts
	if f.CallUID != t.Seal.CallUID || f.Attempt != t.Seal.Attempt {
		t.damage(fmt.Sprintf("a part of the result of call %.128q, attempt %d, which is another one", f.CallUID, f.Attempt))
		return
	}
	if f.Part == 1 {
		*a = assembly{next: 1, total: f.Parts, sha256: f.SHA256}
	}
	switch {
	case a.next == 0 && t.Damaged != "":
		return // what follows the first damage explains nothing
	case a.next == 0:
		t.damage(fmt.Sprintf("part %d of %d came, part 1 did not", f.Part, f.Parts))
		return
	case f.Part != a.next || f.Parts != a.total || f.SHA256 != a.sha256:
		t.damage(fmt.Sprintf("part %d of %d came where part %d of %d was next", f.Part, f.Parts, a.next, a.total))
		return
	case len(a.payload)+len(f.Data) > MaxOutputBytes:
		t.damage(fmt.Sprintf("it has more than %d bytes", MaxOutputBytes))
		return
	}
	a.payload = append(a.payload, f.Data...)
	a.next++
	if f.Part < a.total {
		t.Damaged = fmt.Sprintf("%d of %d parts came", f.Part, a.total)
		return
	}
	if got := digest(a.payload); got != a.sha256 {
		t.damage(fmt.Sprintf("its SHA-256 is %s, its parts say %.64q", got, a.sha256))
		return
	}
	payload, err := t.Seal.open(a.payload)
	if err != nil {
		t.damage(err.Error())
		return
	}
	r, err := decodeResult(payload)
	if err != nil {
		t.damage(err.Error())
		return
	}
	t.Accepted = &Accepted{CallUID: t.Seal.CallUID, Attempt: t.Seal.Attempt}
	t.Result, t.Damaged = r, ""
	t.parts = assembly{}
	t.signal()
}

// damage drops the result under way; only its part 1 can begin it again.
func (t *Transcript) damage(why string) {
	t.parts, t.Damaged = assembly{}, why
}
