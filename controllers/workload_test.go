package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/wire"
)

// workload starts every pod of a namespace as soon as it is there, and knows
// what runs in them: where calls come by the hundred, or nobody knows which of
// them will run.
type workload struct {
	mu sync.Mutex
	// runs of each sandbox, by the UID of the call.
	runs          map[string]int
	running, most int
	broken        error
}

// runAll runs tool in every pod of a namespace.
func runAll(t *testing.T, namespace string, tool toolFunc) *workload {
	t.Helper()
	w := &workload{runs: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	started := make(chan *corev1.Pod, 1000)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(adminSet.CoreV1().RESTClient(), "pods", namespace, fields.Everything()),
		ObjectType:    &corev1.Pod{},
		Handler:       cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { started <- o.(*corev1.Pod) }},
	})
	var done sync.WaitGroup
	done.Go(func() { informer.RunWithContext(ctx) })
	for range 4 {
		done.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-started:
					// Calls are cancelled and deleted under way: a pod may be gone.
					if err := w.start(ctx, pod, tool); ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
						w.fail(err)
					}
				}
			}
		})
	}
	t.Cleanup(func() {
		stop()
		done.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		for call, n := range w.runs {
			if n != 1 {
				w.broken = errors.Join(w.broken, fmt.Errorf("call %s ran %d times", call, n))
			}
		}
		if w.broken != nil {
			t.Error(w.broken)
		}
	})
	return w
}

func (w *workload) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = errors.Join(w.broken, err)
}

func (w *workload) start(ctx context.Context, pod *corev1.Pod, tool toolFunc) error {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return nil
	}
	if err := adminSet.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	call := pod.Labels[v1alpha1.LabelCallUID]
	c := &container{pod: pod, tool: func(frame toolCall) toolResult {
		w.begin(call)
		defer w.end()
		return tool(frame)
	}}
	_ = wire.WriteReady(&c.log) // a strings.Builder takes everything
	theNode.mu.Lock()
	theNode.pods[pod.Namespace+"/"+pod.Name] = c
	theNode.mu.Unlock()
	before := pod.DeepCopy()
	pod = pod.DeepCopy()
	pod.Status = running()
	return admin.Status().Patch(ctx, pod, client.MergeFrom(before))
}

func (w *workload) begin(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.runs[call]++
	w.running++
	w.most = max(w.most, w.running)
}

func (w *workload) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
}

// ran counts the calls that ran so far.
func (w *workload) ran() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.runs)
}

// atOnce is the highest number of tools that ever ran at the same time.
func (w *workload) atOnce() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.most
}

// counter is a tool that answers how often it was asked: two runs never answer
// the same.
func counter() toolFunc {
	var mu sync.Mutex
	n := 0
	return func(c toolCall) toolResult {
		mu.Lock()
		defer mu.Unlock()
		n++
		return prints(fmt.Sprint(n), 0)(c)
	}
}

// together creates calls at the same time.
func together(t *testing.T, calls []*v1alpha1.ToolCall) {
	t.Helper()
	var done sync.WaitGroup
	errs := make([]error, len(calls))
	for i, call := range calls {
		done.Go(func() { errs[i] = agent.Create(t.Context(), call) })
	}
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, call := range calls {
		t.Cleanup(func() { judgeHistory(t, call.UID) })
	}
}
