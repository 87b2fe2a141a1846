package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigIsRenderedForPathsWithBlanksAndQuotes(t *testing.T) {
	state := filepath.Join(t.TempDir(), `a "b" c`)
	l := newLayout(state, "/cache/bin")
	if err := makePKI(l); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.path("config"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := writeConfig(settings{layout: l, RestrictOOM: true}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(l.path("config", "cni"), "10-callgate.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	var cni struct {
		Name    string
		Plugins []struct {
			Bridge string
			IPAM   struct{ DataDir string }
		}
	}
	if err := json.Unmarshal(content, &cni); err != nil {
		t.Fatalf("the CNI configuration is no JSON: %v\n%s", err, content)
	}
	if cni.Name != cniNetwork || cni.Plugins[0].Bridge != bridge || cni.Plugins[0].IPAM.DataDir != filepath.Join(state, "cni") {
		t.Errorf("unexpected CNI configuration %+v", cni)
	}
	content, err = os.ReadFile(l.config("containerd.toml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"restrict_oom_score_adj = true", `BinaryName = "/cache/bin/runc"`, `a \"b\" c/containerd"`, `sandbox = "` + pauseImage + `"`} {
		if !strings.Contains(string(content), want) {
			t.Errorf("containerd.toml lacks %s:\n%s", want, content)
		}
	}
	info, err := os.Stat(l.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig holds a key and has the mode %v", info.Mode())
	}
}

func TestKubeletRootStaysShortEnoughForItsSockets(t *testing.T) {
	for _, length := range []int{20, 50, 60, 100, 200} {
		l := newLayout("/"+strings.Repeat("x", length-1), "/b")
		if socket := l.kubeletRoot() + "/pod-resources/kubelet.sock"; len(socket) > maxSocketPath {
			t.Errorf("state folder of %d characters: %s has %d", length, socket, len(socket))
		}
	}
	if root := newLayout("/home/me/callgate/.cluster", "").kubeletRoot(); root != "/home/me/callgate/.cluster/kubelet" {
		t.Errorf("a short state folder is left for %s", root)
	}
}
