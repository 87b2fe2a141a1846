//go:build linux

package runner

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOOMKills(t *testing.T) {
	defer func(paths []string) { memoryEvents = paths }(memoryEvents)
	for _, tc := range []struct {
		reason string
		files  map[string]string
		want   int64
	}{
		{"cgroup v2", map[string]string{"v2": "low 0\nhigh 0\nmax 31\noom 2\noom_kill 2\noom_group_kill 0\n"}, 2},
		{"cgroup v1", map[string]string{"v1": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1},
		{"an old kernel does not count", map[string]string{"v1": "oom_kill_disable 0\nunder_oom 0\n"}, 0},
		{"neither can be read", nil, 0},
		{"no number", map[string]string{"v2": "oom_kill x\n"}, 0},
	} {
		dir := t.TempDir()
		memoryEvents = []string{filepath.Join(dir, "v2"), filepath.Join(dir, "v1")}
		for name, content := range tc.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := oomKills(); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.reason, got, tc.want)
		}
	}
}
