package v1alpha1

import (
	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SideEffects says what running a tool a second time does.
// +kubebuilder:validation:Enum=None;Idempotent;NonIdempotent
type SideEffects string

// What a second run of the same call does.
const (
	// SideEffectsNone: the tool only reads.
	SideEffectsNone SideEffects = "None"
	// SideEffectsIdempotent: a second run changes nothing more, even while the
	// first one may still be alive on a lost node.
	SideEffectsIdempotent SideEffects = "Idempotent"
	// SideEffectsNonIdempotent: a second run may act a second time. The default.
	SideEffectsNonIdempotent SideEffects = "NonIdempotent"
)

// ApprovalRequirement says whether a person must approve each call.
// +kubebuilder:validation:Enum=NotRequired;Required
type ApprovalRequirement string

// Whether a call of a Tool needs an approval whatever the policies say.
const (
	// ApprovalNotRequired leaves it to the policies. The default.
	ApprovalNotRequired ApprovalRequirement = "NotRequired"
	// ApprovalRequired: a RequireApproval rule must match and be met.
	ApprovalRequired ApprovalRequirement = "Required"
)

// OutputFormat says how a tool's standard output is read.
// +kubebuilder:validation:Enum=JSON;Text;Binary
type OutputFormat string

// How a tool's standard output becomes result.data.
const (
	// OutputJSON: exactly one JSON value. The default.
	OutputJSON OutputFormat = "JSON"
	// OutputText: valid UTF-8, stored as one JSON string.
	OutputText OutputFormat = "Text"
	// OutputBinary: any bytes, stored as one base64 string.
	OutputBinary OutputFormat = "Binary"
)

// ToolSpec is what a platform team registers.
// +kubebuilder:validation:XValidation:rule="!has(self.warm) || !has(self.container.volumes) || self.container.volumes.all(v, !has(v.persistentVolumeClaim))",message="warm and a persistentVolumeClaim exclude each other: a sandbox that waits would keep the volume in use on its node; leave warm out",fieldPath=".warm"
type ToolSpec struct {
	// functionName is the name a model sees. Default: the object's name, which
	// must then be a legal function name itself. Two Tools of a namespace with
	// one function name are both not Ready.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_-]+$`
	FunctionName string `json:"functionName,omitempty"`

	// description tells a model what the tool does.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Description string `json:"description,omitempty"`

	// inputSchema is the JSON Schema of the arguments: draft 2020-12 without a
	// $schema, else draft 4 to 2020-12. References must be local. At most 256 KiB.
	// +required
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +structType=atomic
	InputSchema apiextensionsv1.JSON `json:"inputSchema"`

	// outputSchema is the JSON Schema of the output; an output that does not fit
	// it ends the call with invalid_output. Same rules as inputSchema.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +structType=atomic
	OutputSchema *apiextensionsv1.JSON `json:"outputSchema,omitempty"`

	// sideEffects says what running the tool a second time does, and so what may
	// be repeated after a failure.
	// +optional
	// +kubebuilder:default=NonIdempotent
	SideEffects SideEffects `json:"sideEffects,omitempty"`

	// approval says whether a person must approve each call. Required means that
	// a RequireApproval rule of a policy must match the call and be met; without
	// such a rule the call is refused.
	// +optional
	// +kubebuilder:default=NotRequired
	Approval ApprovalRequirement `json:"approval,omitempty"`

	// timeoutSeconds bounds the tool's own run, measured from its exec. A call
	// may only shorten it. Default 8.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// startDeadlineSeconds bounds scheduling, image pull and start of the
	// sandbox, before the tool runs. Default 120.
	// +optional
	// +kubebuilder:default=120
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	StartDeadlineSeconds int32 `json:"startDeadlineSeconds,omitempty"`

	// maxRetries bounds the further attempts after those that may have started
	// the tool. They are made only where it is safe: after exit code 75, and after
	// a timeout or a lost answer if sideEffects is None or Idempotent. A call that
	// never started is tried again in any case, within startDeadlineSeconds.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	MaxRetries *int32 `json:"maxRetries,omitempty"`

	// maxConcurrentCalls bounds the calls that run at once, over all callers.
	// A call above it is Queued, first come first served, at most
	// startDeadlineSeconds.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrentCalls int32 `json:"maxConcurrentCalls,omitempty"`

	// deduplicate makes identical arguments by the same caller one call: while
	// the first one is under way, and for windowSeconds after its end, the others
	// get its result. It holds beside the calls' own idempotencyKey.
	// +optional
	Deduplicate *Deduplicate `json:"deduplicate,omitempty"`

	// container is the program that runs, in an isolated container.
	// +required
	Container ToolContainer `json:"container,omitzero"`

	// isolation says what the sandbox may reach. Default: nothing.
	// +optional
	Isolation ToolIsolation `json:"isolation,omitzero"`

	// output says how standard output is read.
	// +optional
	// +kubebuilder:default={}
	Output ToolOutput `json:"output,omitzero"`

	// warm keeps sandboxes started and waiting, so that a call finds one. Each
	// serves one call, ever.
	// +optional
	Warm *WarmPool `json:"warm,omitempty"`
}

// Deduplicate says for how long identical calls are one.
type Deduplicate struct {
	// windowSeconds is how long a call is remembered after its end.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	WindowSeconds int32 `json:"windowSeconds,omitempty"`
}

// WarmPool says how many sandboxes wait for calls.
type WarmPool struct {
	// replicas is the number of waiting sandboxes, besides those that work on a
	// call. 0 means none.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`

	// maxIdleSeconds is how long a sandbox waits, from its creation, before
	// another one replaces it. What a container gets at its start, such as the
	// value of a Secret in its environment, is at most that old. Default 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	MaxIdleSeconds int32 `json:"maxIdleSeconds,omitempty"`
}

// ToolIsolation says what a sandbox is made of and may reach.
type ToolIsolation struct {
	// runtimeClassName names the RuntimeClass of the pod, for example gvisor.
	// Default: the one that the controller is told, or none. A missing one makes
	// the Tool not Ready; nothing falls back silently.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName string `json:"runtimeClassName,omitempty"`

	// scratchSizeLimit bounds /tmp, which is in memory. Default 64Mi. When full,
	// writes fail with ENOSPC at once.
	// +optional
	// +kubebuilder:default="64Mi"
	ScratchSizeLimit *resource.Quantity `json:"scratchSizeLimit,omitempty"`

	// network says what the tool may reach. Default: nothing, not even loopback.
	// +optional
	Network ToolNetwork `json:"network,omitzero"`
}

// DNSMode says whether a tool can resolve names.
// +kubebuilder:validation:Enum=None;Cluster
type DNSMode string

// Whether a tool can resolve names.
const (
	// DNSNone: no name resolution. The default.
	DNSNone DNSMode = "None"
	// DNSCluster: the cluster's DNS.
	DNSCluster DNSMode = "Cluster"
)

// ToolNetwork says what the tool may reach.
type ToolNetwork struct {
	// egress are the destinations that the tool may reach, in the type of
	// NetworkPolicy. Link-local and metadata addresses are cut out of every range.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Egress []networkingv1.NetworkPolicyEgressRule `json:"egress,omitempty"`

	// dns says whether names can be resolved. Cluster lets the tool ask the pods
	// labelled k8s-app=kube-dns in kube-system. It does not let the tool reach what
	// the names stand for; but a DNS that asks servers outside carries data there.
	// +optional
	// +kubebuilder:default=None
	DNS DNSMode `json:"dns,omitempty"`

	// loopback lets the tool use sockets to talk to its own helpers on
	// 127.0.0.1. Without it, egress and dns every socket but AF_UNIX is refused.
	// +optional
	Loopback bool `json:"loopback,omitempty"`
}

// ToolOutput says how a tool's standard output is read.
type ToolOutput struct {
	// format of standard output.
	// +optional
	// +kubebuilder:default=JSON
	Format OutputFormat `json:"format,omitempty"`

	// maxBytes bounds raw standard output. Default 65,536; at most 262,144.
	// +optional
	// +kubebuilder:default=65536
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=262144
	MaxBytes int32 `json:"maxBytes,omitempty"`
}

// ToolStatus is what the controller observed of a Tool.
type ToolStatus struct {
	// observedGeneration is the generation that the conditions speak of.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the Tool: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// warm says how many sandboxes wait for calls; absent without spec.warm.
	// +optional
	Warm *WarmPoolStatus `json:"warm,omitempty"`
}

// WarmPoolStatus is what the controller observed of a warm pool. It is written
// at most once a second.
type WarmPoolStatus struct {
	// replicas is how many sandboxes should wait.
	// +required
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// ready is how many wait and can get a call at once.
	// +required
	// +kubebuilder:validation:Minimum=0
	Ready *int32 `json:"ready,omitempty"`
}

// Tool is what a platform team registers: a program in a container image, the
// schema of its arguments, and what it may reach.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=callgate
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Function",type=string,JSONPath=`.spec.functionName`
// +kubebuilder:printcolumn:name="Side Effects",type=string,JSONPath=`.spec.sideEffects`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Warm",type=integer,priority=1,JSONPath=`.status.warm.ready`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="has(self.spec.functionName) || self.metadata.name.matches('^[a-zA-Z0-9_-]{1,64}$')",message="metadata.name is no legal function name (1 to 64 of a-z A-Z 0-9 _ -): set spec.functionName",fieldPath=".spec.functionName"
type Tool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the platform team registers.
	// +required
	Spec ToolSpec `json:"spec,omitzero"`

	// status is what the controller observed.
	// +optional
	// +default={"observedGeneration":-1}
	Status ToolStatus `json:"status,omitzero"`
}

// ToolList is a list of Tools.
// +kubebuilder:object:root=true
type ToolList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the Tools.
	// +required
	Items []Tool `json:"items"`
}
