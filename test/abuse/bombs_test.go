package abuse

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// Limits of every sandbox.
const (
	maxProcesses = 256
	maxOpenFiles = 1024
	ownBound     = 4000          // of the program's own, of processes and threads
	maxMemoryMiB = 128 + 64 + 32 // the Tool's, /tmp and the runner's
	scratchBytes = 64 << 20
	shmBytes     = 64 << 20
	// maxTerminationLog bounds a file on the node's disk that no quota counts.
	maxTerminationLog = 66 << 20
)

// A bomb takes what its sandbox may take, and no more; calls of others go on.
func TestBombs(t *testing.T) {
	t.Parallel()
	for name, bound := range map[string]struct {
		of    string // the number in its report
		limit func(*row) int64
	}{
		"fork-bomb":          {"processes", (*row).mostProcesses},
		"thread-bomb":        {"threads", (*row).mostProcesses},
		"memory-bomb":        {"mebibytes", func(*row) int64 { return maxMemoryMiB }},
		"kernel-memory-bomb": {"mebibytes", func(*row) int64 { return maxMemoryMiB }},
	} {
		attacked(t, name, func(ctx context.Context, r *row) {
			rep, ok := r.bombReport(r.beside(ctx, closed, arguments{Attack: name, Seconds: 8}))
			if !ok {
				return
			}
			r.atMost(rep, bound.of, bound.limit(r))
			r.refused(rep)
		})
	}
	attacked(t, "disk-bomb", func(ctx context.Context, r *row) {
		rep := r.read(r.beside(ctx, closed, arguments{Attack: "disk-bomb", Seconds: 8}))
		r.atMost(rep, "bytes", scratchBytes)
		r.refused(rep)
	})
	attacked(t, "shm-bomb", func(ctx context.Context, r *row) {
		rep, ok := r.bombReport(r.beside(ctx, closed, arguments{Attack: "shm-bomb", Seconds: 8}))
		if !ok {
			return
		}
		if _, there := rep.Numbers["bytes"]; there {
			r.atMost(rep, "bytes", shmBytes)
		}
		r.refused(rep)
	})
	attacked(t, "inode-bomb", func(ctx context.Context, r *row) {
		// Bounded by the memory that they take, or by the time of the call.
		rep, ok := r.bombReport(r.beside(ctx, closed, arguments{Attack: "inode-bomb", Seconds: 4}))
		if !ok {
			return
		}
		r.atMost(rep, "inodes", 2_000_000)
		r.refused(rep)
	})
	attacked(t, "descriptor-bomb", func(ctx context.Context, r *row) {
		rep, ok := r.bombReport(r.beside(ctx, closed, arguments{Attack: "descriptor-bomb", Seconds: 8}))
		if !ok {
			r.breach("as many descriptors as fit into memory")
			return
		}
		r.atMost(rep, "descriptors", maxOpenFiles)
		r.refused(rep)
	})
	attacked(t, "termination-log", func(ctx context.Context, r *row) {
		rep := r.read(r.beside(ctx, closed, arguments{Attack: "termination-log", Seconds: 8}))
		if n, there := rep.Numbers["bytes"]; there {
			r.gotf("%d bytes", n)
			if n > maxTerminationLog {
				r.breach("%d bytes on the node's disk, allowed are %d", n, maxTerminationLog)
			}
		}
		r.refused(rep)
	})
	attacked(t, "stdout-flood", func(ctx context.Context, r *row) {
		r.flooded(r.beside(ctx, closed, arguments{Attack: "stdout-flood", Seconds: 8}))
	})
	attacked(t, "endless-line", func(ctx context.Context, r *row) {
		r.flooded(r.beside(ctx, closed, arguments{Attack: "endless-line", Seconds: 8}))
	})
	attacked(t, "stderr-flood", func(ctx context.Context, r *row) {
		rep := r.read(r.beside(ctx, closed, arguments{Attack: "stderr-flood", Seconds: 8}))
		r.refused(rep)
		r.gotf("%d bytes on stderr, none kept but the end", r.number(rep, "bytes"))
		if r.number(rep, "bytes") < 10<<20 {
			r.untried("it was no flood")
		}
	})
	attacked(t, "cpu-burn", func(ctx context.Context, r *row) {
		rep := r.read(r.beside(ctx, closed, arguments{Attack: "cpu-burn", Seconds: 8}))
		cpu, wall := r.number(rep, "cpuMillis"), r.number(rep, "wallMillis")
		r.gotf("%d ms of CPU in %d ms, by the kernel that it sees", cpu, wall)
		if r.runtime == RuncRuntime && cpu*100 > wall*65 { // its limit is half a CPU
			r.breach("%d ms of CPU in %d ms", cpu, wall)
		}
		r.refused(rep)
	})
	attacked(t, "zombies", func(ctx context.Context, r *row) {
		rep := r.read(r.beside(ctx, closed, arguments{Attack: "zombies", Seconds: 5}))
		if n := r.number(rep, "orphans"); n < 200 { // a fork takes long under gVisor
			r.untried("only %d orphans", n)
		}
		r.gotf("%d orphans", rep.Numbers["orphans"])
		r.atMost(rep, "left", 100)
		r.refused(rep)
	})
	attacked(t, "huge-file", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, closed), cluster.JSONOf(r.t, arguments{Attack: "huge-file"}))
		if rep, ok := r.bombReport(call); ok {
			r.refused(rep)
		}
	})
	attacked(t, "archive-bomb", func(ctx context.Context, r *row) {
		data, err := archive()
		if err != nil {
			r.t.Fatal(err)
		}
		rep := r.inside(ctx, closed, arguments{Attack: "archive-bomb", Data: data})
		r.atMost(rep, "unpacked", scratchBytes)
		r.refused(rep)
	})
	attacked(t, "fifty-calls", func(ctx context.Context, r *row) {
		other, err := neighbour()
		if err != nil {
			r.t.Fatal(err)
		}
		begin := time.Now()
		var calls []*v1alpha1.ToolCall
		for range 50 {
			calls = append(calls, cluster.Propose(ctx, r.t, other, `{}`))
		}
		for _, call := range calls {
			if got := cluster.Succeeded(r.t, cluster.Finish(ctx, r.t, call)); got != "{}" {
				r.breach("a call ended with %s", got)
			}
		}
		r.gotf("all end ok, in %.0f s", time.Since(begin).Seconds())
	})
}

// mostProcesses is how many a sandbox may have. gVisor has no such limit: its
// processes and threads are its own, and the memory that they take is the bound.
// It must end the bomb before the bomb's own bound does.
func (r *row) mostProcesses() int64 {
	if r.runtime == GVisorRuntime {
		return ownBound - 1
	}
	return maxProcesses
}

// bombReport is the report of a bomb that may have hit itself: then the call must
// say so, and there is none.
func (r *row) bombReport(bomb *v1alpha1.ToolCall) (report, bool) {
	r.t.Helper()
	result := bomb.Status.Result
	if *result.OK {
		return r.read(bomb), true
	}
	switch {
	case result.ErrorCode == v1alpha1.ErrorToolFailed && strings.Contains(result.Message, "memory"):
		r.gotf("the sandbox ran out of its own memory: tool_failed")
	default:
		r.untried("the call ended %s: %s", result.ErrorCode, result.Message)
	}
	return report{}, false
}

// flooded judges a call that prints too much: what is over the bound was dropped.
func (r *row) flooded(call *v1alpha1.ToolCall) {
	r.t.Helper()
	result := call.Status.Result
	if *result.OK || result.ErrorCode != v1alpha1.ErrorOutputTooLarge {
		r.breach("the call ended %q: %s", result.ErrorCode, result.Message)
		return
	}
	r.gotf("%s: %s", result.ErrorCode, result.Message)
}

// archive is 4 GiB of zeros, packed twice.
var archive = sync.OnceValues(func() (string, error) {
	var member bytes.Buffer
	if err := pack(&member, make([]byte, 64<<20)); err != nil {
		return "", err
	}
	var outer bytes.Buffer
	if err := pack(&outer, bytes.Repeat(member.Bytes(), 64)); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(outer.Bytes()), nil
})

func pack(w io.Writer, p []byte) error {
	z := gzip.NewWriter(w)
	if _, err := z.Write(p); err != nil {
		return err
	}
	return z.Close()
}
