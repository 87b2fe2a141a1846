//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// endLimit is how long a killed process may take to be gone.
const endLimit = 10 * time.Second

// restart kills one component of the running cluster, as a crash would, and
// starts it again as up does. What the component left is what it finds.
func restart(l layout, name string) error {
	machine, err := readRecord(runDir)
	if err != nil {
		return err
	}
	if machine == nil || machine.State != l.state {
		return fmt.Errorf("no cluster of %s runs on this machine: start it with up", l.state)
	}
	var names []string
	for _, c := range components(l) {
		if names = append(names, c.name); c.name == name {
			if err := kill(name); err != nil {
				return err
			}
			return up(l)
		}
	}
	return fmt.Errorf("there is no component %q, they are %s", name, strings.Join(names, ", "))
}

func kill(name string) error {
	all, err := mountedHierarchies()
	if err != nil {
		return err
	}
	cgroup, err := componentsCgroup(all)
	if err != nil {
		return err
	}
	p, ok := running(cgroup)[name]
	if !ok {
		return nil // up starts it
	}
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	for end := time.Now().Add(endLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		now, err := readProcess(p.pid)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && (now.state == 'Z' || now.started != p.started) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("%s (pid %d) was killed and is not gone after %s", name, p.pid, endLimit)
}
