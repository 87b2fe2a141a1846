package sandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	psaapi "k8s.io/pod-security-admission/api"
	psa "k8s.io/pod-security-admission/policy"
	"k8s.io/utils/ptr"

	"callgate.dev/callgate/api/v1alpha1"
)

// anyTool is a Tool as the CRD could let it through, and a little more.
func anyTool(r *rand.Rand) *v1alpha1.Tool {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	quantity := func() resource.Quantity {
		return resource.MustParse(pick("0", "1", "1m", "5m", "10m", "500m", "16Mi", "32Mi", "1Gi", "9E", "1e3", "-1"))
	}
	list := func() corev1.ResourceList {
		out := corev1.ResourceList{}
		for range r.IntN(5) {
			out[corev1.ResourceName(pick("cpu", "memory", "ephemeral-storage", "example.com/gpu", "hugepages-2Mi"))] = quantity()
		}
		return out
	}
	return testTool(func(t *v1alpha1.Tool) {
		t.Spec.TimeoutSeconds = r.Int32N(86401)
		t.Spec.StartDeadlineSeconds = r.Int32N(3601)
		c := &t.Spec.Container
		c.RunAsUser = r.Int64N(65536)
		c.Image = pick("a", "docker.io/library/x:latest", "r.example/x@sha256:"+strings.Repeat("0", 64))
		c.Command = []string{pick("sh", "/.callgate/runner", "--privileged"), "$(args.x)"}
		c.Stdin = v1alpha1.StdinMode(pick("", "Args", "None"))
		c.Resources = v1alpha1.ToolResources{Limits: list(), Requests: list()}
		for i := range r.IntN(4) {
			v := v1alpha1.EnvVar{Name: pick("A", "PATH", "LD_PRELOAD", podUIDVariable, fmt.Sprintf("V%d", i))}
			switch r.IntN(3) {
			case 0:
				v.Value = ptr.To(pick("", "$(A)", "$$(A)", "$A", "/host"))
			case 1:
				v.ValueFrom = &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "s", Key: "k"}}
			default:
				v.ValueFrom = &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "c", Key: "k"}}
			}
			c.Env = append(c.Env, v)
		}
		for range r.IntN(3) {
			c.ImagePullSecrets = append(c.ImagePullSecrets, corev1.LocalObjectReference{Name: "pull"})
		}
		c.ServiceAccountName = pick("", "deployer")
		for i := range r.IntN(4) {
			v := v1alpha1.Volume{Name: fmt.Sprintf("v%d", i), MountPath: fmt.Sprintf("/data/%d", i), ReadOnly: ptr.To(r.IntN(2) == 0)}
			switch r.IntN(5) { // 4: none of them, which the CRD refuses
			case 0:
				v.Secret = &v1alpha1.SecretVolumeSource{SecretName: "s", Optional: r.IntN(2) == 0}
			case 1:
				v.ConfigMap = &v1alpha1.ConfigMapVolumeSource{Name: "c"}
			case 2:
				v.PersistentVolumeClaim = &v1alpha1.PersistentVolumeClaimVolumeSource{ClaimName: "p"}
			case 3:
				v.Image = &v1alpha1.ImageVolumeSource{Reference: "data"}
			}
			c.Volumes = append(c.Volumes, v)
		}
		t.Spec.Isolation.RuntimeClassName = pick("", "gvisor")
		if r.IntN(2) == 0 {
			t.Spec.Isolation.ScratchSizeLimit = ptr.To(quantity())
		}
		t.Spec.Isolation.Network.Loopback = r.IntN(2) == 0
		t.Spec.Isolation.Network.DNS = v1alpha1.DNSMode(pick("", "None", "Cluster"))
		for range r.IntN(3) {
			t.Spec.Isolation.Network.Egress = append(t.Spec.Isolation.Network.Egress, networkingv1.NetworkPolicyEgressRule{})
		}
	})
}

func TestNoToolWeakensItsSandbox(t *testing.T) {
	evaluator, err := psa.NewEvaluator(psa.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := psaapi.LevelVersion{Level: psaapi.LevelRestricted, Version: psaapi.LatestVersion()}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 2000 {
		tool := anyTool(r)
		job := Job(testInput(tool))
		template := &job.Spec.Template
		for _, res := range evaluator.EvaluatePod(restricted, &template.ObjectMeta, &template.Spec) {
			if !res.Allowed {
				t.Errorf("Tool %d: Pod Security restricted refuses its pod: %s: %s\n%s", i, res.ForbiddenReason, res.ForbiddenDetail, mustJSON(tool.Spec))
			}
		}
		for _, problem := range weak(tool, &template.Spec) {
			t.Errorf("Tool %d: %s\n%s", i, problem, mustJSON(tool.Spec))
		}
		if t.Failed() {
			return
		}
	}
}

// weak says what of design section 4 a pod lacks beyond Pod Security.
func weak(tool *v1alpha1.Tool, spec *corev1.PodSpec) (problems []string) {
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	bad(len(spec.Containers) != 1 || len(spec.InitContainers)+len(spec.EphemeralContainers) > 0, "not exactly one container")
	c := spec.Containers[0]
	bad(!slices.Equal(c.Command, []string{testRunnerFolder + "/runner"}) || len(c.Args) > 0, "PID 1 is %q %q, not the runner", c.Command, c.Args)
	bad(!ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false), "the root file system can be written")
	sc := spec.SecurityContext
	user := ptr.Deref(sc.RunAsUser, 0)
	bad(user <= 0 || ptr.Deref(sc.RunAsGroup, 0) != user || ptr.Deref(sc.FSGroup, 0) != user, "user, group and fsGroup are %v", sc)
	bad(ptr.Deref(spec.AutomountServiceAccountToken, true), "a token is mounted")
	bad(ptr.Deref(spec.EnableServiceLinks, true), "service links are on")
	bad(spec.HostNetwork || spec.HostPID || spec.HostIPC || spec.ShareProcessNamespace != nil, "a namespace is shared")
	bad(ptr.Deref(spec.HostUsers, true), "hostUsers is not false")
	resolver := corev1.DNSNone
	if tool.Spec.Isolation.Network.DNS == v1alpha1.DNSCluster {
		resolver = corev1.DNSClusterFirst
		bad(spec.DNSConfig != nil, "the resolver is not the cluster's alone: %v", spec.DNSConfig)
	} else {
		bad(spec.DNSConfig == nil || !slices.Equal(spec.DNSConfig.Nameservers, []string{"127.0.0.1"}), "there is a resolver: %v", spec.DNSConfig)
	}
	bad(spec.DNSPolicy != resolver, "dnsPolicy is %q, not %q", spec.DNSPolicy, resolver)
	bad(spec.RestartPolicy != corev1.RestartPolicyNever, "restartPolicy is %q", spec.RestartPolicy)
	bad(ptr.Deref(spec.RuntimeClassName, "") != tool.Spec.Isolation.RuntimeClassName, "runtimeClassName is %v", spec.RuntimeClassName)
	own := map[string]v1alpha1.Volume{}
	for _, v := range tool.Spec.Container.Volumes {
		own[v.Name] = v
	}
	for _, v := range spec.Volumes {
		asked, isOwn := own[v.Name]
		switch {
		case isOwn && (asked.Secret != nil) == (v.Secret != nil) && (asked.ConfigMap != nil) == (v.ConfigMap != nil) &&
			(asked.PersistentVolumeClaim != nil) == (v.PersistentVolumeClaim != nil) && v.HostPath == nil && v.EmptyDir == nil:
		case v.Name == tokenVolume && tool.Spec.Container.ServiceAccountName != "":
		case v.Image != nil && v.Image.Reference == testRunner:
		case v.EmptyDir != nil:
			limit := ptr.Deref(v.EmptyDir.SizeLimit, resource.Quantity{})
			bad(v.EmptyDir.Medium != corev1.StorageMediumMemory || limit.Sign() <= 0, "volume %s is not bounded in memory", v.Name)
		default:
			bad(true, "volume %s is of a kind that no Tool can ask for", v.Name)
		}
	}
	for _, m := range c.VolumeMounts {
		bad(m.Name == "callgate-runner" && (!m.ReadOnly || m.MountPath != testRunnerFolder), "the runner is writable or elsewhere: %+v", m)
		if v, isOwn := own[m.Name]; isOwn {
			bad(!m.ReadOnly && (v.PersistentVolumeClaim == nil || *v.ReadOnly), "volume %s can be written", m.Name)
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := c.Resources.Limits[name]
		bad(limit.Sign() <= 0, "no limit for %s", name)
		_, requested := c.Resources.Requests[name]
		bad(!requested, "no request for %s, which would become the limit", name)
	}
	seen := map[string]int{}
	for _, v := range c.Env {
		if seen[v.Name]++; v.Name == podUIDVariable {
			bad(seen[v.Name] > 1 || v.ValueFrom == nil || v.ValueFrom.FieldRef == nil, "the pod's UID can be forged")
		}
	}
	return problems
}

func TestResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		if cpu != "" {
			out[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			out[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return out
	}
	for _, tc := range []struct {
		reason                       string
		limits, requests             corev1.ResourceList
		scratch                      string
		cpu, memory, reqCPU, reqMemo string
	}{
		{reason: "defaults: 128Mi + 64Mi /tmp + 32Mi runner; requests are never the limits",
			cpu: "500m", memory: "224Mi", reqCPU: "10m", reqMemo: "32Mi"},
		{reason: "the Tool's own limits, and its own /tmp on top",
			limits: list("2", "1Gi"), scratch: "16Mi", cpu: "2", memory: "1072Mi", reqCPU: "10m", reqMemo: "32Mi"},
		{reason: "a limit below the default request takes the request down with it",
			limits: list("5m", "16Mi"), cpu: "5m", memory: "112Mi", reqCPU: "5m", reqMemo: "16Mi"},
		{reason: "requests as the Tool says",
			requests: list("100m", "64Mi"), cpu: "500m", memory: "224Mi", reqCPU: "100m", reqMemo: "64Mi"},
		{reason: "zero would mean no limit at all, so the default stays",
			limits: list("0", "0"), scratch: "0", cpu: "500m", memory: "224Mi", reqCPU: "10m", reqMemo: "32Mi"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			tool := testTool(func(t *v1alpha1.Tool) {
				t.Spec.Container.Resources = v1alpha1.ToolResources{Limits: tc.limits, Requests: tc.requests}
				if tc.scratch != "" {
					t.Spec.Isolation.ScratchSizeLimit = ptr.To(resource.MustParse(tc.scratch))
				}
			})
			for range 2 { // rendering must not add to the defaults it starts from
				got := Job(testInput(tool)).Spec.Template.Spec.Containers[0].Resources
				for _, q := range []struct {
					what string
					got  resource.Quantity
					want string
				}{
					{"limits.cpu", got.Limits[corev1.ResourceCPU], tc.cpu},
					{"limits.memory", got.Limits[corev1.ResourceMemory], tc.memory},
					{"requests.cpu", got.Requests[corev1.ResourceCPU], tc.reqCPU},
					{"requests.memory", got.Requests[corev1.ResourceMemory], tc.reqMemo},
				} {
					if want := resource.MustParse(q.want); q.got.Cmp(want) != 0 {
						t.Errorf("%s is %s, want %s", q.what, q.got.String(), q.want)
					}
				}
			}
		})
	}
}

// expand is what the kubelet does with the value of a variable: $(NAME) is
// replaced, $$ is one $, everything else stays.
func expand(value string, known map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(value); i++ {
		if value[i] != '$' || i+1 == len(value) {
			out.WriteByte(value[i])
			continue
		}
		switch name, _, closed := strings.Cut(value[i+1:], ")"); {
		case value[i+1] == '$':
			out.WriteByte('$')
			i++
		case value[i+1] == '(' && closed:
			if v, ok := known[name[1:]]; ok {
				out.WriteString(v)
			} else {
				out.WriteString("$" + name + ")")
			}
			i += len(name) + 1
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

func TestEnvironmentIsExact(t *testing.T) {
	values := []string{"", "plain", "$(SECRET)", "$$(SECRET)", "$$$(SECRET)", "$SECRET", "$", "$$", "a$", "$(", "$()", "cost: 5$ (net)", "$(SECRET", "ü$(SECRET)ü"}
	tool := testTool(func(t *v1alpha1.Tool) {
		for i, v := range values {
			t.Spec.Container.Env = append(t.Spec.Container.Env, v1alpha1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: ptr.To(v)})
		}
		t.Spec.Container.Env = append(t.Spec.Container.Env,
			v1alpha1.EnvVar{Name: "SECRET", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "orders", Key: "token"}}},
			v1alpha1.EnvVar{Name: "CONFIG", ValueFrom: &v1alpha1.EnvVarSource{ConfigMapKeyRef: &v1alpha1.KeySelector{Name: "settings", Key: "url"}}})
	})
	env := Job(testInput(tool)).Spec.Template.Spec.Containers[0].Env
	byName := map[string]corev1.EnvVar{}
	for _, v := range env {
		byName[v.Name] = v
	}
	for i, want := range values {
		v := byName[fmt.Sprintf("V%d", i)]
		if got := expand(v.Value, map[string]string{"SECRET": "leaked", "": "leaked"}); got != want || v.ValueFrom != nil {
			t.Errorf("value %q reaches the tool as %q (rendered %q, from %v)", want, got, v.Value, v.ValueFrom)
		}
	}
	if s := byName["SECRET"].ValueFrom; s == nil || s.SecretKeyRef == nil || s.SecretKeyRef.Name != "orders" || s.SecretKeyRef.Key != "token" || byName["SECRET"].Value != "" {
		t.Errorf("SECRET is rendered as %v", byName["SECRET"])
	}
	if s := byName["CONFIG"].ValueFrom; s == nil || s.ConfigMapKeyRef == nil || s.ConfigMapKeyRef.Name != "settings" || s.ConfigMapKeyRef.Key != "url" {
		t.Errorf("CONFIG is rendered as %v", byName["CONFIG"])
	}
	if f := byName[podUIDVariable].ValueFrom; f == nil || f.FieldRef == nil || f.FieldRef.FieldPath != "metadata.uid" || f.FieldRef.APIVersion != "v1" {
		t.Errorf("%s is rendered as %v", podUIDVariable, byName[podUIDVariable])
	}
}

func TestCommandAndArgumentsAreNotInTheJob(t *testing.T) {
	tool := testTool(func(t *v1alpha1.Tool) { t.Spec.Container.Command = []string{"marker-program", "$(args.marker)"} })
	raw, err := json.Marshal(Job(testInput(tool)))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"marker", "args."} {
		if strings.Contains(string(raw), s) {
			t.Errorf("the Job holds %q: what the tool runs travels in the call frame only\n%s", s, raw)
		}
	}
}

func TestNamesAndLabels(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		call    types.NamespacedName
		attempt int32
	}{
		{"a usual call", types.NamespacedName{Namespace: "agents", Name: "say-hello"}, 1},
		{"the longest names the API server takes", types.NamespacedName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", 253)}, 64},
		{"a name with dots", types.NamespacedName{Namespace: "a", Name: "call.v1.example.com"}, 2},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			in := testInput(testTool())
			in.Call, in.Attempt = tc.call, tc.attempt
			job := Job(in)
			if want := fmt.Sprintf("callgate-%s-%d", testCallUID, tc.attempt); job.Name != want || job.Namespace != "tools" {
				t.Errorf("the Job is %s/%s, want tools/%s", job.Namespace, job.Name, want)
			}
			if errs := validation.IsDNS1123Label(job.Name); errs != nil {
				t.Errorf("name %q: %v (the Job controller makes it a label)", job.Name, errs)
			}
			want := map[string]string{
				v1alpha1.LabelInstall: testInstall, v1alpha1.LabelToolUID: string(testToolUID),
				v1alpha1.LabelCallUID: string(testCallUID), v1alpha1.LabelAttempt: fmt.Sprint(tc.attempt),
			}
			for where, labels := range map[string]map[string]string{"Job": job.Labels, "pod": job.Spec.Template.Labels} {
				if !maps.Equal(labels, want) {
					t.Errorf("labels of the %s are %v, want %v", where, labels, want)
				}
				for k, v := range labels {
					if errs := validation.IsValidLabelValue(v); errs != nil {
						t.Errorf("label %s=%q: %v", k, v, errs)
					}
				}
			}
			for where, annotations := range map[string]map[string]string{"Job": job.Annotations, "pod": job.Spec.Template.Annotations} {
				if got := annotations[v1alpha1.AnnotationCall]; got != tc.call.String() {
					t.Errorf("annotation of the %s names call %q", where, got)
				}
			}
			if len(job.OwnerReferences)+len(job.Finalizers) > 0 {
				t.Error("a sandbox has no owners and no finalizers")
			}
		})
	}
}

func TestJobClocks(t *testing.T) {
	job := Job(testInput(testTool(func(t *v1alpha1.Tool) { t.Spec.TimeoutSeconds, t.Spec.StartDeadlineSeconds = 20, 60 })))
	if got := *job.Spec.Template.Spec.TerminationGracePeriodSeconds; got != 30 {
		t.Errorf("terminationGracePeriodSeconds is %d, want timeout + 10 = 30", got)
	}
	if got := *job.Spec.ActiveDeadlineSeconds; got < 60+20+GraceSeconds {
		t.Errorf("activeDeadlineSeconds is %d: the last resort is over before the controller's own clocks", got)
	}
	if *job.Spec.BackoffLimit != 0 || string(*job.Spec.PodReplacementPolicy) != "Failed" || *job.Spec.TTLSecondsAfterFinished < 3600 {
		t.Errorf("the Job may run its pod again, or forgets it too soon: %+v", job.Spec)
	}
	if TimeoutSeconds(testTool()) != 8 || StartDeadlineSeconds(testTool()) != 120 {
		t.Error("the defaults are 8 s for the tool and 120 s for its start")
	}
}

func TestSameTemplateAndIsOurs(t *testing.T) {
	want := Job(testInput(testTool()))
	for _, tc := range []struct {
		reason     string
		in         func(*Input)
		same, ours bool
	}{
		{"the same once more", func(*Input) {}, true, true},
		{"a description, a schema or the command is not in the pod", func(in *Input) {
			in.Tool.Spec.Description, in.Tool.Spec.Container.Command, in.Tool.Generation = "new", []string{"other"}, 4
		}, true, true},
		{"another image", func(in *Input) { in.Tool.Spec.Container.Image = "registry.example/echo:2" }, false, true},
		{"another limit", func(in *Input) {
			in.Tool.Spec.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, false, true},
		{"another runner", func(in *Input) { in.RunnerImage += "1" }, false, true},
		{"another time limit changes the pod's grace period", func(in *Input) { in.Tool.Spec.TimeoutSeconds = 9 }, false, true},
		{"another call", func(in *Input) { in.CallUID = "1" }, true, false},
		{"another attempt", func(in *Input) { in.Attempt = 2 }, true, false},
		{"another Tool of that name: the sandbox is made again", func(in *Input) { in.Tool.UID = "1" }, false, true},
		{"another install", func(in *Input) { in.Install = "other" }, true, false},
		{"a call of another name", func(in *Input) { in.Call.Name = "other" }, true, false},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			in := testInput(testTool())
			tc.in(&in)
			job := Job(in)
			if got := SameTemplate(job, want); got != tc.same {
				t.Errorf("SameTemplate is %v, want %v", got, tc.same)
			}
			if got := IsOurs(job, want); got != tc.ours {
				t.Errorf("IsOurs is %v, want %v", got, tc.ours)
			}
		})
	}
	foreign := Job(testInput(testTool()))
	foreign.Labels, foreign.Annotations = nil, nil
	if IsOurs(foreign, want) || SameTemplate(foreign, want) {
		t.Error("a Job without our labels and annotations is taken for ours")
	}
}

func TestOutputRules(t *testing.T) {
	tool := testTool()
	if got, want := OutputRules(tool), (Output{Format: "JSON", MaxBytes: 65536, SideEffects: "NonIdempotent"}); got != want {
		t.Errorf("the defaults are %+v, want %+v", got, want)
	}
	tool.Spec.Output = v1alpha1.ToolOutput{Format: v1alpha1.OutputText, MaxBytes: 7}
	tool.Spec.SideEffects = v1alpha1.SideEffectsNone
	var stored Output
	if err := json.Unmarshal([]byte(Job(testInput(tool)).Annotations[AnnotationOutput]), &stored); err != nil {
		t.Fatal(err)
	}
	if want := (Output{Format: "Text", MaxBytes: 7, SideEffects: "None"}); stored != want {
		t.Errorf("the Job holds %+v, want %+v", stored, want)
	}
}

func TestAllowSockets(t *testing.T) {
	for _, tc := range []struct {
		reason  string
		network v1alpha1.ToolNetwork
		want    bool
	}{
		{"no egress, no loopback: no sockets", v1alpha1.ToolNetwork{}, false},
		{"loopback", v1alpha1.ToolNetwork{Loopback: true}, true},
		{"egress", v1alpha1.ToolNetwork{Egress: []networkingv1.NetworkPolicyEgressRule{{}}}, true},
		{"dns, which is asked through a socket", v1alpha1.ToolNetwork{DNS: v1alpha1.DNSCluster}, true},
		{"no dns, said so", v1alpha1.ToolNetwork{DNS: v1alpha1.DNSNone}, false},
	} {
		if got := AllowSockets(testTool(func(t *v1alpha1.Tool) { t.Spec.Isolation.Network = tc.network })); got != tc.want {
			t.Errorf("%s: AllowSockets is %v", tc.reason, got)
		}
	}
}
