// Package result turns what a tool did (exit code, output) into the one envelope that every caller gets. It is pure: the
// same run gives the same envelope.
package result

import (
	"fmt"
	"strings"
	"time"

	"callgate.dev/callgate/internal/jsonvalue"
	"callgate.dev/callgate/internal/schema"
	"callgate.dev/callgate/internal/wire"
)

// Codes of an Envelope, as documented for the API.
const (
	CodeToolTimeout    = "tool_timeout"
	CodeToolFailed     = "tool_failed"
	CodeInvalidOutput  = "invalid_output"
	CodeOutputTooLarge = "output_too_large"
	CodeInternalError  = "internal_error"
)

// Formats of a Tool's output.
const (
	FormatJSON   = "JSON"   // exactly one JSON value on stdout
	FormatText   = "Text"   // UTF-8; data is a JSON string
	FormatBinary = "Binary" // any bytes; data is their base64 as a JSON string
)

// Side effects of a Tool, as far as they decide what may be retried.
const (
	SideEffectsNone       = "None"
	SideEffectsIdempotent = "Idempotent"
)

// DefaultMaxBytes is the bound of stdout where a Spec has none.
const DefaultMaxBytes = 65536

// exitTempFail is EX_TEMPFAIL: the tool promises that nothing was done.
const exitTempFail = 75

// Spec is what the Tool and the call say about the result.
type Spec struct {
	Format   string         // FormatJSON where empty
	MaxBytes int64          // of raw stdout; DefaultMaxBytes where 0
	Schema   *schema.Schema // outputSchema; nil without. It applies to data, whatever the format.
	// SideEffects decides whether a timeout may be retried. Everything but None and Idempotent counts as NonIdempotent.
	SideEffects string
	// Timeout is the limit that the run had, for the message.
	Timeout time.Duration
	// MaxFileBytes is the size that no file could grow past, for the message; 0 if it is not known.
	MaxFileBytes int64
}

// Envelope is the result of a call.
type Envelope struct {
	OK        bool
	Data      []byte // compact JSON; nil unless OK
	ErrorCode string // empty if OK
	// Message is one printable line, at most about 2 KiB: what, where, limit and actual value, what to do. If OK it is
	// empty, or says that something in what the tool printed was masked.
	Message string
	// Retryable: the same call, unchanged, may be proposed again without a second side effect, and may end otherwise.
	Retryable bool
}

// outOfMemory says what the kernel did, and what helps.
const outOfMemory = " (a process of it was killed because the sandbox ran out of memory: raise container.resources.limits.memory of the Tool, or ask for less)"

// Normalize returns the envelope of a finished run. The first of these that applies decides: time over, not started, ended
// by a signal, exit code, size of stdout, its format, the output schema. Text on stderr is no failure. Whatever decides,
// the message says what was masked.
func Normalize(spec Spec, run wire.Result) Envelope {
	e := normalize(spec, run)
	if note := maskedWords(run); note != "" && e.Message != "" {
		e.Message = jsonvalue.Cut(e.Message, beforeNote) + "; " + note
	} else if note != "" {
		e.Message = note
	}
	return e
}

// beforeNote bounds what stands before the words about masking, in bytes, so that
// nobody who bounds the message at 4 KiB cuts them off.
const beforeNote = 3800

// maskedWords says what was masked, "" if nothing was.
func maskedWords(run wire.Result) string {
	var where []string
	if n := run.StdoutMasked; n > 0 {
		where = append(where, fmt.Sprintf("%d on stdout", n))
	}
	if n := run.StderrMasked; n > 0 {
		where = append(where, fmt.Sprintf("%d on stderr", n))
	}
	if len(where) == 0 {
		return ""
	}
	return "values of the Tool's Secrets were replaced by [masked]: " + strings.Join(where, ", ")
}

func normalize(spec Spec, run wire.Result) Envelope {
	switch {
	case run.TimedOut:
		return timedOut(spec)
	case run.StartError != "" || run.StartErrorKind != "":
		return notStarted(run)
	case run.Signal != "":
		hint := ""
		switch {
		case run.OOMKills > 0:
			hint = outOfMemory
		case run.Signal == "SIGXFSZ":
			hint = fileTooLarge(spec)
		case run.Signal == "SIGKILL":
			hint = " (often the memory limit)"
		}
		return failed("the tool was ended by the signal "+jsonvalue.Cut(jsonvalue.Printable(run.Signal), 40)+hint, run)
	case run.ExitCode == exitTempFail:
		e := failed("nothing was done, try again later (exit code 75)", run)
		e.Retryable = true
		return e
	case run.ExitCode != 0 && run.OOMKills > 0:
		return failed(fmt.Sprintf("the tool ended with exit code %d%s", run.ExitCode, outOfMemory), run)
	case run.ExitCode != 0:
		hint := ""
		if run.ExitCode == exitFileTooLarge {
			hint = fileTooLarge(spec)
		}
		return failed(fmt.Sprintf("the tool ended with exit code %d%s", run.ExitCode, hint), run)
	case run.OOMKills > 0:
		return failed("the tool ended with exit code 0, but what it printed cannot be trusted"+outOfMemory, run)
	}

	if limit, size := spec.maxBytes(), max(run.StdoutBytes, int64(len(run.Stdout))); size > limit {
		return failure(CodeOutputTooLarge, fmt.Sprintf(
			"the tool printed %d bytes on stdout, output.maxBytes allows %d: ask for less, or print less", size, limit))
	} else if kept := int64(len(run.Stdout)) + run.StdoutShrunk; size > kept {
		return failure(CodeInvalidOutput, fmt.Sprintf(
			"the tool printed %d bytes on stdout, but only the first %d were kept", size, kept))
	}
	data, problem := spec.data(run.Stdout)
	if problem == "" && spec.Schema != nil {
		if err := spec.Schema.Validate(data); err != nil {
			problem = "the output does not fit outputSchema: " + err.Error()
		}
	}
	if problem != "" {
		return failure(CodeInvalidOutput, problem)
	}
	return Envelope{OK: true, Data: data}
}

func (s Spec) maxBytes() int64 {
	if s.MaxBytes <= 0 {
		return DefaultMaxBytes
	}
	return s.MaxBytes
}

func timedOut(spec Spec) Envelope {
	e := failure(CodeToolTimeout, fmt.Sprintf("the tool ran longer than its limit of %s and was stopped", spec.Timeout))
	switch spec.SideEffects {
	case SideEffectsNone, SideEffectsIdempotent:
		e.Retryable = true
	default:
		e.Message += "; it may have taken effect, so look before you call it again"
	}
	return e
}

func notStarted(run wire.Result) Envelope {
	why := jsonvalue.Cut(jsonvalue.Printable(run.StartError), 1024)
	switch run.StartErrorKind {
	case wire.StartRunnerFault: // ours, and the tool did not run
		e := failure(CodeInternalError, "the sandbox could not be prepared, the tool did not run: "+why)
		e.Retryable = true
		return e
	case wire.StartCommandNotFound:
		return failure(CodeToolFailed, "the tool's command was not found in its image, it did not run: "+why)
	case wire.StartNotExecutable:
		return failure(CodeToolFailed, "the tool's command cannot be executed, it did not run: "+why)
	default:
		return failure(CodeToolFailed, "the tool could not be started, it did not run: "+why)
	}
}

// exitFileTooLarge is what a shell exits with when a command of its was ended by SIGXFSZ.
const exitFileTooLarge = 128 + 25

// fileTooLarge says which limit SIGXFSZ is about.
func fileTooLarge(spec Spec) string {
	if spec.MaxFileBytes <= 0 {
		return " (a file grew past the limit of its size)"
	}
	return fmt.Sprintf(" (a file grew past %d bytes, which is what isolation.scratchSizeLimit allows: raise it, or write less)", spec.MaxFileBytes)
}

// failed adds the end of stderr: a tool's own words are the best there are.
func failed(what string, run wire.Result) Envelope {
	if words := lastWords(run.StderrTail, run.StderrBytes); words != "" {
		return failure(CodeToolFailed, what+": "+words)
	}
	return failure(CodeToolFailed, what+" and printed nothing on stderr")
}

func failure(code, message string) Envelope { return Envelope{ErrorCode: code, Message: message} }
