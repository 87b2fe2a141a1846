package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/test/cluster"
)

const goodArgs = `{"text":"hello"}`

// bench is one run.
type bench struct {
	ctx   context.Context
	set   kubernetes.Interface
	world *world
	sizes sizes

	// tools by name; template is the sandbox of the tool "echo".
	tools    map[string]*v1alpha1.Tool
	template *batchv1.Job
	held     *v1alpha1.ToolCall // it runs all the time

	mu      sync.Mutex
	count   int
	samples map[string][]float64 // in milliseconds, but for what is named otherwise
}

func (b *bench) name(prefix string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count++
	return fmt.Sprintf("%s-%d", prefix, b.count)
}

func (b *bench) add(what string, values ...float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.samples[what] = append(b.samples[what], values...)
}

func (b *bench) addTime(what string, d time.Duration) { b.add(what, milliseconds(d)) }

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// timed is a call with what its client's clock said.
type timed struct {
	*v1alpha1.ToolCall
	sent, created, seen time.Time
}

func (t timed) took() time.Duration { return t.seen.Sub(t.sent) }

func (b *bench) proposal(tool, args string) *v1alpha1.ToolCall {
	return &v1alpha1.ToolCall{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.AgentsNS, Name: b.name(tool)},
		Spec: v1alpha1.ToolCallSpec{ToolRef: v1alpha1.ToolReference{Name: tool, Namespace: cluster.ToolsNS},
			Args: &apiextensionsv1.JSON{Raw: []byte(args)}},
	}
}

// call makes a call as the agent, and waits until the agent's watch shows its
// result. It fails unless the call ended with code, which is empty for success.
func (b *bench) call(tool, args string, code v1alpha1.ErrorCode) (timed, error) {
	o := b.proposal(tool, args)
	t := timed{sent: time.Now()}
	if err := cluster.Agent.Create(b.ctx, o); err != nil {
		return t, fmt.Errorf("create a call of %s: %w", tool, err)
	}
	t.created = time.Now()
	var err error
	t.seen, err = b.world.until(b.ctx, "the result of call "+o.Name, func() bool {
		t.ToolCall = b.world.calls[o.Name]
		return complete(t.ToolCall)
	})
	if err != nil {
		return t, err
	}
	if r := t.Status.Result; r == nil || r.ErrorCode != code {
		return t, fmt.Errorf("call %s of %s should have ended with code %q and has %+v", o.Name, tool, code, r)
	}
	return t, nil
}

// rawJob is a Job with the sandbox's template that prints at once.
func (b *bench) rawJob() *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: b.name("raw-job")}, Spec: *b.template.Spec.DeepCopy()}
}

// rawTemplate makes of a sandbox what [bench.rawJob] creates: only the command is
// another one, no stdin is held open, and nothing says that it is a sandbox.
func rawTemplate(job *batchv1.Job) *batchv1.Job {
	job = job.DeepCopy()
	pod := &job.Spec.Template
	pod.Labels, pod.Annotations = nil, nil
	pod.Spec.Containers[0].Command = []string{"/bin/echo", goodArgs}
	pod.Spec.Containers[0].Stdin, pod.Spec.Containers[0].StdinOnce = false, false
	return job
}

// pod creates a pod with the sandbox's template and waits for the first byte of
// its log: the container's start is seen by a watch, as the controller sees it,
// and the log is asked for at once. It may leave something out of the template.
func (b *bench) pod(without ...func(*corev1.PodSpec)) (time.Duration, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: b.name("raw-pod")}, Spec: *b.template.Spec.Template.Spec.DeepCopy()}
	for _, leaveOut := range without {
		leaveOut(&pod.Spec)
	}
	start := time.Now()
	if err := cluster.Admin.Create(b.ctx, pod); err != nil {
		return 0, fmt.Errorf("create a raw pod: %w", err)
	}
	err := b.firstByte("raw pod "+pod.Name, func() *corev1.Pod { return b.world.pods[pod.Name] })
	return time.Since(start), err
}

func volumes(s *corev1.PodSpec)       { s.Volumes, s.Containers[0].VolumeMounts = nil, nil }
func userNamespace(s *corev1.PodSpec) { s.HostUsers = nil }

// firstByte waits for the first byte of the log of a pod. find is called with the
// world's lock held.
func (b *bench) firstByte(what string, find func() *corev1.Pod) error {
	var pod *corev1.Pod
	if _, err := b.world.until(b.ctx, "the container of "+what, func() bool {
		pod = find()
		return pod != nil && hasStarted(pod)
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	stream, err := b.set.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: sandbox.Container, Follow: true}).Stream(ctx)
	if err != nil {
		return fmt.Errorf("read the log of %s: %w", what, err)
	}
	defer stream.Close()
	if _, err := io.ReadFull(stream, make([]byte, 1)); err != nil {
		return fmt.Errorf("read the first byte of the log of %s: %w", what, err)
	}
	return nil
}

// job creates a raw Job and waits until it is Complete.
func (b *bench) job() (time.Duration, error) {
	job := b.rawJob()
	start := time.Now()
	if err := cluster.Admin.Create(b.ctx, job); err != nil {
		return 0, fmt.Errorf("create a raw Job: %w", err)
	}
	end, err := b.world.until(b.ctx, "Complete of raw Job "+job.Name, func() bool { return jobComplete(b.world.jobs[job.Name]) })
	return end.Sub(start), err
}

// clear removes what is over, calls and sandboxes, and waits until the cluster is
// at rest: pools are full, and nothing but them and the held call is there.
func (b *bench) clear() error {
	b.world.mu.Lock()
	var over []client.Object
	for _, c := range b.world.calls {
		if complete(c) {
			over = append(over, c)
		}
	}
	b.world.mu.Unlock()
	for _, o := range over {
		if err := cluster.Admin.Delete(b.ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete call %s: %w", o.GetName(), err)
		}
	}
	if err := b.clearRaw(); err != nil {
		return err
	}
	if _, err := b.world.until(b.ctx, "the end of what was measured before", func() bool { return b.world.busy(b.isHeld) == 0 }); err != nil {
		return err
	}
	return b.poolsFull()
}

func (b *bench) clearRaw() error {
	b.world.mu.Lock()
	var over []client.Object
	for _, j := range b.world.jobs {
		if j.Labels[v1alpha1.LabelInstall] == "" && j.DeletionTimestamp == nil {
			over = append(over, j)
		}
	}
	for _, p := range b.world.pods {
		if p.Labels[v1alpha1.LabelInstall] == "" && p.Labels["batch.kubernetes.io/job-name"] == "" && p.DeletionTimestamp == nil {
			over = append(over, p)
		}
	}
	b.world.mu.Unlock()
	for _, o := range over {
		if err := cluster.Admin.Delete(b.ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

func (b *bench) isHeld(labels map[string]string) bool {
	return b.held != nil && labels[v1alpha1.LabelCallUID] == string(b.held.UID)
}

func (b *bench) poolsFull() error {
	for name, tool := range b.tools {
		want := sandbox.WarmReplicas(tool)
		if _, err := b.world.until(b.ctx, fmt.Sprintf("%d waiting sandboxes of Tool %s", want, name),
			func() bool { return b.world.ready(tool) == want }); err != nil {
			return err
		}
	}
	return b.rest()
}

// rest lets what was seen to be over come to its end in those who say it, too.
func (b *bench) rest() error {
	select {
	case <-time.After(200 * time.Millisecond):
		return nil
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

// atOnce does n things at the same time, or as many at a time as there are
// workers, and returns how long all of them took.
func atOnce(n, workers int, do func(i int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make(chan error, n)
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	start := time.Now()
	for range workers {
		wg.Go(func() {
			for i := range next {
				errs <- do(i)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	close(errs)
	for err := range errs {
		if err != nil {
			return took, err
		}
	}
	return took, nil
}
