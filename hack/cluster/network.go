//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// command runs a host program and returns its output, or an error that holds it.
func command(name string, args ...string) (string, error) {
	return commandInput("", name, args...)
}

func commandInput(input, name string, args ...string) (string, error) {
	path, err := lookPath(name)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = strings.NewReader(input)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}

// makeBridge makes the pods' bridge with the node's address. The CNI plugin
// finds it made; the API server needs the address before the first pod starts.
func makeBridge() error {
	if _, err := net.InterfaceByName(bridge); err == nil {
		return nil
	}
	if err := checkSubnets(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"link", "add", bridge, "type", "bridge"},
		{"addr", "add", nodeCIDR, "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		if _, err := command("ip", args...); err != nil {
			return err
		}
	}
	return nil
}

// checkSubnets refuses when the host uses an address the cluster would take over.
func checkSubnets() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			continue // the interface has just gone
		}
		for _, a := range addresses {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			for _, cidr := range []string{podCIDR, serviceCIDR} {
				_, ours, err := net.ParseCIDR(cidr)
				if err != nil {
					return err
				}
				if ours.Contains(n.IP) || n.Contains(ours.IP) {
					return fmt.Errorf("interface %s has the address %s, within %s, which the cluster needs for itself", i.Name, n, cidr)
				}
			}
		}
	}
	return nil
}

// removeBridge removes the bridge and the host's ends of the pods' links in it.
func removeBridge() error {
	if _, err := net.InterfaceByName(bridge); err != nil {
		return nil
	}
	out, err := command("ip", "-j", "link", "show", "master", bridge)
	if err != nil {
		return err
	}
	var links []struct {
		Name string `json:"ifname"`
	}
	if strings.TrimSpace(out) != "" {
		if err := json.Unmarshal([]byte(out), &links); err != nil {
			return fmt.Errorf("ip -j link: %w", err)
		}
	}
	for _, link := range append(links, struct {
		Name string `json:"ifname"`
	}{bridge}) {
		if _, err := command("ip", "link", "del", link.Name); err != nil {
			// The kernel removes a pod's link by itself when its namespace goes.
			if _, gone := net.InterfaceByName(link.Name); gone == nil {
				return err
			}
		}
	}
	return nil
}

// portPatience is how long a port may take to become free: a component that was
// just killed gives its ports back a moment after it is gone from /proc.
const portPatience = 3 * time.Second

// checkPorts refuses when a port a component needs is in use, on whatever
// address: the component's own may not exist yet.
func checkPorts(c component) error {
	for _, port := range c.ports {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		for end := time.Now().Add(portPatience); err != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		}
		if err != nil {
			return fmt.Errorf("%s needs port %d, which something else uses (%w): stop that first; ss -ltnp 'sport = :%d' names it", c.name, port, err, port)
		}
		if err := listener.Close(); err != nil {
			return err
		}
	}
	return nil
}

// sysctls are the kernel settings that components change, as far as they reach
// outside the pods. What they need themselves is set by them, except for the
// first two, without which they refuse to work.
var sysctls = []string{
	"net/bridge/bridge-nf-call-iptables",
	"net/ipv4/ip_forward",
	"vm/overcommit_memory",
	"kernel/panic",
	"kernel/panic_on_oops",
}

// prepareKernel loads modules and sets what the components only check.
func prepareKernel() error {
	for _, module := range []string{"overlay", "br_netfilter"} {
		// Built in or loaded already is fine, so the outcome is checked instead.
		_, _ = command("modprobe", module)
	}
	for _, name := range sysctls[:2] {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte("1"), 0o644); err != nil {
			return fmt.Errorf("kernel setting: %w (for bridge-nf-call-iptables the module br_netfilter is needed)", err)
		}
	}
	return nil
}

// readSysctls returns the present values of the settings there are.
func readSysctls() map[string]string {
	values := map[string]string{}
	for _, name := range sysctls {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			values[name] = strings.TrimSpace(string(value))
		}
	}
	return values
}

// restoreSysctls puts back what was changed. Forwarding stays on when the host
// has come to filter what it forwards, as Docker does: then somebody needs it.
func restoreSysctls(values map[string]string) error {
	var errs []error
	now := readSysctls()
	for _, name := range sysctls {
		old, ok := values[name]
		if !ok || now[name] == "" || now[name] == old {
			continue
		}
		if name == "net/ipv4/ip_forward" {
			if rules, err := command("iptables-save", "-t", "filter"); err != nil || strings.Contains(rules, "\n-A FORWARD ") {
				continue
			}
		}
		errs = append(errs, os.WriteFile(filepath.Join("/proc/sys", name), []byte(old), 0o644))
	}
	return errors.Join(errs...)
}

// removeRules removes our chains and rules for IPv4 and IPv6 and our ipsets.
func removeRules() error {
	var errs []error
	families := []string{"iptables"}
	if exists("/proc/net/if_inet6") { // else this kernel has no IPv6
		families = append(families, "ip6tables")
	}
	for _, family := range families {
		if _, err := lookPath(family); err != nil {
			continue // what is not installed has left no rules
		}
		saved, err := command(family + "-save")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if script := removal(saved); script != "" {
			if _, err := commandInput(script, family+"-restore", "--noflush", "--wait", "10"); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if _, err := lookPath("ipset"); err != nil {
		return errors.Join(errs...)
	}
	names, err := command("ipset", "list", "-name")
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, name := range strings.Fields(names) {
		if !ourIPSet(name) {
			continue
		}
		// The kernel lets go of a set a moment after the last rule that uses it.
		for end := time.Now().Add(3 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if _, err = command("ipset", "destroy", name); err == nil || time.Now().After(end) {
				break
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
