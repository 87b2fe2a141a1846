//go:build linux

package runner

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// memoryEvents are where a container finds the events of its own memory cgroup:
// version 2, and version 1. A variable only for the tests.
var memoryEvents = []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"}

// oomKills is how many processes of this container the kernel has killed for
// memory. A tool whose child is killed may exit 0 all the same, and what it
// printed is then half of an answer (kubernetes/kubernetes#104454). 0 where that
// cannot be read, as under gVisor, which is killed as a whole.
func oomKills() int64 {
	for _, path := range memoryEvents {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		n, found := readOOMKills(io.LimitReader(f, 4096))
		_ = f.Close() // it was only read
		if found {
			return n
		}
	}
	return 0
}

func readOOMKills(r io.Reader) (int64, bool) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
