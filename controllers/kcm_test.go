package controllers_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// kcmControllers are the controllers of Kubernetes that a sandbox meets.
var kcmControllers = []string{
	"job-controller", "ttl-after-finished-controller", "garbage-collector-controller", "namespace-controller",
	"serviceaccount-controller", "resourcequota-controller", "pod-garbage-collector-controller",
}

// startControllerManager starts the real Job controller. Should this process be
// killed, it ends by itself, because it can no longer renew its leadership.
func startControllerManager(assets string, logs *os.File) (stop func(), err error) {
	user, err := environment.AddUser(envtest.User{Name: "kube-controller-manager", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "callgate-kcm-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(assets, "kube-controller-manager"),
		"--kubeconfig="+file,
		"--controllers="+strings.Join(kcmControllers, ","),
		"--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=1000",
		"--concurrent-job-syncs=10",
	)
	cmd.Stdout, cmd.Stderr = logs, logs
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start kube-controller-manager: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(ended)
	}()
	return func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended already
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = os.RemoveAll(dir)
	}, nil
}
