// Command record makes sandboxes fail in every way there is, on the cluster
// that KUBECONFIG names, and writes what the cluster says of them to a folder:
// Job, Pod and warnings, as internal/sandbox/testdata has them. A new version
// of Kubernetes is met by recording again:
//
//	go run ./test/faults/record internal/sandbox/testdata [NAME...]
//
// Callgate has no part in it: the Jobs are those it renders, under the ID of
// an install that does not exist.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/sandbox/recorded"
)

// patience bounds how long one state is waited for.
const patience = 90 * time.Second

// parallel bounds how many sandboxes there are at once.
const parallel = 6

// seen is what the cluster says of one sandbox.
type seen = recorded.Sandbox

// fault is one way to fail.
type fault struct {
	name, what string
	// restricted: Pod Security is enforced.
	restricted bool
	// around are made before: in the sandbox's namespace, unless they are of the cluster.
	around func(namespace string) []client.Object
	tool   func(*v1alpha1.ToolSpec)
	// job changes what a Tool cannot express.
	job func(*batchv1.Job)
	// ready is when act is to be done, if there is one.
	ready func(seen) bool
	act   func(ctx context.Context, r *recorder, s seen) error
	// until is when it is written down.
	until func(seen) bool
}

type recorder struct {
	client.WithWatch
	config *rest.Config
	images map[string]string
	folder string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: record FOLDER [NAME...]")
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	r := &recorder{WithWatch: c, config: config, folder: os.Args[1], images: map[string]string{}}
	env, err := os.ReadFile(".cluster/images/images.env")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(env)) {
		name, ref, _ := strings.Cut(strings.TrimSpace(line), "=")
		r.images[name] = ref
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	slots := make(chan struct{}, parallel)
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed []string
	for _, f := range faults(r) {
		if len(os.Args) > 2 && !slices.Contains(os.Args[2:], f.name) {
			continue
		}
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			begin := time.Now()
			err := r.record(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			fmt.Printf("%-32s %5.1f s  %v\n", f.name, time.Since(begin).Seconds(), err)
			if err != nil {
				failed = append(failed, f.name)
			}
		})
	}
	wait.Wait()
	if len(failed) > 0 {
		return fmt.Errorf("not recorded: %s", strings.Join(failed, " "))
	}
	return nil
}

func (r *recorder) record(ctx context.Context, f fault) (err error) {
	namespace := "fault-" + f.name
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"callgate.dev/fault": f.name}}}
	if f.restricted {
		ns.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
	}
	made := []client.Object{ns}
	defer func() {
		for _, o := range slices.Backward(made) {
			if e := r.Delete(context.WithoutCancel(ctx), o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err == nil {
				err = client.IgnoreNotFound(e)
			}
		}
	}()
	if err := r.Create(ctx, ns); err != nil {
		return err
	}
	if f.around != nil {
		for _, o := range f.around(namespace) {
			o = o.DeepCopyObject().(client.Object)
			if err := r.Create(ctx, o); err != nil {
				return err
			}
			made = append(made, o)
		}
		// Quotas are counted and policies are loaded a little later.
		time.Sleep(8 * time.Second)
	}
	tool := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tool", UID: uuid.NewUUID()},
		Spec:       v1alpha1.ToolSpec{Container: v1alpha1.ToolContainer{Image: r.images["BUSYBOX"], Command: []string{"cat"}}},
	}
	if f.tool != nil {
		f.tool(&tool.Spec)
	}
	job := sandbox.Job(sandbox.Input{
		Tool: tool, Install: "none", RunnerImage: r.images["RUNNER"], CallUID: uuid.NewUUID(), Attempt: 1,
		Call:            types.NamespacedName{Namespace: "agents", Name: "call"},
		NoUserNamespace: tool.Spec.Isolation.RuntimeClassName != "", // gVisor has none
	})
	if f.job != nil {
		f.job(job)
	}
	if err := r.Create(ctx, job); err != nil {
		return fmt.Errorf("create the Job: %w", err)
	}
	made = append(made, job)
	look, stop, err := r.watch(ctx, job)
	if err != nil {
		return err
	}
	defer stop()
	if f.act != nil {
		s, err := until(look, f.ready)
		if err != nil {
			return fmt.Errorf("before the act: %w", err)
		}
		if err := f.act(ctx, r, s); err != nil {
			return fmt.Errorf("act: %w", err)
		}
	}
	s, err := until(look, f.until)
	if err != nil {
		return err
	}
	return r.write(f, s)
}

// watch keeps the newest state of a sandbox. A pod that is deleted stays as it
// was last, with the time of its end set.
func (r *recorder) watch(ctx context.Context, job *batchv1.Job) (look func() seen, stop func(), err error) {
	pods, err := r.Watch(ctx, &corev1.PodList{}, client.InNamespace(job.Namespace))
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var pod *corev1.Pod
	go func() {
		for e := range pods.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || !metav1.IsControlledBy(p, job) {
				continue
			}
			mu.Lock()
			pod = p
			if e.Type == "DELETED" {
				pod.Annotations["gone"] = "true"
			}
			mu.Unlock()
		}
	}()
	return func() seen {
		var s seen
		mu.Lock()
		if pod != nil {
			s.Pod = pod.DeepCopy()
		}
		mu.Unlock()
		got := &batchv1.Job{}
		if r.Get(ctx, client.ObjectKeyFromObject(job), got) == nil {
			s.Job = got
		}
		var events corev1.EventList
		if r.List(ctx, &events, client.InNamespace(job.Namespace)) == nil {
			for _, e := range events.Items {
				if e.Type == corev1.EventTypeWarning && (e.InvolvedObject.UID == job.UID || s.Pod != nil && e.InvolvedObject.UID == s.Pod.UID) {
					s.Events = append(s.Events, e)
				}
			}
		}
		slices.SortStableFunc(s.Events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
		return s
	}, pods.Stop, nil
}

func until(look func() seen, done func(seen) bool) (seen, error) {
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		s := look()
		if done(s) {
			return s, nil
		}
		if time.Now().After(end) {
			return s, fmt.Errorf("not within %s: %+v %+v %+v", patience, s.Job, s.Pod, s.Events)
		}
	}
}

func (r *recorder) write(f fault, s seen) error {
	for _, o := range []client.Object{s.Job, s.Pod} {
		switch o := o.(type) {
		case *batchv1.Job:
			if o != nil {
				trim(o)
			}
		case *corev1.Pod:
			if o != nil {
				trim(o)
				delete(o.Annotations, "gone")
				o.Status.HostIP, o.Status.HostIPs, o.Status.PodIP, o.Status.PodIPs = "", nil, "", nil
			}
		}
	}
	for i := range s.Events {
		trim(&s.Events[i])
		s.Events[i].Source, s.Events[i].ReportingInstance = corev1.EventSource{}, ""
	}
	s.What = f.what
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	text := string(b)
	if s.Pod != nil && s.Pod.Spec.NodeName != "" {
		text = strings.ReplaceAll(text, `"nodeName": "`+s.Pod.Spec.NodeName+`"`, `"nodeName": "node-1"`)
		text = strings.ReplaceAll(text, `"host": "`+s.Pod.Spec.NodeName+`"`, `"host": "node-1"`)
	}
	return os.WriteFile(filepath.Join(r.folder, f.name+".json"), []byte(text+"\n"), 0o644)
}

func trim(o client.Object) {
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
}
