//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// setuid runs a program that belongs to root and has the setuid and setgid bits.
func setuid(_ input, r *report) {
	const path = "/bin/setuid-hostile"
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	r.control("the program is root's and setuid", errors.Join(err, boolError(st.Uid == 0 && st.Mode&unix.S_ISUID != 0)))
	out, err := exec.Command(path, `{"attack":"ids"}`).Output()
	r.control("run it", err)
	r.note("it ran as %s", strings.TrimSpace(string(out)))
	r.try("become root", boolError(strings.Contains(string(out), "euid=0") || strings.Contains(string(out), "egid=0")))
	r.try("setuid(0)", unix.Setuid(0))
	r.try("setgid(0)", unix.Setgid(0))
	r.try("setgroups(0)", unix.Setgroups([]int{0}))
	caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	if err := unix.Capget(&caps, &data[0]); err == nil {
		r.try("hold a capability", boolError(data[0].Effective|data[0].Permitted|data[1].Effective|data[1].Permitted != 0))
		data[0].Effective, data[0].Permitted = 1<<unix.CAP_SYS_ADMIN, 1<<unix.CAP_SYS_ADMIN
		r.try("take CAP_SYS_ADMIN", unix.Capset(&caps, &data[0]))
	}
	r.try("take off no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0))
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		for _, line := range strings.Split(string(status), "\n") {
			if strings.HasPrefix(line, "NoNewPrivs") || strings.HasPrefix(line, "Seccomp:") || strings.HasPrefix(line, "CapBnd") {
				r.note("%s", strings.Join(strings.Fields(line), " "))
			}
		}
	}
}

// ids prints who this process is.
func ids(_ input, _ *report) {
	fmt.Printf("uid=%d gid=%d euid=%d egid=%d\n", os.Getuid(), os.Getgid(), os.Geteuid(), os.Getegid())
	os.Exit(0)
}

func mounts(_ input, r *report) {
	r.control("make a folder", os.Mkdir("/tmp/mnt", 0o700))
	r.try("mount tmpfs", unix.Mount("none", "/tmp/mnt", "tmpfs", 0, ""))
	r.try("mount proc", unix.Mount("none", "/tmp/mnt", "proc", 0, ""))
	r.try("mount sysfs", unix.Mount("none", "/tmp/mnt", "sysfs", 0, ""))
	r.try("mount cgroup2", unix.Mount("none", "/tmp/mnt", "cgroup2", 0, ""))
	r.try("bind /", unix.Mount("/", "/tmp/mnt", "", unix.MS_BIND|unix.MS_REC, ""))
	r.try("remount / writable", unix.Mount("none", "/", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	runner := runnerFolder(r)
	r.try("umount the runner's folder", unix.Unmount(runner, unix.MNT_DETACH))
	r.try("umount /proc/sys", unix.Unmount("/proc/sys", unix.MNT_DETACH))
	r.try("chroot", unix.Chroot("/tmp/mnt"))
	r.try("pivot_root", unix.PivotRoot("/tmp/mnt", "/tmp/mnt"))
	_, err := unix.Fsopen("tmpfs", 0)
	r.try("fsopen", err)
	_, err = unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
	r.try("open_tree", err)
	r.try("move_mount", unix.MoveMount(unix.AT_FDCWD, "/tmp", unix.AT_FDCWD, "/tmp/mnt", 0))
	r.try("mount_setattr", unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
}

// namespaces asks for each kind of namespace, alone and behind a user namespace.
func namespaces(_ input, r *report) {
	kinds := []struct {
		name string
		flag uintptr
	}{
		{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"network", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID},
		{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME},
	}
	r.control("fork", forkWith(0))
	for _, k := range kinds {
		if k.flag != unix.CLONE_NEWTIME { // no flag of clone: it is part of a signal's number there
			r.try("clone "+k.name, forkWith(k.flag))
			r.try("clone user+"+k.name, forkWith(k.flag|unix.CLONE_NEWUSER))
		}
		r.try("unshare "+k.name, inThread(func() error { return unix.Unshare(int(k.flag)) }))
	}
	for _, name := range []string{"mnt", "net", "pid", "user", "ipc", "uts"} {
		fd, err := unix.Open("/proc/1/ns/"+name, unix.O_RDONLY, 0)
		if err == nil {
			err = inThread(func() error { return unix.Setns(fd, 0) })
		}
		r.try("enter the "+name+" namespace of PID 1", err)
	}
}

// forkWith forks with flags; the child ends at once.
func forkWith(flags uintptr) error {
	pid, err := fork(flags, childExits)
	if err != nil {
		return err
	}
	_, _ = unix.Wait4(pid, nil, 0, nil) // another PID namespace may have changed whose child it is
	return nil
}

// inThread runs f on a thread of its own, which ends with what f did to it.
func inThread(f func() error) error {
	c := make(chan error)
	go func() {
		runtime.LockOSThread()
		c <- f()
	}()
	return <-c
}

// systemCalls makes the calls that a tool has no business with, with arguments
// that the kernel would take from root.
func systemCalls(_ input, r *report) {
	path := [...]byte{'/', 't', 'm', 'p', 0}
	name := [...]byte{'x', 0}
	call := func(what string, nr uintptr, a ...uintptr) {
		for len(a) < 6 {
			a = append(a, 0)
		}
		got, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		r.try(what, errOf(errno))
		if errno == 0 && nr == unix.SYS_IO_URING_SETUP {
			_ = unix.Close(int(got))
		}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	r.control("getpid", errOf(errno))
	bpfAttr := [16]uint64{1<<32 | 4, 1<<32 | 1} // an array map
	call("bpf", unix.SYS_BPF, 0, ptr(&bpfAttr), 128)
	call("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2), 1)
	keyType := [...]byte{'u', 's', 'e', 'r', 0}
	call("add_key", unix.SYS_ADD_KEY, ptr(&keyType), ptr(&name), ptr(&name), 1, ^uintptr(2))
	call("request_key", unix.SYS_REQUEST_KEY, ptr(&keyType), ptr(&name), 0, 0)
	perf := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Size: 128, Config: unix.PERF_COUNT_SW_CPU_CLOCK}
	call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, ptr(&perf), 0, ^uintptr(0), ^uintptr(0), 0)
	call("userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1)
	uring := [32]uint32{}
	call("io_uring_setup", unix.SYS_IO_URING_SETUP, 4, ptr(&uring))
	call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	call("init_module", unix.SYS_INIT_MODULE, ptr(&path), 4, ptr(&name))
	call("finit_module", unix.SYS_FINIT_MODULE, 0, ptr(&name), 0)
	call("delete_module", unix.SYS_DELETE_MODULE, ptr(&name), 0)
	call("reboot", unix.SYS_REBOOT, 0xfee1dead, 672274793, 0) // Ctrl-Alt-Del off, no more
	call("swapon", unix.SYS_SWAPON, ptr(&path), 0)
	call("swapoff", unix.SYS_SWAPOFF, ptr(&path))
	call("acct", unix.SYS_ACCT, ptr(&path))
	call("settimeofday", unix.SYS_SETTIMEOFDAY, ptr(&unix.Timeval{Sec: 1 << 30}), 0)
	call("clock_settime", unix.SYS_CLOCK_SETTIME, 0, ptr(&unix.Timespec{Sec: 1 << 30}))
	call("adjtimex", unix.SYS_ADJTIMEX, ptr(&unix.Timex{Modes: 1, Offset: 1}))
	call("sethostname", unix.SYS_SETHOSTNAME, ptr(&name), 1)
	call("setdomainname", unix.SYS_SETDOMAINNAME, ptr(&name), 1)
	call("quotactl", unix.SYS_QUOTACTL, 0x800002<<8, 0, 0, 0)
	handle := [34]uint32{128}
	call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), ptr(&handle), 0)
	call("fanotify_init", unix.SYS_FANOTIFY_INIT, 4, 0)
	call("syslog", unix.SYS_SYSLOG, 4, ptr(&handle), 0) // read and clear the log
	call("vhangup", unix.SYS_VHANGUP)
	call("personality ADDR_NO_RANDOMIZE", unix.SYS_PERSONALITY, 0x0040000)
	call("ptrace attach of PID 1", unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1)
	for what, nr := range archCalls {
		call(what, nr, 3)
	}
}

func devices(_ input, r *report) {
	f, err := os.Open("/dev/null")
	r.control("open /dev/null", err)
	if err == nil {
		f.Close()
	}
	for _, d := range []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{{"mem", unix.S_IFCHR, 1, 1}, {"kmsg", unix.S_IFCHR, 1, 11}, {"sda", unix.S_IFBLK, 8, 0}, {"vda", unix.S_IFBLK, 254, 0}, {"fuse", unix.S_IFCHR, 10, 229}, {"kvm", unix.S_IFCHR, 10, 232}} {
		path := "/tmp/dev-" + d.name
		err := unix.Mknod(path, d.mode|0o666, int(unix.Mkdev(d.major, d.minor)))
		if err == nil {
			_, err = unix.Open(path, unix.O_RDONLY, 0) // a node is nothing as long as it cannot be opened
		}
		r.try("mknod and open "+d.name, err)
	}
	for _, name := range []string{"mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "kvm", "fuse", "net/tun", "loop-control", "loop0",
		"mapper/control", "vhost-net", "vhost-vsock", "vsock", "snapshot", "uinput", "ppp", "cuse", "userfaultfd", "raw/rawctl", "tty0", "console", "hpet", "cpu/0/msr", "dri/card0", "nvidia0"} {
		fd, err := unix.Open("/dev/"+name, unix.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			fd, err = unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		}
		r.try("open /dev/"+name, err)
		if err == nil {
			_ = unix.Close(fd)
		}
	}
}

// procWrite writes where the kernel is configured, and reads what only the
// node's administrator may know.
func procWrite(_ input, r *report) {
	write := func(path, what string) error {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return errOfFile(err)
		}
		defer f.Close()
		_, err = f.WriteString(what)
		return errOfFile(err)
	}
	r.control("write /proc/self/comm", write("/proc/self/comm", "hostile"))
	r.control("raise the own oom_score_adj", write("/proc/self/oom_score_adj", "1000"))
	for path, what := range map[string]string{
		"/proc/sys/kernel/core_pattern": "|/tmp/x", "/proc/sys/kernel/hostname": "x", "/proc/sys/kernel/modprobe": "/tmp/x",
		"/proc/sys/kernel/sysrq": "1", "/proc/sys/kernel/shmmax": "1", "/proc/sys/kernel/msgmax": "1", "/proc/sys/kernel/threads-max": "1",
		"/proc/sys/vm/overcommit_memory": "1", "/proc/sys/vm/drop_caches": "3", "/proc/sys/fs/file-max": "1",
		"/proc/sys/fs/binfmt_misc/register": ":x:M::x::/tmp/x:", "/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/user/max_user_namespaces": "1",
		"/proc/sysrq-trigger": "h", "/proc/irq/default_smp_affinity": "1", "/proc/acpi/wakeup": "x", "/proc/bus/pci/00/00.0": "x",
		"/proc/self/oom_score_adj": "-1000", "/proc/self/uid_map": "0 0 4294967295", "/proc/self/loginuid": "0", "/proc/1/oom_score_adj": "1000",
		"/proc/1/timerslack_ns": "1000000000", "/proc/1/clear_refs": "1", "/proc/1/mem": "x", "/proc/1/attr/current": "x",
		"/sys/fs/cgroup/cgroup.procs": "1", "/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/pids.max": "max", "/sys/fs/cgroup/cpu.max": "max",
		"/sys/fs/cgroup/memory/memory.limit_in_bytes": "-1", "/sys/fs/cgroup/pids/pids.max": "max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
		"/sys/fs/cgroup/devices/devices.allow": "a", "/sys/fs/cgroup/memory/release_agent": "/tmp/x", "/sys/fs/cgroup/freezer/freezer.state": "FROZEN",
		"/sys/kernel/uevent_helper": "/tmp/x", "/sys/kernel/mm/ksm/run": "1", "/sys/kernel/mm/transparent_hugepage/enabled": "never",
		"/sys/module/kernel/parameters/panic": "1", "/sys/power/state": "mem", "/sys/class/net/lo/mtu": "1000", "/sys/devices/system/cpu/cpu1/online": "0",
	} {
		r.try("write "+path, write(path, what))
	}
	r.try("mkdir in /sys/fs/cgroup", errOfFile(os.Mkdir("/sys/fs/cgroup/x", 0o700)))
	for _, path := range []string{"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/slabinfo", "/proc/kpagecount", "/sys/firmware/dmi/tables/DMI", "/sys/kernel/debug/x"} {
		r.try("read "+path, readSome(path))
	}
}

// readSome is nil if something can be read from a file.
func readSome(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return errOfFile(err)
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 64))
	if n > 0 {
		return nil
	}
	if err == nil {
		return errors.New("empty")
	}
	return errOfFile(err)
}

func rootWrite(_ input, r *report) {
	write := func(path string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return errOfFile(err)
		}
		defer f.Close()
		_, err = f.WriteString("hostile\n")
		return errOfFile(err)
	}
	r.control("write /tmp/x", write("/tmp/x"))
	runner := runnerFolder(r)
	r.try("write to the runner", write(runner+"/runner"))
	r.try("write beside the runner", write(runner+"/x"))
	for _, path := range []string{"/x", "/bin/x", "/bin/hostile", "/usr/bin/x", "/etc/x", "/etc/passwd", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
		"/dev/x", "/run/x", "/var/x", "/proc/x", "/sys/x", "/lib/x", "/root/x"} {
		r.try("write "+path, write(path))
	}
	r.try("rename /bin/hostile", errOfFile(unix.Rename("/bin/hostile", "/bin/hostile-2")))
	r.try("replace /tmp", errOfFile(unix.Rename("/tmp", "/tmp-2")))
	r.try("remove /etc/hosts", errOfFile(unix.Unlink("/etc/hosts")))
	r.try("remove /dev/termination-log", errOfFile(unix.Unlink("/dev/termination-log")))
	r.try("run what was written to /dev/mqueue", write("/dev/mqueue/x"))
	// Its own mark is no tool's business; it keeps the pod from being used twice.
	_, err := os.Stat("/.callgate-state/used")
	r.note("the mark of the used pod: %s; removing it: %s", errorName(errOfFile(err)), errorName(unix.Unlink("/.callgate-state/used")))
}

// runnerFolder is where the runner is, by a name of this sandbox's.
func runnerFolder(r *report) string {
	folders, _ := filepath.Glob("/.callgate-runner-*")
	r.control("find the runner's folder", boolError(len(folders) == 1))
	return strings.Join(folders, "")
}

// runtimeSockets looks for the sockets of whatever runs containers.
func runtimeSockets(_ input, r *report) {
	own := "/tmp/own.sock"
	r.control("connect to an own socket", func() error {
		l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: own}), unix.Listen(l, 1)); err != nil {
			return err
		}
		return unixConnect(own)
	}())
	for _, path := range []string{"/run/containerd/containerd.sock", "/var/run/docker.sock", "/run/docker.sock", "/run/crio/crio.sock", "/run/podman/podman.sock",
		"/var/run/dockershim.sock", "/run/cri-dockerd.sock", "/run/k3s/containerd/containerd.sock", "/run/callgate-cluster/containerd/containerd.sock",
		"/var/lib/kubelet/pod-resources/kubelet.sock", "/var/lib/kubelet/device-plugins/kubelet.sock", "/run/dbus/system_bus_socket", "/run/systemd/private",
		"/run/udev/control", "/run/snapd.socket", "/var/lib/kubelet/kubeconfig", "/etc/kubernetes/admin.conf", "/var/lib/kubelet/pki"} {
		if _, err := os.Stat(path); err == nil {
			r.try("find "+path, nil)
			continue
		}
		r.try("connect to "+path, unixConnect(path))
	}
	found, _ := filepath.Glob("/run/*/*.sock")
	more, _ := filepath.Glob("/var/run/*.sock")
	r.try("find any socket in /run", boolError(len(found)+len(more) > 0))
	// Abstract names belong to a network namespace (CVE-2020-15257).
	list, err := os.ReadFile("/proc/net/unix")
	if err == nil {
		strange := 0
		for _, line := range strings.Split(string(list), "\n") {
			if fields := strings.Fields(line); len(fields) == 8 && fields[7] != own && strings.HasPrefix(fields[7], "@") {
				strange++
				r.note("an abstract socket: %.80s", fields[7])
			}
		}
		err = boolError(strange > 0)
	}
	r.try("find somebody's abstract socket", errOfFile(err))
}

func unixConnect(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}
