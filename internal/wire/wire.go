// Package wire is the protocol between the controller and the runner in a
// sandbox: one call in on the runner's stdin, lines of JSON out on its stdout.
//
// A call is a header line and a body of exactly the length the header names.
// What comes back are frames, one JSON object per line and never longer than
// MaxLineBytes, so that a container log holds them unbroken. The bytes of an
// attach stream and of a container log are the same.
package wire

import "errors"

// Version is the protocol's version. It is the first field of the header and
// of every frame; a reader takes nothing of another version. A runner refuses a
// call of another version as no call, so that its sandbox is made again.
//
// Since 2 the result is sealed.
const Version = 2

// Bounds of the protocol, in bytes. Both sides enforce them.
const (
	// MaxLineBytes bounds a header or frame line, its newline included. It is
	// half the 16 KiB at which container runtimes break a log line.
	MaxLineBytes = 8 << 10
	// MaxOutputBytes bounds everything a sandbox prints over its whole life.
	MaxOutputBytes = 1 << 20
	// MaxBodyBytes bounds the encoded call: 512 KiB of argv and 256 KiB of
	// arguments on stdin, in base64, and a small environment.
	MaxBodyBytes = 2 << 20
	// MaxStdoutBytes is the largest capture bound a call may ask for: encoded,
	// it leaves room for stderr within MaxOutputBytes.
	MaxStdoutBytes = 512 << 10
	// MaxStderrTailBytes is how much of the end of stderr a result carries.
	MaxStderrTailBytes = 16 << 10
	// MaxLiveStderrBytes is how much of the beginning of stderr is sent while
	// the tool runs.
	MaxLiveStderrBytes = 48 << 10
	// MaxTimeoutMillis is the longest run a call may ask for: one week.
	MaxTimeoutMillis = 7 * 24 * 60 * 60 * 1000

	// maxChunkBytes of payload make a line of at most MaxLineBytes: base64
	// takes 4/3 of it, the rest is for the other fields.
	maxChunkBytes = 5600
	maxUIDBytes   = 128
	maxTextBytes  = 1 << 10
)

// Exit codes of the runner: the second, durable record of what happened.
const (
	// ExitReported: the tool ran (or could not be executed) and the result was
	// printed.
	ExitReported = 0
	// ExitNoCall: no call was accepted; the tool never started.
	ExitNoCall = 64
	// ExitUsed: this sandbox had accepted a call before; nothing was started.
	ExitUsed = 65
	// ExitNotReported: a call was accepted but its result could not be printed.
	ExitNotReported = 66
	// ExitNetworkOpen: the network policy is not in force; nothing was started.
	ExitNetworkOpen = 67
	// ExitWritable: more can be written to than the Tool has; nothing was started.
	ExitWritable = 68
)

// ErrNoCall is wrapped by every error of ReadCall: nothing that may be run was
// read.
var ErrNoCall = errors.New("no call")
