package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestHierarchies(t *testing.T) {
	const hybrid = `tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
cgroup /other/place cgroup rw,pids 0 0
`
	got := hierarchies(hybrid)
	want := []hierarchy{{path: "/sys/fs/cgroup/memory"}, {path: "/sys/fs/cgroup/unified", unified: true}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if dir, err := componentsCgroup(got); err != nil || dir != "/sys/fs/cgroup/unified/callgate-cluster/components" {
		t.Errorf("components are in %q (%v)", dir, err)
	}
	if _, err := componentsCgroup(got[:1]); err == nil {
		t.Error("cgroup v1 alone is accepted")
	}
}

func TestParseStat(t *testing.T) {
	tests := []struct {
		reason, stat string
		state        byte
		started      time.Duration
		bad          bool
	}{
		{reason: "plain", stat: "7 (etcd) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 5 0 1234 100", state: 'S', started: 12340 * time.Millisecond},
		{reason: "a name with parentheses and blanks", stat: "7 (a) Z (b) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 5 0 50 100", state: 'S', started: 500 * time.Millisecond},
		{reason: "cut off", stat: "7 (etcd) S 1", bad: true},
		{reason: "nothing", stat: "", bad: true},
	}
	for _, test := range tests {
		state, started, err := parseStat(test.stat)
		if (err != nil) != test.bad || state != test.state || started != test.started {
			t.Errorf("%s: got %c %v %v", test.reason, state, started, err)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	const info = `22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:30 / /run/callgate-cluster/containerd/netns/a rw - nsfs nsfs rw
31 22 0:31 / /run/callgate-cluster-other rw - tmpfs tmpfs rw
32 22 0:32 / /home/me/with\040blank/.cluster/kubelet/pods/x rw - tmpfs tmpfs rw
33 32 0:33 / /home/me/with\040blank/.cluster/kubelet/pods/x/y rw - tmpfs tmpfs rw
34 22 0:34 / /home/me/with\040blank/other rw - tmpfs tmpfs rw
`
	got := mountsBelow(info, []string{"/run/callgate-cluster", "/home/me/with blank/.cluster"})
	want := []string{"/home/me/with blank/.cluster/kubelet/pods/x/y", "/home/me/with blank/.cluster/kubelet/pods/x", "/run/callgate-cluster/containerd/netns/a"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMayLowerOOMScore(t *testing.T) {
	tests := []struct {
		reason, status string
		want           bool
	}{
		{"all capabilities", "Name:\tx\nCapEff:\t000001ffffffffff\n", true},
		{"all but CAP_SYS_RESOURCE", "CapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n", false},
		{"nothing to read", "", false},
	}
	for _, test := range tests {
		if got := mayLowerOOMScore(test.status); got != test.want {
			t.Errorf("%s: got %t", test.reason, got)
		}
	}
}

func TestClaimState(t *testing.T) {
	dir := t.TempDir()
	if err := claimState(filepath.Join(dir, "new")); err != nil {
		t.Errorf("a new folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if claimState(dir) == nil {
		t.Error("a folder with somebody's files is taken")
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"state":"`+dir+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := claimState(dir); err != nil {
		t.Errorf("a folder of ours: %v", err)
	}
}

func TestRemoveLogLinks(t *testing.T) {
	dir := t.TempDir()
	for name, target := range map[string]string{"ours": "/s/.cluster/pod-logs/x", "theirs": "/var/log/pods/x", "near": "/s/.cluster2/x"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeLogLinks(dir, "/s/.cluster"); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{filepath.Join(dir, "near"), filepath.Join(dir, "theirs")}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

func TestImportedNames(t *testing.T) {
	got := importedNames("unpacking localhost/a:1 (sha256:00)...done\nother\nunpacking b:2 (sha256:11)...done\n")
	if want := []string{"localhost/a:1", "b:2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
