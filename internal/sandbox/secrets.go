package sandbox

import "callgate.dev/callgate/api/v1alpha1"

// SecretEnv names the variables of a Tool whose values come from Secrets, so that
// the runner masks them in what the tool prints.
func SecretEnv(t *v1alpha1.Tool) []string {
	var names []string
	for _, v := range t.Spec.Container.Env {
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
			names = append(names, v.Name)
		}
	}
	return names
}

// SecretPaths are the folders of a Tool in which every file is the value of a
// Secret's key.
func SecretPaths(t *v1alpha1.Tool) []string {
	var paths []string
	for _, v := range t.Spec.Container.Volumes {
		if v.Secret != nil {
			paths = append(paths, v.MountPath)
		}
	}
	return paths
}

// noCollection asks the usual log collectors to leave a sandbox's log alone: it
// holds what tools print on stderr, and sealed results that nobody else can use.
func noCollection() map[string]string {
	return map[string]string{
		"fluentbit.io/exclude":          "true",
		"co.elastic.logs/enabled":       "false",
		"ad.datadoghq.com/logs_exclude": "true",
		"vector.dev/exclude-containers": Container,
		"splunk.com/exclude":            "true",
		"sumologic.com/exclude":         "true",
	}
}
