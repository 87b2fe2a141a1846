package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// plugin runs `kubectl callgate` as a user, through the real kubectl, at most a
// minute.
func (u *user) plugin(t *testing.T, folder string, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append([]string{"callgate"}, arguments...)...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+folder, "KUBECONFIG="+kubeconfig(t, u.cfg))
	var exit *exec.ExitError
	if err := command.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), code
}

func buildPlugin(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	command := exec.CommandContext(t.Context(), "go", "build", "-o", folder, "../../cmd/kubectl-callgate")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v: %s", err, output)
	}
	return folder
}

const (
	conditionTime = `"lastTransitionTime":"2026-01-02T03:04:05Z"`
	askedFinance  = `"toolGeneration":3,"approvalDigest":"digest-1","approvals":[{"policy":"tools/refunds","rule":"big","requiredApprovals":2,
		"granted":["gustav"],"expireTime":"2030-01-02T03:04:05Z","approvers":[{"kind":"Group","name":"finance"},{"kind":"ServiceAccount","namespace":"ops","name":"bot"}]}],`
)

// callStatus is a status with conditions: TYPE=STATUS=REASON, each with a message.
func callStatus(fields string, conditions ...string) string {
	var all []string
	for _, c := range conditions {
		part := strings.Split(c, "=")
		all = append(all, `{"type":"`+part[0]+`","status":"`+part[1]+`","reason":"`+part[2]+`","message":"a message",`+conditionTime+`}`)
	}
	return `{"status":{` + fields + `"conditions":[` + strings.Join(all, ",") + `]}}`
}

var awaitingApproval = callStatus(askedFinance, "Approved=Unknown=AwaitingApproval", "Succeeded=Unknown=AwaitingApproval")

// What the plugin creates is what the API server takes: an approval of exactly
// the call that it showed, which goes with it.
func TestPluginApproves(t *testing.T) {
	folder, namespace := buildPlugin(t), newApprovalNamespace(t)
	alice, frida := certificateUser(t, "alice"), certificateUser(t, "frida", "finance")
	call := alice.create(t, callsPath(namespace), merged(t, manifest("refund-7", ""), `
{metadata: {name: refund-7}, spec: {toolRef: {functionName: refund, name: null, namespace: tools}, args: {count: null, keep: null, amount: 250.5, id: 9007199254740993, to: "<Bob>"}}}`).json(t))
	item := callsPath(namespace) + "/refund-7"
	if answer := admin.do(t, http.MethodPatch, item+"/status", mergeType, awaitingApproval); !answer.ok() {
		t.Fatal(answer)
	}
	for _, tc := range []struct {
		reason    string
		who       *user
		arguments []string
		decision  string
		why       any
		approver  string
		refused   string // created, and told that it does not count
	}{
		{"one of the group", frida, []string{"approve", "refund-7", "-n", namespace}, "Approve", nil, "frida", ""},
		{"with a reason, flags first", frida, []string{"deny", "--reason", "not <this> month", "--namespace=" + namespace, "refund-7"}, "Deny", "not <this> month", "frida", ""},
		{"on behalf of another one", admin, []string{"approve", "-n=" + namespace, "refund-7", "--as=hanna", "--as-group=staff", "--as-group", "finance"}, "Approve", nil, "hanna", ""},
		{"somebody who is not asked", certificateUser(t, "mallory", "staff"), []string{"approve", "refund-7", "-n", namespace}, "Approve", nil, "mallory",
			"kubectl callgate approve: it does not count: you are not among the approvers of any rule that asks\n"},
		{"who asks", certificateUser(t, "alice", "finance"), []string{"approve", "refund-7", "-n", namespace}, "Approve", nil, "alice",
			"kubectl callgate approve: it does not count: you created the call yourself\n"},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			stdout, stderr, code := tc.who.plugin(t, folder, tc.arguments...)
			if want := min(len(tc.refused), 1); code != want || !strings.HasSuffix(stderr, tc.refused) || tc.refused == "" && stderr != "" {
				t.Fatalf("exit code %d, stderr %q, want %d and %q", code, stderr, want, tc.refused)
			}
			list := admin.get(t, approvalsPath(namespace))["items"].([]any)
			if len(list) != 1 {
				t.Fatalf("%d approvals: %s", len(list), asJSON(list))
			}
			stored := fields(list[0].(map[string]any))
			shown, last, _ := strings.Cut(stdout, "\n\n")
			const want = `ToolCall    NS/refund-7
Tool        tools/refund, generation 3
Requester   alice
Asked by    rule big of policy tools/refunds: 1 of 2 by Group finance, ServiceAccount ops/bot until 2030-01-02T03:04:05Z
Arguments   {
  "amount": 250.5,
  "id": 9007199254740993,
  "to": "<Bob>"
}`
			if got := strings.Replace(shown, namespace, "NS", 1); got != want {
				t.Errorf("it shows:\n%s", got)
			}
			name := stored.str("metadata", "name")
			if want := tc.decision + " by " + tc.approver + ": toolcallapproval/" + name + " created\n"; last != want {
				t.Errorf("it ends with %q, want %q", last, want)
			}
			uid := call.str("metadata", "uid")
			ref := fields{"name": "refund-7", "uid": uid, "approvalDigest": "digest-1"}
			if got := fields(stored.at("spec", "toolCallRef").(map[string]any)); got.json(t) != ref.json(t) {
				t.Errorf("toolCallRef is %s", got.json(t))
			}
			if stored.str("spec", "decision") != tc.decision || stored.at("spec", "reason") != tc.why || stored.str("spec", "approver", "username") != tc.approver {
				t.Errorf("spec is %s", asJSON(stored.at("spec")))
			}
			owner := fields(stored.at("metadata", "ownerReferences").([]any)[0].(map[string]any))
			if wantOwner := (fields{"apiVersion": "callgate.dev/v1alpha1", "kind": "ToolCall", "name": "refund-7", "uid": uid}); owner.json(t) != wantOwner.json(t) {
				t.Errorf("the owner is %s", owner.json(t))
			}
			if answer := admin.do(t, http.MethodDelete, approvalsPath(namespace)+"/"+name, jsonType, ""); !answer.ok() {
				t.Fatal(answer)
			}
		})
	}
}

// It refuses, and creates nothing, when there is nothing to decide.
func TestPluginRefuses(t *testing.T) {
	folder, namespace := buildPlugin(t), newApprovalNamespace(t)
	alice, frida := certificateUser(t, "alice"), certificateUser(t, "frida", "finance")
	withoutRole := newNamespace(t)
	for _, ns := range []string{namespace, withoutRole} {
		for name, status := range map[string]string{
			"waiting":  awaitingApproval,
			"new":      "",
			"unasked":  callStatus("", "Succeeded=Unknown=Queued"),
			"approved": callStatus(askedFinance, "Approved=True=Approved", "Succeeded=Unknown=Starting"),
			"sent": callStatus(askedFinance+`"attempts":[{"number":1,"sandbox":"s","namespace":"n","pod":"p","podUID":"u","timeoutSeconds":8,"sendTime":"2026-01-02T03:04:05.000000Z"}],`,
				"Approved=True=Approved", "Succeeded=Unknown=Running"),
			"done": callStatus(askedFinance+`"result":{"ok":true,"retryable":false},`, "Approved=True=Approved", "Succeeded=True=Succeeded", "Complete=True=Succeeded"),
		} {
			alice.create(t, callsPath(ns), fromYAML(t, manifest(name, "")).json(t))
			if status == "" {
				continue
			}
			if answer := admin.do(t, http.MethodPatch, callsPath(ns)+"/"+name+"/status", mergeType, status); !answer.ok() {
				t.Fatal(answer)
			}
		}
	}
	for _, tc := range []struct {
		reason    string
		arguments []string
		code      int
		stderr    string // a part
	}{
		{"no such call", []string{"approve", "none", "-n", namespace}, 1, `toolcalls.callgate.dev "none" not found`},
		{"the controller comes first", []string{"approve", "new", "-n", namespace}, 1, namespace + "/new yet: try again"},
		{"nobody is asked", []string{"approve", "unasked", "-n", namespace}, 1, "asks nobody for approval; it is Queued: a message"},
		{"nobody is asked", []string{"deny", "unasked", "-n", namespace}, 1, "asks nobody for approval"},
		{"approved by others", []string{"approve", "approved", "-n", namespace}, 1, "has its approvals; it is Starting"},
		{"under way", []string{"approve", "sent", "-n", namespace}, 1, "was sent to its sandbox already"},
		{"too late for a no", []string{"deny", "sent", "-n", namespace}, 1, "spec.cancel stops it"},
		{"over", []string{"approve", "done", "-n", namespace}, 1, "is complete (Succeeded)"},
		{"over", []string{"deny", "done", "-n", namespace}, 1, "is complete (Succeeded)"},
		{"without the role", []string{"approve", "waiting", "-n", withoutRole}, 1, `User "frida" cannot create resource "toolcallapprovals"`},
		{"too long a reason", []string{"deny", "waiting", "-n", namespace, "--reason", strings.Repeat("x", 513)}, 1, "spec.reason: Too long"},
		{"another cluster", []string{"approve", "waiting", "-n", namespace, "--context=none"}, 1, `context "none" does not exist`},
		{"no kubeconfig", []string{"approve", "waiting", "-n", namespace, "--kubeconfig=/none"}, 1, "/none: no such file"},
	} {
		t.Run(tc.reason+" "+tc.arguments[0], func(t *testing.T) {
			_, stderr, code := frida.plugin(t, folder, tc.arguments...)
			if code != tc.code || !strings.Contains(stderr, tc.stderr) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, stderr %q, want %d and one line with %q", code, stderr, tc.code, tc.stderr)
			}
		})
	}
	for _, ns := range []string{namespace, withoutRole} {
		if list := admin.get(t, approvalsPath(ns))["items"].([]any); len(list) != 0 {
			t.Errorf("approvals were created: %s", asJSON(list))
		}
	}
	// A no counts until the call is sent.
	if _, stderr, code := frida.plugin(t, folder, "deny", "approved", "-n", namespace); code != 0 {
		t.Errorf("deny of an approved call that was not sent: exit code %d, %s", code, stderr)
	}
}
