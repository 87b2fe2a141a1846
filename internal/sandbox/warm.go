package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// WarmPrefix begins the name of every sandbox that was made before its call.
const WarmPrefix = "callgate-w-"

const (
	defaultMaxIdleSeconds = 600
	// warmSlackSeconds is how long the last resort of a waiting sandbox holds off
	// after the time at which it is replaced.
	warmSlackSeconds = 300
	// lastResortSeconds is what a sandbox may live past all that a call can take.
	lastResortSeconds = 60
)

// IsWarm says whether a sandbox was made before its call, by its name.
func IsWarm(name string) bool { return strings.HasPrefix(name, WarmPrefix) }

// WarmReplicas is how many sandboxes of a Tool should wait.
func WarmReplicas(t *v1alpha1.Tool) int {
	if t.Spec.Warm == nil {
		return 0
	}
	return int(ptr.Deref(t.Spec.Warm.Replicas, 0))
}

// MaxIdle is how long a Tool's sandbox waits before it is replaced.
func MaxIdle(t *v1alpha1.Tool) time.Duration {
	seconds := int32(defaultMaxIdleSeconds)
	if t.Spec.Warm != nil {
		seconds = orDefault(t.Spec.Warm.MaxIdleSeconds, defaultMaxIdleSeconds)
	}
	return time.Duration(seconds) * time.Second
}

// CallTime is what a call may take in a sandbox from when it got it, all told: a
// sandbox whose Job ends earlier is not taken.
func CallTime(t *v1alpha1.Tool) time.Duration {
	return time.Duration(StartDeadlineSeconds(t)+TimeoutSeconds(t)+GraceSeconds+lastResortSeconds) * time.Second
}

// Warm is the sandbox of a call as it is made before there is a call: the same
// pod, and nothing of the call. cold is rendered by [Job]; class is the
// RuntimeClass that its pod names, nil if none. [Named] gives each one its name.
//
// LabelPool holds the key of the pool: a digest of all that a waiting sandbox
// depends on. That is the pod; its RuntimeClass, since the API server has put its
// overhead and node selector into the pod; and the rules by which its output is
// read, which stand on its Job.
func Warm(cold *batchv1.Job, tool *v1alpha1.Tool, class *nodev1.RuntimeClass) *batchv1.Job {
	job := Named(cold, "")
	labels := maps.Clone(job.Labels)
	for _, l := range []string{v1alpha1.LabelCallUID, v1alpha1.LabelAttempt} {
		delete(labels, l)
	}
	labels[v1alpha1.LabelPool] = poolKey(cold, class)
	job.Labels, job.Spec.Template.Labels = labels, maps.Clone(labels)
	delete(job.Annotations, v1alpha1.AnnotationCall)
	delete(job.Spec.Template.Annotations, v1alpha1.AnnotationCall)
	waits := int64(StartDeadlineSeconds(tool)) + int64(MaxIdle(tool)/time.Second) + warmSlackSeconds
	job.Spec.ActiveDeadlineSeconds = ptr.To(waits + int64(CallTime(tool)/time.Second))
	return job
}

func poolKey(cold *batchv1.Job, class *nodev1.RuntimeClass) string {
	parts := []any{cold.Annotations[annotationTemplate], cold.Annotations[AnnotationOutput]}
	if class != nil {
		parts = append(parts, class.UID, class.Handler, class.Overhead, class.Scheduling)
	}
	sum := sha256.Sum256([]byte(mustJSON(parts)))
	return hex.EncodeToString(sum[:8])
}

// Left is how long a waiting sandbox's Job may run on, from now; 0 if it has not
// started.
func Left(job *batchv1.Job, now time.Time) time.Duration {
	if job.Status.StartTime == nil || job.Spec.ActiveDeadlineSeconds == nil {
		return 0
	}
	return time.Duration(*job.Spec.ActiveDeadlineSeconds)*time.Second - now.Sub(job.Status.StartTime.Time)
}

// Adopt says on the Job of a warm sandbox whose call it has, as if it had been
// made for it, and brings its last resort down to what that call may take.
func Adopt(job *batchv1.Job, tool *v1alpha1.Tool, call types.NamespacedName, callUID types.UID, attempt int32, now time.Time) {
	job.Labels[v1alpha1.LabelCallUID] = string(callUID)
	job.Labels[v1alpha1.LabelAttempt] = strconv.Itoa(int(attempt))
	job.Annotations[v1alpha1.AnnotationCall] = call.String()
	if start := job.Status.StartTime; start != nil && tool != nil {
		job.Annotations[AnnotationOutput] = mustJSON(OutputRules(tool))
		limit := int64((now.Sub(start.Time) + CallTime(tool)) / time.Second)
		if have := job.Spec.ActiveDeadlineSeconds; have == nil || limit < *have {
			job.Spec.ActiveDeadlineSeconds = &limit
		}
	}
}
