//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Everything of ours runs below the cgroup cgroupName: the components in
// cgroupName/components of the unified hierarchy, into which they are born, and
// the pods in cgroupName/kubepods of every hierarchy, where the kubelet puts
// them. So whatever was killed, what is left is found without guessing by name.

// A hierarchy is one mounted cgroup hierarchy.
type hierarchy struct {
	path    string
	unified bool
}

// hierarchies reads the mounted ones from the text of /proc/self/mounts.
func hierarchies(mounts string) []hierarchy {
	var found []hierarchy
	for _, line := range strings.Split(mounts, "\n") {
		f := strings.Fields(line)
		if len(f) >= 3 && (f[2] == "cgroup" || f[2] == "cgroup2") && strings.HasPrefix(f[1], "/sys/fs/cgroup") {
			found = append(found, hierarchy{path: f[1], unified: f[2] == "cgroup2"})
		}
	}
	return found
}

func mountedHierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	return hierarchies(string(mounts)), nil
}

// componentsCgroup returns the folder of the cgroup the components are started in.
func componentsCgroup(all []hierarchy) (string, error) {
	for _, h := range all {
		if h.unified {
			return filepath.Join(h.path, cgroupName, "components"), nil
		}
	}
	return "", errors.New("no cgroup2 file system is mounted below /sys/fs/cgroup; this cluster needs it to keep track of its processes (cgroup v1 besides it is fine)")
}

// makeCgroups makes cgroupName in every hierarchy, ready for the kubelet.
func makeCgroups(all []hierarchy) error {
	for _, h := range all {
		dir := filepath.Join(h.path, cgroupName)
		if h.unified {
			delegate(h.path)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		if h.unified {
			delegate(dir)
			if err := os.MkdirAll(filepath.Join(dir, "components"), 0o755); err != nil {
				return fmt.Errorf("cgroup: %w", err)
			}
			continue
		}
		// A v1 cpuset takes no process before it has CPUs and memory nodes.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(h.path, file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
			}
			if err != nil {
				return fmt.Errorf("cgroup: %w", err)
			}
		}
	}
	return nil
}

// delegate enables all controllers for the children of a v2 cgroup, one by one
// because one that cannot be enabled refuses the whole line. The kubelet says
// which one it misses.
func delegate(dir string) {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// ourPIDs returns every process in a cgroup of ours, in any hierarchy.
func ourPIDs(all []hierarchy) []int {
	seen := map[int]bool{}
	var pids []int
	for _, h := range all {
		// Cgroups vanish while this walks; what is gone has no processes.
		_ = filepath.WalkDir(filepath.Join(h.path, cgroupName), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil
			}
			for _, pid := range cgroupPIDs(path) {
				if !seen[pid] {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	return pids
}

// cgroupPIDs returns the processes in one cgroup, none when it is gone.
func cgroupPIDs(dir string) []int {
	file, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }() // only read
	var pids []int
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killAll ends every process of ours and waits until none is left. It kills
// again and again because a process may fork while the list is read.
func killAll(all []hierarchy) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		pids := alive(ourPIDs(all))
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v do not end on SIGKILL within 20 s", pids)
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone already is as good
		}
	}
}

// alive leaves out zombies: they wait for a parent that is not ours.
func alive(pids []int) []int {
	var living []int
	for _, pid := range pids {
		if p, err := readProcess(pid); err == nil && p.state != 'Z' {
			living = append(living, pid)
		}
	}
	return living
}

// removeCgroups removes cgroupName from every hierarchy, children first.
func removeCgroups(all []hierarchy) error {
	var errs []error
	for _, h := range all {
		root := filepath.Join(h.path, cgroupName)
		var err error
		// The kernel needs a moment after the last process of a cgroup ended.
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			var dirs []string
			_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			err = nil
			for i := len(dirs) - 1; i >= 0; i-- {
				if e := syscall.Rmdir(dirs[i]); e != nil && e != syscall.ENOENT {
					err = fmt.Errorf("remove cgroup %s: %w", dirs[i], e)
				}
			}
			if err == nil {
				break
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
