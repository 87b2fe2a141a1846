package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

const manager = `apiVersion: apps/v1
kind: Deployment
metadata: {namespace: callgate-system}
spec:
  template:
    spec:
      serviceAccountName: callgate-controller
      containers:
      - name: controller
        # A placeholder: set it with
        # kustomize.
        image: callgate.dev/controller:dev
        args:
        - --runner-image=callgate.dev/runner:dev
        resources:
          # Why.
          limits: {memory: 1Mi}
        other: "{{ not a template }}"
`

func config(changes map[string]string) fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range map[string]string{
		"default/kustomization.yaml": "# All.\napiVersion: x\nkind: Kustomization\nsortOptions:\n  order: legacy\nresources:\n- ../crd\n- ../manager\n",
		"crd/kustomization.yaml":     "resources:\n- bases/a.yaml\n",
		"crd/bases/a.yaml":           "---\napiVersion: x\nkind: CustomResourceDefinition\nmetadata:\n  annotations:\n    a: b\nspec: '{{'\n",
		"manager/kustomization.yaml": "resources:\n- namespace.yaml\n- deployment.yaml\n",
		"manager/namespace.yaml":     "apiVersion: v1\nkind: Namespace\n",
		"manager/deployment.yaml":    manager,
		"samples/not-listed.yaml":    "kind: Secret\n",
	} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, text := range changes {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestRender(t *testing.T) {
	chart, err := render(config(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ reason, file, has, lacks string }{
		{"the release's namespace", "templates/manager/deployment.yaml", "namespace: {{ .Release.Namespace }}", "callgate-system"},
		{"the image is a value", "templates/manager/deployment.yaml", "image: {{ include", "placeholder"},
		{"the runner's image is a value", "templates/manager/deployment.yaml", "--runner-image=%s", "runner:dev"},
		{"more flags are a value", "templates/manager/deployment.yaml", "        {{- with .Values.controller.args }}", ""},
		{"braces stay braces", "templates/manager/deployment.yaml", "other: \"{{ `{{` }} not a template }}\"", ""},
		{"the resources are a value", "templates/manager/deployment.yaml", ".Values.controller.resources", "1Mi"},
		{"and its default is config's, comment included", "values.yaml", "  resources:\n    # Why.\n    limits: {memory: 1Mi}\n", "RESOURCES"},
		{"CRDs outlive the release", "templates/crd/a.yaml", "  annotations:\n    helm.sh/resource-policy: keep\n    a: b\nspec: '{{ `{{` }}'\n", ""},
		{"who writes it", "Chart.yaml", "make chart", ""},
		{"helpers are no YAML", "templates/_helpers.tpl", `define "callgate.image"`, "make chart"},
	} {
		text, there := chart[tc.file]
		if !there || !strings.Contains(text, tc.has) || tc.lacks != "" && strings.Contains(text, tc.lacks) {
			t.Errorf("%s: want %q and no %q in %s:\n%s", tc.reason, tc.has, tc.lacks, tc.file, text)
		}
	}
	if len(chart) != 6 {
		t.Errorf("want Chart.yaml, values.yaml, helpers, notes, Deployment and CRD, no Namespace and nothing that is not listed: %d files", len(chart))
	}
}

func TestCannotFollow(t *testing.T) {
	for _, tc := range []struct{ reason, file, text, want string }{
		{"a patch", "default/kustomization.yaml", "resources:\n- ../crd\npatches:\n- path: x.yaml\n", `"patches:"`},
		{"a name prefix", "crd/kustomization.yaml", "namePrefix: x-\nresources:\n- bases/a.yaml\n", "namePrefix"},
		{"a file that is not there", "crd/kustomization.yaml", "resources:\n- none.yaml\n", "none.yaml"},
		{"nothing listed", "crd/kustomization.yaml", "kind: Kustomization\n", "lists no resources"},
		{"no Deployment", "default/kustomization.yaml", "resources:\n- ../crd\n", "manager/deployment.yaml"},
		{"another image", "manager/deployment.yaml", strings.ReplaceAll(manager, "controller:dev", "controller:1"), "image: callgate.dev/controller:dev"},
		{"two containers with the image", "manager/deployment.yaml", manager + "        image: callgate.dev/controller:dev\n", "2 times"},
		{"no resources", "manager/deployment.yaml", strings.ReplaceAll(manager, "resources:", "limits:"), "no resources"},
		{"a Namespace among others", "manager/namespace.yaml", "apiVersion: v1\nkind: Namespace\n---\napiVersion: v1\nkind: Secret\n", "file of its own"},
		{"a CRD without annotations", "crd/bases/a.yaml", "\nkind: CustomResourceDefinition\n", "annotations"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			_, err := render(config(map[string]string{tc.file: tc.text}))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
