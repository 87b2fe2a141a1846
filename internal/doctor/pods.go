package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

const (
	// labelTrial is on all that the doctor makes, and has the trial's name.
	labelTrial = "callgate.dev/doctor-trial"
	// runnerMount is where the runner's image is mounted in a trial pod.
	runnerMount = "/.callgate"
	// podLife ends a trial pod whose doctor is gone, in seconds.
	podLife = 240
	// pollEvery is the pause between two looks at a pod.
	pollEvery = 300 * time.Millisecond
	// maxLog bounds what is read of a trial pod's log.
	maxLog = 4 * wire.MaxOutputBytes
)

// trialPod is a pod that meets Pod Security restricted, as a sandbox does, and
// runs a program of this image.
func (d *Doctor) trialPod(trial string, command ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: "trial-" + trial, Labels: map[string]string{labelTrial: trial}},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			ActiveDeadlineSeconds:         ptr.To[int64](podLife),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), RunAsGroup: ptr.To[int64](65532),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				// The name that sandbox.Observe looks for.
				Name:    sandbox.Container,
				Image:   d.Image,
				Command: command,
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
					// No CPU limit: it would make a late start of an early one.
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// withClass sets a RuntimeClass, if any.
func withClass(pod *corev1.Pod, class string) *corev1.Pod {
	if class != "" {
		pod.Spec.RuntimeClassName = &class
	}
	return pod
}

// withRunner mounts the runner's image.
func (d *Doctor) withRunner(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.Volumes = []corev1.Volume{{Name: "runner", VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: d.RunnerImage, PullPolicy: corev1.PullIfNotPresent}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "runner", MountPath: runnerMount, ReadOnly: true}}
	return pod
}

// start creates a pod and waits until its container has started. The error is
// in the cluster's own words.
func (d *Doctor) start(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	d.say("start pod %s", pod.Name)
	if err := d.Client.Create(ctx, pod); err != nil {
		return nil, fmt.Errorf("pod %s was not taken: %w", pod.Name, err)
	}
	var words string
	err := poll(ctx, startTime, func(ctx context.Context) (bool, error) {
		if err := d.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return false, err
		}
		state := sandbox.Observe(&batchv1.Job{}, pod, nil)
		if state.Unexplained {
			var events corev1.EventList
			if err := d.Client.List(ctx, &events, client.InNamespace(d.Namespace), client.MatchingFields{"involvedObject.uid": string(pod.UID)}, client.Limit(maxList)); err != nil {
				return false, err
			}
			state = sandbox.Observe(&batchv1.Job{}, pod, events.Items)
		}
		words = state.Words
		if state.Permanent {
			return false, errors.New(words)
		}
		return state.Phase == sandbox.PhaseRunning || state.Ended(), nil
	})
	if errors.Is(err, errPatience) {
		return nil, fmt.Errorf("pod %s did not start within %s: %s", pod.Name, startTime, words)
	} else if err != nil {
		return nil, fmt.Errorf("pod %s does not start: %w", pod.Name, err)
	}
	return pod, nil
}

// ended waits until the container of a pod has ended, and returns how.
func (d *Doctor) ended(ctx context.Context, pod *corev1.Pod, bound time.Duration) (*corev1.ContainerStateTerminated, error) {
	var end *corev1.ContainerStateTerminated
	err := poll(ctx, bound, func(ctx context.Context) (bool, error) {
		if err := d.Client.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return false, err
		}
		for _, s := range pod.Status.ContainerStatuses {
			end = s.State.Terminated
		}
		return end != nil, nil
	})
	if errors.Is(err, errPatience) {
		return nil, fmt.Errorf("the program of pod %s did not end within %s", pod.Name, bound)
	}
	return end, err
}

// log opens the log of a pod; with follow it goes on until the container ends.
func (d *Doctor) log(ctx context.Context, pod *corev1.Pod, follow bool) (io.ReadCloser, error) {
	stream, err := d.Set.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
		Container: sandbox.Container, Follow: follow, LimitBytes: ptr.To[int64](maxLog)}).Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
	}
	return stream, nil
}

// report waits for the line of a pod's log that begins with reportPrefix, and
// returns the rest of it.
func (d *Doctor) report(ctx context.Context, pod *corev1.Pod, bound time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("the program of pod %s did not report within %s", pod.Name, bound))
	defer cancel()
	stream, err := d.log(ctx, pod, true)
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	last := ""
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), reportPrefix); ok {
			return []byte(rest), nil
		}
		last = lines.Text()
	}
	if err := errors.Join(lines.Err(), context.Cause(ctx)); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("the program of pod %s ended without a report; its last line: %s", pod.Name, or(last, "none"))
}

// clean removes all that a run made, and waits until it is gone.
func (d *Doctor) clean(ctx context.Context) error {
	mine := []client.ListOption{client.InNamespace(d.Namespace), client.HasLabels{labelTrial}}
	var left []string
	err := poll(ctx, cleanTime, func(ctx context.Context) (bool, error) {
		var pods corev1.PodList
		var policies networkingv1.NetworkPolicyList
		if err := errors.Join(d.Client.List(ctx, &pods, mine...), d.Client.List(ctx, &policies, mine...)); err != nil {
			return false, err
		}
		left = nil
		for i := range pods.Items {
			left = append(left, "pod "+pods.Items[i].Name)
			if pods.Items[i].DeletionTimestamp == nil {
				if err := d.Client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(1)); !apierrors.IsNotFound(err) && err != nil {
					return false, err
				}
			}
		}
		for i := range policies.Items {
			left = append(left, "NetworkPolicy "+policies.Items[i].Name)
			if err := d.Client.Delete(ctx, &policies.Items[i]); !apierrors.IsNotFound(err) && err != nil {
				return false, err
			}
		}
		return len(left) == 0, nil
	})
	if errors.Is(err, errPatience) {
		return fmt.Errorf("%s in namespace %s not gone within %s", some(left), d.Namespace, cleanTime)
	}
	return err
}

var errPatience = errors.New("it took too long")

// poll looks until done says so or fails, or the bound is over: then the error
// is errPatience.
func poll(ctx context.Context, bound time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, errPatience)
	defer cancel()
	for {
		ok, err := done(ctx)
		switch {
		case ctx.Err() != nil && !ok:
			return context.Cause(ctx)
		case err != nil || ok:
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollEvery):
		}
	}
}
