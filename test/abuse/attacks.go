// Package abuse attacks Callgate on a real cluster: hostile tools from inside
// their sandboxes, and an agent with the role edit from outside.
//
// Every attack is one row. It must have taken place, or it proves nothing, and
// it must be contained. docs/security.md has the same rows.
package abuse

// Attack is one row of the table.
type Attack struct {
	Name string
	// Tried is what the attack does, in a few words.
	Tried string
	// Runtimes under which it is made; none for an attack from outside.
	Runtimes []string
}

// RuncRuntime and GVisorRuntime are the container runtimes of the rows.
const (
	RuncRuntime   = "runc"
	GVisorRuntime = "gVisor"
)

var (
	both     = []string{RuncRuntime, GVisorRuntime}
	runcOnly = []string{RuncRuntime}
)

// Attacks are all rows, in the order of the table.
var Attacks = []Attack{
	// Bombs: calls of another Tool go on meanwhile.
	{"fork-bomb", "fork without end, in every child too", both},
	{"thread-bomb", "threads without end", both},
	{"memory-bomb", "memory without end", both},
	{"disk-bomb", "write to /tmp without end", both},
	{"shm-bomb", "write to /dev/shm without end", both},
	{"inode-bomb", "10,000,000 empty files in /tmp", both},
	{"descriptor-bomb", "open files without end, raise the limit", both},
	{"kernel-memory-bomb", "memory of the kernel: pipes without end", both},
	{"termination-log", "fill /dev/termination-log, a file on the node's disk", both},
	{"stdout-flood", "lines on stdout without end", both},
	{"endless-line", "one line on stdout without end", both},
	{"stderr-flood", "lines on stderr without end", both},
	{"cpu-burn", "compute on 16 threads", both},
	{"zombies", "10,000 orphans that end at once", both},
	{"huge-file", "a file of 1 TiB, with holes and without", both},
	{"archive-bomb", "unpack an argument of 4 GiB", both},
	{"fifty-calls", "50 calls at once", runcOnly},

	// Ends.
	{"deep-json", "an answer of arrays, 30,000 deep", both},
	{"stack-overflow", "recursion without end", both},
	{"core-dump", "crash with a core file of any size", both},
	{"ignore-sigterm", "sleep through every signal", both},
	{"daemon", "leave a process in a session of its own", both},
	{"held-stdout", "leave a process that keeps stdout open", both},

	// The runner.
	{"runner-memory", "memory, files, limits of PID 1", both},
	{"runner-signals", "every signal to PID 1, in every way, from every origin", both},
	{"kill-runner", "SIGKILL and SIGSTOP to PID 1", both},
	{"starve-runner", "renice and pin PID 1, 32 busy loops, never end", both},
	{"scheduler", "real-time priority, locked memory; renice PID 1", both},
	{"forged-frames", "perfect frames of the runner on stdout, stderr and /proc/1/fd, the controller restarted meanwhile", both},

	// The kernel and the node.
	{"setuid", "a setuid-root program, setuid(0), capabilities", both},
	{"root-image", "an image that runs as root, a Tool that asks for it", both},
	{"image-volume", "an image that declares a volume, for a folder on the node's disk", both},
	{"root-write", "write to the image, /etc and the runner", both},
	{"mount", "mount, remount, umount, chroot", both},
	{"namespaces", "new namespaces, those of PID 1", both},
	{"system-calls", "bpf, keyctl, perf, userfaultfd, io_uring, kexec, modules, clocks …", both},
	{"devices", "make and open device nodes", both},
	{"proc-write", "write to /proc and /sys, read /proc/kcore and /proc/kmsg", both},
	{"runtime-sockets", "the sockets of containerd, Docker, the kubelet …", both},

	// The network.
	{"sockets", "a socket of each family and kind", both},
	{"inherited-descriptors", "descriptors that somebody left open", both},
	{"first-packet", "connect with the first instruction, sockets allowed", both},
	{"network", "API server, kubelet, DNS, another pod, sockets allowed", both},
	{"dns-exfiltration", "resolve names, ask name servers", both},
	{"metadata", "metadata addresses in every notation, egress 0.0.0.0/0 declared", both},
	{"port-clash", "two calls listen on the same port", both},

	// What others have.
	{"environment", "variables of the platform, the environment of PID 1", both},
	{"token", "a ServiceAccount's token, any kubeconfig", both},
	{"secret-print", "print the own Secret on stdout, stderr and the termination log", both},
	{"other-call", "files, memory, sockets, processes of another call of the same Tool", both},
	{"symlinks", "links to the node's files in place of results", both},

	// From outside: an agent with the role edit in the Tool's namespace.
	{"exec-attach", "exec, attach, port-forward, debug a running sandbox", nil},
	{"forged-job", "make the Job of an attempt", nil},
	{"changed-job", "change how the answer of a running Job is read", nil},
	{"forged-pod", "make a pod that stands for a sandbox", nil},
	{"forged-pod-by-controller", "let a ReplicaSet make it", nil},
	{"changed-pod", "change the image and labels of a running sandbox", nil},
	{"changed-network", "change or delete the NetworkPolicy of a Tool", nil},
	{"forged-status", "write the status of a call", nil},
	{"forged-requester", "propose in another's name, change it later", nil},
	{"forged-approval", "approve the own call, approve in another's name", nil},
	{"forged-lease", "make the Lease of an idempotency key", nil},
	{"controller-token", "a token of the controller's ServiceAccount", nil},
	{"foreign-secret", "a Tool with a Secret that its author may not read", nil},
	{"result-in-log", "read a result in the pod's log", nil},
}
