//go:build faults

package fault

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// What CALLGATE_FAULT says: POINT:ACTION, or POINT#N:ACTION for the N-th time only
// that the point is passed. Or @FILE: POINT:ACTION is read from the file whenever
// a point is passed, and the file is removed when it happens, so that a test can
// tell a controller that already works, and sees that it came to the point.
//
// Actions: kill (SIGKILL), stop (SIGSTOP until somebody sends SIGCONT), or a
// duration to sleep.
var (
	point, action string
	turn          = int64(1)
	passed        atomic.Int64
	file          string
)

func init() {
	spec := os.Getenv("CALLGATE_FAULT")
	var found bool
	if file, found = strings.CutPrefix(spec, "@"); found {
		return
	}
	file = ""
	point, action, _ = strings.Cut(spec, ":")
	if name, n, ok := strings.Cut(point, "#"); ok {
		var err error
		if turn, err = strconv.ParseInt(n, 10, 64); err != nil {
			panic("CALLGATE_FAULT: " + err.Error())
		}
		point = name
	}
}

// wanted says whether something is to happen at a point, and what.
func wanted(name string) (string, bool) {
	if file == "" {
		return action, name == point
	}
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic("CALLGATE_FAULT: " + err.Error())
	}
	at, what, _ := strings.Cut(string(content), ":")
	return what, at == name
}

// due is wanted, once.
func due(name string) (string, bool) {
	what, ok := wanted(name)
	switch {
	case !ok:
		return "", false
	case file == "":
		return what, passed.Add(1) == turn
	}
	return what, os.Remove(file) == nil // several may pass at once
}

// At is a named point: what CALLGATE_FAULT says happens here.
func At(name string) {
	what, ok := due(name)
	if !ok {
		return
	}
	fmt.Fprintln(os.Stderr, "fault:", name, what)
	switch what {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal may take a moment
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		// Another thread may get the signal first: nothing goes on before all have stopped.
		time.Sleep(500 * time.Millisecond)
	default:
		d, err := time.ParseDuration(what)
		if err != nil {
			panic("CALLGATE_FAULT: " + err.Error())
		}
		time.Sleep(d)
	}
}

// Half makes a named point of the middle of each write to w.
func Half(name string, w io.Writer) io.Writer { return half{name, w} }

type half struct {
	name string
	w    io.Writer
}

func (h half) Write(p []byte) (int, error) {
	n, err := h.w.Write(p[:len(p)/2])
	if err != nil {
		return n, err
	}
	if _, ok := wanted(h.name); ok {
		time.Sleep(200 * time.Millisecond) // the half is on its way
	}
	At(h.name)
	m, err := h.w.Write(p[len(p)/2:])
	return n + m, err
}
