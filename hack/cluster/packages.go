package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A debPackage is a Debian package and how to see that what it brings is there,
// whoever brought it.
type debPackage struct {
	name string
	// program is looked up in PATH and the sbin folders.
	program string
	// pkgConfig is asked from pkg-config.
	pkgConfig string
	// file is looked for.
	file string
}

// buildPackages are needed to compile runc.
var buildPackages = []debPackage{
	{name: "gcc", program: "gcc"},
	{name: "libc6-dev", file: "/usr/include/stdlib.h"},
	{name: "pkg-config", program: "pkg-config"},
	{name: "libseccomp-dev", pkgConfig: "libseccomp"},
}

// runPackages are called by the components and by this program.
var runPackages = []debPackage{
	{name: "iptables", program: "iptables"}, // kube-proxy, kube-router, CNI
	{name: "ipset", program: "ipset"},       // kube-router
	{name: "iproute2", program: "ip"},       // this program, kube-router
	{name: "mount", program: "mount"},       // kubelet
	{name: "kmod", program: "modprobe"},     // this program
	{name: "procps", program: "sysctl"},     // kube-router
}

// missingPackages returns the names of the packages whose contents are not there.
func missingPackages(packages []debPackage) []string {
	var missing []string
	for _, p := range packages {
		switch {
		case p.program != "":
			if _, err := lookPath(p.program); err != nil {
				missing = append(missing, p.name)
			}
		case p.pkgConfig != "":
			if exec.Command("pkg-config", "--exists", p.pkgConfig).Run() != nil {
				missing = append(missing, p.name)
			}
		case p.file != "":
			if _, err := os.Stat(p.file); err != nil {
				missing = append(missing, p.name)
			}
		}
	}
	return missing
}

// lookPath also looks where a root shell without a login has no PATH to.
func lookPath(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s", program)
}

// installPackages installs the missing ones with apt-get and says so.
func installPackages(packages []debPackage) error {
	missing := missingPackages(packages)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing on this machine: %s (Debian's package names); there is no apt-get to install them with, so install them yourself", list)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing on this machine: %s; as root: apt-get install %s", list, list)
	}
	say("installing Debian packages: %s", list)
	install := func() ([]byte, error) {
		cmd := exec.Command("apt-get", append([]string{"install", "-y", "--no-install-recommends"}, missing...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		return cmd.CombinedOutput()
	}
	if _, err := install(); err == nil {
		return nil
	}
	// The usual cause is package lists that are absent or old.
	if output, err := exec.Command("apt-get", "update").CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get update: %w\n%s", err, tail(output, 10))
	}
	if output, err := install(); err != nil {
		return fmt.Errorf("apt-get install %s: %w\n%s", list, err, tail(output, 10))
	}
	return nil
}
