//go:build linux

package runner

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

const (
	// writableVariable holds the folders of volumes that the tool may write to,
	// separated by colons. If it is set, nothing else of any size may be writable.
	// The tool does not get it.
	writableVariable = "CALLGATE_WRITABLE"
	// maxMountInfo bounds what is read of the mounts, in bytes.
	maxMountInfo = 1 << 20
)

// writable is what every sandbox may write to: bounded by their size, or, for the
// small files that the kubelet makes, by RLIMIT_FSIZE.
var writable = []string{scratch, "/.callgate-state", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/dev/shm"}

// inMemory are file systems that hold nothing, or count as memory of the sandbox.
var inMemory = []string{"proc", "sysfs", "tmpfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "dev"}

// unexpectedMounts says what can be written to although the Tool has no such
// volume. An image can declare volumes of its own, which container runtimes make on
// the node's disk, writable and of any size.
func unexpectedMounts() (reason string) {
	own, asked := os.LookupEnv(writableVariable)
	if !asked {
		return ""
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return fmt.Sprintf("what can be written to is not known: %v", err)
	}
	defer f.Close()
	info, err := io.ReadAll(io.LimitReader(f, maxMountInfo))
	if err != nil || len(info) == maxMountInfo {
		return fmt.Sprintf("what can be written to is not known: %d bytes of mounts, %v", len(info), err)
	}
	return unexpectedMount(string(info), strings.Split(own, ":"))
}

// unexpectedMount reads lines of proc_pid_mountinfo(5).
func unexpectedMount(info string, own []string) (reason string) {
	seen := map[string]bool{}
	for line := range strings.Lines(info) {
		mount, source, _ := strings.Cut(line, " - ")
		fields, sourceFields := strings.Fields(mount), strings.Fields(source)
		if len(fields) < 6 || len(sourceFields) < 1 {
			return fmt.Sprintf("what can be written to is not known: a mount reads %.128q", line)
		}
		path, options, kind := fields[4], fields[5], sourceFields[0]
		again := seen[path] // what is mounted on top may be an image's, by a link
		seen[path] = true
		switch known := slices.Contains(writable, path) || slices.Contains(own, path); {
		case !slices.Contains(strings.Split(options, ","), "rw"), slices.Contains(inMemory, kind):
		case strings.HasPrefix(path, "/proc/"), strings.HasPrefix(path, "/sys/"):
		case known && !again:
		default:
			return fmt.Sprintf("%.128s can be written to, on %.32s, and the Tool has no such volume: use an image that declares no VOLUME, "+
				"or set ignore_image_defined_volumes in the container runtime of the nodes", path, kind)
		}
	}
	return ""
}
