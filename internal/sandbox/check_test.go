package sandbox

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct{ reason, limit, scratch, want string }{
		{"usual", "128Mi", "64Mi", ""},
		{"zero means the default", "0", "0", ""},
		{"negative", "-1", "64Mi", "spec.container.resources.limits.memory is -1"},
		{"a sum that would overflow", "9223372036854775807", "64Mi", "not above 16Ti"},
		{"a scratch that would overflow", "128Mi", "7Ei", "spec.isolation.scratchSizeLimit is 7Ei"},
	} {
		tool := &v1alpha1.Tool{}
		tool.Spec.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(tc.limit)}
		tool.Spec.Isolation.ScratchSizeLimit = ptr.To(resource.MustParse(tc.scratch))
		err := Check(tool)
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.reason, err, tc.want)
		}
	}
}
