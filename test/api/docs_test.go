package api

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The API server takes every object that these pages show, with no field
// unknown.
func TestObjectsOfTheDocs(t *testing.T) {
	paths := map[string]string{
		"Tool":              "/apis/callgate.dev/v1alpha1/namespaces/default/tools",
		"ToolCall":          "/apis/callgate.dev/v1alpha1/namespaces/default/toolcalls",
		"ToolPolicy":        "/apis/callgate.dev/v1alpha1/namespaces/default/toolpolicies",
		"ClusterToolPolicy": "/apis/callgate.dev/v1alpha1/clustertoolpolicies",
		"ToolCallApproval":  "/apis/callgate.dev/v1alpha1/namespaces/default/toolcallapprovals",
		"ClusterRole":       "/apis/rbac.authorization.k8s.io/v1/clusterroles",
	}
	for _, file := range []string{"policies.md", "toolpolicy.md", "clustertoolpolicy.md", "tool.md", "toolcall.md", "duplicates-and-limits.md", "approvals.md", "toolcallapproval.md"} {
		page, err := os.ReadFile(filepath.Join("../../docs", file))
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(string(page), "\n```yaml\n")[1:]
		if len(blocks) == 0 {
			t.Errorf("%s shows no object", file)
		}
		for _, block := range blocks {
			block, _, _ = strings.Cut(block, "\n```")
			object := merged(t, block, `{metadata: {namespace: null}}`)
			t.Run(file+"/"+object.str("metadata", "name"), func(t *testing.T) {
				path, ok := paths[object.str("kind")]
				if !ok {
					t.Fatalf("no path for kind %q", object.str("kind"))
				}
				if answer := admin.do(t, http.MethodPost, path+"?dryRun=All&fieldValidation=Strict", jsonType, object.json(t)); !answer.ok() {
					t.Error(answer)
				}
			})
		}
	}
}

// What the page about installing says removes everything removes every CRD.
func TestInstallPageNamesEveryCRD(t *testing.T) {
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut(string(page), "`kubectl delete crd ")
	command, _, _ = strings.Cut(command, "`")
	var want []string
	for _, crd := range environment.CRDs {
		want = append(want, crd.Name)
	}
	got := strings.Fields(command)
	slices.Sort(got)
	slices.Sort(want)
	if len(want) < 5 || !slices.Equal(got, want) {
		t.Errorf("kubectl delete crd of docs/install.md: got %v, want %v", got, want)
	}
}
