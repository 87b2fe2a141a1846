// Package e2e runs Callgate on a real cluster: real Jobs in real containers.
// It needs KUBECONFIG, Callgate installed (make deploy) and the images that
// make images built and loaded.
package e2e

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
	config *rest.Config
	// admin may do everything; agent is the ServiceAccount that makes calls.
	admin, agent client.WithWatch
	// toolsNS is opened for tools and enforces Pod Security restricted.
	toolsNS, agentsNS string
	images            = map[string]string{}
)

const agentName = "agent"

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	log.SetLogger(zap.New())
	if err := readImages("../../.cluster/images/images.env"); err != nil {
		return 0, err
	}
	var err error
	if config, err = ctrl.GetConfig(); err != nil {
		return 0, fmt.Errorf("KUBECONFIG must name a cluster with Callgate (make cluster-up images deploy): %w", err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return 0, err
	}
	if admin, err = client.NewWithWatch(config, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	random := make([]byte, 3)
	if _, err := rand.Read(random); err != nil {
		return 0, err
	}
	toolsNS, agentsNS = "e2e-tools-"+hex.EncodeToString(random), "e2e-agents-"+hex.EncodeToString(random)
	as := rest.CopyConfig(config)
	as.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + agentsNS + ":" + agentName,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + agentsNS, "system:authenticated"},
	}
	if agent, err = client.NewWithWatch(as, client.Options{Scheme: scheme}); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := setUp(ctx); err != nil {
		return 0, fmt.Errorf("set up namespaces: %w", err)
	}
	code := m.Run()
	ctx, cancel = context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, ns := range []string{agentsNS, toolsNS} {
		if err := admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return 0, err
		}
	}
	return code, nil
}

func setUp(ctx context.Context) error {
	everything := []string{"*"}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: toolsNS, Labels: map[string]string{
			v1alpha1.LabelTools: v1alpha1.LabelToolsEnabled, "pod-security.kubernetes.io/enforce": "restricted"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentsNS}},
		bind(toolsNS, "callgate-tool-namespace", "callgate-system", "callgate-controller"),
		bind(agentsNS, "callgate-agent", agentsNS, agentName),
		bind(toolsNS, "callgate-agent", agentsNS, agentName), // to list the Tools
		&v1alpha1.ToolPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "agents"}, Spec: v1alpha1.ToolPolicySpec{
			Subjects: []v1alpha1.Subject{{Kind: v1alpha1.SubjectServiceAccount, Namespace: agentsNS, Name: agentName}},
			Rules:    []v1alpha1.PolicyRule{{Name: "all", Effect: v1alpha1.EffectAllow, Tools: v1alpha1.ToolSelector{Names: everything}}},
		}},
	} {
		if err := admin.Create(ctx, o); err != nil {
			return err
		}
	}
	return nil
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
			images[name] = ref
		}
	}
	return nil
}
