package controllers_test

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func TestSandbox(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool := newTool(t, tools, "tool", func(s *v1alpha1.ToolSpec) {
		s.Container.Command = []string{"/tool", "--text=$(args.text)"}
	})
	call := newCall(t, tools, "tool")
	pod := startPod(t, call, prints(`{"answer":"`+marker+`"}`, 0)) // Pod Security restricted let it in
	job := jobOf(t, call)
	if job.Name != "callgate-"+string(call.UID)+"-1" {
		t.Errorf("the Job's name is %s", job.Name)
	}
	labels := map[string]string{"callgate.dev/install": install, "callgate.dev/tool-uid": string(tool.UID),
		"callgate.dev/call-uid": string(call.UID), "callgate.dev/attempt": "1"}
	for key, value := range labels {
		if job.Labels[key] != value || pod.Labels[key] != value {
			t.Errorf("label %s is %q on the Job and %q on the pod, want %q", key, job.Labels[key], pod.Labels[key], value)
		}
	}
	if a := job.Annotations["callgate.dev/call"]; a != agentsNamespace+"/"+call.Name || pod.Annotations["callgate.dev/call"] != a {
		t.Errorf("annotation callgate.dev/call is %q on the Job", a)
	}
	if len(job.OwnerReferences)+len(job.Finalizers) > 0 {
		t.Errorf("the Job has owners or finalizers: %v %v", job.OwnerReferences, job.Finalizers)
	}
	if *job.Spec.BackoffLimit != 0 || pod.Spec.RestartPolicy != corev1.RestartPolicyNever ||
		*job.Spec.PodReplacementPolicy != batchv1.Failed || *job.Spec.ActiveDeadlineSeconds <= 0 || *job.Spec.TTLSecondsAfterFinished <= 0 {
		t.Errorf("the Job may run a second pod, or stay: %s", show(job.Spec))
	}
	if n := len(jobsOf(t, call)); n != 1 {
		t.Errorf("%d Jobs for one call", n)
	}
	searchForMarker(t, tools)
	call = waitForEnd(t, call)
	want{}.check(t, call)
	searchForMarker(t, tools)
	waitForNoSandbox(t, call)
	searchForMarker(t, tools)
}

func jobsOf(t *testing.T, call *v1alpha1.ToolCall) []batchv1.Job {
	t.Helper()
	var jobs batchv1.JobList
	if err := admin.List(t.Context(), &jobs, client.MatchingLabels{v1alpha1.LabelCallUID: string(call.UID)}); err != nil {
		t.Fatal(err)
	}
	return jobs.Items
}

// searchForMarker looks for arguments and output in everything that is stored
// about sandboxes and calls.
func searchForMarker(t *testing.T, namespace string) {
	t.Helper()
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}, &corev1.EventList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}} {
		for _, in := range []string{namespace, agentsNamespace} {
			if err := admin.List(t.Context(), list, client.InNamespace(in)); err != nil {
				t.Fatal(err)
			}
			if text := show(list); strings.Contains(text, marker) {
				t.Errorf("%T in %s holds arguments or output: %s", list, in, text)
			}
		}
	}
}

// The name of a sandbox can be taken by somebody else; and while the API server
// refuses a sandbox, the call waits and says so.
func TestForeignJob(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	closed := refuseSandboxes(t, tools)
	call := newCall(t, tools, "tool")
	if message := waitForReason(t, call, v1alpha1.ReasonStarting); !contains(message, "cannot be created") || !contains(message, "not today") {
		t.Errorf("the wait does not say why: %s", message)
	}
	key := jobKey(tools, call)
	foreign := anyJob(key.Namespace, key.Name)
	create(t, foreign)
	remove(t, closed)
	call = waitForEnd(t, call)
	want{code: v1alpha1.ErrorToolUnavailable, retryable: true, message: []string{key.Name, "not made by Callgate"}}.check(t, call)
	if !get(t, key, foreign) || foreign.DeletionTimestamp != nil {
		t.Error("somebody else's Job was deleted")
	}
}

// refuseSandboxes makes the API server refuse Jobs of the controller, but for
// the trial of the Tool's readiness, until the binding is removed.
func refuseSandboxes(t *testing.T, namespace string) *admissionv1.ValidatingAdmissionPolicyBinding {
	t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"batch"}, APIVersions: []string{"v1"}, Resources: []string{"jobs"}}}}},
		},
		Validations: []admissionv1.Validation{{
			Expression: `request.dryRun || !has(object.metadata.labels) || !("callgate.dev/install" in object.metadata.labels)`,
			Message:    "not today", Reason: ptr.To(metav1.StatusReasonForbidden)}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: namespace, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	create(t, policy)
	create(t, binding)
	t.Cleanup(func() { _ = admin.Delete(context.Background(), policy) })
	eventually(t, "the API server refuses sandboxes", func() (bool, any) {
		probe := anyJob(namespace, "probe")
		probe.Labels = map[string]string{v1alpha1.LabelInstall: "probe"}
		err := admin.Create(t.Context(), probe)
		if err == nil {
			remove(t, probe)
		}
		return apierrors.IsForbidden(err), err
	})
	return binding
}

func anyJob(namespace, name string) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "tool", Image: "registry.example/other:1"}}}}},
	}
}

func TestToolChangedWhileStarting(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	tool := newTool(t, tools, "tool")
	call := newCall(t, tools, "tool")
	old := podOf(t, call)
	oldJob := jobOf(t, call)
	waitForReason(t, call, v1alpha1.ReasonStarting)
	setSpec(t, tool, func(s *v1alpha1.ToolSpec) { s.Container.Image = "registry.example/tool:2" })
	eventually(t, "another Job", func() (bool, any) {
		jobs := jobsOf(t, call)
		return len(jobs) == 1 && jobs[0].UID != oldJob.UID, jobs
	})
	eventually(t, "the old pod gone", func() (bool, any) { return !get(t, keyOf(old), &corev1.Pod{}), old.Name })
	if pod := startPod(t, call, prints("1", 0)); pod.Spec.Containers[0].Image != "registry.example/tool:2" {
		t.Errorf("the new sandbox has image %s", pod.Spec.Containers[0].Image)
	}
	call = waitForEnd(t, call)
	want{}.check(t, call)
	if call.Status.ToolGeneration != 2 {
		t.Errorf("toolGeneration is %d", call.Status.ToolGeneration)
	}
}

// A sandbox that does not start ends with the cluster's own words.
func TestStartFails(t *testing.T) {
	t.Parallel()
	deadline := func(seconds int32) func(*v1alpha1.ToolSpec) {
		return func(s *v1alpha1.ToolSpec) { s.StartDeadlineSeconds = seconds }
	}
	pod := func(status corev1.PodStatus) func(*testing.T, string, *v1alpha1.ToolCall) {
		return func(t *testing.T, _ string, call *v1alpha1.ToolCall) { setPod(t, podOf(t, call), status) }
	}
	for _, test := range []struct {
		reason    string
		tool      func(*v1alpha1.ToolSpec)
		namespace func(*testing.T, string)
		call      func(*v1alpha1.ToolCallSpec)
		then      func(*testing.T, string, *v1alpha1.ToolCall)
		want      want
		early     bool // long before startDeadlineSeconds
	}{
		{reason: "no node has room", tool: deadline(2), then: pod(unschedulable("0/3 nodes are available: 3 Insufficient memory.")),
			want: want{retryable: true, message: []string{"startDeadlineSeconds (2)", "Unschedulable", "Insufficient memory"}}},
		{reason: "a pull fails, which may be cured by time", tool: deadline(2), then: pod(waiting("ErrImagePull", "registry.example: 503")),
			want: want{retryable: true, message: []string{"startDeadlineSeconds (2)", "ErrImagePull", "registry.example: 503"}}},
		{reason: "the call's own deadline is shorter", call: func(s *v1alpha1.ToolCallSpec) { s.DeadlineSeconds = 2 },
			then: pod(unschedulable("no room")), want: want{retryable: true, message: []string{"deadlineSeconds (2)", "Starting"}}},
		{reason: "an image name that is none: no time cures it", then: pod(waiting("InvalidImageName", "couldn't parse image name")),
			want: want{message: []string{"InvalidImageName", "couldn't parse"}}, early: true},
		{reason: "a Secret is missing", then: pod(waiting("CreateContainerConfigError", `secret "orders" not found`)),
			want: want{message: []string{"CreateContainerConfigError", `secret "orders" not found`}}, early: true},
		{reason: "the runtime cannot start the runner", then: pod(terminated(128, "StartError")),
			want: want{message: []string{"StartError"}}, early: true},
		{reason: "no pod within the quota", tool: deadline(4), namespace: func(t *testing.T, ns string) { newQuota(t, ns, corev1.ResourcePods) },
			want: want{retryable: true, message: []string{"FailedCreate", "exceeded quota"}}},
		{reason: "no Job within the quota", tool: deadline(4), namespace: func(t *testing.T, ns string) { newQuota(t, ns, "count/jobs.batch") },
			want: want{retryable: true, message: []string{"exceeded quota"}}},
		{reason: "a limit range refuses the pod for good", namespace: func(t *testing.T, ns string) {
			create(t, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "small"}, Spec: corev1.LimitRangeSpec{
				Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}}})
		}, want: want{message: []string{"FailedCreate", "maximum memory usage"}}, early: true},
		{reason: "somebody changed the pod's image", then: func(t *testing.T, _ string, call *v1alpha1.ToolCall) {
			p := podOf(t, call)
			p.Spec.Containers[0].Image = "registry.example/evil:1"
			if err := admin.Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}, want: want{message: []string{"spec.containers[0].image"}}, early: true},
	} {
		t.Run(test.reason, func(t *testing.T) {
			t.Parallel()
			tools := openNamespace(t)
			allow(t, tools)
			if test.tool == nil {
				test.tool = deadline(600)
			}
			newTool(t, tools, "tool", test.tool)
			if test.namespace != nil {
				test.namespace(t, tools)
			}
			if test.call == nil {
				test.call = func(*v1alpha1.ToolCallSpec) {}
			}
			call := newCall(t, tools, "tool", test.call)
			if test.then != nil {
				test.then(t, tools, call)
			}
			call = waitForEnd(t, call)
			test.want.code = v1alpha1.ErrorToolUnavailable
			test.want.check(t, call)
			if len(call.Status.Attempts) > 0 {
				t.Errorf("never started, and has an attempt: %s", show(call.Status.Attempts))
			}
			if took := call.Status.CompletionTime.Sub(call.CreationTimestamp.Time); !test.early && took < time.Second {
				t.Errorf("ended after %s, before its deadline", took)
			}
			waitForNoSandbox(t, call)
		})
	}
}

// A call's own writers must not keep the controller from writing its status.
func TestSendAmongConflicts(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	call := newCall(t, tools, "tool")
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		writes, ticker := 0, time.NewTicker(10*time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				stopped <- writes
				return
			case now := <-ticker.C:
				merge := `{"metadata":{"annotations":{"example.dev/beat":"` + now.String() + `"}}}`
				if agent.Patch(t.Context(), call.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(merge))) == nil {
					writes++
				}
			}
		}
	}()
	startPod(t, call, prints("1", 0))
	call = waitForEnd(t, call)
	close(stop)
	if writes := <-stopped; writes < 10 {
		t.Errorf("only %d writes were in the way", writes)
	}
	want{}.check(t, call)
	if n := attachedTo(call); n != 1 {
		t.Errorf("%d attaches to the sandbox, want 1", n)
	}
}

// attachedTo counts the attaches to the pod that the call's status names last.
func attachedTo(call *v1alpha1.ToolCall) int {
	a := call.Status.Attempts[len(call.Status.Attempts)-1]
	theNode.mu.Lock()
	defer theNode.mu.Unlock()
	return theNode.pods[a.Namespace+"/"+a.Pod].attached
}
