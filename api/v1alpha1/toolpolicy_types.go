package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PolicyMode says whether a policy decides or only records.
// +kubebuilder:validation:Enum=Enforce;Audit
type PolicyMode string

// Whether a policy decides or only records.
const (
	// PolicyModeEnforce: the rules decide. The default.
	PolicyModeEnforce PolicyMode = "Enforce"
	// PolicyModeAudit: the rules are recorded and change nothing.
	PolicyModeAudit PolicyMode = "Audit"
)

// RuleEffect is what a rule does with a call that it matches.
// +kubebuilder:validation:Enum=Allow;Deny;RequireApproval;Limit
type RuleEffect string

// What a rule does. Deny beats everything, Allow grants; RequireApproval and
// Limit are obligations and grant nothing.
const (
	EffectAllow           RuleEffect = "Allow"
	EffectDeny            RuleEffect = "Deny"
	EffectRequireApproval RuleEffect = "RequireApproval"
	EffectLimit           RuleEffect = "Limit"
)

// ToolPolicySpec says who may call which Tools. It is the spec of a ToolPolicy,
// which speaks of the Tools of its namespace, and of a ClusterToolPolicy, which
// speaks of those of all namespaces.
type ToolPolicySpec struct {
	// mode says whether the policy decides, or is only recorded with each
	// decision and changes nothing.
	// +optional
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`

	// subjects are the callers that the rules speak of, as in RBAC.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Subjects []Subject `json:"subjects,omitempty"`

	// rules of the policy. Their order does not matter.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Rules []PolicyRule `json:"rules,omitempty"`
}

// SubjectKind is the kind of a caller.
// +kubebuilder:validation:Enum=User;Group;ServiceAccount
type SubjectKind string

// The kinds of callers.
const (
	SubjectUser           SubjectKind = "User"
	SubjectGroup          SubjectKind = "Group"
	SubjectServiceAccount SubjectKind = "ServiceAccount"
)

// Subject names callers, as in RBAC.
// +kubebuilder:validation:XValidation:rule="(self.kind == 'ServiceAccount') == has(self.__namespace__)",message="namespace must be set for a ServiceAccount, and only for one",fieldPath=".namespace"
type Subject struct {
	// kind of the subject.
	// +required
	Kind SubjectKind `json:"kind,omitempty"`

	// name of the user, group or ServiceAccount, exactly.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Name string `json:"name,omitempty"`

	// namespace of the ServiceAccount.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// PolicyRule is one rule.
// +kubebuilder:validation:XValidation:rule="has(self.approval) == (self.effect == 'RequireApproval')",message="approval must be set with effect RequireApproval, and only with it",fieldPath=".approval"
// +kubebuilder:validation:XValidation:rule="has(self.limit) == (self.effect == 'Limit')",message="limit must be set with effect Limit, and only with it",fieldPath=".limit"
// +kubebuilder:validation:XValidation:rule="!has(self.message) || self.effect == 'Deny'",message="message goes with effect Deny only",fieldPath=".message"
type PolicyRule struct {
	// name of the rule, unique in the policy; decisions name it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// effect of the rule on a call that it matches.
	// +required
	Effect RuleEffect `json:"effect,omitempty"`

	// tools selects the Tools that the rule speaks of. All its fields must
	// match; one value of a field is enough.
	// +required
	Tools ToolSelector `json:"tools,omitzero"`

	// when is a CEL condition: the rule matches only calls for which it is true.
	// It sees args, caller{username, groups, serviceAccount}, tool{name,
	// namespace, labels, sideEffects}, call{namespace, context} and now. If it
	// does not compile, or fails on a call, it counts against the call: an Allow
	// does not match, any other effect does.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	When string `json:"when,omitempty"`

	// approval says who must approve a call that the rule matches.
	// +optional
	Approval *RuleApproval `json:"approval,omitempty"`

	// limit says how many calls that the rule matches may run.
	// +optional
	Limit *RuleLimit `json:"limit,omitempty"`

	// message tells a refused caller what to do.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// RuleApproval says who must approve a call. Of several rules that match, each
// must be met; one approval counts for every rule that lists its approver. The
// requester's own never counts.
type RuleApproval struct {
	// approvers are those whose approval counts.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Approvers []Subject `json:"approvers,omitempty"`

	// requiredApprovals is how many different persons must approve.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	RequiredApprovals int32 `json:"requiredApprovals,omitempty"`

	// expireAfterSeconds is how long a call waits for its approvals. Of several
	// rules the shortest counts.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	ExpireAfterSeconds int32 `json:"expireAfterSeconds,omitempty"`
}

// LimitScope says whose calls a limit counts together.
// +kubebuilder:validation:Enum=Caller;All
type LimitScope string

// Whose calls a limit counts together.
const (
	// LimitPerCaller: each username has the limit for itself. The default.
	LimitPerCaller LimitScope = "Caller"
	// LimitAll: all callers share the limit.
	LimitAll LimitScope = "All"
)

// RuleLimit says how many of the calls that a rule matches may run, all its
// Tools together.
// +kubebuilder:validation:XValidation:rule="has(self.maxConcurrent) || has(self.maxCalls)",message="at least one of maxConcurrent and maxCalls must be set"
// +kubebuilder:validation:XValidation:rule="has(self.maxCalls) == has(self.windowSeconds)",message="maxCalls and windowSeconds go together",fieldPath=".windowSeconds"
// +kubebuilder:validation:XValidation:rule="!has(self.maxWaitSeconds) || has(self.maxConcurrent)",message="maxWaitSeconds goes with maxConcurrent only: a call over maxCalls does not wait, status.retryTime says when to come again",fieldPath=".maxWaitSeconds"
type RuleLimit struct {
	// maxConcurrent bounds the calls that run at once. A call above it is Queued,
	// first come first served, at most maxWaitSeconds.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrent int32 `json:"maxConcurrent,omitempty"`

	// maxCalls bounds the calls in any windowSeconds. A call above it ends in
	// rate_limited, and status.retryTime says when to come again.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxCalls int32 `json:"maxCalls,omitempty"`

	// windowSeconds is the time that maxCalls speaks of; it slides.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	WindowSeconds int32 `json:"windowSeconds,omitempty"`

	// per says whose calls are counted together.
	// +optional
	// +kubebuilder:default=Caller
	Per LimitScope `json:"per,omitempty"`

	// maxWaitSeconds bounds the wait of a call above maxConcurrent; then it ends
	// in rate_limited. Default: 30. 0 means that it does not wait.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	MaxWaitSeconds *int32 `json:"maxWaitSeconds,omitempty"`
}

// ToolSelector selects Tools.
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.selector) || has(self.sideEffects) || has(self.namespaces)",message="at least one of names, selector, sideEffects and namespaces must be set; names: [\"*\"] selects every Tool"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || (has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || (has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)",message="selector must not be empty; names: [\"*\"] selects every Tool",fieldPath=".selector"
type ToolSelector struct {
	// names of Tool objects, exactly, or * for every Tool.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`

	// selector of Tool labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// sideEffects of the Tools.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	SideEffects []SideEffects `json:"sideEffects,omitempty"`

	// namespaces of the Tools, exactly. In a ClusterToolPolicy only.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
}

// ToolPolicyStatus is what the controller observed of a policy.
type ToolPolicyStatus struct {
	// observedGeneration is the generation that the conditions speak of.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the policy: Ready, ArgumentsKnown.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ToolPolicy says who may call which Tools of its namespace. Without an Allow
// rule nothing is allowed; a Deny rule beats every Allow.
//
// +kubebuilder:validation:XValidation:rule="self.spec.rules.all(r, !has(r.tools.namespaces))",message="tools.namespaces belongs into a ClusterToolPolicy; a ToolPolicy speaks of the Tools of its own namespace",fieldPath=".spec.rules"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=callgate,shortName=tpol
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Rules",type=string,JSONPath=`.spec.rules[*].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ToolPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says who may call what.
	// +required
	Spec ToolPolicySpec `json:"spec,omitzero"`

	// status is what the controller observed.
	// +optional
	// +default={"observedGeneration":-1}
	Status ToolPolicyStatus `json:"status,omitzero"`
}

// ToolPolicyList is a list of ToolPolicies.
// +kubebuilder:object:root=true
type ToolPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ToolPolicies.
	// +required
	Items []ToolPolicy `json:"items"`
}
