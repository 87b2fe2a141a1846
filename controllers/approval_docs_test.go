package controllers_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The commands of the page about approvals print what it says, with the plugin
// in the PATH, in namespaces of their own.
func TestApprovalDocs(t *testing.T) {
	t.Parallel()
	tools, agents := openNamespace(t), closedNamespace(t)
	create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: agents, Name: "agents"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "callgate-agent"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:serviceaccounts:" + agents}},
	})
	plugin := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, "../cmd/kubectl-callgate").CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v: %s", err, out)
	}
	if _, err := os.Stat(plugin + "/kubectl-callgate"); err != nil {
		t.Fatal(err)
	}
	work := runAll(t, tools, prints(`{"refunded":250}`, 0))
	runPage(t, "approvals.md", strings.NewReplacer(
		"$PWD/bin", plugin,
		"-n tools", "-n "+tools, "namespace: tools", "namespace: "+tools, "tools/refunds", tools+"/refunds",
		"-n agents", "-n "+agents, "serviceaccount:agents:", "serviceaccount:"+agents+":", "serviceaccounts:agents", "serviceaccounts:"+agents,
	))
	if n := work.ran(); n != 2 {
		t.Errorf("%d calls ran, the page has two of three approved", n)
	}
}
