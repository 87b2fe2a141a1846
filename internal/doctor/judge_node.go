package doctor

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"callgate.dev/callgate/internal/wire"
)

// look is what a trial pod saw of itself.
type look struct {
	// Node it ran on.
	Node string `json:"-"`
	// Failure says why there is nothing to see: the pod did not start or did not
	// answer. The rest is then empty.
	Failure string `json:"-"`
	// UIDMap is /proc/self/uid_map, its fields separated by single spaces.
	UIDMap string `json:"uidMap"`
	// Kernel is what uname and /proc/version say.
	Kernel string `json:"kernel"`
	// Written says whether a file could be made in the image volume.
	Written bool `json:"written"`
	// WriteError is why not.
	WriteError string `json:"writeError"`
	// RunnerExit is the exit code of the runner that was started from the image
	// volume without a call; RunnerError says why it could not be.
	RunnerExit  int    `json:"runnerExit"`
	RunnerError string `json:"runnerError"`
}

// identity is the uid_map of a process that is in no user namespace of its own.
const identity = "0 0 4294967295"

func judgeUserNamespace(l look) Row {
	r := Row{Check: "user namespaces", Result: OK, Seen: fmt.Sprintf("uid_map of a pod with hostUsers: false on node %s: %s", l.Node, l.UIDMap)}
	switch {
	case l.Failure != "":
		r.Result, r.Seen = Failed, l.Failure
		r.Do = "Sandboxes without a RuntimeClass set hostUsers: false. It needs Linux 6.3 or newer, containerd 2 or CRI-O 1.25 or newer, and runc 1.2 or crun 1.9 or newer"
	case l.UIDMap == "" || l.UIDMap == identity:
		r.Result = Failed
		r.Do = "The node ran the pod without a user namespace: look for what changes hostUsers of pods, and at the kubelet's and runtime's versions"
	}
	return r
}

func judgeImageVolume(l look) Row {
	r := Row{Check: "image volumes", Result: OK, Seen: "the runner's image is mounted read-only, and the runner starts from it"}
	const need = "Nodes need containerd 2.1 or CRI-O 1.31 or newer, and must be able to pull the runner's image in the namespaces of Tools"
	switch {
	case l.Failure != "":
		r.Result, r.Seen, r.Do = Failed, l.Failure, need
	case l.Written:
		r.Result, r.Seen, r.Do = Failed, "a file could be made in the image volume: it is not read-only", need
	case l.RunnerError != "":
		r.Result, r.Seen, r.Do = Failed, "the runner in the image volume cannot be started: "+l.RunnerError, "Is --runner-image the runner's image, for the nodes' architecture? "+need
	case l.RunnerExit != wire.ExitNoCall:
		r.Result = Failed
		r.Seen = fmt.Sprintf("the runner without a call ended with exit code %d, not %d", l.RunnerExit, wire.ExitNoCall)
		r.Do = "Is --runner-image the runner's image, of the controller's version?"
	}
	return r
}

// runtimeClass is what was seen of one RuntimeClass.
type runtimeClass struct {
	Name, Handler string
	// UserNamespaces is what the nodes report of the handler: "yes", "no", "on
	// some nodes" or "unknown".
	UserNamespaces string
	// HostKernel is what a pod without a RuntimeClass saw as its kernel.
	HostKernel string
	look
}

// ownKernel are handlers whose point is a kernel of the pod's own.
var ownKernel = regexp.MustCompile(`(?i)runsc|gvisor|kata|firecracker|qemu|cloud-hypervisor|\bfc\b|\bclh\b`)

func judgeRuntimeClass(c runtimeClass) Row {
	r := Row{Check: "RuntimeClass " + c.Name, Result: OK}
	about := fmt.Sprintf("handler %s; user namespaces: %s", c.Handler, c.UserNamespaces)
	if c.Failure != "" {
		r.Result, r.Seen = Failed, fmt.Sprintf("%s (%s)", c.Failure, about)
		r.Do = "A Tool with this class cannot run: install the handler on the nodes that the class selects, or delete the class"
		return r
	}
	if volume := judgeImageVolume(c.look); volume.Result != OK {
		r.Result, r.Seen, r.Do = Failed, fmt.Sprintf("%s (%s)", volume.Seen, about), volume.Do
		return r
	}
	promises := ownKernel.MatchString(c.Handler) || ownKernel.MatchString(c.Name)
	switch {
	case c.Kernel == "" || c.HostKernel == "":
		r.Result, r.Seen, r.Do = Failed, fmt.Sprintf("its kernel and the host's could not be compared (%s)", about), "See the other rows, then try again"
	case c.Kernel != c.HostKernel:
		r.Seen = fmt.Sprintf("a kernel of its own: %s, the host's is %s; %s", c.Kernel, c.HostKernel, about)
	case promises:
		r.Result, r.Seen = Failed, fmt.Sprintf("it sees the host's kernel, %s; %s", c.HostKernel, about)
		r.Do = "The name promises a kernel of its own: look at what the runtime's configuration has behind this handler"
	default:
		r.Seen = fmt.Sprintf("it shares the host's kernel, %s, as the default does; %s", c.HostKernel, about)
	}
	return r
}

// attached is what was seen of attaching to trial programs.
type attached struct {
	// Class is the RuntimeClass; empty for none.
	Class string
	// Failure says why nothing could be tried.
	Failure string
	// Answer is how long the waiting program took to answer, from the attach on.
	Answer time.Duration
	// NoCallExit is the exit code of a runner whose stdin was closed without a
	// call; NoCallFailure says why there is none.
	NoCallExit    int32
	NoCallFailure string
	// Log of the program that was left after its answer.
	Log trialLog
}

// trialLog is what the log of the answering program holds.
type trialLog struct {
	// Failure says why it could not be read.
	Failure string
	// Answer, EOF and End: the program answered, saw the end of its input, ran to its end.
	Answer, EOF, End bool
	// Bytes of the numbered lines between EOF and End that came whole and in order.
	Bytes int
	// LastedSeconds is how long the program ran after it had printed them, so that
	// the kubelet looked at the size of the log.
	LastedSeconds int
	// MaxSize is the kubelet's containerLogMaxSize in bytes; 0 if it may not be read.
	MaxSize int64
}

func judgeAttach(a attached) Row {
	r := Row{Check: "attach and detach" + under(a.Class), Result: OK}
	var bad []string
	switch {
	case a.Failure != "":
		bad = append(bad, a.Failure)
	case a.Log.Failure != "":
		bad = append(bad, "the log of the trial program: "+a.Log.Failure)
	case !a.Log.Answer:
		bad = append(bad, "the answer of the program is not in its log")
	case !a.Log.EOF:
		bad = append(bad, "a program whose attach was cut did not see the end of its input")
	case a.Log.Bytes == 0:
		bad = append(bad, "what a program printed after its attach was cut is not in its log")
	}
	if a.NoCallFailure != "" {
		bad = append(bad, "a runner whose input was closed without a call: "+a.NoCallFailure)
	} else if a.NoCallExit != wire.ExitNoCall {
		bad = append(bad, fmt.Sprintf("a runner whose input was closed without a call ended with exit code %d, not %d", a.NoCallExit, wire.ExitNoCall))
	}
	if len(bad) > 0 {
		r.Result, r.Seen = Failed, strings.Join(bad, "; ")
		r.Do = "A call could not reach its tool, or its result would be lost after a restart of the controller: look at the node's container runtime"
		return r
	}
	r.Seen = fmt.Sprintf("answered after %d ms; cut in the middle, the program saw the end of its input, went on, and its log has the rest; "+
		"without a call the runner left with %d", a.Answer.Milliseconds(), wire.ExitNoCall)
	return r
}

// roomyLog is enough for all that a sandbox prints and what the runtime writes
// around each line of it.
const roomyLog = 2 * wire.MaxOutputBytes

func judgeLog(a attached) Row {
	r := Row{Check: "size of logs" + under(a.Class), Result: OK}
	limit := "containerLogMaxSize of the kubelet is unknown (that needs `get` on nodes/proxy)"
	if a.Log.MaxSize > 0 {
		limit = fmt.Sprintf("containerLogMaxSize of the kubelet is %d bytes", a.Log.MaxSize)
	}
	const do = "Set the kubelet's containerLogMaxSize to 10Mi, its default: a sandbox prints up to 1 MiB, and a restarted controller reads the result from the log"
	switch {
	case a.Failure != "" || a.Log.Failure != "":
		r.Result, r.Seen, r.Do = Failed, or(a.Failure, a.Log.Failure), "See the row above"
	case a.Log.MaxSize > 0 && a.Log.MaxSize <= wire.MaxOutputBytes:
		r.Result, r.Seen, r.Do = Failed, fmt.Sprintf("%s; a sandbox prints up to %d", limit, wire.MaxOutputBytes), do
	case !a.Log.End || a.Log.Bytes < wire.MaxOutputBytes:
		r.Result, r.Seen, r.Do = Failed, fmt.Sprintf("of %d bytes that a program printed the log has %d; %s", wire.MaxOutputBytes, a.Log.Bytes, limit), do
	case a.Log.MaxSize > 0 && a.Log.MaxSize < roomyLog:
		r.Result, r.Seen, r.Do = Warning, fmt.Sprintf("%s, little more than the %d that a sandbox prints", limit, wire.MaxOutputBytes), do
	default:
		r.Seen = fmt.Sprintf("all %d bytes are in the log, %d s after they were printed; %s", a.Log.Bytes, a.Log.LastedSeconds, limit)
	}
	return r
}

func under(class string) string {
	if class == "" {
		return ""
	}
	return ", RuntimeClass " + class
}
