package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// volume is a Tool's only volume, as a merge patch.
func volume(fields string) string {
	return `{spec: {container: {volumes: [{` + fields + `}]}}}`
}

func TestSchemaOfVolumes(t *testing.T) {
	const (
		one      = "exactly one of secret, configMap, persistentVolumeClaim and image must be set"
		writable = "only a persistentVolumeClaim can be written to"
		at       = "spec.container.volumes[0]"
		data     = "name: data, mountPath: /data, "
		claim    = "persistentVolumeClaim: {claimName: c}"
	)
	rows := []schemaRow{
		{"secret", smallestTool, volume(data + "secret: {secretName: s, optional: true, items: [{key: token, path: a/token}]}"), nil, "files of keys"},
		{"configMap", smallestTool, volume(data + "configMap: {name: c, items: [{key: url, path: ..url}]}"),
			[]string{at + ".configMap.items[0].path", "begins with .."}, "the kubelet keeps such names for itself"},
		{"configMap with items", smallestTool, volume(data + "configMap: {name: c, items: [{key: url, path: .url}]}"), nil, "a hidden file"},
		{"image", smallestTool, volume(data + `readOnly: true, image: {reference: "registry.example/data:7"}`), nil, "is read-only anyway"},
		{"claim", smallestTool, volume(data + claim), nil, "read-only"},
		{"claim to write", smallestTool, volume(data + "readOnly: false, " + claim), nil, "the only thing that can be written"},
		{"secret to write", smallestTool, volume(data + "readOnly: false, secret: {secretName: s}"), []string{at + ".readOnly", writable}, "it would not be"},
		{"configMap to write", smallestTool, volume(data + "readOnly: false, configMap: {name: c}"), []string{at + ".readOnly", writable}, "the same"},
		{"image to write", smallestTool, volume(data + "readOnly: false, image: {reference: i}"), []string{at + ".readOnly", writable}, "the same"},
		{"nothing", smallestTool, volume("name: data, mountPath: /data"), []string{at, one}, "of what?"},
		{"two", smallestTool, volume(data + "secret: {secretName: s}, " + claim), []string{at, one}, "which one?"},
		{"no name", smallestTool, volume("mountPath: /data, " + claim), []string{at + ".name: Required"}, "messages speak of it"},
		{"a name of ours", smallestTool, volume("name: callgate-runner, mountPath: /data, " + claim), []string{at + ".name", "reserved"}, "two volumes would have it"},
		{"another name of ours", smallestTool, volume("name: scratch, mountPath: /data, " + claim), []string{at + ".name", "reserved"}, "the same"},
		{"no DNS label", smallestTool, volume("name: My_Data, mountPath: /data, " + claim), []string{at + ".name"}, "the pod's rule"},
		{"no mountPath", smallestTool, volume("name: data, " + claim), []string{at + ".mountPath: Required"}, "where?"},
		{"no secretName", smallestTool, volume(data + "secret: {}"), []string{at + ".secret.secretName: Required"}, "which?"},
		{"no claimName", smallestTool, volume(data + "persistentVolumeClaim: {}"), []string{at + ".persistentVolumeClaim.claimName: Required"}, "which?"},
		{"no reference", smallestTool, volume(data + "image: {}"), []string{at + ".image.reference: Required"}, "which?"},
		{"no configMap name", smallestTool, volume(data + "configMap: {}"), []string{at + ".configMap.name: Required"}, "which?"},
		{"item out of the volume", smallestTool, volume(data + "secret: {secretName: s, items: [{key: k, path: a/../../b}]}"), []string{at + ".secret.items[0].path", "begins with .."}, "a file elsewhere"},
		{"absolute item", smallestTool, volume(data + "secret: {secretName: s, items: [{key: k, path: /etc/passwd}]}"), []string{at + ".secret.items[0].path"}, "a file elsewhere"},
		{"twice", smallestTool, `{spec: {container: {volumes: [{` + data + claim + `}, {name: data, mountPath: /other, ` + claim + `}]}}}`,
			[]string{"spec.container.volumes[1]", "Duplicate"}, "which one?"},
		{"17 volumes", smallestTool, `{spec: {container: {volumes: [` + seventeen() + `]}}}`, []string{"spec.container.volumes", "16"}, "bounded"},

		{"serviceAccountName", smallestTool, `{spec: {container: {serviceAccountName: deployer}}}`, nil, "acts as it"},
		{"empty serviceAccountName", smallestTool, `{spec: {container: {serviceAccountName: ""}}}`, []string{"spec.container.serviceAccountName"}, "a template without its value gives it"},
	}
	for _, path := range []string{"/data", "/srv/a.b/c_d", "/tmpfiles", "/devices", "/var/lib/x", "/run/app", "/a/..b", "/opt/.hidden", "/1/2/3/4/5/6/7/8"} {
		rows = append(rows, schemaRow{"at " + path, smallestTool, volume(fmt.Sprintf("name: data, mountPath: %s, %s", path, claim)), nil, "beside what the sandbox needs"})
	}
	for _, path := range []string{
		"/.callgate", "/.callgate/runner", "/.callgate-state", "/.callgatex", "/tmp", "/tmp/x", "/proc", "/proc/self", "/sys/fs", "/dev", "/dev/shm",
		"/run/secrets", "/var/run/secrets/kubernetes.io", "/run", "/var", "/var/run",
	} {
		rows = append(rows, schemaRow{"at " + path, smallestTool, volume(fmt.Sprintf("name: data, mountPath: %s, %s", path, claim)),
			[]string{at + ".mountPath", "the sandbox needs them"}, "in or over a place of the sandbox"})
	}
	for _, path := range []string{"/", "//", "data", "./data", "/data/", "/a//b", `"/a:b"`, `"/a b"`, "/1/2/3/4/5/6/7/8/9", `""`, "/" + strings.Repeat("a", 128)} {
		rows = append(rows, schemaRow{"at " + path, smallestTool, volume(fmt.Sprintf("name: data, mountPath: %s, %s", path, claim)),
			[]string{at + ".mountPath"}, "not absolute, clean and short"})
	}
	for _, path := range []string{"/..", "/data/..", "/data/../proc", "/.", "/data/./x"} {
		rows = append(rows, schemaRow{"at " + path, smallestTool, volume(fmt.Sprintf("name: data, mountPath: %s, %s", path, claim)),
			[]string{at + ".mountPath", "no element . or .."}, "elsewhere than it says"})
	}
	runSchemaRows(t, rows)
}

// What a pod can have, and a Tool cannot ask for, is no volume even where unknown
// fields are dropped.
func TestOtherVolumesAreNotExpressible(t *testing.T) {
	path := "/apis/callgate.dev/v1alpha1/namespaces/" + newNamespace(t) + "/tools?dryRun=All&fieldValidation="
	for _, source := range []string{"hostPath: {path: /}", "emptyDir: {}", "projected: {sources: []}", "csi: {driver: d}", "nfs: {server: s, path: /}", "downwardAPI: {}", "ephemeral: {}"} {
		tool := merged(t, smallestTool, volume("name: data, mountPath: /data, "+source)).json(t)
		if answer := admin.do(t, http.MethodPost, path+"Ignore", jsonType, tool); answer.code != http.StatusUnprocessableEntity || !strings.Contains(answer.message(), "exactly one of secret") {
			t.Errorf("%s: want 422, got %s", source, answer)
		}
		field, _, _ := strings.Cut(source, ":")
		if answer := admin.do(t, http.MethodPost, path+"Strict", jsonType, tool); answer.ok() || !strings.Contains(answer.message(), "volumes[0]."+field) {
			t.Errorf("%s: the field is not named: %s", source, answer)
		}
	}
}

func seventeen() string {
	var all []string
	for i := range 17 {
		all = append(all, fmt.Sprintf("{name: v%d, mountPath: /v%d, configMap: {name: c}}", i, i))
	}
	return strings.Join(all, ", ")
}
