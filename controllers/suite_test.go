package controllers_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/controllers"
	"callgate.dev/callgate/internal/audit"
)

const (
	install        = "callgate-system"
	controllerName = "system:serviceaccount:callgate-system:callgate-controller"
	runnerImage    = "registry.example/runner:1"
	// apiServerAddress is what a kubelet would tell every container.
	apiServerAddress = "10.0.0.1:443"

	// agentsNamespace is where calls are created; Tools have a namespace per test.
	agentsNamespace = "agents"
	agentName       = "agent@example.com"
	agentGroup      = "agents@example.com"
	agentAccount    = "system:serviceaccount:agents:worker"
	// approversGroup has the role callgate-approver.
	approversGroup = "approvers@example.com"

	// patience bounds every wait of a test. It is far above what is ever
	// needed, since the machine may have other work.
	patience = 60 * time.Second
)

// What all tests share. admin may do everything; agent creates calls, with the
// role callgate-agent; worker does so, too, as a ServiceAccount.
var (
	environment          *envtest.Environment
	scheme               = runtime.NewScheme()
	admin, agent, worker client.Client
	adminSet             kubernetes.Interface
	controller           *manager
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Tests wait most of their time for somebody else: many at once cost little.
	if err := flag.Set("test.parallel", "24"); err != nil {
		panic(err)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "controllers:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: it names a folder with kube-apiserver, etcd and " +
			"kube-controller-manager. make envtest prepares them and runs these tests")
	}
	logs, err := os.CreateTemp("", "callgate-envtest-")
	if err != nil {
		return 1, err
	}
	defer func() {
		if code != 0 || err != nil {
			fmt.Fprintln(os.Stderr, "log of the controller and of kube-controller-manager:", logs.Name())
			return
		}
		_ = logs.Close()
		err = os.Remove(logs.Name())
	}()
	ctrl.SetLogger(zap.New(zap.WriteTo(logs)))

	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return 1, err
	}
	environment = &envtest.Environment{
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: []string{"../config/crd/bases"}},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 90 * time.Second,
		ControlPlaneStopTimeout:  60 * time.Second,
	}
	// As in a cluster: pods get a ServiceAccount, and are refused without one.
	environment.ControlPlane.GetAPIServer().Configure().Set("disable-admission-plugins", "DefaultStorageClass")
	defer func() { err = errors.Join(err, environment.Stop()) }()
	cfg, err := environment.Start()
	if err != nil {
		return 1, fmt.Errorf("start kube-apiserver and etcd from %s: %w", assets, err)
	}
	cfg.QPS = -1
	if err := setUp(cfg); err != nil {
		return 1, err
	}
	stopKCM, err := startControllerManager(assets, logs)
	if err != nil {
		return 1, err
	}
	defer stopKCM()
	stopKubelet, err := startKubelet()
	if err != nil {
		return 1, err
	}
	defer stopKubelet()
	stopRecording, err := startRecording(cfg)
	if err != nil {
		return 1, err
	}
	defer stopRecording()
	if controller, err = startController(cfg); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, controller.stop()) }()
	if err := waitUntilCallsAreTaken(); err != nil {
		return 1, err
	}
	code = m.Run()
	theNode.mu.Lock()
	defer theNode.mu.Unlock()
	return code, theNode.broken
}

func setUp(cfg *rest.Config) (err error) {
	if admin, err = client.New(cfg, client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if adminSet, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	if agent, err = clientOf(cfg, agentName, agentGroup, "system:authenticated"); err != nil {
		return err
	}
	if worker, err = clientOf(cfg, agentAccount, "system:serviceaccounts", "system:serviceaccounts:agents", "system:authenticated"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := installConfig(ctx); err != nil {
		return fmt.Errorf("install config/: %w", err)
	}
	namespace := namespaceObject(agentsNamespace)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "agents"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-agent"},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: "User", Name: agentName},
			{APIGroup: rbacv1.GroupName, Kind: "User", Name: agentAccount},
			// For people who are approvers, too.
			{APIGroup: rbacv1.GroupName, Kind: "Group", Name: agentGroup},
		},
	}
	approvers := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "approvers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-approver"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: approversGroup}},
	}
	return errors.Join(admin.Create(ctx, namespace), admin.Create(ctx, binding), admin.Create(ctx, approvers))
}

// clientOf is a client of somebody else.
func clientOf(cfg *rest.Config, name string, groups ...string) (client.Client, error) {
	return client.New(impersonate(cfg, name, groups...), client.Options{Scheme: scheme})
}

func impersonate(cfg *rest.Config, name string, groups ...string) *rest.Config {
	as := rest.CopyConfig(cfg)
	as.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	return as
}

// installConfig applies what config/default has beside CRDs and Deployment.
func installConfig(ctx context.Context) error {
	for _, pattern := range []string{"manager/namespace.yaml", "rbac/*.yaml", "admission/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("../config", pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no file matches config/%s (%w)", pattern, err)
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			if err := createAll(ctx, file); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

// createAll creates the objects of a YAML file.
func createAll(ctx context.Context, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(object.Object) == 0:
			continue
		}
		if err := admin.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

// manager is a running controller.
type manager struct {
	cancel context.CancelFunc
	done   chan error
	health string // host:port
}

// startController runs the controller as its ServiceAccount, so that a right
// that config/rbac lacks shows.
func startController(cfg *rest.Config, changes ...func(*controllers.Options)) (*manager, error) {
	return startManager(cfg, true, changes...)
}

// startManager may do without leader election, so that two controllers work at
// the same time, as when a leader does not know yet that it is none any more.
func startManager(cfg *rest.Config, elected bool, changes ...func(*controllers.Options)) (*manager, error) {
	as := impersonate(cfg, controllerName, "system:serviceaccounts", "system:serviceaccounts:"+install, "system:authenticated")
	health, err := freeAddress()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(as, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controllers.CacheOptions(install),
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:        health,
		LeaderElection:                elected,
		LeaderElectionID:              "callgate-controller",
		LeaderElectionNamespace:       install,
		LeaderElectionReleaseOnCancel: true,
		// The controller is started several times in this process.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	options := controllers.Options{Install: install, RunnerImage: runnerImage, RequireNetworkIsolation: true, APIServer: apiServerAddress, Audit: audit.NewLog(&auditLines),
		Retention: controllers.Retention{DefaultTTL: time.Hour, MaxTTL: 24 * time.Hour, MaxFinished: 10_000},
	}
	for _, change := range changes {
		change(&options)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := controllers.Setup(ctx, mgr, options); err != nil {
		cancel()
		return nil, err
	}
	m := &manager{cancel: cancel, done: make(chan error, 1), health: health}
	go func() { m.done <- mgr.Start(ctx) }()
	return m, nil
}

func (m *manager) stop() error {
	m.cancel()
	select {
	case err := <-m.done:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the controller did not stop within %s", patience)
	}
}

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
