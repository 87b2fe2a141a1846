//go:build faults

package fault

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// spec is CALLGATE_FAULT: POINT:ACTION, or POINT#N:ACTION for the N-th time only
// that the point is passed. Actions: kill (SIGKILL), stop (SIGSTOP until somebody
// sends SIGCONT), or a duration to sleep.
var (
	point, action string
	turn          int64
	passed        atomic.Int64
)

func init() {
	point, action, _ = strings.Cut(os.Getenv("CALLGATE_FAULT"), ":")
	turn = 1
	if name, n, ok := strings.Cut(point, "#"); ok {
		var err error
		if turn, err = strconv.ParseInt(n, 10, 64); err != nil {
			panic("CALLGATE_FAULT: " + err.Error())
		}
		point = name
	}
}

// At is a named point: what CALLGATE_FAULT says happens here.
func At(name string) {
	if name != point || passed.Add(1) != turn {
		return
	}
	fmt.Fprintln(os.Stderr, "fault:", name, action)
	switch action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal may take a moment
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	default:
		d, err := time.ParseDuration(action)
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
	if h.name == point {
		time.Sleep(200 * time.Millisecond) // the half is on its way
	}
	At(h.name)
	m, err := h.w.Write(p[len(p)/2:])
	return n + m, err
}
