package api

import (
	"net/http"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	secretRefusal    = "spec.container names Secrets that you may not get: "
	configMapRefusal = "spec.container names ConfigMaps that you may not get: "
	claimRefusal     = "spec.container.volumes names a PersistentVolumeClaim, and you may not create pods in this namespace"
	accountRefusal   = "spec.container.serviceAccountName names a ServiceAccount that you may not use"
)

// grant gives a user, who may write Tools, further rights in a namespace.
func grant(t *testing.T, namespace, who string, rules ...rbacv1.PolicyRule) *user {
	t.Helper()
	bind(t, namespace, "callgate-tool-admin", who)
	if len(rules) > 0 {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: who}, Rules: rules}
		if err := adminClient.Create(t.Context(), role); err != nil {
			t.Fatal(err)
		}
		if err := adminClient.Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: who},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: who},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: who}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return certificateUser(t, who)
}

func right(verb, resource string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{verb}, ResourceNames: names}
}

const plainTool = `
apiVersion: callgate.dev/v1alpha1
kind: Tool
metadata: {name: NAME}
spec:
  description: A tool.
  inputSchema: {type: object, properties: {a: {type: string}}}
  container: {image: "a:1", command: [a]}
`

// TestToolAuthors: what a Tool names its author can read, so it takes the right
// to read it. The namespace is not opened: it may be, later.
func TestToolAuthors(t *testing.T) {
	namespace := newNamespace(t)
	path := resourcePath(namespace, "tools")
	author := grant(t, namespace, "tool-author")
	one := grant(t, namespace, "author-one", right("get", "secrets", "one"), right("get", "configmaps", "one"), right("use", "serviceaccounts", "one"))
	two := grant(t, namespace, "author-two", right("get", "secrets", "one", "two"), right("get", "configmaps", "one", "two"))
	lister := grant(t, namespace, "author-list", right("list", "secrets"), right("get", "pods"), right("get", "serviceaccounts"))
	owner := grant(t, namespace, "author-owner") // edit: gets Secrets, creates pods, impersonates ServiceAccounts
	bind(t, namespace, "system:aggregate-to-edit", owner.name)
	bind(t, namespace, "system:aggregate-to-view", owner.name)
	if err := poll(t.Context(), "rights of the authors", func() (bool, string) {
		return may(t, "author-one", "create", "callgate.dev", "tools", "", namespace) && may(t, "author-owner", "get", "", "secrets", "", namespace) &&
			may(t, "author-list", "list", "", "secrets", "", namespace), "not all"
	}); err != nil {
		t.Fatal(err)
	}
	const (
		envOne    = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}]}}}`
		envTwo    = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: two, key: k}}}]}}}`
		envThree  = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: two, key: k}}}, {name: C, valueFrom: {secretKeyRef: {name: three, key: k}}}]}}}`
		envTwice  = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}, {name: B, valueFrom: {secretKeyRef: {name: one, key: l}}}]}}}`
		pullOne   = `{spec: {container: {imagePullSecrets: [{name: one}]}}}`
		pullTwo   = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}], imagePullSecrets: [{name: two}]}}}`
		mapOne    = `{spec: {container: {env: [{name: A, valueFrom: {configMapKeyRef: {name: one, key: k}}}]}}}`
		mapTwo    = `{spec: {container: {env: [{name: A, valueFrom: {configMapKeyRef: {name: one, key: k}}}, {name: B, valueFrom: {configMapKeyRef: {name: two, key: k}}}]}}}`
		mapThree  = `{spec: {container: {env: [{name: A, valueFrom: {configMapKeyRef: {name: one, key: k}}}, {name: B, valueFrom: {configMapKeyRef: {name: two, key: k}}}, {name: C, valueFrom: {configMapKeyRef: {name: three, key: k}}}]}}}`
		plainEnv  = `{spec: {container: {env: [{name: A, value: one}]}}}`
		volumes   = `{spec: {container: {volumes: [{name: v, mountPath: /v, secret: {secretName: one}}, {name: w, mountPath: /w, configMap: {name: one}}]}}}`
		volumeTwo = `{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: one, key: k}}}], volumes: [{name: v, mountPath: /v, secret: {secretName: two}}]}}}`
		volumeMap = `{spec: {container: {volumes: [{name: w, mountPath: /w, configMap: {name: two}}]}}}`
		claim     = `{spec: {container: {volumes: [{name: w, mountPath: /w, persistentVolumeClaim: {claimName: one}}]}}}`
		account   = `{spec: {container: {serviceAccountName: one}}}`
		manyNamed = "all Secrets (the Tool names more than two) in namespace "
	)
	crd, err := os.ReadFile("../../config/crd/bases/callgate.dev_tools.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who     *user
		patch   string
		refused string
		reason  string
	}{
		{author, plainEnv, "", "names nothing"},
		{author, envOne, secretRefusal + "one. ", "would read it"},
		{author, pullOne, secretRefusal + "one. ", "would use it"},
		{author, mapOne, configMapRefusal + "one. ", "would read it"},
		{lister, envOne, secretRefusal + "one. ", "list is another right"},
		{one, envOne, "", "may get this one"},
		{one, envTwice, "", "one name, twice"},
		{one, pullOne, "", "may get this one"},
		{one, mapOne, "", "may get this one"},
		{one, envTwo, secretRefusal + "one, two. ", "not the other one"},
		{one, pullTwo, secretRefusal + "one, two. ", "not the other one"},
		{one, mapTwo, configMapRefusal + "one, two. ", "not the other one"},
		{two, envTwo, "", "each by its name"},
		{two, pullTwo, "", "each by its name"},
		{two, mapTwo, "", "each by its name"},
		{two, envThree, manyNamed + namespace, "three, and two allowed"},
		{two, mapThree, "all ConfigMaps (the Tool names more than two) in namespace " + namespace, "three, and two allowed"},
		{owner, envThree, "", "all of the namespace"},
		{owner, mapThree, "", "all of the namespace"},
		{admin, envThree, "", "a cluster administrator"},

		{author, volumes, secretRefusal + "one. ", "would read it"},
		{one, volumes, "", "may get both"},
		{one, volumeTwo, secretRefusal + "one, two. ", "not the other one"},
		{one, volumeMap, configMapRefusal + "two. ", "not this one"},
		{one, claim, claimRefusal, "a right to Secrets is none to volumes"},
		{owner, claim, "", "mounts it in a pod as well"},
		{author, account, accountRefusal, "would act as it"},
		{lister, account, accountRefusal, "get is another right"},
		{one, account, "", "may use it"},
		{one, strings.Replace(account, "one", "two", 1), accountRefusal, "not this one"},
		{owner, account, "", "may impersonate it"},
	} {
		if field := newField(tc.patch); field != "" && !strings.Contains(string(crd), "\n                  "+field+":\n") {
			t.Logf("not tried, since the CRD has no %s: %s %s", field, tc.who.name, tc.reason)
			continue
		}
		t.Run(tc.who.name+" "+tc.reason, func(t *testing.T) {
			answer := tc.who.do(t, http.MethodPost, path+"?dryRun=All", jsonType, merged(t, strings.ReplaceAll(plainTool, "NAME", "x"), tc.patch).json(t))
			checkAuthor(t, answer, tc.refused)
		})
	}

	// A Tool that somebody made who may.
	tool := owner.create(t, path, merged(t, strings.ReplaceAll(plainTool, "NAME", "named"), envOne).json(t))
	author.create(t, path, fromYAML(t, strings.ReplaceAll(plainTool, "NAME", "free")).json(t))
	item, freeItem := path+"/named?dryRun=All", path+"/free?dryRun=All"
	for _, tc := range []struct {
		who         *user
		item, patch string
		refused     string
		reason      string
	}{
		{author, item, `{"metadata":{"labels":{"team":"x"},"annotations":{"a":"b"}}}`, "", "labels change nothing of it"},
		{author, item, tool.json(t), "", "the same manifest again"},
		{author, item, `{"spec":{"container":{"image":"evil:1"}}}`, secretRefusal, "another program reads the Secret"},
		{author, item, `{"spec":{"container":{"command":["cat"]}}}`, secretRefusal, "another command does"},
		{author, item, `{"spec":{"inputSchema":{"properties":{"a":null,"b":{"type":"string"}}}}}`, secretRefusal, "other arguments, of the same number"},
		{author, item, `{"spec":{"isolation":{"network":{"egress":[{}]}}}}`, secretRefusal, "it leaves by the network"},
		{author, item, `{"spec":{"container":{"env":null}}}`, "", "no Secret any more"},
		{one, item, `{"spec":{"container":{"image":"b:1"}}}`, "", "may get it"},
		{author, freeItem, `{"spec":{"container":{"image":"b:1"}}}`, "", "names nothing"},
		{author, freeItem, `{"spec":{"container":{"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"one","key":"k"}}}]}}}`, secretRefusal, "named later"},
	} {
		t.Run(tc.who.name+" changes: "+tc.reason, func(t *testing.T) {
			checkAuthor(t, tc.who.do(t, http.MethodPatch, tc.item, mergeType, tc.patch), tc.refused)
		})
	}
}

// newField is a field of spec.container that a patch sets, and that not every
// version of the CRD has.
func newField(patch string) string {
	for _, field := range []string{"volumes", "serviceAccountName"} {
		if strings.Contains(patch, field+":") {
			return field
		}
	}
	return ""
}

func checkAuthor(t *testing.T, answer answer, refused string) {
	t.Helper()
	switch {
	case refused == "" && !answer.ok():
		t.Errorf("refused: %s", answer)
	case refused != "" && (answer.code != http.StatusForbidden || !strings.Contains(answer.message(), refused)):
		t.Errorf("want 403 with %q: %s", refused, answer)
	}
}
