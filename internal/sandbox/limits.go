package sandbox

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	// maxProcesses bounds the processes and threads of a sandbox, its runner's
	// included.
	maxProcesses = 256
	// fileSlack is how far above the size of /tmp a file may end, so that a program
	// that fills /tmp is told so, which it may survive, and not ended by a signal.
	fileSlack = 1 << 20
)

// MaxFileBytes is the size past which no file of a tool may grow: /tmp's, and a
// little more. It is 0, no bound, where the pod can write to a volume that is
// larger or of a size that is not known here, and for no pod.
func MaxFileBytes(pod *corev1.Pod) int64 {
	if pod == nil {
		return 0
	}
	volumes := map[string]*corev1.Volume{}
	for i := range pod.Spec.Volumes {
		volumes[pod.Spec.Volumes[i].Name] = &pod.Spec.Volumes[i]
	}
	var largest int64
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			switch v := volumes[m.Name]; {
			case m.ReadOnly, v != nil && (v.Image != nil || v.Secret != nil || v.ConfigMap != nil || v.Projected != nil):
				// Secrets and the like cannot be written whatever the mount says.
			case v == nil || v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil:
				return 0
			default:
				largest = max(largest, v.EmptyDir.SizeLimit.Value())
			}
		}
	}
	if largest == 0 {
		return 0
	}
	return largest + fileSlack
}

// MaxProcesses bounds the processes of a sandbox with a user namespace, whose
// user is nobody else's. Without one the kernel would count those of other
// sandboxes, too, so there is no bound, which 0 means. gVisor knows none.
func MaxProcesses(pod *corev1.Pod) int64 {
	if pod == nil || ptr.Deref(pod.Spec.HostUsers, true) {
		return 0
	}
	return maxProcesses
}
