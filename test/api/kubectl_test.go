package api

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubectl runs the real kubectl as a user, with a manifest on standard input,
// at most a minute, and returns what it printed.
func (u *user) kubectl(t *testing.T, manifest string, arguments ...string) (output string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	program := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: KUBEBUILDER_ASSETS must hold kubectl beside kube-apiserver and etcd; make envtest prepares them", err)
	}
	command := exec.CommandContext(ctx, program, append([]string{"--kubeconfig", kubeconfig(t, u.cfg)}, arguments...)...)
	command.Stdin = strings.NewReader(manifest)
	command.Env = append(os.Environ(), "HOME="+t.TempDir()) // no cache, no preferences of whoever runs the tests
	content, err := command.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("kubectl %s: not done within a minute; it printed: %s", strings.Join(arguments, " "), content)
	}
	return string(content), err == nil
}

// kubeconfig writes a kubeconfig for a client configuration.
func kubeconfig(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {
			Server: cfg.Host, CertificateAuthorityData: cfg.CAData,
		}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
			Impersonate: cfg.Impersonate.UserName, ImpersonateUID: cfg.Impersonate.UID, ImpersonateGroups: cfg.Impersonate.Groups,
		}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file); err != nil {
		t.Fatal(err)
	}
	return file
}
