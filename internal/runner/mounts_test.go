//go:build linux

package runner

import (
	"strings"
	"testing"
)

func TestUnexpectedMount(t *testing.T) {
	t.Parallel()
	// As sandboxes have them: shortened from runc and from gVisor.
	const runc = `1 0 0:70 / / ro,relatime master:1 - overlay overlay rw,lowerdir=x
2 1 0:71 / /proc rw,nosuid - proc proc rw
3 1 0:72 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k
4 3 254:0 /null /dev/null rw - devtmpfs udev rw
5 3 0:73 / /dev/shm rw - tmpfs shm rw,size=65536k
6 3 254:0 /pods/x /dev/termination-log rw,relatime - ext4 /dev/vda rw
7 1 254:0 /pods/x /etc/hosts rw,relatime - ext4 /dev/vda rw
8 1 254:0 /pods/x /etc/hostname rw,relatime - ext4 /dev/vda rw
9 1 254:0 /pods/x /etc/resolv.conf rw,relatime - ext4 /dev/vda rw
10 1 0:74 / /.callgate-runner-x ro,relatime - overlay overlay rw
11 1 0:75 / /.callgate-state rw,relatime - tmpfs tmpfs rw,size=64k
12 1 0:76 / /tmp rw,relatime - tmpfs tmpfs rw,size=65536k
13 1 254:0 /pods/y /settings ro,relatime - ext4 /dev/vda rw
14 2 0:77 / /proc/uptime rw - fuse.lxcfs lxcfs rw
`
	const gVisor = `34 33 0:34 / / ro - 9p none ro,trans=fd
35 34 0:35 / /tmp rw - 9p none rw,trans=fd
37 34 0:36 / /dev rw,nosuid - dev none rw,mode=0755
42 34 0:39 / /etc/hosts rw - 9p none rw,trans=fd
46 45 0:10 /68 /sys/fs/cgroup/cpu rw - cgroup none rw,cpu
53 34 0:43 / /.callgate-state rw - 9p none rw,trans=fd
55 37 0:45 / /dev/termination-log rw - 9p none rw,trans=fd
`
	const disk = "90 1 254:0 /volumes/1 /data rw,relatime - ext4 /dev/vda rw\n"
	for _, tc := range []struct {
		reason, info string
		own          []string
		want         string // in the reason; "" if there is none
	}{
		{"a sandbox under runc", runc, []string{""}, ""},
		{"a sandbox under gVisor", gVisor, []string{""}, ""},
		{"a volume that the image declares", runc + disk, []string{""}, "/data can be written to, on ext4"},
		{"the same under gVisor", gVisor + "60 34 0:50 / /data rw - 9p none rw\n", nil, "/data can be written to, on 9p"},
		{"a claim of the Tool", runc + disk, []string{"/cache", "/data"}, ""},
		{"another one than that", runc + disk, []string{"/data/"}, "/data can"},
		{"read-only, whatever its file system is", runc + strings.ReplaceAll(disk, "/data rw", "/data ro"), nil, ""},
		{"on top of /tmp, through a link", runc + strings.ReplaceAll(disk, "/data", "/tmp"), nil, "/tmp can"},
		{"on top of a claim", runc + disk + disk, []string{"/data"}, "/data can"},
		{"a root that can be written to", strings.Replace(runc, "/ / ro", "/ / rw", 1), nil, "/ can be written to, on overlay"},
		{"a name with optional fields", "1 0 0:1 / /x rw master:1 propagate_from:2 - xfs /dev/x rw\n", nil, "/x can be written to, on xfs"},
		{"not a line of mounts", "nonsense\n", nil, "not known"},
		{"half a line", "1 0 0:1 / /x rw master:1\n", nil, "not known"},
	} {
		got := unexpectedMount(tc.info, tc.own)
		if got == "" != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.reason, got, tc.want)
		}
	}
}
