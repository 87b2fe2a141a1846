//go:build linux

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// checkHost refuses what cannot work here and says how to go on.
func checkHost(command string) error {
	if command == "build" || command == "assets" || command == "status" {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s needs root: a node mounts, makes network namespaces and writes firewall rules. %s", command, otherCluster)
	}
	return nil
}

// capSysResource is CAP_SYS_RESOURCE's bit in the sets of /proc/PID/status.
const capSysResource = 24

// mayLowerOOMScore tells from the text of /proc/self/status.
func mayLowerOOMScore(status string) bool {
	for _, line := range strings.Split(status, "\n") {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && set&(1<<capSysResource) != 0
		}
	}
	return false
}
