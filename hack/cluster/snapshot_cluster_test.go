//go:build cluster && linux

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// snapshot lists, one line each, everything of this machine a cluster could
// leave something in.
func snapshot(t *testing.T) []string {
	t.Helper()
	var lines []string
	add := func(kind string, values ...string) {
		for _, value := range values {
			lines = append(lines, kind+" "+value)
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		add("link", i.Name)
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(info)), "\n") {
		// Other programs of this machine may mount things in folders for temporary files.
		if point := strings.Fields(line)[4]; !strings.HasPrefix(point, os.TempDir()) || strings.Contains(point, "TestCluster") {
			add("mount", point)
		}
	}
	for _, family := range []string{"iptables-save", "ip6tables-save"} {
		saved, err := command(family)
		if err != nil {
			t.Fatal(err)
		}
		add(family, ruleLines(saved)...)
	}
	sets, err := command("ipset", "list", "-name")
	if err != nil {
		t.Fatal(err)
	}
	add("ipset", strings.Fields(sets)...)
	all, err := mountedHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		for _, name := range []string{cgroupName, "kubepods", "k8s.io", "system.slice/containerd"} {
			if dir := filepath.Join(h.path, name); exists(dir) {
				add("cgroup", dir)
			}
		}
	}
	for _, pattern := range []string{"/run/*", "/run/netns/*", "/var/run/netns/*", "/var/lib/*", "/var/lib/cni/*/*", "/var/log/*", "/var/log/pods/*",
		"/var/log/containers/*", "/etc/*", "/opt/*", "/run/containerd/*/*", "/usr/libexec/*"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		add("path", paths...)
	}
	for name, value := range readSysctls() {
		add("sysctl", name+"="+value)
	}
	add("process", ourProcesses(t)...)
	slices.Sort(lines)
	return lines
}

// ruleLines leaves out counters, comments and tables without a rule: an empty
// table has no effect, and nothing but a restart takes it out of the kernel.
func ruleLines(saved string) []string {
	var lines []string
	table := ""
	for _, line := range strings.Split(saved, "\n") {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line
		case strings.HasPrefix(line, ":") && f[1] == "ACCEPT":
		case strings.HasPrefix(line, ":"):
			lines = append(lines, table+" "+f[0]+" "+f[1])
		case strings.HasPrefix(line, "-"):
			lines = append(lines, table+" "+line)
		}
	}
	return lines
}

// ourProcesses finds processes by their programs, not by the cgroups that down
// goes by. It leaves out kubectl, which people use, and the control planes that
// other tests run from the same binaries.
func ourProcesses(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil {
			continue // it has ended, or is the kernel's
		}
		content, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // as above
		cmdline := strings.ReplaceAll(string(content), "\x00", " ")
		workdir, _ := os.Readlink(filepath.Join(dir, "cwd")) // as above
		program := filepath.Base(strings.SplitN(cmdline, " ", 2)[0])
		ours := exe == "/pause" || exe == "/busybox" || strings.Contains(exe, "/callgate/cluster-") && program != "kubectl"
		if slices.Contains([]string{"etcd", "kube-apiserver", "kube-controller-manager"}, program) {
			ours = strings.Contains(workdir, "TestCluster")
		}
		if ours {
			found = append(found, fmt.Sprintf("%s %s %s", filepath.Base(dir), exe, cmdline))
		}
	}
	return found
}

// sameAs fails the test for every line two snapshots do not share.
func sameAs(t *testing.T, when string, before, after []string) {
	t.Helper()
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("%s left behind: %s", when, line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("%s removed: %s", when, line)
		}
	}
}
