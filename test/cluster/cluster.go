// Package cluster is what the tests on a real cluster share: clients, namespaces, Tools and calls, and waits for them.
// It needs KUBECONFIG, Callgate installed (make deploy) and the images that make images built and loaded.
package cluster

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"callgate.dev/callgate/api/v1alpha1"
)

var (
	// Config of the cluster's administrator.
	Config *rest.Config
	// Admin may do everything.
	Admin client.WithWatch
	// Agent is the ServiceAccount that makes calls.
	Agent client.WithWatch
	// ToolsNS is opened for tools and enforces Pod Security restricted.
	ToolsNS string
	// AgentsNS is the agent's.
	AgentsNS string
	// Images by their name in images.env.
	Images = map[string]string{}
)

// AgentName is the agent's ServiceAccount.
const AgentName = "agent"

// Main runs the tests of a package between setting up its namespaces, which are named by prefix, and removing them. It
// returns the exit code.
func Main(prefix string, tests func() int) int {
	code, err := run(prefix, tests)
	if err != nil {
		fmt.Fprintln(os.Stderr, prefix+":", err)
		return 1
	}
	return code
}

func run(prefix string, tests func() int) (int, error) {
	log.SetLogger(zap.New())
	if err := readImages("../../.cluster/images/images.env"); err != nil {
		return 0, err
	}
	var err error
	if Config, err = ctrl.GetConfig(); err != nil {
		return 0, fmt.Errorf("KUBECONFIG must name a cluster with Callgate (make cluster-up images deploy): %w", err)
	}
	Config.QPS = -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if Admin, err = client.NewWithWatch(Config, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	random := make([]byte, 3)
	if _, err := rand.Read(random); err != nil {
		return 0, err
	}
	ToolsNS, AgentsNS = prefix+"-tools-"+hex.EncodeToString(random), prefix+"-agents-"+hex.EncodeToString(random)
	as := rest.CopyConfig(Config)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + AgentsNS + ":" + AgentName,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + AgentsNS, "system:authenticated"},
	}
	if Agent, err = client.NewWithWatch(as, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := setUp(ctx); err != nil {
		return 0, fmt.Errorf("set up namespaces: %w", err)
	}
	code := tests()
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, ns := range []string{AgentsNS, ToolsNS} {
		if err := Admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return 0, err
		}
	}
	return code, nil
}

func setUp(ctx context.Context) error {
	agents := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: AgentsNS}},
		bind(AgentsNS, "callgate-agent", AgentsNS, AgentName),
	}
	for _, o := range append(agents, toolsNamespace(ToolsNS)...) {
		if err := Admin.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// NewToolsNamespace makes another namespace for tools, like ToolsNS, for a test that changes what holds in all of it.
// It goes with the test.
func NewToolsNamespace(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	name = ToolsNS + "-" + name
	t.Cleanup(func() {
		err := Admin.Delete(context.WithoutCancel(ctx), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	for _, o := range toolsNamespace(name) {
		if err := Admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

func toolsNamespace(name string) []client.Object {
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			v1alpha1.LabelTools: v1alpha1.LabelToolsEnabled, "pod-security.kubernetes.io/enforce": "restricted"}}},
		bind(name, "callgate-tool-namespace", "callgate-system", "callgate-controller"),
		bind(name, "callgate-agent", AgentsNS, AgentName), // to list the Tools
		&v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "agents"}, Spec: v1alpha1.ToolPolicySpec{
			Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: AgentsNS, Name: AgentName}},
			Rules:    []v1alpha1.PolicyRule{{Name: "all", Effect: v1alpha1.EffectAllow, Tools: v1alpha1.ToolSelector{Names: []string{"*"}}}},
		}},
	}
}

func bind(namespace, role, saNamespace, sa string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: saNamespace, Name: sa}},
	}
}

func readImages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the images must be built first (make images): %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ref, ok := strings.Cut(s.Text(), "="); ok {
			Images[name] = ref
		}
	}
	return nil
}
