package main

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"text/template"
)

//go:embed config
var configFiles embed.FS

// settings is what the templates in the folder config are rendered with.
type settings struct {
	layout
	// RestrictOOM is set where the kernel refuses to lower OOM scores.
	RestrictOOM bool
}

// The templates call these.

func (s settings) PKI(file string) string     { return s.pki(file) }
func (s settings) Config(file string) string  { return s.config(file) }
func (s settings) Program(name string) string { return s.program(name) }
func (s settings) Bin() string                { return s.bin }
func (s settings) PodLogs() string            { return s.path("pod-logs") }
func (s settings) VolumePlugins() string      { return s.path("volume-plugins") }
func (s settings) CNIConfig() string          { return s.path("config", "cni") }
func (s settings) CNIData() string            { return s.path("cni") }
func (s settings) ContainerdRoot() string     { return s.path("containerd") }
func (s settings) ContainerdState() string    { return runDir + "/containerd" }
func (s settings) ContainerdSocket() string   { return containerdSocket }
func (s settings) ShimSockets() string        { return runDir + "/s" }
func (s settings) RunDir() string             { return runDir }
func (s settings) Cgroup() string             { return cgroupName }
func (s settings) NodeIP() string             { return nodeIP }
func (s settings) PodCIDR() string            { return podCIDR }
func (s settings) DNSIP() string              { return dnsIP }
func (s settings) DNSDomain() string          { return dnsDomain }
func (s settings) PauseImage() string         { return pauseImage }
func (s settings) CNINetwork() string         { return cniNetwork }
func (s settings) Bridge() string             { return bridge }

// render fills in one template. quote makes a string literal that YAML, TOML and
// JSON all read alike: paths may contain blanks and quotes.
func render(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").
		Funcs(template.FuncMap{"quote": strconv.Quote}).ParseFS(configFiles, "config/"+name)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// kubeconfig renders one with the certificates in it, so that it can be copied.
func kubeconfig(l layout, certificate string) ([]byte, error) {
	data := struct{ Server, User, CA, Cert, Key string }{Server: apiServer, User: certificate}
	for file, field := range map[string]*string{"ca.crt": &data.CA, certificate + ".crt": &data.Cert, certificate + ".key": &data.Key} {
		content, err := os.ReadFile(l.pki(file))
		if err != nil {
			return nil, err
		}
		*field = base64.StdEncoding.EncodeToString(content)
	}
	return render("kubeconfig.yaml", data)
}

// writeConfig writes every configuration file of the components and the
// kubeconfigs. The PKI has to be there.
func writeConfig(s settings) error {
	files := map[string]string{ // template to file
		"kubelet.yaml":    s.config("kubelet.yaml"),
		"kube-proxy.yaml": s.config("kube-proxy.yaml"),
		"containerd.toml": s.config("containerd.toml"),
		"runsc.toml":      s.config("runsc.toml"),
		"cni.conflist":    filepath.Join(s.CNIConfig(), "10-callgate.conflist"),
	}
	if err := os.MkdirAll(s.CNIConfig(), 0o755); err != nil {
		return err
	}
	for name, path := range files {
		content, err := render(name, s)
		if err != nil {
			return fmt.Errorf("configuration %s: %w", name, err)
		}
		if err := writeChanged(path, content, 0o644); err != nil {
			return err
		}
	}
	for _, certificate := range []string{"kubelet", "controller-manager", "scheduler", "kube-proxy", "kube-router", "admin"} {
		content, err := kubeconfig(s.layout, certificate)
		if err != nil {
			return err
		}
		path := s.config(certificate + ".kubeconfig")
		if certificate == "admin" {
			path = s.layout.kubeconfig()
		}
		if err := writeChanged(path, content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writeChanged leaves a file that has the content already untouched: kube-proxy
// ends as soon as its configuration is written.
func writeChanged(path string, content []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return os.WriteFile(path, content, mode)
}
