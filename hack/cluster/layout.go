package main

import (
	"path/filepath"
)

// Names and addresses of the one cluster a machine can have. The names are what
// cleaning recognizes our things by, so nothing else may use them.
const (
	nodeName = "callgate"
	// bridge carries the pods; its address is the node's. It is made before the
	// API server starts because pods reach the API server under this address,
	// which lies on no interface that leads out of this machine.
	bridge   = "callgate0"
	nodeIP   = "10.244.0.1"
	podCIDR  = "10.244.0.0/16"
	nodeCIDR = "10.244.0.1/16"
	// serviceCIDR's first address is the Service kubernetes.
	serviceCIDR = "10.96.0.0/16"
	serviceIP   = "10.96.0.1"
	// cniNetwork is part of the comments of the CNI plugins' iptables rules.
	cniNetwork = "callgate"
	// cgroupName is the cgroup, in every hierarchy, everything of ours is in.
	cgroupName = "callgate-cluster"
	apiPort    = 6443
	apiServer  = "https://10.244.0.1:6443"
	pauseImage = "callgate.local/pause:1"
	// dnsIP is the Service kube-dns, the tenth address as everywhere.
	dnsIP        = "10.96.0.10"
	dnsDomain    = "cluster.local"
	corednsImage = "callgate.local/coredns:1"
)

// runDir holds what does not outlive a restart of the machine: sockets, mounts
// and sandboxes' state. It is outside the state folder because a Unix socket's
// path has at most 107 bytes and a repository may lie deep.
const runDir = "/run/callgate-cluster"

// containerdSocket is containerd's and the CRI's address.
const containerdSocket = runDir + "/containerd.sock"

// maxSocketPath is what sockaddr_un takes, without its final zero.
const maxSocketPath = 107

// A layout is where one checkout's cluster keeps its files.
type layout struct {
	state string // absolute
	bin   string // absolute, in the cache
}

func newLayout(state, bin string) layout { return layout{state: state, bin: bin} }

func (l layout) path(elem ...string) string {
	return filepath.Join(append([]string{l.state}, elem...)...)
}

func (l layout) program(name string) string { return filepath.Join(l.bin, name) }
func (l layout) logFile(name string) string { return l.path("log", name+".log") }
func (l layout) kubeconfig() string         { return l.path("kubeconfig") }
func (l layout) pki(file string) string     { return l.path("pki", file) }
func (l layout) config(file string) string  { return l.path("config", file) }

// kubeletRoot is in the state folder unless the sockets the kubelet makes below
// it would get too long a path.
func (l layout) kubeletRoot() string {
	root := l.path("kubelet")
	if len(root)+len("/pod-resources/kubelet.sock") > maxSocketPath-20 {
		return farKubeletRoot
	}
	return root
}

// farKubeletRoot serves state folders with long paths.
const farKubeletRoot = "/var/lib/callgate-cluster-kubelet"
