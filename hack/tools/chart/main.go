// Command chart writes the Helm chart from config/ and from the files beside it:
//
//	go run ./chart CONFIG CHART
//
// CONFIG is the folder of kustomizations; everything that CONFIG/default lists goes into the folder CHART, which is
// written anew. The text stays as it is, comments included, but for what an install decides: namespace, images, resources
// and where the pod runs. Each of these must be found, so a change of config/ that the chart cannot follow is an error.
//
// CRDs are templates, not files in crds/: Helm never upgrades those. An annotation keeps them when the release is
// uninstalled, because with a CRD all its objects go.
package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed all:files
var files embed.FS

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chart CONFIG CHART")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(config, chart string) error {
	written, err := render(os.DirFS(config))
	if err != nil {
		return err
	}
	// What config/ no longer has must go. The folder is ours if it is there at all.
	if _, err := os.Stat(filepath.Join(chart, "Chart.yaml")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else if err == nil {
		if err := os.RemoveAll(chart); err != nil {
			return err
		}
	}
	for name, text := range written {
		file := filepath.Join(chart, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

const (
	header     = "# Written by `make chart`: change config/ or hack/tools/chart instead.\n"
	namespace  = "callgate-system" // in config/; in the chart, the release's namespace
	deployment = "manager/deployment.yaml"
)

// render returns the files of the chart by name.
func render(config fs.FS) (map[string]string, error) {
	sources, err := resources(config, "default")
	if err != nil {
		return nil, err
	}
	chart := map[string]string{}
	var defaults string
	for _, source := range sources {
		raw, err := fs.ReadFile(config, source)
		if err != nil {
			return nil, err
		}
		text := escape(string(raw))
		switch {
		case strings.Contains(text, "\nkind: Namespace\n"):
			if strings.Count(text, "\nkind: ") > 1 {
				return nil, fmt.Errorf("%s: a Namespace needs a file of its own, the chart leaves it out", source)
			}
			continue // --create-namespace makes it
		case strings.Contains(text, "\nkind: CustomResourceDefinition\n"):
			text, err = replaceOnce(text, "\n  annotations:\n", "\n  annotations:\n    helm.sh/resource-policy: keep\n")
		case source == deployment:
			text, defaults, err = templateDeployment(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		folder, file := path.Split(strings.ReplaceAll(source, "/bases/", "/"))
		chart[path.Join("templates", folder, file)] = header + strings.ReplaceAll(strings.TrimPrefix(text, "---\n"), namespace, "{{ .Release.Namespace }}")
	}
	if defaults == "" {
		return nil, fmt.Errorf("no %s among the resources of default", deployment)
	}
	return chart, fs.WalkDir(files, "files", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		text, name := string(raw), strings.TrimPrefix(name, "files/")
		if name == "values.yaml" {
			if text, err = replaceOnce(text, "    # RESOURCES\n", defaults); err != nil {
				return err
			}
		}
		if strings.HasSuffix(name, ".yaml") {
			text = header + text
		}
		chart[name] = text
		return nil
	})
}

// escape keeps Helm from taking text for a template.
func escape(text string) string { return strings.ReplaceAll(text, "{{", "{{ `{{` }}") }

var listItem = regexp.MustCompile(`^- ([A-Za-z0-9._/-]+)$`)

// resources returns the files of a kustomization, those of the kustomizations it lists included. It accepts nothing in
// them but a list of resources, since only that is rendered.
func resources(config fs.FS, folder string) ([]string, error) {
	name := path.Join(folder, "kustomization.yaml")
	raw, err := fs.ReadFile(config, name)
	if err != nil {
		return nil, err
	}
	var found []string
	key := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimRight(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		item := listItem.FindStringSubmatch(line)
		if item == nil || key != "resources:" {
			switch before, _, _ := strings.Cut(line, ":"); before {
			case "apiVersion", "kind", "sortOptions", "resources":
				key = line
			case "  order":
			default:
				return nil, fmt.Errorf("%s has %q: the chart is rendered from resources only", name, line)
			}
			continue
		}
		target := path.Join(folder, item[1])
		if strings.HasSuffix(target, ".yaml") {
			found = append(found, target)
			continue
		}
		below, err := resources(config, target)
		if err != nil {
			return nil, err
		}
		found = append(found, below...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s lists no resources", name)
	}
	return found, nil
}

// podFields stand where Helm's users look for them.
const podFields = `      serviceAccountName: callgate-controller
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations: {{- toYaml . | nindent 6 }}
      {{- end }}
`

var (
	imageComment   = regexp.MustCompile(`(?m)^ *# A placeholder: [^\n]*\n( *#[^\n]*\n)*( *image:)`)
	resourcesBlock = regexp.MustCompile(`(?m)^        resources:\n((?:          [^\n]*\n)+)`)
)

// templateDeployment puts values into the Deployment and returns the resources it had, indented for values.yaml.
func templateDeployment(text string) (template, resources string, err error) {
	// Why the image is a placeholder is only true of kustomize.
	text = imageComment.ReplaceAllString(text, "$2")
	block := resourcesBlock.FindStringSubmatch(text)
	if block == nil {
		return "", "", errors.New("the container has no resources")
	}
	for line := range strings.Lines(block[1]) {
		resources += "    " + strings.TrimPrefix(line, "          ")
	}
	for _, change := range [][2]string{
		{block[0], "        resources: {{- toYaml .Values.controller.resources | nindent 10 }}\n"},
		{"image: callgate.dev/controller:dev\n", "image: {{ include \"callgate.image\" (list .Values.controller.image .Chart) | quote }}\n"},
		{"- --runner-image=callgate.dev/runner:dev\n",
			"- {{ printf \"--runner-image=%s\" (include \"callgate.image\" (list .Values.runner.image .Chart)) | quote }}\n" +
				"        {{- with .Values.controller.args }}{{ toYaml . | nindent 8 }}{{ end }}\n"},
		{"      serviceAccountName: callgate-controller\n", podFields},
	} {
		if text, err = replaceOnce(text, change[0], change[1]); err != nil {
			return "", "", err
		}
	}
	return text, resources, nil
}

func replaceOnce(text, from, to string) (string, error) {
	if n := strings.Count(text, from); n != 1 {
		return "", fmt.Errorf("want %q once, it is there %d times", from, n)
	}
	return strings.Replace(text, from, to, 1), nil
}
