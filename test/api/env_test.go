package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
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

const forgedCall = `{"apiVersion":"callgate.dev/v1alpha1","kind":"ToolCall","metadata":{"name":"in-force"},
	"spec":{"toolRef":{"name":"echo"},"requester":{"username":"forged","groups":["system:masters"]}}}`

// waitForStamping waits until the name in a forged call is overwritten.
func waitForStamping(ctx context.Context) error {
	return poll(ctx, "callgate-stamp in force", func() (bool, string) {
		answer, err := admin.send(http.MethodPost, callsPath("default")+"?dryRun=All", jsonType, forgedCall)
		if err != nil {
			return false, err.Error()
		}
		return answer.code == http.StatusCreated && answer.object().str("spec", "requester", "username") != "forged",
			answer.String()
	})
}

// waitForProtection waits until a change of spec is refused.
func waitForProtection(ctx context.Context) error {
	answer, err := admin.send(http.MethodPost, callsPath("default"), jsonType, forgedCall)
	if err != nil || answer.code != http.StatusCreated {
		return fmt.Errorf("create a call: %w, %s", err, answer)
	}
	if err := poll(ctx, "callgate-protect in force", func() (bool, string) {
		answer, err := admin.send(http.MethodPatch, callsPath("default")+"/in-force?dryRun=All", mergeType,
			`{"spec":{"toolRef":{"name":"other"}}}`)
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(answer.message(), "callgate-protect"), answer.String()
	}); err != nil {
		return err
	}
	_, err = admin.send(http.MethodDelete, callsPath("default")+"/in-force", jsonType, "")
	return err
}

// Content types of requests.
const (
	jsonType      = "application/json"
	applyType     = "application/apply-patch+yaml"
	mergeType     = "application/merge-patch+json"
	jsonPatchType = "application/json-patch+json"
	strategicType = "application/strategic-merge-patch+json"
)

func callsPath(namespace string) string {
	return "/apis/callgate.dev/v1alpha1/namespaces/" + namespace + "/toolcalls"
}

// user is somebody who talks to the API server in plain requests, so that a
// test decides every byte.
type user struct {
	name string
	cfg  *rest.Config
	http *http.Client
}

func newUser(name string, cfg *rest.Config) (*user, error) {
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", name, err)
	}
	httpClient.Timeout = 60 * time.Second
	return &user{name: name, cfg: cfg, http: httpClient}, nil
}

// certificateUser is a person with a client certificate.
func certificateUser(t *testing.T, name string, groups ...string) *user {
	t.Helper()
	added, err := environment.AddUser(envtest.User{Name: name, Groups: groups}, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, err := newUser(name, added.Config())
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// impersonating is a user who acts for somebody else.
func impersonating(t *testing.T, who *user, as rest.ImpersonationConfig) *user {
	t.Helper()
	cfg := rest.CopyConfig(who.cfg)
	cfg.Impersonate = as
	u, err := newUser(as.UserName, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// serviceAccountUser makes a ServiceAccount and is it, with a real token.
func serviceAccountUser(t *testing.T, namespace, name string) *user {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := adminClient.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	token := &authenticationv1.TokenRequest{}
	if err := adminClient.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(admin.cfg)
	cfg.BearerToken = token.Status.Token
	u, err := newUser(name, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return u
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

// answer is what the API server answered.
type answer struct {
	code int
	body []byte
}

// send sends one request and reads an answer of at most 16 MiB.
func (u *user) send(method, path, contentType, body string) (answer, error) {
	request, err := http.NewRequest(method, strings.TrimSuffix(u.cfg.Host, "/")+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", jsonType)
	if strings.Contains(path, "as=Table") {
		request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	}
	response, err := u.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }() // read to the end or not needed
	content, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	return answer{code: response.StatusCode, body: content}, err
}

// do is send for a test.
func (u *user) do(t *testing.T, method, path, contentType, body string) answer {
	t.Helper()
	got, err := u.send(method, path, contentType, body)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", u.name, method, path, err)
	}
	return got
}

// create creates an object that must be accepted, and returns what is stored.
func (u *user) create(t *testing.T, path, body string) fields {
	t.Helper()
	got := u.do(t, http.MethodPost, path, jsonType, body)
	if got.code != http.StatusCreated {
		t.Fatalf("%s: create: %s", u.name, got)
	}
	return got.object()
}

// get returns what is stored.
func (u *user) get(t *testing.T, path string) fields {
	t.Helper()
	got := u.do(t, http.MethodGet, path, jsonType, "")
	if got.code != http.StatusOK {
		t.Fatalf("%s: get %s: %s", u.name, path, got)
	}
	return got.object()
}

func (a answer) ok() bool { return a.code >= 200 && a.code < 300 }

func (a answer) String() string {
	body := string(a.body)
	if len(body) > 2000 {
		body = body[:2000] + "…"
	}
	return fmt.Sprintf("%d %s", a.code, body)
}

// message is the message of a Status, empty for any other answer.
func (a answer) message() string {
	var status metav1.Status
	if json.Unmarshal(a.body, &status) != nil || status.Kind != "Status" {
		return ""
	}
	return status.Message
}

func (a answer) object() fields {
	var object fields
	if utiljson.Unmarshal(a.body, (*map[string]any)(&object)) != nil {
		return nil
	}
	return object
}

// fields is an object as a map, its integers as int64.
type fields map[string]any

// at is the value of a field, nil if there is none.
func (f fields) at(path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(f, path...)
	return value
}

// str is the value of a string field, empty if there is none.
func (f fields) str(path ...string) string {
	value, _ := f.at(path...).(string)
	return value
}

// json is the object as JSON.
func (f fields) json(t *testing.T) string {
	t.Helper()
	content, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// fromYAML is a YAML document as an object.
func fromYAML(t *testing.T, document string) fields {
	t.Helper()
	content, err := utilyaml.ToJSON([]byte("---\n" + document)) // without the line {a: b} is taken for JSON
	if err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	var object fields
	if err := utiljson.Unmarshal(content, (*map[string]any)(&object)); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	return object
}

// merged is base with a YAML merge patch (RFC 7386); base is left alone.
func merged(t *testing.T, base, patch string) fields {
	t.Helper()
	object, changes := fromYAML(t, base), fields{}
	if patch != "" {
		changes = fromYAML(t, patch)
	}
	mergeInto(object, changes)
	return object
}

func mergeInto(object, patch map[string]any) {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)
		switch old, hasMap := object[key].(map[string]any); {
		case value == nil:
			delete(object, key)
		case isMap && hasMap:
			mergeInto(old, inner)
		default:
			object[key] = runtime.DeepCopyJSONValue(value)
		}
	}
}
