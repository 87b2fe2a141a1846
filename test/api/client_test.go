package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Content types of requests.
const (
	jsonType      = "application/json"
	applyType     = "application/apply-patch+yaml"
	mergeType     = "application/merge-patch+json"
	jsonPatchType = "application/json-patch+json"
	strategicType = "application/strategic-merge-patch+json"
)

func callsPath(namespace string) string { return resourcePath(namespace, "toolcalls") }

func resourcePath(namespace, resource string) string {
	return "/apis/callgate.dev/v1alpha1/namespaces/" + namespace + "/" + resource
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
