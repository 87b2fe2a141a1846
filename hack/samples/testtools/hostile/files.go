//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// fill writes files of 16 MiB into a folder until nothing more goes in.
func fill(dir string, limit int64) (written int64, err error) {
	block := bytes.Repeat([]byte("full"), 64<<10)
	for n := 0; written < limit; n++ {
		f, err := os.OpenFile(dir+"/fill-"+strconv.Itoa(n), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return written, err
		}
		for range 64 {
			k, err := f.Write(block)
			written += int64(k)
			if err != nil {
				f.Close()
				return written, err
			}
		}
		f.Close()
	}
	return written, nil
}

func fillFolder(in input, r *report, dir string) {
	end := time.Now().Add(hold(in))
	written, err := fill(dir, maxDiskBytes)
	r.try("write without end to "+dir, err)
	r.Numbers["bytes"] = written
	r.control("write to "+dir, boolError(written > 0))
	for time.Now().Before(end) { // and again, while the neighbours are looked at
		if _, err := fill(dir, maxDiskBytes); err == nil {
			r.try("write without end to "+dir+" again", err)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func diskBomb(in input, r *report) { fillFolder(in, r, "/tmp") }

func shmBomb(in input, r *report) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		r.note("there is no /dev/shm")
		r.control("look for /dev/shm", nil)
		r.try("find /dev/shm", err)
		time.Sleep(hold(in))
		return
	}
	fillFolder(in, r, "/dev/shm")
}

// inodeBomb makes empty files until none can be made. It says on stderr how
// many, for it may be killed for the kernel memory that they take.
func inodeBomb(in input, r *report) {
	var n int64
	var err error
	for end := time.Now().Add(3 * hold(in)); n < maxFiles && time.Now().Before(end); n++ {
		var fd int
		if fd, err = unix.Open("/tmp/i"+strconv.FormatInt(n, 36), unix.O_CREAT|unix.O_WRONLY, 0o600); err != nil {
			break
		}
		_ = unix.Close(fd)
		if n%10_000 == 0 {
			fmt.Fprintln(os.Stderr, "inodes", n)
		}
	}
	r.Numbers["inodes"] = n
	if err == nil {
		r.note("still none was refused when the time was over")
		err = os.ErrDeadlineExceeded
	}
	r.try("files without end", err)
	r.control("make a file", boolError(n > 0))
}

// terminationLog fills the file that the kubelet reads: it lies on the node's
// disk, and no quota counts it.
func terminationLog(in input, r *report) {
	end := time.Now().Add(hold(in))
	f, err := os.OpenFile("/dev/termination-log", os.O_WRONLY, 0)
	if err != nil {
		r.try("open /dev/termination-log", err)
		r.control("try", nil)
		time.Sleep(time.Until(end))
		return
	}
	signalIgnored(unix.SIGXFSZ)
	block := bytes.Repeat([]byte("full"), 256<<10)
	var written int64
	for written < maxDiskBytes && time.Now().Before(end) {
		n, err2 := f.Write(block)
		written += int64(n)
		if err = err2; err != nil {
			break
		}
	}
	if err == nil && written < maxDiskBytes {
		err = os.ErrDeadlineExceeded
		r.note("still no write was refused when the time was over")
	}
	r.Numbers["bytes"] = written
	r.try("write without end to /dev/termination-log", err)
	r.control("write to it", boolError(written > 0))
	r.try("another file beside it", errOfFile(os.WriteFile("/dev/termination-log-2", nil, 0o600)))
	_ = f.Truncate(0) // this machine's disk is needed
	_, _ = f.WriteAt([]byte("FORGED"), 0)
	time.Sleep(time.Until(end))
}

func errOfFile(err error) error {
	var pathError *os.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func flood(in input, f *os.File, block []byte) int64 {
	var total int64
	for end := time.Now().Add(hold(in)); time.Now().Before(end); {
		n, err := f.Write(block)
		total += int64(n)
		if err != nil {
			break
		}
	}
	return total
}

func stdoutFlood(in input, _ *report) {
	n := flood(in, os.Stdout, []byte(strings.Repeat("y\n", 16<<10)))
	fmt.Fprintln(os.Stderr, "flooded", n)
	os.Exit(0)
}

func endlessLine(in input, _ *report) {
	n := flood(in, os.Stdout, bytes.Repeat([]byte{'a'}, 32<<10))
	fmt.Fprintln(os.Stderr, "flooded", n)
	os.Exit(0)
}

func stderrFlood(in input, r *report) {
	r.Numbers["bytes"] = flood(in, os.Stderr, []byte(strings.Repeat("y\n", 16<<10)))
	r.control("write to stderr", boolError(r.Numbers["bytes"] > 0))
	r.try("an error that nobody sees", errors.New("judged by what is kept"))
}

// hugeFile makes one file of a tebibyte, with holes and without.
func hugeFile(_ input, r *report) {
	signalIgnored(unix.SIGXFSZ)
	for _, dir := range []string{"/tmp", "/dev/shm"} {
		fd, err := unix.Open(dir+"/huge", unix.O_CREAT|unix.O_RDWR, 0o600)
		r.control("make "+dir+"/huge", err)
		if err != nil {
			continue
		}
		r.try("truncate -s 1T "+dir+"/huge", unix.Ftruncate(fd, 1<<40))
		_, err = unix.Pwrite(fd, []byte("x"), 1<<40)
		r.try("write a byte at 1T of "+dir+"/huge", err)
		r.try("fallocate 1T of "+dir+"/huge", unix.Fallocate(fd, 0, 0, 1<<40))
		_ = unix.Close(fd)
		_ = unix.Unlink(dir + "/huge")
	}
	fd, err := unix.MemfdCreate("huge", 0)
	if err != nil {
		r.try("memfd", err)
		return
	}
	r.try("truncate a memfd to 1T", unix.Ftruncate(fd, 1<<40))
	r.try("fallocate 1T of a memfd", unix.Fallocate(fd, 0, 0, 1<<40))
	_ = unix.Close(fd)
}

// archiveBomb unpacks a twice packed argument into /tmp, as a careless tool would.
func archiveBomb(in input, r *report) {
	packed, err := base64.StdEncoding.DecodeString(in.Data)
	r.Numbers["packed"] = int64(len(packed))
	outer, err2 := gzip.NewReader(bytes.NewReader(packed))
	if err = errors.Join(err, err2); err != nil {
		r.control("read the argument", err)
		return
	}
	inner, err := gzip.NewReader(outer)
	r.control("read the argument", err)
	f, err2 := os.Create("/tmp/unpacked") //nolint:gosec // /tmp is this call's own
	r.control("make a file", err2)
	if err != nil || err2 != nil {
		return
	}
	signalIgnored(unix.SIGXFSZ)
	n, err := io.Copy(f, inner) //nolint:gosec // that it is a bomb is the point
	r.Numbers["unpacked"] = n
	r.try("unpack it all", errOfFile(err))
}
