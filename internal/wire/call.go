package wire

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Header is the first line of a call. It says for whom the call is and how to
// tell that it arrived whole.
type Header struct {
	Version int    `json:"version"`
	CallUID string `json:"callUID"`
	// Attempt counts from 1.
	Attempt int32 `json:"attempt"`
	// PodUID is the pod the call is meant for; any other pod refuses it.
	PodUID string `json:"podUID"`
	// BodyLength is the number of bytes that follow the header's newline.
	BodyLength int64 `json:"bodyLength"`
	// SHA256 of the body, in lower-case hexadecimal.
	SHA256 string `json:"sha256"`
}

// EnvVar is one variable added to the tool's environment. The value is exact.
type EnvVar struct {
	Name, Value string
}

// Call is what the runner shall run.
type Call struct {
	// Argv is the final command, at least one element, no NUL. Elements need not
	// be UTF-8 and arrive byte for byte.
	Argv []string
	// Stdin is written to the tool's standard input, which is then closed.
	Stdin []byte
	// DevNullStdin gives the tool /dev/null instead of Stdin.
	DevNullStdin bool
	// Env is added to the container's environment and wins over it.
	Env []EnvVar
	// MaxStdoutBytes is how much of stdout is captured, 1 to the constant of
	// that name. More is counted and discarded.
	MaxStdoutBytes int64
	// TimeoutMillis bounds the tool's run, measured from its exec; 1 to
	// MaxTimeoutMillis.
	TimeoutMillis int64
	// AllowSockets leaves out the filter that refuses every socket family but
	// AF_UNIX. The zero value means no sockets.
	AllowSockets bool
	// ResultKey seals the result: that of a [Seal], KeyBytes long.
	ResultKey Key
	// StdoutIsJSON: values are masked in the strings of stdout, as they read, and
	// not in its bytes.
	StdoutIsJSON bool
	// SecretEnv names the variables of the container whose values are masked in
	// what the tool prints, SecretPaths the folders (absolute) in which every file
	// is such a value.
	SecretEnv, SecretPaths []string
	// MaxFileBytes is the size that no file of the tool's may grow past; 0 means no
	// bound.
	MaxFileBytes int64
	// MaxProcesses bounds the processes and threads of the tool's user, the runner's
	// included; 0 means no bound. It needs a sandbox whose user nobody else has.
	MaxProcesses int64
}

// Seal is what the result of this call is sealed with.
func (c Call) Seal(h Header) Seal {
	return Seal{CallUID: h.CallUID, Attempt: h.Attempt, PodUID: h.PodUID, Key: c.ResultKey}
}

// body is Call as it travels. Strings that need not be UTF-8 are bytes here,
// because JSON strings would change them.
type body struct {
	Argv           [][]byte  `json:"argv"`
	Stdin          []byte    `json:"stdin,omitempty"`
	DevNullStdin   bool      `json:"devNullStdin,omitempty"`
	Env            []bodyEnv `json:"env,omitempty"`
	MaxStdoutBytes int64     `json:"maxStdoutBytes"`
	TimeoutMillis  int64     `json:"timeoutMillis"`
	AllowSockets   bool      `json:"allowSockets,omitempty"`
	ResultKey      []byte    `json:"resultKey"`
	StdoutIsJSON   bool      `json:"stdoutIsJSON,omitempty"`
	SecretEnv      [][]byte  `json:"secretEnv,omitempty"`
	SecretPaths    [][]byte  `json:"secretPaths,omitempty"`
	MaxFileBytes   int64     `json:"maxFileBytes,omitempty"`
	MaxProcesses   int64     `json:"maxProcesses,omitempty"`
}

type bodyEnv struct {
	Name  []byte `json:"name"`
	Value []byte `json:"value"`
}

// WriteCall sends one call in a single Write. A call that ReadCall would refuse
// is an error and nothing is written.
func WriteCall(w io.Writer, callUID string, attempt int32, podUID string, c Call) error {
	if err := c.validate(); err != nil {
		return err
	}
	b := body{
		Stdin: c.Stdin, DevNullStdin: c.DevNullStdin,
		MaxStdoutBytes: c.MaxStdoutBytes, TimeoutMillis: c.TimeoutMillis, AllowSockets: c.AllowSockets,
		ResultKey: c.ResultKey, StdoutIsJSON: c.StdoutIsJSON,
		Argv: toBytes(c.Argv), SecretEnv: toBytes(c.SecretEnv), SecretPaths: toBytes(c.SecretPaths),
		MaxFileBytes: c.MaxFileBytes, MaxProcesses: c.MaxProcesses,
	}
	for _, e := range c.Env {
		b.Env = append(b.Env, bodyEnv{Name: []byte(e.Name), Value: []byte(e.Value)})
	}
	raw, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode the call: %w", err)
	}
	h := Header{
		Version: Version, CallUID: callUID, Attempt: attempt, PodUID: podUID,
		BodyLength: int64(len(raw)), SHA256: digest(raw),
	}
	if err := h.validate(podUID); err != nil {
		return err
	}
	line, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode the call's header: %w", err)
	}
	if _, err := w.Write(append(append(line, '\n'), raw...)); err != nil {
		return fmt.Errorf("send the call: %w", err)
	}
	return nil
}

// ReadCall reads one call meant for the pod podUID. Whatever is not a whole,
// undamaged and valid call for that pod is an error that wraps ErrNoCall and
// says why. It reads at most MaxLineBytes + MaxBodyBytes.
func ReadCall(r *bufio.Reader, podUID string) (Header, Call, error) {
	h, c, err := readCall(r, podUID)
	if err != nil {
		return Header{}, Call{}, fmt.Errorf("%w: %w", ErrNoCall, err)
	}
	return h, c, nil
}

func readCall(r *bufio.Reader, podUID string) (h Header, c Call, err error) {
	line, err := readHeaderLine(r)
	if err != nil {
		return h, c, err
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, c, fmt.Errorf("the header is not valid JSON: %w", err)
	}
	if err := h.validate(podUID); err != nil {
		return h, c, err
	}
	raw := make([]byte, h.BodyLength)
	if n, err := io.ReadFull(r, raw); err != nil {
		return h, c, fmt.Errorf("the body ended after %d of %d bytes: %w", n, h.BodyLength, err)
	}
	if got := digest(raw); got != h.SHA256 {
		return h, c, fmt.Errorf("the body's SHA-256 is %s, the header says %s", got, h.SHA256)
	}
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return h, c, fmt.Errorf("the body is not valid JSON: %w", err)
	}
	c = Call{
		Stdin: b.Stdin, DevNullStdin: b.DevNullStdin,
		MaxStdoutBytes: b.MaxStdoutBytes, TimeoutMillis: b.TimeoutMillis, AllowSockets: b.AllowSockets,
		ResultKey: b.ResultKey, StdoutIsJSON: b.StdoutIsJSON,
		Argv: toStrings(b.Argv), SecretEnv: toStrings(b.SecretEnv), SecretPaths: toStrings(b.SecretPaths),
		MaxFileBytes: b.MaxFileBytes, MaxProcesses: b.MaxProcesses,
	}
	for _, e := range b.Env {
		c.Env = append(c.Env, EnvVar{Name: string(e.Name), Value: string(e.Value)})
	}
	return h, c, c.validate()
}

func readHeaderLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > MaxLineBytes {
			return nil, fmt.Errorf("the header is longer than %d bytes", MaxLineBytes)
		}
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil, errors.New("stdin was closed before a call came")
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("the header ended after %d bytes: %w", len(line), err)
		}
	}
}

func (h Header) validate(podUID string) error {
	switch {
	case h.Version != Version:
		return fmt.Errorf("the call has protocol version %d, this runner speaks %d", h.Version, Version)
	case podUID == "":
		return errors.New("this pod's own UID is not known")
	case h.PodUID != podUID:
		return fmt.Errorf("the call is for pod %.64q, this is pod %.64q", h.PodUID, podUID)
	case h.Attempt < 1:
		return fmt.Errorf("attempt is %d, it counts from 1", h.Attempt)
	case h.BodyLength < 1 || h.BodyLength > MaxBodyBytes:
		return fmt.Errorf("the encoded call has %d bytes, allowed are 1 to %d", h.BodyLength, MaxBodyBytes)
	}
	return validateUID(h.CallUID)
}

// validateUID holds UIDs to what fits any frame: Kubernetes makes them RFC 4122
// text, but the bound must not depend on it.
func validateUID(uid string) error {
	if uid == "" || len(uid) > maxUIDBytes {
		return fmt.Errorf("the call UID has %d bytes, allowed are 1 to %d", len(uid), maxUIDBytes)
	}
	for _, c := range []byte(uid) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' && c != '.' {
			return fmt.Errorf("the call UID %q has a character other than letters, digits, '-', '_' and '.'", uid)
		}
	}
	return nil
}

func (c Call) validate() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return errors.New("argv names no command")
	}
	for i, arg := range c.Argv {
		if strings.IndexByte(arg, 0) >= 0 {
			return fmt.Errorf("argv[%d] has a NUL byte", i)
		}
	}
	for i, e := range c.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") || strings.IndexByte(e.Value, 0) >= 0 {
			return fmt.Errorf("env[%d] has no name, a '=' in its name or a NUL byte", i)
		}
	}
	if c.DevNullStdin && len(c.Stdin) > 0 {
		return fmt.Errorf("stdin has %d bytes and is /dev/null at once", len(c.Stdin))
	}
	if c.MaxStdoutBytes < 1 || c.MaxStdoutBytes > MaxStdoutBytes {
		return fmt.Errorf("maxStdoutBytes is %d, allowed are 1 to %d", c.MaxStdoutBytes, MaxStdoutBytes)
	}
	if c.TimeoutMillis < 1 || c.TimeoutMillis > MaxTimeoutMillis {
		return fmt.Errorf("timeoutMillis is %d, allowed are 1 to %d", c.TimeoutMillis, MaxTimeoutMillis)
	}
	if len(c.ResultKey) != KeyBytes {
		return fmt.Errorf("resultKey has %d bytes, it must have %d", len(c.ResultKey), KeyBytes)
	}
	for i, name := range c.SecretEnv {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("secretEnv[%d] is empty, has a '=' or a NUL byte", i)
		}
	}
	for i, path := range c.SecretPaths {
		if !strings.HasPrefix(path, "/") || strings.IndexByte(path, 0) >= 0 {
			return fmt.Errorf("secretPaths[%d] is not absolute or has a NUL byte", i)
		}
	}
	if c.MaxFileBytes < 0 || c.MaxProcesses < 0 {
		return fmt.Errorf("maxFileBytes is %d and maxProcesses is %d, neither may be negative", c.MaxFileBytes, c.MaxProcesses)
	}
	return nil
}

func toBytes(list []string) (out [][]byte) {
	for _, s := range list {
		out = append(out, []byte(s))
	}
	return out
}

func toStrings(list [][]byte) (out []string) {
	for _, b := range list {
		out = append(out, string(b))
	}
	return out
}

func digest(p []byte) string {
	sum := sha256.Sum256(p)
	return hex.EncodeToString(sum[:])
}
