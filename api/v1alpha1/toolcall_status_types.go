package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ToolCallStatus is the life of a call, and its one normalized result.
type ToolCallStatus struct {
	// observedGeneration is the generation that the status speaks of; -1 before
	// the controller has seen the call.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the call: Approved (only if somebody is asked), Succeeded,
	// Complete, Reconciling, Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// argsDigest is the SHA-256 of the canonical arguments, written when the
	// call was first judged. A call whose arguments no longer match it is ended.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ArgsDigest string `json:"argsDigest,omitempty"`

	// toolUID is the UID of the Tool that the call was decided with.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ToolUID types.UID `json:"toolUID,omitempty"`

	// toolGeneration is the generation of the Tool that the call was decided with.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ToolGeneration int64 `json:"toolGeneration,omitempty"`

	// decision is how the policies decided.
	// +optional
	Decision *PolicyDecision `json:"decision,omitempty"`

	// approvals are what the RequireApproval rules ask for, and who has approved.
	// +optional
	// +listType=map
	// +listMapKey=policy
	// +listMapKey=rule
	// +kubebuilder:validation:MaxItems=64
	Approvals []ApprovalStatus `json:"approvals,omitempty"`

	// approvalDigest names exactly what is to be approved: this call with these
	// arguments, and the Tool as it is. It changes with the Tool.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ApprovalDigest string `json:"approvalDigest,omitempty"`

	// limits are the rate limits that have counted this call. Each counts it once.
	// +optional
	// +listType=map
	// +listMapKey=policy
	// +listMapKey=rule
	// +kubebuilder:validation:MaxItems=64
	Limits []LimitCount `json:"limits,omitempty"`

	// queueTime is when the call began to wait for its turn under a limit of
	// concurrent calls.
	// +optional
	QueueTime *metav1.MicroTime `json:"queueTime,omitempty"`

	// startingTime is when the call was allowed to start, after every other wait.
	// The Tool's startDeadlineSeconds counts from it, over all sandboxes that do
	// not start.
	// +optional
	StartingTime *metav1.MicroTime `json:"startingTime,omitempty"`

	// retryTime is when a call that ended in rate_limited may be proposed again.
	// +optional
	RetryTime *metav1.Time `json:"retryTime,omitempty"`

	// duplicateOfRef names the call whose result this one got, or waits for.
	// +optional
	DuplicateOfRef *ToolCallReference `json:"duplicateOfRef,omitempty"`

	// attempts to run the tool. An entry is written before the first byte of the
	// call goes to its sandbox.
	// +optional
	// +listType=map
	// +listMapKey=number
	// +kubebuilder:validation:MaxItems=64
	Attempts []Attempt `json:"attempts,omitempty"`

	// result is the one answer, present once the call is complete.
	// +optional
	Result *Result `json:"result,omitempty"`

	// startTime is when the controller first saw the call.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// completionTime is when the result was written.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// PolicyDecision is how the policies decided, and which rules matched.
type PolicyDecision struct {
	// allowed says whether the call may run.
	// +required
	Allowed *bool `json:"allowed,omitempty"`

	// decisiveRule is the rule that decided; absent when no rule matched.
	// +optional
	DecisiveRule *RuleReference `json:"decisiveRule,omitempty"`

	// matchedRules are all rules that matched, at most 64, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	MatchedRules []RuleReference `json:"matchedRules,omitempty"`

	// audit is the decision as it would be if the policies in mode Audit were
	// enforced, too; absent if none of their rules matched. It changes nothing.
	// +optional
	Audit *AuditDecision `json:"audit,omitempty"`
}

// AuditDecision is what would have been decided with policies in mode Audit.
type AuditDecision struct {
	// allowed says whether the call would have been allowed.
	// +required
	Allowed *bool `json:"allowed,omitempty"`

	// decisiveRule is the rule that would have decided.
	// +optional
	DecisiveRule *RuleReference `json:"decisiveRule,omitempty"`

	// matchedRules are the rules of the policies in mode Audit that matched, at
	// most 64, sorted.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	MatchedRules []RuleReference `json:"matchedRules,omitempty"`
}

// ApprovalStatus is what one RequireApproval rule asks for, and who has approved.
type ApprovalStatus struct {
	// policy that holds the rule: namespace/name of a ToolPolicy, or the name of
	// a ClusterToolPolicy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Policy string `json:"policy,omitempty"`
	// rule is the name of the rule.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Rule string `json:"rule,omitempty"`
	// approvers are those whose approval counts, the requester excepted.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Approvers []Subject `json:"approvers,omitempty"`
	// requiredApprovals is how many different persons must approve.
	// +required
	// +kubebuilder:validation:Minimum=1
	RequiredApprovals int32 `json:"requiredApprovals,omitempty"`
	// granted are the usernames of those who approved, sorted, at most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Granted []string `json:"granted,omitempty"`
	// expireTime is until when the call waits for this rule. An approval that is
	// created later does not count.
	// +required
	ExpireTime metav1.Time `json:"expireTime,omitzero"`
}

// LimitCount says when a rate limit has counted a call.
type LimitCount struct {
	// policy that holds the rule: namespace/name of a ToolPolicy, or the name of
	// a ClusterToolPolicy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Policy string `json:"policy,omitempty"`
	// rule is the name of the rule.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Rule string `json:"rule,omitempty"`
	// countTime is when the call was counted.
	// +required
	CountTime metav1.MicroTime `json:"countTime,omitzero"`
}

// ToolCallReference names one ToolCall, not another one that has its name later.
type ToolCallReference struct {
	// namespace of the call.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the call.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// uid of the call.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`
}

// RuleReference names a rule of a policy.
type RuleReference struct {
	// policy that holds the rule: namespace/name of a ToolPolicy, or the name of
	// a ClusterToolPolicy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Policy string `json:"policy,omitempty"`
	// rule is the name of the rule.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Rule string `json:"rule,omitempty"`
	// effect of the rule.
	// +required
	Effect RuleEffect `json:"effect,omitempty"`
}

// Attempt is one attempt to run the tool, in a sandbox of its own.
type Attempt struct {
	// number of the attempt, from 1.
	// +required
	// +kubebuilder:validation:Minimum=1
	Number int32 `json:"number,omitempty"`

	// sandbox is the name of the Job, in the Tool's namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Sandbox string `json:"sandbox,omitempty"`

	// namespace of the sandbox.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// pod is the name of the sandbox's pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Pod string `json:"pod,omitempty"`

	// podUID is the UID of the only pod that may get this call.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	PodUID types.UID `json:"podUID,omitempty"`

	// timeoutSeconds is the tool's time limit in this attempt.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// node that ran the sandbox.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// imageID is the image that ran, as the node reported it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	ImageID string `json:"imageID,omitempty"`

	// sendTime is when the controller decided to send the call.
	// +required
	SendTime metav1.MicroTime `json:"sendTime,omitzero"`

	// startTime is when the tool was started, by the clock of its node.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// finishTime is when the tool ended, by the clock of its node.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`

	// endTime is when the controller learned how the attempt ended.
	// +optional
	EndTime *metav1.MicroTime `json:"endTime,omitempty"`

	// exitCode of the tool, if it exited by itself.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// outcome of the attempt: empty while it runs, then Reported (the runner
	// gave a result), NeverStarted, Failed (it ran, and the cluster says how it
	// ended) or Unknown (it may have run).
	// +optional
	// +kubebuilder:validation:Enum=Reported;NeverStarted;Failed;Unknown
	Outcome AttemptOutcome `json:"outcome,omitempty"`

	// errorCode of the attempt, as it would be of the call without a further one.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ErrorCode ErrorCode `json:"errorCode,omitempty"`

	// message says why the attempt failed, at most 1 KiB.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// AttemptOutcome says how an attempt ended.
type AttemptOutcome string

// How an attempt ended.
const (
	OutcomeReported     AttemptOutcome = "Reported"
	OutcomeNeverStarted AttemptOutcome = "NeverStarted"
	OutcomeFailed       AttemptOutcome = "Failed"
	OutcomeUnknown      AttemptOutcome = "Unknown"
)

// Result is the one envelope that every call ends with.
// +structType=atomic
type Result struct {
	// ok says whether the tool succeeded.
	// +required
	OK *bool `json:"ok,omitempty"`

	// data is the tool's answer: any JSON value. Absent on failure.
	// +optional
	// +nullable
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// errorCode says in one word why the call failed. Absent on success.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ErrorCode ErrorCode `json:"errorCode,omitempty"`

	// message says what happened, where, which limit and actual value, and what
	// to do. On success it is absent, or says that values of Secrets were masked.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Message string `json:"message,omitempty"`

	// retryable says whether the same call, unchanged, may be proposed again: no
	// second side effect, and a reason to expect another outcome.
	// +required
	Retryable *bool `json:"retryable,omitempty"`
}
