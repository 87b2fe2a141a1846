package abuse

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/test/cluster"
)

// However a tool ends or does not, its call ends, with the true reason, and
// nothing is left of it.
func TestEnds(t *testing.T) {
	t.Parallel()
	attacked(t, "deep-json", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, closed), cluster.JSONOf(r.t, arguments{Attack: "deep-json", Seconds: 30_000}))
		r.ended(call, v1alpha1.ErrorInvalidOutput, "")
	})
	attacked(t, "stack-overflow", func(ctx context.Context, r *row) {
		overflow := cluster.NewTool(ctx, r.t, "stack-overflow-"+strings.ToLower(r.runtime), []string{"awk", "function f(x) { return f(x + 1) } BEGIN { f(0) }"},
			func(s *v1alpha1.ToolSpec) {
				if r.runtime == GVisorRuntime {
					s.Isolation.RuntimeClassName = "gvisor"
				}
				s.TimeoutSeconds = 30
			})
		r.ended(cluster.CallOf(ctx, r.t, overflow, ""), v1alpha1.ErrorToolFailed, "SIG")
	})
	attacked(t, "core-dump", func(ctx context.Context, r *row) {
		r.refused(r.inside(ctx, closed, arguments{Attack: "core-dump"}))
	})
	attacked(t, "ignore-sigterm", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, hurried), cluster.JSONOf(r.t, arguments{Attack: "ignore-sigterm"}))
		r.ended(call, v1alpha1.ErrorToolTimeout, "")
		r.within(call, 3*time.Second, 7*time.Second)
		cluster.WaitGone(ctx, r.t, call)
	})
	attacked(t, "starve-runner", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, hurried), cluster.JSONOf(r.t, arguments{Attack: "starve-runner"}))
		r.ended(call, v1alpha1.ErrorToolTimeout, "")
		r.within(call, 3*time.Second, 12*time.Second) // the controller deletes the pod then, whatever the runner says
		cluster.WaitGone(ctx, r.t, call)
	})
	attacked(t, "daemon", func(ctx context.Context, r *row) {
		mark := "abuse-daemon-" + strings.ToLower(r.runtime) + "-" + cluster.ToolsNS
		call := cluster.Propose(ctx, r.t, tool(ctx, r.t, r.runtime, closed), cluster.JSONOf(r.t, arguments{Attack: "daemon", Mark: mark}))
		cluster.WaitReason(ctx, r.t, call, v1alpha1.ReasonRunning)
		cluster.WaitAccepted(ctx, r.t, call)
		seen := false // gVisor's processes are not on the node
		for look := time.Now().Add(2 * time.Second); ownNode(r.t) && r.runtime == RuncRuntime && !seen; seen = onNode(mark) {
			if time.Now().After(look) {
				r.untried("the daemon was never seen on the node")
				break
			}
		}
		r.refused(r.read(cluster.Finish(ctx, r.t, call)))
		cluster.WaitGone(ctx, r.t, call)
		if onNode(mark) {
			r.breach("the daemon is still on the node")
		}
		r.gotf("seen on the node before %v, after false", seen)
	})
	attacked(t, "held-stdout", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, closed), cluster.JSONOf(r.t, arguments{Attack: "held-stdout"}))
		r.refused(r.read(call))
		r.within(call, 0, 5*time.Second)
		cluster.WaitGone(ctx, r.t, call)
	})
}

// ended judges how a call ended.
func (r *row) ended(call *v1alpha1.ToolCall, code v1alpha1.ErrorCode, part string) {
	r.t.Helper()
	result := call.Status.Result
	if *result.OK || result.ErrorCode != code || !strings.Contains(result.Message, part) {
		r.breach("the call ended %q: %s; want %s with %q", result.ErrorCode, result.Message, code, part)
		return
	}
	r.gotf("%s: %.160s", code, result.Message)
}

// within judges how long the tool ran, by the runner's clock.
func (r *row) within(call *v1alpha1.ToolCall, least, most time.Duration) {
	r.t.Helper()
	a := call.Status.Attempts[0]
	if a.StartTime == nil || a.FinishTime == nil {
		r.untried("the attempt has no times: %s", cluster.JSONOf(r.t, a))
		return
	}
	took := a.FinishTime.Sub(a.StartTime.Time)
	r.gotf("ran %.1f s", took.Seconds())
	if took < least {
		r.untried("it ran for %s only", took)
	}
	if took > most {
		r.breach("it ran for %s, allowed are %s", took, most)
	}
}

// harmless is what succeeds and changes nothing outside of the sandbox: gVisor
// plays devices, namespaces, keyrings, priorities and OOM scores of its own
// kernel, which runs nothing but this sandbox.
var harmless = map[string][]string{
	// Its own entry in the node's audit log, mapped by its user namespace: a known limit.
	RuncRuntime: {"write /proc/self/loginuid"},
	GVisorRuntime: {"clone user", "unshare user", "clone mount", "unshare time", "personality", "keyctl", "nice -20", "huge pages",
		"open /dev/fuse", "open /dev/net/tun", "write /proc/self/oom_score_adj"},
}

// What a tool tries on the runner, the kernel and the node.
func TestKernelAndRunner(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"scheduler", "setuid", "root-write", "mount", "namespaces", "system-calls", "devices", "proc-write", "runtime-sockets", "sockets", "inherited-descriptors", "token"} {
		attacked(t, name, func(ctx context.Context, r *row) {
			r.refused(r.inside(ctx, closed, arguments{Attack: name, Seconds: 3}), harmless[r.runtime]...)
		})
	}
	attacked(t, "runner-memory", func(ctx context.Context, r *row) {
		var allowed []string
		if r.runtime == GVisorRuntime { // numbers and an address, nothing that can be followed
			allowed = []string{"list fd of PID 1", "get_robust_list of PID 1"}
		}
		for _, kind := range []string{closed, open} { // with the filter of sockets and without
			r.refused(r.inside(ctx, kind, arguments{Attack: "runner-memory"}), allowed...)
		}
	})
	attacked(t, "kill-runner", func(ctx context.Context, r *row) {
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, closed), `{"attack":"kill-runner"}`)
		result := call.Status.Result
		if r.runtime == GVisorRuntime && !*result.OK && result.ErrorCode == v1alpha1.ErrorOutcomeUnknown {
			// gVisor lets them through. The tool has ended its own sandbox, and Callgate says that it does not know.
			r.gotf("the own sandbox ended: %s", result.ErrorCode)
			cluster.WaitGone(ctx, r.t, call)
			return
		}
		r.refused(r.read(call))
	})
	attacked(t, "runner-signals", func(ctx context.Context, r *row) {
		rep := r.inside(ctx, closed, arguments{Attack: "runner-signals"})
		if r.number(rep, "sent") < 500 {
			r.untried("only %d signals were sent", rep.Numbers["sent"])
		}
		r.refused(rep)
		r.gotf("%d signals taken, %d refused; the answer came", rep.Numbers["sent"], rep.Numbers["refused"])
	})
	attacked(t, "image-volume", func(ctx context.Context, r *row) {
		declares := cluster.NewTool(ctx, r.t, "image-volume-"+strings.ToLower(r.runtime), []string{"hostile"}, func(s *v1alpha1.ToolSpec) {
			s.Container.Image = cluster.Images["VOLUME"]
			if r.runtime == GVisorRuntime {
				s.Isolation.RuntimeClassName = "gvisor"
			}
		})
		result := cluster.CallOf(ctx, r.t, declares, `{"attack":"ids"}`).Status.Result
		switch {
		case *result.OK || result.ErrorCode != v1alpha1.ErrorToolUnavailable:
			r.breach("the tool ran: %s%s", result.ErrorCode, result.Message)
		case !strings.Contains(result.Message, "use an image that declares no VOLUME"):
			r.untried("the call ended %s: %s", result.ErrorCode, result.Message)
		}
		r.gotf("%s: %s", result.ErrorCode, result.Message)
	})
	attacked(t, "environment", func(ctx context.Context, r *row) {
		r.refused(r.inside(ctx, closed, arguments{Attack: "environment"}))
	})
	attacked(t, "root-image", func(ctx context.Context, r *row) {
		got := cluster.Unquote(r.t, cluster.Succeeded(r.t, cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, texts), `{"attack":"ids"}`)))
		if got = strings.TrimSpace(got); got != "uid=65532 gid=65532 euid=65532 egid=65532" {
			r.breach("%s", got)
		}
		root := tool(ctx, r.t, r.runtime, texts)
		root.Name, root.ResourceVersion, root.UID = "root", "", ""
		root.Spec.Container.RunAsUser = 1
		if err := cluster.Admin.Create(ctx, root.DeepCopy(), dryRun); err != nil {
			r.untried("a Tool with another user: %v", err)
		}
		raw := `{"apiVersion":"callgate.dev/v1alpha1","kind":"Tool","metadata":{"name":"root","namespace":"` + cluster.ToolsNS + `"},
			"spec":{"inputSchema":{},"container":{"image":"x","command":["x"],"runAsUser":0}}}`
		err := createRaw(ctx, cluster.Config, "/apis/callgate.dev/v1alpha1/namespaces/"+cluster.ToolsNS+"/tools", raw)
		r.gotf("%s", got)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "runAsUser") {
			r.breach("a Tool with runAsUser 0: %v", err)
		}
	})
}

// What other calls, the platform and the node have.
func TestOthers(t *testing.T) {
	t.Parallel()
	attacked(t, "secret-print", func(ctx context.Context, r *row) {
		secret := "s3cr3t-" + strings.ToLower(r.runtime) + "-" + cluster.ToolsNS
		createSecret(ctx, r.t, "printed-"+strings.ToLower(r.runtime), secret)
		teller := cluster.NewTool(ctx, r.t, "secret-print-"+strings.ToLower(r.runtime), []string{"hostile"}, func(s *v1alpha1.ToolSpec) {
			s.Container.Image = cluster.Images["HOSTILE"]
			s.TimeoutSeconds = 30
			s.Container.Env = []v1alpha1.EnvVar{{Name: "SECRET", ValueFrom: &v1alpha1.EnvVarSource{
				SecretKeyRef: &v1alpha1.KeySelector{Name: "printed-" + strings.ToLower(r.runtime), Key: "key"}}}}
			if r.runtime == GVisorRuntime {
				s.Isolation.RuntimeClassName = "gvisor"
			}
		})
		call := cluster.Propose(ctx, r.t, teller, `{"attack":"secret-print"}`)
		cluster.WaitReason(ctx, r.t, call, v1alpha1.ReasonRunning)
		log := followLog(ctx, r.t, call)
		cluster.Finish(ctx, r.t, call)
		if !strings.Contains(cluster.Succeeded(r.t, call), `"length":`) {
			r.untried("the answer is %s", call.Status.Result.Data.Raw)
		}
		if whole := cluster.JSONOf(r.t, call); strings.Contains(whole, secret) {
			r.breach("the ToolCall holds it")
		}
		if decoded(log()).contains(secret) {
			r.breach("the log of the pod holds it")
		}
		r.gotf("%s", call.Status.Result.Data.Raw)
	})
	attacked(t, "other-call", func(ctx context.Context, r *row) {
		mark := "mark-" + strings.ToLower(r.runtime) + "-" + cluster.ToolsNS
		same := tool(ctx, r.t, r.runtime, closed)
		planting := cluster.Propose(ctx, r.t, same, cluster.JSONOf(r.t, arguments{Attack: "plant", Seconds: 10, Mark: mark}))
		cluster.WaitReason(ctx, r.t, planting, v1alpha1.ReasonRunning)
		cluster.WaitAccepted(ctx, r.t, planting)
		hunting := cluster.CallOf(ctx, r.t, same, cluster.JSONOf(r.t, arguments{Attack: "hunt", Mark: mark}))
		cluster.Finish(ctx, r.t, planting)
		rep := r.read(planting)
		own := 0
		for _, a := range rep.Attempts {
			if strings.HasPrefix(a.What, "find one's own") && a.OK {
				own++
			}
		}
		if own < 4 {
			r.untried("the one who planted finds %d of its own", own)
		}
		p, h := planting.Status.Attempts[0], hunting.Status.Attempts[0]
		if h.StartTime.Before(p.StartTime) || p.FinishTime.Before(h.FinishTime) {
			r.untried("they did not run at the same time: %s, %s", cluster.JSONOf(r.t, p), cluster.JSONOf(r.t, h))
		}
		r.refused(r.read(hunting))
		r.refused(r.inside(ctx, closed, arguments{Attack: "hunt", Mark: mark})) // and when it has ended
	})
	attacked(t, "symlinks", func(ctx context.Context, r *row) {
		// What a link may lead to on the node, if somebody there follows it.
		target := filepath.Join(os.TempDir(), "abuse-target-"+strings.ToLower(r.runtime)+"-"+cluster.ToolsNS)
		if ownNode(r.t) {
			if err := os.WriteFile(target, []byte("of the node"), 0o666); err != nil {
				r.t.Fatal(err)
			}
			r.t.Cleanup(func() { _ = os.Remove(target) })
		}
		call := cluster.CallOf(ctx, r.t, tool(ctx, r.t, r.runtime, closed), cluster.JSONOf(r.t, arguments{Attack: "symlinks", Data: target}))
		r.refused(r.read(call))
		if whole := cluster.JSONOf(r.t, call); strings.Contains(whole, "of the node") || strings.Contains(whole, "root:") {
			r.breach("the ToolCall holds what is in a file of the node")
		}
		cluster.WaitGone(ctx, r.t, call)
		if ownNode(r.t) {
			if content, err := os.ReadFile(target); err != nil || string(content) != "of the node" {
				r.breach("the file of the node is %q, %v", content, err)
			}
		}
	})
	attacked(t, "port-clash", func(ctx context.Context, r *row) {
		listener := tool(ctx, r.t, r.runtime, open)
		args := cluster.JSONOf(r.t, arguments{Attack: "port-clash", Seconds: 6})
		one, two := cluster.Propose(ctx, r.t, listener, args), cluster.Propose(ctx, r.t, listener, args)
		r.refused(r.read(cluster.Finish(ctx, r.t, one)))
		r.refused(r.read(cluster.Finish(ctx, r.t, two)))
		a, b := one.Status.Attempts[0], two.Status.Attempts[0]
		if a.FinishTime.Before(b.StartTime) || b.FinishTime.Before(a.StartTime) {
			r.untried("they did not run at the same time")
		}
	})
}
