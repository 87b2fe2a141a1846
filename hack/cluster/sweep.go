//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sweep removes everything a cluster left on this machine outside its state
// folder: processes, mounts, links, firewall rules, cgroups, files. r is its
// record, or nil when that is lost. It goes on after an error, so that a second
// sweep has less to do, and returns all of them.
func sweep(r *record) error {
	if r == nil {
		r = &record{}
	}
	all, err := mountedHierarchies()
	if err != nil {
		return err
	}
	// First the processes: they would make things again.
	if err := killAll(all); err != nil {
		return err
	}
	return errors.Join(
		unmountBelow(roots(r.State)),
		removeBridge(),
		removeRules(),
		removeCgroups(all),
		removeFiles(r),
		restoreSysctls(r.Sysctl),
	)
}

// roots are the folders all our mounts are below.
func roots(state string) []string {
	all := []string{runDir, farKubeletRoot}
	if state != "" {
		all = append(all, state)
	}
	return all
}

// unmountBelow unmounts everything mounted on or below the folders, the last
// mounted first. A mount that is busy for somebody else is detached.
func unmountBelow(folders []string) error {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var errs []error
	for _, point := range mountsBelow(string(info), folders) {
		if unix.Unmount(point, unix.UMOUNT_NOFOLLOW) == nil {
			continue
		}
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow returns the mount points on or below the folders from the text of
// /proc/self/mountinfo, the last mounted first.
func mountsBelow(info string, folders []string) []string {
	var points []string
	for _, line := range strings.Split(info, "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		point := unescapeMount(f[4])
		for _, folder := range folders {
			if point == folder || strings.HasPrefix(point, folder+"/") {
				points = append(points, point)
				break
			}
		}
	}
	slices.Reverse(points)
	return points
}

// unescapeMount undoes the kernel's escapes in mount tables.
func unescapeMount(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// removeFiles removes what lies outside the state folder. The record in runDir
// goes last: as long as it is there, another run knows what to look for.
func removeFiles(r *record) error {
	var errs []error
	for _, path := range r.Made {
		if !slices.Contains(outsidePaths, path) {
			continue // a record is a file, and files can be wrong
		}
		// The host's own containerd may have come to live here since.
		if path == "/run/containerd" {
			removeEmpty(path)
			continue
		}
		errs = append(errs, os.RemoveAll(path))
	}
	// Where the folders were there before: our own files in them.
	errs = append(errs, removeMatches("/var/lib/cni/results/"+cniNetwork+"-*"))
	if r.State != "" {
		errs = append(errs, removeLogLinks("/var/log/containers", r.State))
	}
	return errors.Join(append(errs, os.RemoveAll(runDir))...)
}

func removeEmpty(dir string) { _ = os.Remove(dir) } // fails, as it should, unless empty

func removeMatches(pattern string) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

// removeLogLinks removes the links in dir that lead into the state folder.
func removeLogLinks(dir, state string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, state+"/") {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// live tells whether any process of a cluster of ours runs on this machine.
func live() (bool, error) {
	all, err := mountedHierarchies()
	if err != nil {
		return false, err
	}
	return len(alive(ourPIDs(all))) > 0, nil
}

// removeState removes a state folder that this program made.
func removeState(state string) error {
	err := os.RemoveAll(state)
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) && errors.Is(pathErr.Err, syscall.EBUSY) {
		return fmt.Errorf("%w: something is still mounted there", err)
	}
	return err
}
