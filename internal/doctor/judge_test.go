package doctor

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// want is what a row must be; seen must be in what was seen.
type want struct {
	result Result
	seen   string
}

func (w want) check(t *testing.T, reason string, got Row) {
	t.Helper()
	if got.Result != w.result || !strings.Contains(got.Seen, w.seen) {
		t.Errorf("%s: got %+v, want %s with %q", reason, got, w.result, w.seen)
	}
	if (got.Result == Failed || got.Result == Warning) && got.Do == "" {
		t.Errorf("%s: it does not say what to do: %+v", reason, got)
	}
}

func TestJudgeVersion(t *testing.T) {
	for _, tc := range []struct {
		reason, version string
		want            want
	}{
		{"the oldest", "v1.36.0", want{OK, "v1.36.0"}},
		{"newer, of a vendor", "v1.37.2-gke.100", want{OK, ""}},
		{"too old", "v1.35.9", want{Failed, "v1.35.9"}},
		{"no version", "", want{Failed, "no version"}},
		{"not a number", "latest", want{Failed, "no version"}},
	} {
		tc.want.check(t, tc.reason, judgeVersion(tc.version))
	}
}

func TestJudgeAdmission(t *testing.T) {
	want{OK, "overwritten"}.check(t, "proven", judgeStamping(""))
	want{Failed, "a forged spec.requester"}.check(t, "not proven", judgeStamping("a forged spec.requester was not overwritten"))

	good := policyObject{Kind: "ValidatingAdmissionPolicy", Name: "a"}
	for _, tc := range []struct {
		reason  string
		objects []policyObject
		want    want
	}{
		{"all there", []policyObject{good}, want{OK, "all 1"}},
		{"one is missing", []policyObject{good, {Kind: "ValidatingAdmissionPolicyBinding", Name: "b", Missing: true}}, want{Failed, "Binding b is missing"}},
		{"one does nothing", []policyObject{{Kind: "ValidatingAdmissionPolicy", Name: "b", Weak: "has failurePolicy Ignore"}, good}, want{Failed, "b has failurePolicy Ignore"}},
	} {
		tc.want.check(t, tc.reason, judgePolicies(tc.objects))
	}

	f := forgery{What: "a forged Lease", Policy: "callgate-leases"}
	refused, byRBAC := f, f
	refused.Err = "ValidatingAdmissionPolicy 'callgate-leases' with binding 'callgate-leases' denied request"
	byRBAC.Err = "cannot create resource leases"
	want{OK, "refused: a forged Lease"}.check(t, "refused by the policy", judgeForgeries([]forgery{refused}))
	want{Failed, "was taken"}.check(t, "one of two was taken", judgeForgeries([]forgery{refused, f}))
	want{Failed, "could not be tried"}.check(t, "another refusal proves nothing", judgeForgeries([]forgery{byRBAC}))
}

func TestJudgeNamespaces(t *testing.T) {
	good := openedNamespace{Name: "tools", Enforce: "restricted"}
	for _, tc := range []struct {
		reason             string
		opened             []openedNamespace
		podSecurity, right want
	}{
		{"none is opened", nil, want{Skipped, "no namespace"}, want{Skipped, "no namespace"}},
		{"as it should be", []openedNamespace{good}, want{OK, "1 of 1"}, want{OK, "1 opened"}},
		{"no label", []openedNamespace{good, {Name: "lax"}}, want{Warning, "1 of 2 enforce restricted; not lax (no label)"}, want{OK, ""}},
		{"a lower level", []openedNamespace{{Name: "lax", Enforce: "baseline"}}, want{Warning, "lax (baseline)"}, want{OK, ""}},
		{"no RoleBinding", []openedNamespace{good, {Name: "half", Enforce: "restricted", Lacks: []string{"create jobs"}}}, want{OK, ""}, want{Failed, "half: may not create jobs"}},
	} {
		tc.podSecurity.check(t, tc.reason, judgePodSecurity(tc.opened))
		tc.right.check(t, tc.reason, judgeControllerRights(tc.opened))
	}
	want{OK, ""}.check(t, "no more than it needs", judgeControllerExcess(nil))
	want{Failed, "get secrets"}.check(t, "cluster-wide rights", judgeControllerExcess([]string{"get secrets"}))
}

func TestJudgeNetwork(t *testing.T) {
	closed := dialed{Attempts: 6, Quiet: true, LastError: "i/o timeout"}
	open := dialed{Attempts: 9, Successes: 9, LastMS: 24000}
	late := dialed{Attempts: 60, Successes: 41, LastMS: 480, Quiet: true, LastError: "i/o timeout"}
	named := func(name string, d dialed) dialed { d.Name = name; return d }
	pod := func(server, api, denied dialed) dialing {
		return dialing{BeginMS: 40, Targets: []dialed{named(targetServer, server), named(targetAPI, api), named(targetDenied, denied)}}
	}
	denied := func(server, api dialed) dialing {
		return dialing{BeginMS: 40, Targets: []dialed{named(targetServer, server), named(targetAPI, api)}}
	}
	for _, tc := range []struct {
		reason                  string
		n                       network
		egress, ingress, window want
	}{
		{"enforced from the start", network{denied(closed, closed), pod(open, open, closed)},
			want{OK, "cannot reach"}, want{OK, "cannot be reached"}, want{OK, "no connection"}},
		{"enforced after a while", network{denied(late, closed), pod(open, open, closed)},
			want{OK, ""}, want{OK, ""}, want{Warning, "another pod until 480 ms"}},
		{"not enforced", network{denied(open, open), pod(open, open, open)},
			want{Failed, "another pod can be reached"}, want{Failed, "can be reached"}, want{Skipped, "not enforced"}},
		{"the API server is left out", network{denied(closed, open), pod(open, open, closed)},
			want{Failed, "the API server can be reached"}, want{OK, ""}, want{Skipped, ""}},
		{"only egress is enforced", network{denied(closed, closed), pod(open, open, open)},
			want{OK, ""}, want{Failed, "a deny-all pod can be reached"}, want{OK, ""}},
		{"ingress that closed late is not closed", network{denied(closed, closed), pod(open, open, late)},
			want{OK, ""}, want{Failed, ""}, want{OK, ""}},
		{"nothing goes through at all", network{denied(closed, closed), pod(closed, closed, closed)},
			want{Failed, "nothing is proven"}, want{Failed, "nothing is proven"}, want{OK, ""}},
		{"no reports", network{dialing{}, dialing{}}, want{Failed, ""}, want{Failed, ""}, want{OK, ""}},
		{"the denied pod did not start", network{dialing{Failure: "no image"}, dialing{}}, want{Failed, "no image"}, want{Failed, "no image"}, want{Skipped, ""}},
		{"the open pod did not start", network{denied(closed, closed), dialing{Failure: "no room"}}, want{Failed, "no room"}, want{Failed, "no room"}, want{OK, ""}},
	} {
		tc.egress.check(t, tc.reason, judgeEgress(tc.n))
		tc.ingress.check(t, tc.reason, judgeIngress(tc.n))
		tc.window.check(t, tc.reason, judgeWindow(tc.n))
	}
}

func TestJudgeUserNamespace(t *testing.T) {
	want{OK, "65536"}.check(t, "a range of its own", judgeUserNamespace(look{UIDMap: "0 2147483648 65536"}))
	want{Failed, "0 0 4294967295"}.check(t, "the host's users", judgeUserNamespace(look{UIDMap: "0 0 4294967295"}))
	want{Failed, ""}.check(t, "nothing read", judgeUserNamespace(look{}))
	want{Failed, "not supported"}.check(t, "no start", judgeUserNamespace(look{Failure: "user namespaces are not supported", UIDMap: "0 1 2"}))
}

func TestJudgeImageVolumeAndClass(t *testing.T) {
	good := look{Kernel: "6.18 #1", RunnerExit: 64, WriteError: "read-only file system"}
	with := func(change func(*look)) look {
		l := good
		change(&l)
		return l
	}
	for _, tc := range []struct {
		reason string
		look   look
		want   want
	}{
		{"as it should be", good, want{OK, "read-only"}},
		{"writable", with(func(l *look) { l.Written = true }), want{Failed, "not read-only"}},
		{"cannot be executed", with(func(l *look) { l.RunnerError = "permission denied" }), want{Failed, "permission denied"}},
		{"another program", with(func(l *look) { l.RunnerExit = 0 }), want{Failed, "exit code 0, not 64"}},
		{"no start", look{Failure: "failed to mount"}, want{Failed, "failed to mount"}},
	} {
		tc.want.check(t, tc.reason, judgeImageVolume(tc.look))
		if tc.want.result == Failed {
			tc.want.check(t, tc.reason+", under a class", judgeRuntimeClass(runtimeClass{Name: "x", Handler: "runc", HostKernel: "6.18 #1", look: tc.look}))
		}
	}
	for _, tc := range []struct {
		reason string
		class  runtimeClass
		want   want
	}{
		{"gVisor", runtimeClass{Name: "gvisor", Handler: "runsc", UserNamespaces: "no", HostKernel: "6.12 #9", look: good}, want{OK, "a kernel of its own: 6.18 #1"}},
		{"gVisor in name only", runtimeClass{Name: "gvisor", Handler: "runc", HostKernel: "6.18 #1", look: good}, want{Failed, "the host's kernel"}},
		{"a VM's handler without a VM", runtimeClass{Name: "vm", Handler: "kata-qemu", HostKernel: "6.18 #1", look: good}, want{Failed, "the host's kernel"}},
		{"another runc", runtimeClass{Name: "crun", Handler: "crun", UserNamespaces: "yes", HostKernel: "6.18 #1", look: good}, want{OK, "shares the host's kernel"}},
		{"nothing to compare with", runtimeClass{Name: "gvisor", Handler: "runsc", look: good}, want{Failed, "could not be compared"}},
	} {
		tc.want.check(t, tc.reason, judgeRuntimeClass(tc.class))
	}
}

func TestJudgeAttach(t *testing.T) {
	good := attached{Answer: 20 * time.Millisecond, NoCallExit: 64, Log: trialLog{Answer: true, EOF: true, End: true, Bytes: 1 << 20}}
	with := func(change func(*attached)) attached {
		a := good
		change(&a)
		return a
	}
	for _, tc := range []struct {
		reason      string
		a           attached
		attach, log want
	}{
		{"as it should be", good, want{OK, "20 ms"}, want{OK, "all 1048576 bytes"}},
		{"no answer", with(func(a *attached) { a.Failure = "did not answer" }), want{Failed, "did not answer"}, want{Failed, "did not answer"}},
		{"no end of the input", with(func(a *attached) { a.Log = trialLog{Answer: true} }), want{Failed, "did not see the end"}, want{Failed, "the log has 0"}},
		{"ended by the detach", with(func(a *attached) { a.Log = trialLog{Answer: true, EOF: true} }), want{Failed, "after its attach was cut"}, want{Failed, ""}},
		{"an answer that is not in the log", with(func(a *attached) { a.Log.Answer = false }), want{Failed, "not in its log"}, want{OK, ""}},
		{"the runner took it for a call", with(func(a *attached) { a.NoCallExit = 0 }), want{Failed, "exit code 0"}, want{OK, ""}},
		{"the runner waited on", with(func(a *attached) { a.NoCallFailure = "did not end within 45s" }), want{Failed, "did not end"}, want{OK, ""}},
		{"rotated away", with(func(a *attached) { a.Log.Bytes = 500 << 10 }), want{OK, ""}, want{Failed, "the log has 512000"}},
		{"its last line is lost", with(func(a *attached) { a.Log.End = false }), want{OK, ""}, want{Failed, ""}},
		{"a limit that is too small, not looked at yet", with(func(a *attached) { a.Log.MaxSize = 1 << 20 }), want{OK, ""}, want{Failed, "1048576 bytes"}},
		{"a tight limit", with(func(a *attached) { a.Log.MaxSize = 3 << 19 }), want{OK, ""}, want{Warning, "little more"}},
		{"the default limit", with(func(a *attached) { a.Log.MaxSize = 10 << 20 }), want{OK, ""}, want{OK, "10485760"}},
		{"no log", with(func(a *attached) { a.Log = trialLog{Failure: "cannot read"} }), want{Failed, "cannot read"}, want{Failed, "cannot read"}},
	} {
		tc.attach.check(t, tc.reason, judgeAttach(tc.a))
		tc.log.check(t, tc.reason, judgeLog(tc.a))
	}
}

func TestUserNamespaces(t *testing.T) {
	node := func(handler string, support *bool) corev1.Node {
		return corev1.Node{Status: corev1.NodeStatus{RuntimeHandlers: []corev1.NodeRuntimeHandler{
			{Name: handler, Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: support}}}}}
	}
	yes, no := node("h", ptr.To(true)), node("h", ptr.To(false))
	for _, tc := range []struct {
		nodes []corev1.Node
		want  string
	}{
		{[]corev1.Node{yes, yes}, "yes"}, {[]corev1.Node{no}, "no"}, {[]corev1.Node{yes, no}, "on some nodes"},
		{[]corev1.Node{node("h", nil), node("other", ptr.To(true))}, "unknown"}, {nil, "unknown"},
	} {
		if got := userNamespaces(tc.nodes, "h"); got != tc.want {
			t.Errorf("%v: got %s", tc.nodes, got)
		}
	}
}

func TestTable(t *testing.T) {
	rows := []Row{{"a", OK, "fine", ""}, {"b", Failed, "bad\nnews\x1b[31m " + strings.Repeat("é", maxCell), "act " + strings.Repeat("and again ", 10) + "rest"},
		{"c", Skipped, "no reason to", ""}}
	var out bytes.Buffer
	if err := WriteTable(&out, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if !strings.HasPrefix(lines[0], "CHECK") || !strings.HasPrefix(lines[2], "b ") || !strings.Contains(lines[2], "FAILED") ||
		lines[len(lines)-1] != "1 ok, 0 warnings, 1 FAILED, 1 skipped" {
		t.Errorf("got\n%s", out.String())
	}
	if !strings.Contains(lines[3], "and again") || strings.Contains(lines[3], "FAILED") || !strings.Contains(out.String(), "rest\n") {
		t.Errorf("a long cell does not go on below, whole:\n%s", out.String())
	}
	if strings.ContainsAny(out.String(), "\x1b\ufffd") || strings.Count(out.String(), "é") > maxCell/2 {
		t.Errorf("somebody's words are not cleaned or cut:\n%s", out.String())
	}
	if Sound(rows) || !Sound(rows[:1]) || !Sound([]Row{{Result: Warning}, {Result: Skipped}}) {
		t.Error("only a FAILED row is not sound")
	}
}
