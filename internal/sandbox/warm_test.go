package sandbox

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// A sandbox that waits is the pod of a call, and has nothing of any call.
func TestWarmIsTheSamePod(t *testing.T) {
	tool := richTool()
	cold := Job(testInput(tool))
	warm := Warm(cold, tool, nil)
	if !equality.Semantic.DeepEqual(Named(warm, cold.Name).Spec.Template.Spec, cold.Spec.Template.Spec) {
		t.Error("its pod is another one than that of a call")
	}
	raw, err := json.Marshal(warm)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{string(testCallUID), "say-hello", v1alpha1.LabelCallUID, v1alpha1.LabelAttempt} {
		if strings.Contains(string(raw), of) {
			t.Errorf("it holds %q", of)
		}
	}
	for _, labels := range []map[string]string{warm.Labels, warm.Spec.Template.Labels} {
		if labels[v1alpha1.LabelInstall] != testInstall || labels[v1alpha1.LabelToolUID] != string(testToolUID) || labels[v1alpha1.LabelPool] == "" {
			t.Errorf("its labels are %v: neither its NetworkPolicy nor its pool would find it", labels)
		}
	}
	if cold.Labels[v1alpha1.LabelCallUID] == "" || cold.Spec.Template.Labels[v1alpha1.LabelPool] != "" {
		t.Error("the sandbox of the call was changed")
	}
	if diff := Differs(livePod(t, warm.Spec.Template), warm.Spec.Template); diff != "" {
		t.Errorf("it differs from itself: %s", diff)
	}
	if other := Warm(Job(Input{Tool: tool, Install: testInstall, RunnerImage: testRunner}), tool, nil); !equality.Semantic.DeepEqual(warm, other) {
		t.Errorf("it depends on the call that it is made of:\n%+v\n%+v", warm, other)
	}
	waits := int64(MaxIdle(tool)/time.Second) + int64(StartDeadlineSeconds(tool))
	if least := waits + int64(CallTime(tool)/time.Second); *warm.Spec.ActiveDeadlineSeconds <= least {
		t.Errorf("activeDeadlineSeconds is %d: a call that gets it at the end of its wait has no time, want more than %d", *warm.Spec.ActiveDeadlineSeconds, least)
	}
}

func TestPoolKey(t *testing.T) {
	class := func(change ...func(*nodev1.RuntimeClass)) *nodev1.RuntimeClass {
		c := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor", UID: "class"}, Handler: "runsc"}
		for _, f := range change {
			f(c)
		}
		return c
	}
	key := func(change func(*v1alpha1.Tool), image string, c *nodev1.RuntimeClass) string {
		in := testInput(testTool(change))
		in.RunnerImage = image
		return Warm(Job(in), in.Tool, c).Labels[v1alpha1.LabelPool]
	}
	same := func(*v1alpha1.Tool) {}
	base := key(same, testRunner, class())
	for _, tc := range []struct {
		reason string
		got    string
		same   bool
	}{
		{"nothing has changed", key(same, testRunner, class()), true},
		{"the command comes with the call", key(func(t *v1alpha1.Tool) { t.Spec.Container.Command = []string{"other"} }, testRunner, class()), true},
		{"so does the schema", key(func(t *v1alpha1.Tool) { t.Spec.InputSchema.Raw = []byte(`{}`) }, testRunner, class()), true},
		{"how many wait is no part of one", key(func(t *v1alpha1.Tool) { t.Spec.Warm = &v1alpha1.WarmPool{Replicas: ptr.To[int32](9)} }, testRunner, class()), true},
		{"labels of the RuntimeClass", key(same, testRunner, class(func(c *nodev1.RuntimeClass) { c.Labels = map[string]string{"a": "b"} })), true},
		{"the image", key(func(t *v1alpha1.Tool) { t.Spec.Container.Image = "other" }, testRunner, class()), false},
		{"the environment", key(func(t *v1alpha1.Tool) { t.Spec.Container.Env = []v1alpha1.EnvVar{{Name: "A", Value: ptr.To("b")}} }, testRunner, class()), false},
		{"the time limit, by the grace period", key(func(t *v1alpha1.Tool) { t.Spec.TimeoutSeconds = 99 }, testRunner, class()), false},
		{"how the output is read, which stands on the Job", key(func(t *v1alpha1.Tool) { t.Spec.Output.Format = v1alpha1.OutputText }, testRunner, class()), false},
		{"the runner", key(same, "runner:2", class()), false},
		{"another RuntimeClass of the name", key(same, testRunner, class(func(c *nodev1.RuntimeClass) { c.UID = "other" })), false},
		{"its overhead, which is in the pod", key(same, testRunner, class(func(c *nodev1.RuntimeClass) {
			c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
		})), false},
		{"its nodes", key(same, testRunner, class(func(c *nodev1.RuntimeClass) {
			c.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"a": "b"}}
		})), false},
	} {
		if (tc.got == base) != tc.same {
			t.Errorf("%s: the key is %s, and was %s; want the same: %t", tc.reason, tc.got, base, tc.same)
		}
	}
}

func TestAdopt(t *testing.T) {
	tool := testTool()
	started := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	job := Warm(Job(testInput(tool)), tool, nil)
	job.Name = WarmPrefix + "x"
	job.Status.StartTime = ptr.To(metav1.NewTime(started))
	waits := *job.Spec.ActiveDeadlineSeconds
	call := types.NamespacedName{Namespace: "agents", Name: "say-hello"}
	Adopt(job, tool, call, testCallUID, 2, started.Add(100*time.Second))
	// start + run + grace + 60 s, from now.
	if want := int64(100 + 120 + 8 + 10 + 60); *job.Spec.ActiveDeadlineSeconds != want {
		t.Errorf("activeDeadlineSeconds is %d, want %d", *job.Spec.ActiveDeadlineSeconds, want)
	}
	want := Job(testInput(tool))
	if job.Labels[v1alpha1.LabelCallUID] != string(testCallUID) || job.Labels[v1alpha1.LabelAttempt] != "2" ||
		job.Annotations[v1alpha1.AnnotationCall] != "agents/say-hello" || job.Annotations[AnnotationOutput] != want.Annotations[AnnotationOutput] {
		t.Errorf("it does not say whose it is: %v %v", job.Labels, job.Annotations)
	}
	if job.Spec.Template.Labels[v1alpha1.LabelCallUID] != "" {
		t.Error("the template was changed, which the API server refuses")
	}
	// It is never made longer.
	Adopt(job, tool, call, testCallUID, 2, started.Add(time.Duration(waits)*time.Second))
	if *job.Spec.ActiveDeadlineSeconds > waits {
		t.Errorf("activeDeadlineSeconds became %d", *job.Spec.ActiveDeadlineSeconds)
	}
	if left := Left(job, started.Add(98*time.Second)); left != 200*time.Second {
		t.Errorf("%s are left, want 200s", left)
	}
}
