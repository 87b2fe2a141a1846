package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// reportPrefix begins the one line that a trial program reports with.
	reportPrefix = "report "
	// probePort is where the network trial listens.
	probePort = "8080"
	// dialAtMost bounds the attempts to reach one target, quiet is how long all of
	// them must fail before that counts, and one attempt takes dialOnce at most.
	dialAtMost = 25 * time.Second
	quiet      = 5 * time.Second
	dialOnce   = time.Second
	// lastFor is how long the attach trial goes on after it has printed: longer
	// than the ten seconds after which a kubelet looks at the size of logs again.
	lastFor = 15 * time.Second
)

// Probe is the program of a trial pod: callgate doctor probe NAME. It returns
// the exit code.
func Probe(args []string) int {
	if len(args) == 0 {
		args = []string{""}
	}
	var err error
	switch args[0] {
	case "look":
		err = report(os.Stdout, lookAround(runnerMount))
	case "network":
		err = probeNetwork(args[1:])
	case "attach":
		err = probeAttach(os.Stdin, os.Stdout, lastFor)
	default:
		err = fmt.Errorf("unknown trial %q", args[0])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "callgate doctor probe:", err)
		return 1
	}
	return 0
}

func report(out io.Writer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s%s\n", reportPrefix, text)
	return err
}

// lookAround says what a pod sees of itself; mount is where the runner's image is, if
// it is mounted.
func lookAround(mount string) (l look) {
	l.UIDMap = strings.Join(strings.Fields(readSome("/proc/self/uid_map")), " ")
	release, build, _ := strings.Cut(strings.TrimSpace(readSome("/proc/version")), "#")
	if words := strings.Fields(release); len(words) > 2 {
		l.Kernel = words[2] + " #" + build
	}
	if _, err := os.Stat(mount); err != nil {
		return l
	}
	if f, err := os.Create(filepath.Join(mount, "written")); err == nil {
		_ = f.Close() // nothing was written
		l.Written = true
	} else {
		l.WriteError = err.Error()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTime/2)
	defer cancel()
	err := exec.CommandContext(ctx, filepath.Join(mount, "runner")).Run() // stdin is /dev/null
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		l.RunnerExit = exit.ExitCode()
	} else if err != nil {
		l.RunnerError = err.Error()
	}
	return l
}

// readSome reads the beginning of a file of the kernel's.
func readSome(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return ""
	}
	return string(content)
}

// probeNetwork listens, tries to reach the targets (NAME=ADDRESS), reports, and
// goes on listening.
func probeNetwork(targets []string) error {
	began := sinceStart()
	start := time.Now().Add(-began)
	out := dialing{BeginMS: began.Milliseconds(), Targets: make([]dialed, len(targets))}
	var wg sync.WaitGroup
	for i, target := range targets {
		wg.Go(func() {
			name, address, _ := strings.Cut(target, "=")
			out.Targets[i] = dialAgain(name, address, start)
		})
	}
	// After the first attempts, which must not be late.
	listener, err := net.Listen("tcp", ":"+probePort)
	if err != nil {
		return err
	}
	listened := make(chan error, 1)
	go func() { listened <- accept(listener) }()
	wg.Wait()
	if err := report(os.Stdout, out); err != nil {
		return err
	}
	return <-listened
}

func accept(listener net.Listener) error {
	for {
		c, err := listener.Accept()
		if err != nil {
			return err
		}
		_ = c.Close() // that it was there is all
	}
}

// dialAgain tries until nothing went through for the quiet time, or until its
// time is over.
func dialAgain(name, address string, start time.Time) dialed {
	d := dialed{Name: name}
	began := time.Now()
	passed := began // when something last went through
	for time.Since(began) < dialAtMost {
		d.Attempts++
		c, err := net.DialTimeout("tcp", address, dialOnce)
		now := time.Now()
		if err != nil {
			d.LastError = err.Error()
			if d.Quiet = now.Sub(passed) >= quiet; d.Quiet {
				return d
			}
			time.Sleep(10 * time.Millisecond) // a refusal comes at once
			continue
		}
		_ = c.Close() // that it was there is all
		passed = now
		d.Successes++
		d.LastMS = now.Sub(start).Milliseconds()
		time.Sleep(time.Millisecond)
	}
	return d
}

// sinceStart is how long this process runs, to the ten milliseconds that the
// kernel tells; zero if it does not.
func sinceStart() time.Duration {
	// The fields after the name, which may have spaces in it, and ends with the last bracket.
	stat := readSome("/proc/self/stat")
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	uptime := strings.Fields(readSome("/proc/uptime"))
	if len(fields) < 20 || len(uptime) == 0 {
		return 0
	}
	ticks, err := strconv.ParseFloat(fields[19], 64) // field 22, in hundredths of a second
	now, err2 := strconv.ParseFloat(uptime[0], 64)
	if err != nil || err2 != nil {
		return 0
	}
	return max(0, time.Duration((now-ticks/100)*float64(time.Second)))
}

// probeAttach waits for a line, answers it, waits for the end of its input, then
// prints as much as a sandbox may and stays for a while.
func probeAttach(in io.Reader, out io.Writer, stay time.Duration) error {
	stdin := bufio.NewReader(io.LimitReader(in, 64<<10))
	line, err := stdin.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the input ended before a line came: %w", err)
	}
	if _, err := fmt.Fprint(out, answerPrefix, line); err != nil {
		return err
	}
	// An error is an end like any other.
	_, _ = io.Copy(io.Discard, stdin)
	w := bufio.NewWriter(out)
	_, _ = fmt.Fprintln(w, eofLine) // what fails, fails again in Flush
	for n := range printed / lineBytes {
		_, _ = fmt.Fprintln(w, numberedLine(n))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	time.Sleep(stay)
	_, err = fmt.Fprintln(out, endLine)
	return err
}
