package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// The API server of all tests, and who talks to it. The tests of this package
// run one after the other: one of them takes a policy away.
var (
	environment *envtest.Environment
	admin       *user         // system:masters
	adminClient client.Client // the same, for setting up
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/api:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: it names a folder with kube-apiserver, etcd and kubectl. " +
			"make envtest prepares them and runs these tests")
	}
	environment = &envtest.Environment{
		CRDInstallOptions:        envtest.CRDInstallOptions{Paths: []string{"../../config/crd/bases"}},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: 90 * time.Second,
		ControlPlaneStopTimeout:  60 * time.Second,
	}
	defer func() { err = errors.Join(err, environment.Stop()) }()
	cfg, err := environment.Start()
	if err != nil {
		return 1, fmt.Errorf("start kube-apiserver and etcd from %s: %w", os.Getenv("KUBEBUILDER_ASSETS"), err)
	}
	if admin, err = newUser("admin", cfg); err != nil {
		return 1, err
	}
	if adminClient, err = client.New(cfg, client.Options{Scheme: scheme.Scheme}); err != nil {
		return 1, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := install(ctx); err != nil {
		return 1, fmt.Errorf("install config/: %w", err)
	}
	return m.Run(), nil
}

// install applies what config/default has beside CRDs and Deployment, and waits
// until the policies are in force.
func install(ctx context.Context) error {
	for _, pattern := range []string{"manager/namespace.yaml", "rbac/*.yaml", "admission/*.yaml"} {
		files, err := filepath.Glob(filepath.Join("../../config", pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no file matches config/%s (%w)", pattern, err)
		}
		for _, file := range files {
			if filepath.Base(file) == "kustomization.yaml" {
				continue
			}
			objects, err := readObjects(file)
			if err != nil {
				return err
			}
			for _, object := range objects {
				if err := adminClient.Create(ctx, object); err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
			}
		}
	}
	if err := waitForStamping(ctx); err != nil {
		return err
	}
	return waitForProtection(ctx)
}

// readObjects reads the objects of a YAML file.
func readObjects(file string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(object); {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		case len(object.Object) > 0:
			objects = append(objects, object)
		}
	}
}

// poll asks until done says so, at most 30 s: how long a policy takes to be in
// force is not bounded by the API, and requests may fail with 503 meanwhile.
// The error says what was seen last.
func poll(ctx context.Context, what string, done func() (bool, string)) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, seen := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within 30 s; last seen: %s", what, seen)
		case <-ticker.C:
		}
	}
}

// forgedObjects are one object of each kind whose author is stamped.
var forgedObjects = []struct{ policies, resource, author, change, body string }{
	{"", "toolcalls", "requester", `{"spec":{"toolRef":{"name":"other"}}}`,
		`{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"in-force"},
		"spec":{"toolRef":{"name":"echo"},"requester":{"username":"forged","groups":["system:masters"]}}}`},
	{"-approvals", "toolcallapprovals", "approver", `{"spec":{"reason":"other"}}`,
		`{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCallApproval","metadata":{"name":"in-force"},"spec":{"decision":"Approve",
		"toolCallRef":{"name":"a","uid":"b"},"approver":{"username":"forged","groups":["system:masters"]}}}`},
}

// waitForStamping waits until the names in forged objects are overwritten.
func waitForStamping(ctx context.Context) error {
	for _, forged := range forgedObjects {
		if err := poll(ctx, "callgate-stamp"+forged.policies+" in force", func() (bool, string) {
			answer, err := admin.send(http.MethodPost, resourcePath("default", forged.resource)+"?dryRun=All", jsonType, forged.body)
			if err != nil {
				return false, err.Error()
			}
			return answer.code == http.StatusCreated && answer.object().str("spec", forged.author, "username") != "forged",
				answer.String()
		}); err != nil {
			return err
		}
	}
	return nil
}

// waitForProtection waits until changes of spec are refused.
func waitForProtection(ctx context.Context) error {
	for _, forged := range forgedObjects {
		path := resourcePath("default", forged.resource)
		answer, err := admin.send(http.MethodPost, path, jsonType, forged.body)
		if err != nil || answer.code != http.StatusCreated {
			return fmt.Errorf("create one of %s: %w, %s", forged.resource, err, answer)
		}
		policy := "callgate-protect" + forged.policies
		if err := poll(ctx, policy+" in force", func() (bool, string) {
			answer, err := admin.send(http.MethodPatch, path+"/in-force?dryRun=All", mergeType, forged.change)
			if err != nil {
				return false, err.Error()
			}
			return strings.Contains(answer.message(), policy), answer.String()
		}); err != nil {
			return err
		}
		if _, err = admin.send(http.MethodDelete, path+"/in-force", jsonType, ""); err != nil {
			return err
		}
	}
	return nil
}

// newNamespace makes a namespace in which every authenticated user has the role
// callgate-agent.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "agents-"}}
	if err := adminClient.Create(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	if err := adminClient.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace.Name, Name: "agents"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-agent"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:authenticated"}},
	}); err != nil {
		t.Fatal(err)
	}
	// The authorizer sees a new binding by a watch.
	probe := certificateUser(t, "probe")
	if err := poll(t.Context(), "the role callgate-agent in "+namespace.Name, func() (bool, string) {
		answer, err := probe.send(http.MethodGet, callsPath(namespace.Name), jsonType, "")
		if err != nil {
			return false, err.Error()
		}
		return answer.code == http.StatusOK, answer.String()
	}); err != nil {
		t.Fatal(err)
	}
	return namespace.Name
}
