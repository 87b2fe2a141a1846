package api

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// One valid object per kind, without what is not served yet; the rows below
// change one thing each.
const (
	validTool = `
apiVersion: callgate.dev/v1alpha1
kind: Tool
metadata: {name: update-order-status, labels: {team: support}}
spec:
  functionName: update_order_status
  description: Set the status of one order.
  inputSchema:
    type: object
    properties: {order_id: {type: integer}, status: {enum: [packed, shipped, delivered]}}
    required: [order_id, status]
    additionalProperties: false
  outputSchema: {type: object, required: [updated]}
  sideEffects: Idempotent
  container:
    image: registry.example/orders-cli:1.4
    command: [orders, set-status, "$(args.order_id)", "--to=$(args.status)"]
    env: [{name: API_TOKEN, valueFrom: {secretKeyRef: {name: orders, key: token}}}]
    resources: {limits: {cpu: 500m, memory: 128Mi}}
  isolation:
    runtimeClassName: gvisor
    network: {egress: [{to: [{ipBlock: {cidr: 10.96.0.10/32}}], ports: [{port: 8080, protocol: TCP}]}]}
`
	smallestTool = `
apiVersion: callgate.dev/v1alpha1
kind: Tool
metadata: {name: word-stats}
spec: {inputSchema: {}, container: {image: "localhost/word-stats:1", command: [/stats]}}
`
	validCall = `
apiVersion: callgate.dev/v1alpha1
kind: ToolCall
metadata: {generateName: ship-4821-}
spec:
  toolRef: {functionName: update_order_status, namespace: tools}
  args: {order_id: 4821, status: shipped}
  timeoutSeconds: 5
  deadlineSeconds: 60
  context: {run: "r-17", step: "2"}
  cancel: false
`
	validPolicy = `
apiVersion: callgate.dev/v1alpha1
kind: ToolPolicy
metadata: {name: support-agents}
spec:
  subjects:
  - {kind: ServiceAccount, namespace: agents, name: support-agent}
  - {kind: Group, name: support}
  rules:
  - {name: orders, effect: Allow, tools: {names: [update-order-status, refund]}}
  - {name: never-prod, effect: Deny, tools: {selector: {matchLabels: {env: prod}}}, message: "ask the on-call"}
`
	validClusterPolicy = `
apiVersion: callgate.dev/v1alpha1
kind: ClusterToolPolicy
metadata: {name: everybody}
spec:
  subjects: [{kind: Group, name: "system:authenticated"}]
  rules:
  - {name: read, effect: Allow, tools: {sideEffects: [None], namespaces: [tools]}}
`
	validApproval = `
apiVersion: callgate.dev/v1alpha1
kind: ToolCallApproval
metadata: {generateName: ship-4821-}
spec:
  toolCallRef: {name: ship-4821-x7k2p, uid: 5f8c1c0e-9a51-4d0e-8a30-3c0f6f6f0001}
  decision: Approve
  reason: the order is packed
`
)

// A row changes base by a merge patch. It is refused with 422 and every part of
// says in the message, or accepted when says is empty.
type schemaRow struct {
	name, base, patch string
	says              []string
	reason            string
}

func runSchemaRows(t *testing.T, rows []schemaRow) {
	t.Helper()
	namespace := newNamespace(t)
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			object := merged(t, tc.base, tc.patch)
			path := "/apis/callgate.dev/v1alpha1/namespaces/" + namespace + "/" +
				map[string]string{"Tool": "tools", "ToolCall": "toolcalls", "ToolPolicy": "toolpolicies",
					"ToolCallApproval": "toolcallapprovals"}[object.str("kind")]
			if object.str("kind") == "ClusterToolPolicy" {
				path = "/apis/callgate.dev/v1alpha1/clustertoolpolicies"
			}
			answer := admin.do(t, http.MethodPost, path+"?dryRun=All&fieldValidation=Strict", jsonType, object.json(t))
			if len(tc.says) == 0 {
				if !answer.ok() {
					t.Fatalf("%s: refused: %s", tc.reason, answer)
				}
				return
			}
			if answer.code != http.StatusUnprocessableEntity {
				t.Fatalf("%s: want 422, got %s", tc.reason, answer)
			}
			for _, part := range tc.says {
				if !strings.Contains(answer.message(), part) {
					t.Errorf("%s: the message lacks %q: %s", tc.reason, part, answer.message())
				}
			}
		})
	}
}

func TestWarm(t *testing.T) {
	runSchemaRows(t, []schemaRow{
		{"warm", validTool, `{spec: {warm: {replicas: 2, maxIdleSeconds: 600}}}`, nil, "a pool"},
		{"warm, none now", validTool, `{spec: {warm: {replicas: 0}}}`, nil, "no sandbox waits"},
		{"warm without a number", validTool, `{spec: {warm: {maxIdleSeconds: 600}}}`, []string{"spec.warm.replicas"}, "how many?"},
		{"warm with a volume that is written", validTool, `{spec: {warm: {replicas: 1}, container: {volumes: [{name: data, mountPath: /data, persistentVolumeClaim: {claimName: data}}]}}}`,
			[]string{"spec.warm", "persistentVolumeClaim"}, "what waits would keep the volume from everybody else"},
		{"warm with a Secret", validTool, `{spec: {warm: {replicas: 1}, container: {volumes: [{name: key, mountPath: /key, secret: {secretName: key}}]}}}`, nil, "nothing is kept from anybody"},
		{"too many warm", validTool, `{spec: {warm: {replicas: 101}}}`, []string{"spec.warm.replicas", "100"}, "each one takes room on a node"},
		{"warm for a moment", validTool, `{spec: {warm: {replicas: 1, maxIdleSeconds: 9}}}`, []string{"spec.warm.maxIdleSeconds", "10"}, "it would be replaced before it is ready"},
	})
}

// rule is a policy's only rule, as a merge patch.
func rule(fields string) string {
	return `{spec: {rules: [{name: a, tools: {names: [refund]}, ` + fields + `}]}}`
}

func TestSchemaOfApprovals(t *testing.T) {
	const (
		only     = "approval must be set with effect RequireApproval, and only with it"
		required = "effect: RequireApproval, approval: {approvers: [{kind: Group, name: finance}]"
	)
	approvers := "[" + strings.Repeat("{kind: User, name: a}, ", 32) + "{kind: User, name: a}]"
	runSchemaRows(t, []schemaRow{
		{"approval", validTool, `{spec: {approval: Required}}`, nil, "whatever the policies say"},
		{"approval not required", validTool, `{spec: {approval: NotRequired}}`, nil, "the default"},
		{"another approval", validTool, `{spec: {approval: Maybe}}`, []string{"spec.approval", "NotRequired"}, "one of two"},

		{"rule", validPolicy, rule(required + `, requiredApprovals: 2, expireAfterSeconds: 60}, when: "args.amount > 100"`), nil, "the example"},
		{"rule of a cluster policy", validClusterPolicy, rule(required + "}"), nil, "as in a ToolPolicy"},
		{"rule without approval", validPolicy, rule("effect: RequireApproval"), []string{"spec.rules[0].approval", only}, "whom would it ask?"},
		{"rule of a cluster policy without approval", validClusterPolicy, rule("effect: RequireApproval"), []string{"spec.rules[0].approval", only}, "the same"},
		{"approval of an allow", validPolicy, rule("effect: Allow, approval: {approvers: [{kind: User, name: a}]}"),
			[]string{"spec.rules[0].approval", only}, "an Allow asks nobody: it would let calls through unapproved"},
		{"approval of a limit", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 1}, approval: {approvers: [{kind: User, name: a}]}"),
			[]string{"spec.rules[0].approval", only}, "a Limit asks nobody"},
		{"no approvers", validPolicy, rule("effect: RequireApproval, approval: {}"), []string{"spec.rules[0].approval.approvers: Required"}, "nobody could approve"},
		{"empty approvers", validPolicy, rule("effect: RequireApproval, approval: {approvers: []}"), []string{"spec.rules[0].approval.approvers"}, "nobody could approve"},
		{"33 approvers", validPolicy, rule("effect: RequireApproval, approval: {approvers: " + approvers + "}"), []string{"spec.rules[0].approval.approvers", "32"}, "use a group"},
		{"approver of no namespace", validPolicy, rule("effect: RequireApproval, approval: {approvers: [{kind: ServiceAccount, name: a}]}"),
			[]string{"spec.rules[0].approval.approvers[0].namespace", "must be set for a ServiceAccount"}, "which one?"},
		{"zero approvals", validPolicy, rule(required + ", requiredApprovals: 0}"), []string{"spec.rules[0].approval.requiredApprovals"}, "would let calls through unapproved"},
		{"17 approvals", validPolicy, rule(required + ", requiredApprovals: 17}"), []string{"spec.rules[0].approval.requiredApprovals", "16"}, "bounded"},
		{"expiry zero", validPolicy, rule(required + ", expireAfterSeconds: 0}"), []string{"spec.rules[0].approval.expireAfterSeconds"}, "zero is not forever"},
		{"expiry over a week", validPolicy, rule(required + ", expireAfterSeconds: 604801}"), []string{"spec.rules[0].approval.expireAfterSeconds"}, "a week"},

		{"approve", validApproval, "", nil, "the example"},
		{"deny", validApproval, `{spec: {decision: Deny, reason: too much}}`, nil, "the other word"},
		{"exactly what was shown", validApproval, `{spec: {toolCallRef: {approvalDigest: "sha256:0a"}}}`, nil, "bound to the Tool, too"},
		{"no spec", validApproval, `{spec: null}`, []string{"spec: Required"}, "says nothing"},
		{"no call", validApproval, `{spec: {toolCallRef: null}}`, []string{"spec.toolCallRef: Required"}, "which?"},
		{"no name", validApproval, `{spec: {toolCallRef: {name: null}}}`, []string{"spec.toolCallRef.name: Required"}, "which?"},
		{"empty name", validApproval, `{spec: {toolCallRef: {name: ""}}}`, []string{"spec.toolCallRef.name"}, "which?"},
		{"no uid", validApproval, `{spec: {toolCallRef: {uid: null}}}`, []string{"spec.toolCallRef.uid: Required"}, "a call created again must not use it"},
		{"empty uid", validApproval, `{spec: {toolCallRef: {uid: ""}}}`, []string{"spec.toolCallRef.uid"}, "a template without its value gives it"},
		{"empty digest", validApproval, `{spec: {toolCallRef: {approvalDigest: ""}}}`, []string{"spec.toolCallRef.approvalDigest"}, "the same"},
		{"no decision", validApproval, `{spec: {decision: null}}`, []string{"spec.decision: Required"}, "silence is no yes"},
		{"another decision", validApproval, `{spec: {decision: Approved}}`, []string{"spec.decision", "Approve"}, "one of two"},
		{"empty reason", validApproval, `{spec: {reason: ""}}`, []string{"spec.reason"}, "leave it out"},
		{"long reason", validApproval, `{spec: {reason: "` + strings.Repeat("x", 513) + `"}}`, []string{"spec.reason", "512"}, "the caller reads it"},
	})
}

func TestSchemaOfLimits(t *testing.T) {
	const only = "limit must be set with effect Limit, and only with it"
	runSchemaRows(t, []schemaRow{
		{"maxConcurrentCalls", validTool, `{spec: {maxConcurrentCalls: 1}}`, nil, "over all callers"},
		{"maxConcurrentCalls zero", validTool, `{spec: {maxConcurrentCalls: 0}}`, []string{"spec.maxConcurrentCalls"}, "zero is not unlimited"},
		{"deduplicate", validTool, `{spec: {deduplicate: {windowSeconds: 600}}}`, nil, "identical calls are one"},
		{"deduplicate without a window", validTool, `{spec: {deduplicate: {}}}`, []string{"spec.deduplicate.windowSeconds: Required"}, "for how long?"},
		{"deduplicate for no time", validTool, `{spec: {deduplicate: {windowSeconds: 0}}}`, []string{"spec.deduplicate.windowSeconds"}, "leave it out"},
		{"deduplicate over a day", validTool, `{spec: {deduplicate: {windowSeconds: 86401}}}`, []string{"spec.deduplicate.windowSeconds", "86400"}, "what is remembered is bounded"},
		{"no retries", validTool, `{spec: {maxRetries: 0}}`, nil, "one attempt that starts"},
		{"ten retries", validTool, `{spec: {maxRetries: 10}}`, nil, "the most there can be"},
		{"eleven retries", validTool, `{spec: {maxRetries: 11}}`, []string{"spec.maxRetries", "10"}, "attempts are bounded"},
		{"less than no retries", validTool, `{spec: {maxRetries: -1}}`, []string{"spec.maxRetries"}, "no number means unlimited"},
		{"ttlSecondsAfterFinished zero", validCall, `{spec: {ttlSecondsAfterFinished: 0}}`, nil, "gone as soon as it ended"},
		{"ttlSecondsAfterFinished of 30 days", validCall, `{spec: {ttlSecondsAfterFinished: 2592000}}`, nil, "the most that can be asked for"},
		{"ttlSecondsAfterFinished of more", validCall, `{spec: {ttlSecondsAfterFinished: 2592001}}`, []string{"spec.ttlSecondsAfterFinished", "2592000"}, "the API server's storage is no archive"},
		{"ttlSecondsAfterFinished below zero", validCall, `{spec: {ttlSecondsAfterFinished: -1}}`, []string{"spec.ttlSecondsAfterFinished"}, "no number means for ever"},
		{"idempotencyKey", validCall, `{spec: {idempotencyKey: ship-4821}}`, nil, "the same action once"},
		{"empty idempotencyKey", validCall, `{spec: {idempotencyKey: ""}}`, []string{"spec.idempotencyKey"}, "a template without its value gives it: all those calls would be one"},
		{"idempotencyKey of 254", validCall, `{spec: {idempotencyKey: ` + strings.Repeat("k", 254) + `}}`, []string{"spec.idempotencyKey", "253"}, "use a digest"},

		{"concurrency", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 5, maxWaitSeconds: 30, per: All}"), nil, "the example"},
		{"rate", validPolicy, rule("effect: Limit, limit: {maxCalls: 60, windowSeconds: 60}"), nil, "the example"},
		{"both", validClusterPolicy, rule("effect: Limit, limit: {maxConcurrent: 5, maxCalls: 60, windowSeconds: 60, per: Caller, maxWaitSeconds: 0}"), nil, "the example"},
		{"rule without limit", validPolicy, rule("effect: Limit"), []string{"spec.rules[0].limit", only}, "nothing would be limited"},
		{"rule of a cluster policy without limit", validClusterPolicy, rule("effect: Limit"), []string{"spec.rules[0].limit", only}, "the same"},
		{"limit of an allow", validPolicy, rule("effect: Allow, limit: {maxConcurrent: 1}"), []string{"spec.rules[0].limit", only}, "it would not be kept"},
		{"nothing", validPolicy, rule("effect: Limit, limit: {}"), []string{"spec.rules[0].limit", "at least one of maxConcurrent and maxCalls"}, "limits nothing"},
		{"scope only", validPolicy, rule("effect: Limit, limit: {per: All}"), []string{"spec.rules[0].limit", "at least one of maxConcurrent and maxCalls"}, "limits nothing"},
		{"rate without a window", validPolicy, rule("effect: Limit, limit: {maxCalls: 1}"),
			[]string{"spec.rules[0].limit.windowSeconds", "maxCalls and windowSeconds go together"}, "per what?"},
		{"window without a rate", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 1, windowSeconds: 60}"),
			[]string{"spec.rules[0].limit.windowSeconds", "maxCalls and windowSeconds go together"}, "how many?"},
		{"wait for a rate", validPolicy, rule("effect: Limit, limit: {maxCalls: 1, windowSeconds: 60, maxWaitSeconds: 5}"),
			[]string{"spec.rules[0].limit.maxWaitSeconds", "goes with maxConcurrent only"}, "it does not wait"},
		{"concurrency zero", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 0}"), []string{"spec.rules[0].limit.maxConcurrent"}, "write a Deny"},
		{"rate zero", validPolicy, rule("effect: Limit, limit: {maxCalls: 0, windowSeconds: 60}"), []string{"spec.rules[0].limit.maxCalls"}, "write a Deny"},
		{"rate over the bound", validPolicy, rule("effect: Limit, limit: {maxCalls: 1001, windowSeconds: 60}"), []string{"spec.rules[0].limit.maxCalls", "1000"}, "what is counted is bounded"},
		{"wait over an hour", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 1, maxWaitSeconds: 3601}"), []string{"spec.rules[0].limit.maxWaitSeconds", "3600"}, "bounded"},
		{"another scope", validPolicy, rule("effect: Limit, limit: {maxConcurrent: 1, per: Namespace}"), []string{"spec.rules[0].limit.per", "Caller"}, "one of two"},
	})
}

func TestSchema(t *testing.T) {
	const badName = "metadata.name is no legal function name"
	long := strings.Repeat("a", 65)
	runSchemaRows(t, []schemaRow{
		{"tool", validTool, "", nil, "the example"},
		{"smallest tool", smallestTool, "", nil, "what a newcomer writes"},
		{"call", validCall, "", nil, "the example"},
		{"call without args", validCall, `{spec: {args: null}}`, nil, "means {}"},
		{"policy", validPolicy, "", nil, "the example"},
		{"policy for all tools", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {names: ["*"]}}]}}`, nil, "*"},

		{"name with a dot", smallestTool, `{metadata: {name: word.stats}}`, []string{badName, "set spec.functionName"}, "no model can call it"},
		{"long name", smallestTool, `{metadata: {name: ` + long + `}}`, []string{badName}, "65 characters"},
		{"name of 64", smallestTool, `{metadata: {name: ` + long[1:] + `}}`, nil, "the longest"},
		{"name with a dot and a function name", smallestTool, `{metadata: {name: word.stats}, spec: {functionName: word_stats}}`, nil,
			"any object name goes then"},
		{"function name with a space", smallestTool, `{spec: {functionName: "word stats"}}`, []string{"spec.functionName"}, "no model can call it"},
		{"function name of 65", smallestTool, `{spec: {functionName: ` + long + `}}`, []string{"spec.functionName"}, "models take 64"},
		{"no schema", smallestTool, `{spec: {inputSchema: null}}`, []string{"spec.inputSchema: Required"}, "arguments must be said"},
		{"schema true", smallestTool, `{spec: {inputSchema: true}}`, []string{"spec.inputSchema"}, "arguments are an object"},
		{"no image", smallestTool, `{spec: {container: {image: null}}}`, []string{"spec.container.image: Required"}, "nothing to run"},
		{"image with a space", smallestTool, `{spec: {container: {image: "a b"}}}`, []string{"spec.container.image"}, "no image name"},
		{"no command", smallestTool, `{spec: {container: {command: null}}}`, []string{"spec.container.command: Required"}, "the image's entrypoint is never used"},
		{"empty command", smallestTool, `{spec: {container: {command: []}}}`, []string{"spec.container.command"}, "nothing to run"},
		{"MCP", smallestTool, `{spec: {container: {protocol: MCP}}}`, []string{"spec.container.protocol", "Stdio"}, "reserved"},
		{"root", smallestTool, `{spec: {container: {runAsUser: 0}}}`, []string{"spec.container.runAsUser"}, "never"},
		{"names of the cluster", smallestTool, `{spec: {isolation: {network: {dns: Cluster}}}}`, nil, "with no egress: two permissions"},
		{"unknown names", smallestTool, `{spec: {isolation: {network: {dns: Node}}}}`, []string{"spec.isolation.network.dns", "Cluster"}, "one of two"},
		{"unknown effect on the world", smallestTool, `{spec: {sideEffects: Some}}`, []string{"spec.sideEffects", "NonIdempotent"}, "one of three"},
		{"no time", smallestTool, `{spec: {timeoutSeconds: 0}}`, []string{"spec.timeoutSeconds"}, "zero is not forever"},
		{"output over the bound", smallestTool, `{spec: {output: {maxBytes: 262145}}}`, []string{"spec.output.maxBytes"}, "what a status can hold"},
		{"YAML output", smallestTool, `{spec: {output: {format: YAML}}}`, []string{"spec.output.format"}, "one of three"},

		{"env value", smallestTool, `{spec: {container: {env: [{name: A, value: ""}]}}}`, nil, "an empty value is a value"},
		{"env with both", smallestTool, `{spec: {container: {env: [{name: A, value: b, valueFrom: {secretKeyRef: {name: s, key: k}}}]}}}`,
			[]string{"spec.container.env[0]", "exactly one of value and valueFrom"}, "which one?"},
		{"env with neither", smallestTool, `{spec: {container: {env: [{name: A}]}}}`, []string{"exactly one of value and valueFrom"}, "what value?"},
		{"env from nothing", smallestTool, `{spec: {container: {env: [{name: A, valueFrom: {}}]}}}`,
			[]string{"exactly one of secretKeyRef and configMapKeyRef"}, "from where?"},
		{"env from both", smallestTool,
			`{spec: {container: {env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}, configMapKeyRef: {name: s, key: k}}}]}}}`,
			[]string{"exactly one of secretKeyRef and configMapKeyRef"}, "which one?"},
		{"env CALLGATE_", smallestTool, `{spec: {container: {env: [{name: CALLGATE_IDEMPOTENCY_KEY, value: x}]}}}`,
			[]string{"spec.container.env[0].name", "reserved"}, "a tool trusts it"},
		{"env KUBERNETES_", smallestTool, `{spec: {container: {env: [{name: KUBERNETES_SERVICE_HOST, value: x}]}}}`,
			[]string{"spec.container.env[0].name", "reserved"}, "removed from a tool's environment"},
		{"env twice", smallestTool, `{spec: {container: {env: [{name: A, value: a}, {name: A, value: b}]}}}`,
			[]string{"spec.container.env[1]", "Duplicate"}, "which one?"},
		{"env name", smallestTool, `{spec: {container: {env: [{name: "A=B", value: a}]}}}`, []string{"spec.container.env[0].name"}, "would set A"},

		{"no tool", validCall, `{spec: {toolRef: null}}`, []string{"spec.toolRef: Required"}, "which?"},
		{"tool by neither", validCall, `{spec: {toolRef: {functionName: null}}}`, []string{"spec.toolRef", "exactly one of name and functionName"}, "which?"},
		{"tool by both", validCall, `{spec: {toolRef: {name: a}}}`, []string{"spec.toolRef", "exactly one of name and functionName"}, "which?"},
		{"args a list", validCall, `{spec: {args: [1]}}`, []string{"spec.args"}, "arguments have names"},
		{"args a string", validCall, `{spec: {args: "{}"}}`, []string{"spec.args"}, "no JSON in a string"},
		{"context of numbers", validCall, `{spec: {context: {step: 2}}}`, []string{"spec.context.step"}, "strings only"},
		{"long context", validCall, `{spec: {context: {a: ` + strings.Repeat("x", 257) + `}}}`, []string{"spec.context.a"}, "256 characters"},
		{"deadline of a year", validCall, `{spec: {deadlineSeconds: 31536000}}`, []string{"spec.deadlineSeconds"}, "a week"},

		{"no subjects", validPolicy, `{spec: {subjects: []}}`, []string{"spec.subjects"}, "speaks of nobody"},
		{"no rules", validPolicy, `{spec: {rules: []}}`, []string{"spec.rules"}, "says nothing"},
		{"service account of no namespace", validPolicy, `{spec: {subjects: [{kind: ServiceAccount, name: a}]}}`,
			[]string{"spec.subjects[0].namespace", "must be set for a ServiceAccount"}, "which one?"},
		{"user of a namespace", validPolicy, `{spec: {subjects: [{kind: User, name: a, namespace: b}]}}`,
			[]string{"spec.subjects[0].namespace", "only for one"}, "there is none"},
		{"unknown subject", validPolicy, `{spec: {subjects: [{kind: Robot, name: a}]}}`, []string{"spec.subjects[0].kind"}, "three kinds"},
		{"rule for no tool", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {}}]}}`,
			[]string{"spec.rules[0].tools", "at least one of names, selector, sideEffects and namespaces"}, "empty must not mean all"},
		{"rule for an empty list of tools", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {names: []}}]}}`,
			[]string{"spec.rules[0].tools.names"}, "empty must not mean all"},
		{"rule without tools", validPolicy, `{spec: {rules: [{name: a, effect: Allow}]}}`, []string{"spec.rules[0].tools: Required"}, "empty must not mean all"},
		{"rule with an empty selector", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {selector: {}}}]}}`,
			[]string{"spec.rules[0].tools.selector", "must not be empty"}, "it would select every Tool; a template without its labels gives it"},
		{"rule with a selector of no labels", validPolicy,
			`{spec: {rules: [{name: a, effect: Allow, tools: {selector: {matchLabels: {}, matchExpressions: []}}}]}}`,
			[]string{"spec.rules[0].tools.selector", "must not be empty"}, "the same"},
		{"rule with an expression", validPolicy,
			`{spec: {rules: [{name: a, effect: Deny, tools: {selector: {matchExpressions: [{key: env, operator: Exists}]}}}]}}`, nil, "by the presence of a label"},
		{"two rules of one name", validPolicy,
			`{spec: {rules: [{name: a, effect: Allow, tools: {names: [x]}}, {name: a, effect: Deny, tools: {names: [y]}}]}}`,
			[]string{"spec.rules[1]", "Duplicate"}, "decisions name the rule"},
		{"message of an allow", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {names: [x]}, message: hello}]}}`,
			[]string{"spec.rules[0].message", "Deny only"}, "nobody would read it"},
		{"unknown effect", validPolicy, `{spec: {rules: [{name: a, effect: Permit, tools: {names: [x]}}]}}`, []string{"spec.rules[0].effect"}, "typo"},
		{"policy to try out", validPolicy, `{spec: {mode: Audit}}`, nil, "recorded, and changes nothing"},
		{"policy in an unknown mode", validPolicy, `{spec: {mode: Warn}}`, []string{"spec.mode", "Enforce"}, "one of two"},
		{"condition", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {names: [refund]}, when: "args.amount < 100"}]}}`, nil, "CEL"},
		{"condition that does not compile", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {names: [refund]}, when: "args.amount <"}]}}`,
			nil, "the CRD cannot see it: the policy's Ready says so, and it counts against calls"},
		{"empty condition", validPolicy, `{spec: {rules: [{name: a, effect: Deny, tools: {names: [refund]}, when: ""}]}}`,
			[]string{"spec.rules[0].when"}, "a template without its text gives it, and nobody knows whether always or never is meant"},
		{"condition over the bound", validPolicy, `{spec: {rules: [{name: a, effect: Deny, tools: {names: [refund]}, when: "` + strings.Repeat("x", 4097) + `"}]}}`,
			[]string{"spec.rules[0].when", "4096"}, "what is compiled is bounded"},
		{"namespaces in a namespaced policy", validPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {namespaces: [other]}}]}}`,
			[]string{"spec.rules", "tools.namespaces belongs into a ClusterToolPolicy"}, "it speaks of its own namespace only"},
		{"namespaces and names in a namespaced policy", validPolicy, `{spec: {rules: [{name: b, effect: Allow, tools: {names: [x]}}, {name: a, effect: Allow, tools: {names: [x], namespaces: [other]}}]}}`,
			[]string{"tools.namespaces belongs into a ClusterToolPolicy"}, "in any rule"},

		{"cluster policy", validClusterPolicy, "", nil, "by namespace"},
		{"cluster policy for all tools", validClusterPolicy, `{spec: {rules: [{name: a, effect: Deny, tools: {names: ["*"]}, when: "has(args.url)", message: ask the on-call}]}}`, nil, "of all namespaces"},
		{"cluster policy to try out", validClusterPolicy, `{spec: {mode: Audit}}`, nil, "as a ToolPolicy"},
		{"cluster policy for an empty list of namespaces", validClusterPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {namespaces: []}}]}}`,
			[]string{"spec.rules[0].tools.namespaces"}, "empty must not mean all"},
		{"cluster policy for no tool", validClusterPolicy, `{spec: {rules: [{name: a, effect: Allow, tools: {}}]}}`,
			[]string{"spec.rules[0].tools", "at least one of"}, "empty must not mean all"},
		{"cluster policy without subjects", validClusterPolicy, `{spec: {subjects: null}}`, []string{"spec.subjects: Required"}, "speaks of nobody"},
		{"cluster policy with a service account of no namespace", validClusterPolicy, `{spec: {subjects: [{kind: ServiceAccount, name: a}]}}`,
			[]string{"spec.subjects[0].namespace"}, "which one?"},
	})
}

func TestUnknownFieldsAreNamed(t *testing.T) {
	namespace := newNamespace(t)
	object := merged(t, validCall, `{spec: {tool: echo, toolRef: {tool: echo}}}`)
	answer := admin.do(t, http.MethodPost, callsPath(namespace)+"?fieldValidation=Strict&dryRun=All", jsonType, object.json(t))
	for _, field := range []string{"spec.tool", "spec.toolRef.tool"} {
		if answer.code != http.StatusBadRequest || !strings.Contains(answer.message(), `unknown field "`+field+`"`) {
			t.Errorf("want 400 that names %s: %s", field, answer)
		}
	}
}

func TestDefaults(t *testing.T) {
	namespace := newNamespace(t)
	base := "/apis/callgate.dev/v1alpha1/namespaces/" + namespace
	for _, tc := range []struct{ name, path, document, field, want string }{
		{"tool", "/tools", smallestTool, "spec", `{"approval":"NotRequired","container":{"command":["/stats"],` +
			`"image":"localhost/word-stats:1","protocol":"Stdio","runAsUser":65532,"stdin":"Args"},"inputSchema":{},"maxConcurrentCalls":10,"maxRetries":1,` +
			`"output":{"format":"JSON","maxBytes":65536},"sideEffects":"NonIdempotent","startDeadlineSeconds":120,"timeoutSeconds":8}`},
		{"isolation", "/tools", `
apiVersion: callgate.dev/v1alpha1
kind: Tool
metadata: {name: isolated}
spec: {inputSchema: {}, isolation: {network: {}}, container: {image: i, command: [/c]}}`, "isolation",
			`{"network":{"dns":"None"},"scratchSizeLimit":"64Mi"}`},
		{"policy", "/toolpolicies", validPolicy, "mode", `"Enforce"`},
		{"cluster policy", "/apis/callgate.dev/v1alpha1/clustertoolpolicies", validClusterPolicy, "mode", `"Enforce"`},
		{"rule of approval", "/toolpolicies", `
apiVersion: callgate.dev/v1alpha1
kind: ToolPolicy
metadata: {name: approval}
spec:
  subjects: [{kind: User, name: a}]
  rules: [{name: a, effect: RequireApproval, tools: {names: [x]}, approval: {approvers: [{kind: User, name: b}]}}]`, "rules",
			`[{"approval":{"approvers":[{"kind":"User","name":"b"}],"expireAfterSeconds":3600,"requiredApprovals":1},` +
				`"effect":"RequireApproval","name":"a","tools":{"names":["x"]}}]`},
		{"rule of limit", "/toolpolicies", `
apiVersion: callgate.dev/v1alpha1
kind: ToolPolicy
metadata: {name: limit}
spec:
  subjects: [{kind: User, name: a}]
  rules: [{name: a, effect: Limit, tools: {names: [x]}, limit: {maxConcurrent: 1}}]`, "rules",
			`[{"effect":"Limit","limit":{"maxConcurrent":1,"per":"Caller"},"name":"a","tools":{"names":["x"]}}]`},
		{"call", "/toolcalls", `
apiVersion: callgate.dev/v1alpha1
kind: ToolCall
metadata: {name: small}
spec: {toolRef: {name: echo}}`, "toolRef", `{"name":"echo"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := base + tc.path
			if strings.HasPrefix(tc.path, "/apis") {
				path = tc.path
			}
			got := admin.create(t, path, fromYAML(t, tc.document).json(t))
			if path == tc.path { // it belongs to no namespace of this test
				t.Cleanup(func() { admin.do(t, http.MethodDelete, path+"/"+got.str("metadata", "name"), jsonType, "") })
			}
			value := got.at("spec")
			if tc.field != "spec" {
				value = got.at("spec", tc.field)
			}
			if asJSON(value) != tc.want {
				t.Errorf("got  %s\nwant %s", asJSON(value), tc.want)
			}
			// kstatus calls a fresh object in progress, not done, until the controller has seen it.
			if got := asJSON(got.at("status")); got != `{"observedGeneration":-1}` {
				t.Errorf("status of a fresh object: %s", got)
			}
		})
	}
}

func TestFreshStatusHowever(t *testing.T) {
	namespace := newNamespace(t)
	for _, tc := range []struct{ name, contentType, method, path, body string }{
		{"created with a status of its own", jsonType, http.MethodPost, "",
			fromYAML(t, manifest("created", "")+`status: {observedGeneration: 1, result: {ok: true, retryable: false}}`).json(t)},
		{"applied with a status of its own", applyType, http.MethodPatch, "/applied?fieldManager=m",
			manifest("applied", "") + `status: {observedGeneration: 1, result: {ok: true, retryable: false}}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			answer := admin.do(t, tc.method, callsPath(namespace)+tc.path, tc.contentType, tc.body)
			if !answer.ok() {
				t.Fatal(answer)
			}
			if got := asJSON(answer.object().at("status")); got != `{"observedGeneration":-1}` {
				t.Errorf("a client must not say how its call went; status: %s", got)
			}
		})
	}
}

// Client-side apply keeps the whole object in an annotation of at most 256 KiB.
func TestSizeOfCRDs(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/bases/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("CRDs: %v, %v", files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if size := len(fromYAML(t, string(content)).json(t)); size > 256<<10 {
			t.Errorf("%s: %d bytes of JSON, at most %d", filepath.Base(file), size, 256<<10)
		}
	}
}
