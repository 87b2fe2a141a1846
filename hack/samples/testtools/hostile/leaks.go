//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// environment looks for what the platform put into the environment.
func environment(_ input, r *report) {
	r.control("the Tool's own variable", boolError(os.Getenv("OWN") == "own"))
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		r.note("%s", name)
		upper := strings.ToUpper(name)
		if name == "OWN" || name == "CALLGATE_IDEMPOTENCY_KEY" {
			continue
		}
		for _, word := range []string{"KUBERNETES", "CALLGATE", "_SERVICE_", "_PORT", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL"} {
			if strings.Contains(upper, word) {
				r.try("a variable of the platform: "+name, nil)
			}
		}
		if strings.Contains(value, "eyJhbGci") || strings.Contains(value, "10.96.") {
			r.try("a token or service address in "+name, nil)
		}
	}
	r.try("the environment of PID 1", readSome("/proc/1/environ"))
	r.try("the command line of PID 1 has arguments", func() error {
		line, err := os.ReadFile("/proc/1/cmdline")
		if err != nil {
			return errOfFile(err)
		}
		return boolError(strings.Count(string(line), "\x00") > 1)
	}())
}

// token looks for a ServiceAccount's.
func token(_ input, r *report) {
	r.control("read /etc/passwd", readSome("/etc/passwd"))
	for _, dir := range []string{"/var/run/secrets", "/run/secrets"} {
		r.try("read "+dir, func() error {
			entries, err := os.ReadDir(dir)
			if err == nil && len(entries) == 0 {
				err = errors.New("empty")
			}
			return errOfFile(err)
		}())
		r.try("read the token in "+dir, readSome(dir+"/kubernetes.io/serviceaccount/token"))
	}
	found := ""
	_ = filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // what cannot be read is no leak
		case d.IsDir() && (path == "/proc" || path == "/sys"):
			return filepath.SkipDir
		case d.Name() == "token" || strings.HasSuffix(d.Name(), "kubeconfig") || d.Name() == "admin.conf":
			found = path
		}
		return nil
	})
	if found != "" {
		r.note("found %s", found)
	}
	r.try("find a token or kubeconfig anywhere", boolError(found != ""))
}

// secretPrint says its secret to everyone.
func secretPrint(_ input, _ *report) {
	secret := os.Getenv("SECRET")
	fmt.Printf("{\"secret\":%q,\"length\":%d}\n", secret, len(secret))
	fmt.Fprintln(os.Stderr, "the secret is", secret)
	_ = os.WriteFile("/dev/termination-log", []byte(secret), 0o600)
	os.Exit(0)
}

const sysvKey = 0x0ca11

// plant leaves a mark in every place that calls might share, and holds it.
func plant(in input, r *report) {
	places := map[string]error{
		"/tmp":             os.WriteFile("/tmp/"+in.Mark, []byte(in.Mark), 0o666), //nolint:gosec // so that anybody finds it
		"/dev/shm":         os.WriteFile("/dev/shm/"+in.Mark, []byte(in.Mark), 0o666),
		"/.callgate-state": os.WriteFile("/.callgate-state/"+in.Mark, []byte(in.Mark), 0o666),
		"/dev/mqueue":      os.WriteFile("/dev/mqueue/"+in.Mark, nil, 0o666),
	}
	for place, err := range places {
		r.note("planted in %s: %s", place, errorName(errOfFile(err)))
	}
	r.control("plant in /tmp", places["/tmp"])
	id, err := unix.SysvShmGet(sysvKey, 4096, unix.IPC_CREAT|0o666)
	if err == nil {
		var segment []byte
		if segment, err = unix.SysvShmAttach(id, 0, 0); err == nil {
			copy(segment, in.Mark)
		}
	}
	r.note("planted in System V shared memory: %s", errorName(err))
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: "@" + in.Mark}), unix.Listen(l, 4))
	}
	r.control("plant an abstract socket", err)
	args := again(input{Attack: "linger", Mark: in.Mark})
	r.control("plant a process", exec.Command(args[0], args[1:]...).Start())
	own := &report{Numbers: map[string]int64{}}
	look(in, own)
	for _, a := range own.Attempts {
		if a.OK {
			r.control("find one's own: "+a.What, nil)
		}
	}
	fmt.Fprintln(os.Stderr, "planted")
	sleep(in, &report{})
	r.try("be found", errors.New("judged by the other call"))
}

// hunt looks for what another call has planted.
func hunt(in input, r *report) {
	r.control("look at /tmp", func() error { _, err := os.ReadDir("/tmp"); return err }())
	look(in, r)
}

func look(in input, r *report) {
	for _, dir := range []string{"/tmp", "/dev/shm", "/.callgate-state", "/dev/mqueue", "/run", "/var/tmp", "/proc/1/root/tmp"} {
		_, err := os.Lstat(dir + "/" + in.Mark)
		r.try("a file in "+dir, errOfFile(err))
	}
	id, err := unix.SysvShmGet(sysvKey, 4096, 0)
	if err == nil {
		var segment []byte
		if segment, err = unix.SysvShmAttach(id, 0, unix.SHM_RDONLY); err == nil {
			err = boolError(strings.HasPrefix(string(segment), in.Mark))
		}
	}
	r.try("System V shared memory", err)
	r.try("an abstract socket", unixConnect("@"+in.Mark))
	r.try("a process", func() error {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range lines {
			if strings.Contains(path, fmt.Sprintf("/%d/", os.Getpid())) {
				continue
			}
			if line, err := os.ReadFile(path); err == nil && strings.Contains(string(line), in.Mark) {
				return nil
			}
		}
		return unix.ESRCH
	}())
}

// symlinks lays links to the node's files wherever somebody might collect or
// clean up, and says where they lead from in here.
func symlinks(in input, r *report) {
	for _, target := range []string{"/etc/shadow", in.Data} {
		for i, path := range []string{"/tmp/result", "/tmp/output.json", "/tmp/stdout", "/dev/shm/result", "/.callgate-state/result"} {
			path = fmt.Sprintf("%s-%d-%d", path, len(target), i)
			err := unix.Symlink(target, path)
			if strings.HasPrefix(path, "/tmp/") {
				r.control("link "+path+" to "+target, err)
			}
			if err == nil {
				r.try("read "+target+" by "+path, readSome(path))
				r.try("write "+target+" by "+path, func() error {
					f, err := os.OpenFile(path, os.O_WRONLY, 0)
					if err == nil {
						f.Close()
					}
					return errOfFile(err)
				}())
			}
		}
	}
	// The mark that the runner made, as a link.
	_ = unix.Unlink("/.callgate-state/used")
	r.note("a link in place of the runner's mark: %s", errorName(unix.Symlink(in.Data, "/.callgate-state/used")))
	r.try("a link in place of /dev/termination-log", func() error {
		if err := unix.Unlink("/dev/termination-log"); err != nil {
			return err
		}
		return unix.Symlink(in.Data, "/dev/termination-log")
	}())
}
