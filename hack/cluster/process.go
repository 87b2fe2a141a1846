//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A process is what /proc tells about one.
type process struct {
	pid   int
	name  string // base name of its first argument; empty for a zombie
	state byte   // 'Z' is a zombie
	// started is counted from the start of the machine.
	started time.Duration
}

func readProcess(pid int) (process, error) {
	p := process{pid: pid}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, err
	}
	if p.state, p.started, err = parseStat(string(stat)); err != nil {
		return p, err
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return p, err
	}
	if arg, _, _ := bytes.Cut(cmdline, []byte{0}); len(arg) > 0 {
		p.name = filepath.Base(string(arg))
	}
	return p, nil
}

// ticks per second of /proc/PID/stat: USER_HZ, 100 on every Linux Go runs on.
const ticks = 100

// parseStat takes the state and the start time from the text of /proc/PID/stat.
// The second field is the name in parentheses and may hold anything.
func parseStat(stat string) (state byte, started time.Duration, err error) {
	end := strings.LastIndexByte(stat, ')')
	f := strings.Fields(stat[end+1:])
	if end < 0 || len(f) < 20 {
		return 0, 0, fmt.Errorf("unexpected /proc/PID/stat %q", stat)
	}
	t, err := strconv.ParseInt(f[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("unexpected /proc/PID/stat %q", stat)
	}
	return f[0][0], time.Duration(t) * time.Second / ticks, nil
}

// uptime is how long the machine has been running.
func uptime() (time.Duration, error) {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0, err
	}
	return time.Duration(info.Uptime) * time.Second, nil
}

// running returns the processes of the components that run, by name.
func running(cgroup string) map[string]process {
	found := map[string]process{}
	for _, pid := range cgroupPIDs(cgroup) {
		p, err := readProcess(pid)
		if err != nil || p.name == "" {
			continue
		}
		// A component's child bears its name between fork and exec.
		if old, ok := found[p.name]; !ok || p.started < old.started {
			found[p.name] = p
		}
	}
	return found
}

// start starts a component apart from this terminal: in a session and a cgroup
// of its own, with an environment that does not depend on who calls, and its
// output appended to its log. It returns a channel that closes when the process
// ends while this program still runs.
func start(l layout, c component, cgroup string) (<-chan struct{}, error) {
	log, err := os.OpenFile(l.logFile(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own copy
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only read
	cmd := exec.Command(l.program(c.name), c.args...)
	cmd.Dir = l.state
	cmd.Env = append([]string{"PATH=" + l.bin + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
		"HOME=" + l.state, "TMPDIR=" + l.path("tmp"), "LANG=C.UTF-8"}, c.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its log says why it ended
		close(ended)
	}()
	return ended, nil
}

// logTail returns the end of a component's log, for an error message.
func logTail(l layout, name string) string {
	const most = 64 << 10
	file, err := os.Open(l.logFile(name))
	if err != nil {
		return "no log: " + err.Error()
	}
	defer func() { _ = file.Close() }() // only read
	info, err := file.Stat()
	if err != nil {
		return "no log: " + err.Error()
	}
	content := make([]byte, min(info.Size(), most))
	n, err := file.ReadAt(content, info.Size()-int64(len(content)))
	if n < len(content) && err != nil {
		return "no log: " + err.Error()
	}
	return string(tail(content, 20))
}

// errComponent says which component did not do its part, with the end of its log.
func errComponent(l layout, name, what string) error {
	return errors.New(name + " " + what + "\nend of " + l.logFile(name) + ":\n" + logTail(l, name))
}
