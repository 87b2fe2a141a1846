package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// StartErrorKind says why a command could not be executed, so that the
// controller can tell a Tool's author what to change.
type StartErrorKind string

// Kinds of start errors. With any of them the tool did not run.
const (
	// StartCommandNotFound: no such file in PATH, or at the given path.
	StartCommandNotFound StartErrorKind = "CommandNotFound"
	// StartNotExecutable: the file is there but cannot be executed: a directory,
	// no execute permission, another architecture, no "#!" line, or an
	// interpreter that does not exist.
	StartNotExecutable StartErrorKind = "NotExecutable"
	// StartRefused: the kernel refused for another reason: arguments too long,
	// no memory, too many processes.
	StartRefused StartErrorKind = "Refused"
	// StartRunnerFault: the sandbox could not be prepared. Not the tool's fault.
	StartRunnerFault StartErrorKind = "RunnerFault"
)

// Result is what became of the tool.
type Result struct {
	// ExitCode of the tool; -1 if a signal ended it or it did not start.
	ExitCode int
	// Signal that ended the tool, such as "SIGKILL"; empty if it exited itself.
	Signal string
	// TimedOut is true if the tool was told to end because its time was over,
	// whatever it answered then.
	TimedOut bool
	// StartError is the reason why the command could not be executed; empty if it
	// was. It is the runner's own exec error, never a tool's exit code 126 or 127.
	// At most 1 KiB.
	StartError     string
	StartErrorKind StartErrorKind
	// Stdout is the beginning of standard output, up to the call's bound, with the
	// values of Secrets masked.
	Stdout []byte
	// StdoutBytes counts all of standard output, before masking: more than
	// len(Stdout) + StdoutShrunk means the rest was discarded.
	StdoutBytes int64
	// StdoutShrunk is how many bytes masking made Stdout shorter.
	StdoutShrunk int64
	// StderrTail is the end of standard error, masked, at most MaxStderrTailBytes.
	StderrTail []byte
	// StderrBytes counts all of standard error, masked.
	StderrBytes int64
	// StdoutMasked and StderrMasked count what was masked in Stdout, and in all of
	// standard error.
	StdoutMasked, StderrMasked int64
	// OOMKills counts the processes of the sandbox that the kernel killed for
	// memory while the tool ran; 0 too where the cgroup cannot be read.
	OOMKills int64
	// Start is the tool's exec and End when it was gone, by the node's clock.
	Start, End time.Time
}

// resultMeta is the first line of a result's payload; stdout and the tail of
// stderr follow it as raw bytes, so that they are in base64 once, not twice.
type resultMeta struct {
	ExitCode         int            `json:"exitCode"`
	Signal           string         `json:"signal,omitempty"`
	TimedOut         bool           `json:"timedOut,omitempty"`
	StartError       string         `json:"startError,omitempty"`
	StartErrorKind   StartErrorKind `json:"startErrorKind,omitempty"`
	StdoutLength     int            `json:"stdoutLength"`
	StdoutBytes      int64          `json:"stdoutBytes"`
	StderrTailLength int            `json:"stderrTailLength"`
	StderrBytes      int64          `json:"stderrBytes"`
	StdoutShrunk     int64          `json:"stdoutShrunk,omitempty"`
	StdoutMasked     int64          `json:"stdoutMasked,omitempty"`
	StderrMasked     int64          `json:"stderrMasked,omitempty"`
	OOMKills         int64          `json:"oomKills,omitempty"`
	Start            time.Time      `json:"start"`
	End              time.Time      `json:"end"`
}

// Types of frames.
const (
	frameReady    = "ready"
	frameNoCall   = "noCall"
	frameAccepted = "accepted"
	frameStderr   = "stderr"
	frameResult   = "result"
)

// frame is one line from the runner. Which fields it has depends on its type.
type frame struct {
	Version int    `json:"version"`
	Type    string `json:"type"`
	CallUID string `json:"callUID,omitempty"`
	Attempt int32  `json:"attempt,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Offset of stderr data, so that a replayed log adds nothing twice.
	Offset int64 `json:"offset,omitempty"`
	// Part counts from 1 to Parts; SHA256 is of the whole sealed payload.
	Part   int    `json:"part,omitempty"`
	Parts  int    `json:"parts,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Data   []byte `json:"data,omitempty"`
}

// WriteReady says that the runner waits for its call.
func WriteReady(w io.Writer) error {
	return writeFrame(w, frame{Type: frameReady})
}

// WriteNoCall says why no call was accepted. The reason is cut at 1 KiB.
func WriteNoCall(w io.Writer, reason string) error {
	return writeFrame(w, frame{Type: frameNoCall, Reason: clip(reason)})
}

// WriteAccepted says that the call will be run and no other.
func WriteAccepted(w io.Writer, callUID string, attempt int32) error {
	return writeFrame(w, frame{Type: frameAccepted, CallUID: callUID, Attempt: attempt})
}

// WriteStderr sends a piece of stderr that begins at offset. It returns how many
// bytes it printed, frames included: a small piece has a large overhead, which
// counts towards MaxOutputBytes.
func WriteStderr(w io.Writer, offset int64, p []byte) (printed int64, err error) {
	counter := &countingWriter{w: w}
	for len(p) > 0 && err == nil {
		chunk := p[:min(len(p), maxChunkBytes)]
		err = writeFrame(counter, frame{Type: frameStderr, Offset: offset, Data: chunk})
		offset, p = offset+int64(len(chunk)), p[len(chunk):]
	}
	return counter.n, err
}

// WriteResult sends the result, sealed, in numbered parts, in one Write. It
// refuses a Stdout or StderrTail over the bounds of the protocol.
func WriteResult(w io.Writer, s Seal, r Result) error {
	if err := validateUID(s.CallUID); err != nil {
		return err
	}
	if len(r.Stdout) > MaxStdoutBytes || len(r.StderrTail) > MaxStderrTailBytes {
		return fmt.Errorf("the result has %d bytes of stdout and %d of stderr, allowed are %d and %d",
			len(r.Stdout), len(r.StderrTail), MaxStdoutBytes, MaxStderrTailBytes)
	}
	meta, err := json.Marshal(resultMeta{
		ExitCode: r.ExitCode, Signal: r.Signal, TimedOut: r.TimedOut,
		StartError: clip(r.StartError), StartErrorKind: r.StartErrorKind,
		StdoutLength: len(r.Stdout), StdoutBytes: r.StdoutBytes,
		StderrTailLength: len(r.StderrTail), StderrBytes: r.StderrBytes,
		StdoutShrunk: r.StdoutShrunk, StdoutMasked: r.StdoutMasked, StderrMasked: r.StderrMasked,
		OOMKills: r.OOMKills, Start: r.Start, End: r.End,
	})
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	payload, err := s.seal(bytes.Join([][]byte{meta, {'\n'}, r.Stdout, r.StderrTail}, nil))
	if err != nil {
		return err
	}
	f := frame{
		Type: frameResult, CallUID: s.CallUID, Attempt: s.Attempt,
		Parts: (len(payload) + maxChunkBytes - 1) / maxChunkBytes, SHA256: digest(payload),
	}
	var lines bytes.Buffer
	for f.Part = 1; f.Part <= f.Parts; f.Part++ {
		f.Data = payload[:min(len(payload), maxChunkBytes)]
		payload = payload[len(f.Data):]
		if err := writeFrame(&lines, f); err != nil {
			return err
		}
	}
	if _, err := w.Write(lines.Bytes()); err != nil {
		return fmt.Errorf("send the result: %w", err)
	}
	return nil
}

// decodeResult is the inverse of the payload WriteResult seals.
func decodeResult(payload []byte) (*Result, error) {
	line, rest, found := bytes.Cut(payload, []byte{'\n'})
	if !found {
		return nil, errors.New("the payload has no first line")
	}
	var m resultMeta
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("the payload's first line: %w", err)
	}
	if m.StdoutLength < 0 || m.StdoutLength > len(rest) || m.StderrTailLength != len(rest)-m.StdoutLength {
		return nil, fmt.Errorf("the payload has %d bytes of output, its first line says %d and %d",
			len(rest), m.StdoutLength, m.StderrTailLength)
	}
	return &Result{
		ExitCode: m.ExitCode, Signal: m.Signal, TimedOut: m.TimedOut,
		StartError: m.StartError, StartErrorKind: m.StartErrorKind,
		Stdout: rest[:m.StdoutLength:m.StdoutLength], StdoutBytes: m.StdoutBytes,
		StderrTail: rest[m.StdoutLength:], StderrBytes: m.StderrBytes,
		StdoutShrunk: m.StdoutShrunk, StdoutMasked: m.StdoutMasked, StderrMasked: m.StderrMasked,
		OOMKills: m.OOMKills, Start: m.Start, End: m.End,
	}, nil
}

func writeFrame(w io.Writer, f frame) error {
	f.Version = Version
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode a %s frame: %w", f.Type, err)
	}
	if len(line) >= MaxLineBytes {
		return fmt.Errorf("a %s frame has %d bytes, allowed are %d", f.Type, len(line)+1, MaxLineBytes)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send a %s frame: %w", f.Type, err)
	}
	return nil
}

// clip bounds a text of our own; what JSON escapes grows at most sixfold, so the
// line still fits.
func clip(s string) string {
	return s[:min(len(s), maxTextBytes)]
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
