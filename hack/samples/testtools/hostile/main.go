//go:build linux

// Command hostile is a tool that attacks: the sandbox it runs in, the runner
// that watches it, the node below and what is beside it. It reads one JSON
// object, {"attack": name, …}, from argv[1] or stdin, makes every attempt of
// that attack, and prints one JSON object of what each attempt got. It exits 0
// whatever it got: for the tests that ask, a refusal is an answer.
//
// Never run it outside a sandbox with limits.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// input is what a call asks for.
type input struct {
	Attack string `json:"attack"`
	// Targets are addresses: see connect.
	Targets []string `json:"targets"`
	// Seconds that a bomb holds what it has got, or that a server waits.
	Seconds int64 `json:"seconds"`
	// Mark is a word by which the tests find again what an attack left.
	Mark string `json:"mark"`
	// Data is an argument of the attack.
	Data string `json:"data"`
}

// attempt is one thing that was tried.
type attempt struct {
	What string `json:"what"`
	// Got is the error by its name, such as EPERM, or "ok".
	Got string `json:"got"`
	OK  bool   `json:"ok"`
	// Control marks an attempt that must succeed: it shows that the attack works
	// where it may.
	Control bool `json:"control,omitempty"`
}

type report struct {
	Attack   string           `json:"attack"`
	Attempts []attempt        `json:"attempts"`
	Numbers  map[string]int64 `json:"numbers"`
	Notes    []string         `json:"notes"`
}

// try records an attempt that must fail in a sandbox.
func (r *report) try(what string, err error) {
	r.Attempts = append(r.Attempts, attempt{What: what, Got: errorName(err), OK: err == nil})
}

// control records an attempt that must succeed everywhere.
func (r *report) control(what string, err error) {
	r.Attempts = append(r.Attempts, attempt{What: what, Got: errorName(err), OK: err == nil, Control: true})
}

// note records what is worth knowing and neither good nor bad.
func (r *report) note(format string, a ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, a...))
}

func errorName(err error) string {
	if err == nil {
		return "ok"
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		return "no answer from a resolver"
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		if errno == 0 {
			return "ok"
		}
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	if os.IsTimeout(err) {
		return "timeout"
	}
	return err.Error()
}

// errOf is nil for errno 0, as raw calls return it.
func errOf(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// attacks by name.
var attacks map[string]func(input, *report)

func init() {
	attacks = map[string]func(input, *report){
		"fork-bomb": forkBomb, "thread-bomb": threadBomb, "threads": threads, "memory-bomb": memoryBomb, "allocate": allocate,
		"disk-bomb": diskBomb, "inode-bomb": inodeBomb, "descriptor-bomb": descriptorBomb, "shm-bomb": shmBomb,
		"kernel-memory-bomb": kernelMemoryBomb, "fill-pipes": fillPipes, "termination-log": terminationLog,
		"stdout-flood": stdoutFlood, "stderr-flood": stderrFlood, "endless-line": endlessLine, "cpu-burn": cpuBurn,
		"zombies": zombies, "huge-file": hugeFile, "archive-bomb": archiveBomb, "deep-json": deepJSON,
		"core-dump": coreDump, "crash": crash,
		"ignore-sigterm": ignoreSIGTERM, "daemon": daemon, "held-stdout": heldStdout, "linger": linger,
		"starve-runner": starveRunner, "scheduler": scheduler,
		"setuid": setuid, "ids": ids, "mount": mounts, "namespaces": namespaces, "system-calls": systemCalls, "devices": devices,
		"proc-write": procWrite, "root-write": rootWrite, "runtime-sockets": runtimeSockets,
		"runner-memory": runnerMemory, "runner-signals": runnerSignals, "kill-runner": killRunner, "forged-frames": forgedFrames, "sleep": sleep,
		"sockets": sockets, "inherited-descriptors": inherited, "connect": connect, "serve": serve, "port-clash": portClash,
		"environment": environment, "token": token, "secret-print": secretPrint, "plant": plant, "hunt": hunt, "symlinks": symlinks,
	}
}

func main() {
	var in input
	if err := readInput(&in); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(2)
	}
	attack, ok := attacks[in.Attack]
	if !ok {
		fmt.Fprintf(os.Stderr, "hostile: no attack %q\n", in.Attack)
		os.Exit(2)
	}
	r := &report{Attack: in.Attack, Attempts: []attempt{}, Numbers: map[string]int64{}, Notes: []string{}}
	attack(in, r)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1)
	}
}

func readInput(in *input) error {
	if len(os.Args) > 1 {
		return json.Unmarshal([]byte(os.Args[1]), in)
	}
	body, err := io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
	if err != nil {
		return err
	}
	return json.Unmarshal(body, in)
}

// self is this program's own path: /proc may be hidden or another binary's.
func self() string {
	path, err := os.Executable()
	if err != nil {
		return "/bin/hostile"
	}
	return path
}

// again is the arguments with which this program does something in a child.
func again(in input) []string {
	b, err := json.Marshal(in)
	if err != nil {
		return nil // an input holds nothing that JSON cannot express
	}
	return slices.Concat([]string{self()}, []string{string(b)})
}

func hold(in input) time.Duration {
	if in.Seconds <= 0 {
		return 6 * time.Second
	}
	return time.Duration(in.Seconds) * time.Second
}

func sleep(in input, r *report) {
	time.Sleep(hold(in))
	r.control("sleep", nil)
}
