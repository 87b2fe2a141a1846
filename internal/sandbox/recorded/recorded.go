// Package recorded reads what a real cluster said of sandboxes, for tests. The
// files are in internal/sandbox/testdata.
package recorded

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Sandbox is what a cluster says of one sandbox in one state.
type Sandbox struct {
	// What happened, in words.
	What string `json:"what"`
	// Job and Pod; nil if they are not there.
	Job *batchv1.Job `json:"job,omitempty"`
	Pod *corev1.Pod  `json:"pod,omitempty"`
	// Events are the warnings about both, oldest first.
	Events []corev1.Event `json:"events,omitempty"`
}

// Read reads a recording by its name from the folder of all.
func Read(t *testing.T, folder, name string) Sandbox {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var s Sandbox
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Skewed is a pod as a node would have told it whose clock is off: only the
// times that come from a node are moved.
func Skewed(pod *corev1.Pod, by time.Duration) *corev1.Pod {
	if pod == nil {
		return nil
	}
	pod = pod.DeepCopy()
	move := func(t *metav1.Time) {
		if t != nil && !t.IsZero() {
			t.Time = t.Add(by)
		}
	}
	move(pod.Status.StartTime)
	for i := range pod.Status.Conditions {
		// The API server and controllers give these.
		if c := &pod.Status.Conditions[i]; c.Type != corev1.PodScheduled && c.Type != corev1.DisruptionTarget {
			move(&c.LastTransitionTime)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		for _, s := range []*corev1.ContainerState{&c.State, &c.LastTerminationState} {
			if s.Running != nil {
				move(&s.Running.StartedAt)
			}
			if s.Terminated != nil {
				move(&s.Terminated.StartedAt)
				move(&s.Terminated.FinishedAt)
			}
		}
	}
	return pod
}
