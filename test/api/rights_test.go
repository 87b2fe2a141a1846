package api

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestRightsAreDocumented: docs/rights.md has every right of the controller with
// a reason, and no other.
func TestRightsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/rights.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented, held []string
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		where := ""
		if len(cells) == 6 {
			where = strings.TrimSpace(cells[1])
		}
		if !slices.Contains([]string{"everywhere", "its own namespace", "opened namespaces"}, where) {
			continue
		}
		if strings.TrimSpace(cells[4]) == "" {
			t.Errorf("no reason: %s", line)
		}
		what := strings.NewReplacer("`callgate.dev`", "", " of `events.k8s.io`", "", " and their bindings", ", mutatingadmissionpolicybindings, validatingadmissionpolicybindings").
			Replace(cells[2])
		for _, resource := range strings.Split(what, ",") {
			for _, verb := range strings.Split(cells[3], ",") {
				documented = append(documented, fmt.Sprintf("%s: %s %s", where, strings.TrimSpace(verb), strings.TrimSpace(resource)))
			}
		}
	}
	for _, file := range []string{"controller.yaml", "tool-namespace.yaml"} {
		objects, err := readObjects("../../config/rbac/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			where := map[string]string{"ClusterRole/callgate-controller": "everywhere", "Role/callgate-controller": "its own namespace",
				"ClusterRole/callgate-tool-namespace": "opened namespaces"}[object.GetKind()+"/"+object.GetName()]
			if where == "" {
				continue // a binding
			}
			role := &rbacv1.ClusterRole{} // a Role has the same rules
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, role); err != nil {
				t.Fatal(err)
			}
			for _, rule := range role.Rules {
				for _, resource := range rule.Resources {
					if len(rule.ResourceNames) > 0 {
						resource += " named `" + strings.Join(rule.ResourceNames, "`, `") + "`"
					}
					for _, verb := range rule.Verbs {
						held = append(held, fmt.Sprintf("%s: %s %s", where, verb, resource))
					}
				}
			}
		}
	}
	if len(held) < 50 {
		t.Fatalf("only %d rights found in config/rbac", len(held))
	}
	for _, right := range held {
		if !slices.Contains(documented, right) {
			t.Errorf("docs/rights.md lacks a right that config/rbac gives: %s", right)
		}
	}
	for _, right := range documented {
		if !slices.Contains(held, right) {
			t.Errorf("docs/rights.md has a right that config/rbac does not give: %s", right)
		}
	}
}
