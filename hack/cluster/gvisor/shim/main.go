// Command shim is gVisor's containerd shim (containerd-shim-runsc-v1) with its
// own way of starting, for two reasons:
//
// gVisor's manager kills the server process it has just started when the kernel
// refuses it an OOM score of -999, as it does for root without
// CAP_SYS_RESOURCE. containerd's own shim can be told not to ask
// (restrict_oom_score_adj); gVisor's cannot.
//
// It puts every shim's socket into /run/containerd/s, which may belong to the
// host's own containerd. Here it lies beside the socket of the containerd that
// asked for the shim.
//
// Nothing may be printed on stdout: containerd reads the answer from it.
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	gvisor "gvisor.dev/gvisor/pkg/shim/v1"
	_ "gvisor.dev/gvisor/pkg/shim/v1/plugin" // registers the task service
)

func main() {
	shim.Run(context.Background(), manager{gvisor.NewShimManager("io.containerd.runsc.v1")})
}

// manager is gVisor's but for Start.
type manager struct{ shim.Manager }

// Start starts the process that serves the container id, which inherits a
// listening socket as its file 3, and returns that socket's address. The
// working directory is the container's bundle, by containerd's convention.
func (manager) Start(ctx context.Context, id string, opts shim.StartOpts) (shim.BootstrapParams, error) {
	none := shim.BootstrapParams{}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return none, err
	}
	address := socketAddress(opts.Address, namespace, id)
	if err := os.MkdirAll(filepath.Dir(strings.TrimPrefix(address, "unix://")), 0o700); err != nil {
		return none, err
	}
	// A shim killed before it could clean up leaves its socket; ids are never reused.
	if err := shim.RemoveSocket(address); err != nil && !os.IsNotExist(err) {
		return none, fmt.Errorf("remove the socket of an earlier shim: %w", err)
	}
	listener, err := shim.NewSocket(address)
	if err != nil {
		return none, fmt.Errorf("listen on the shim's socket: %w", err)
	}
	file, err := listener.File()
	if err != nil {
		return none, err
	}
	self, err := os.Executable()
	if err != nil {
		return none, err
	}
	// The service removes the socket named in the bundle's file "address" when it ends.
	if err := os.WriteFile("address", []byte(address), 0o644); err != nil {
		return none, err
	}
	server := exec.Command(self, "-namespace", namespace, "-address", opts.Address, "-id", id)
	server.Env = append(os.Environ(), "GOMAXPROCS=2")
	server.ExtraFiles = []*os.File{file}
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		_ = shim.RemoveSocket(address) // the failed start is what has to be reported
		return none, err
	}
	if err := shim.WritePidFile("shim.pid", server.Process.Pid); err != nil {
		_ = server.Process.Kill() // as above
		_ = shim.RemoveSocket(address)
		return none, err
	}
	return shim.BootstrapParams{Version: 2, Address: address, Protocol: "ttrpc"}, nil
}

// socketAddress is unique for a container and short enough for a Unix socket
// (107 bytes) whatever the id: containerd's address is the only part of
// free length.
func socketAddress(containerd, namespace, id string) string {
	sum := sha256.Sum256([]byte(namespace + "/" + id))
	return fmt.Sprintf("unix://%s/s/%x", filepath.Dir(containerd), sum[:16])
}
