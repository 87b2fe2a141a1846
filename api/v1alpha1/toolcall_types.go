package v1alpha1

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ToolCallSpec is what an agent proposes. It cannot be changed after creation,
// except cancel from false to true: an admission policy refuses it.
type ToolCallSpec struct {
	// toolRef names the Tool.
	// +required
	ToolRef ToolReference `json:"toolRef,omitzero"`

	// args are the arguments, at most 256 KiB of JSON. Absent means {}.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +structType=atomic
	Args *apiextensionsv1.JSON `json:"args,omitempty"`

	// idempotencyKey makes calls of one caller and Tool with the same key and the
	// same arguments one call: while the first one is under way, and for 24 hours
	// after its end, the others get its result. With other arguments they end in
	// idempotency_conflict. A call that never started, or whose end is retryable,
	// frees its key.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	IdempotencyKey string `json:"idempotencyKey,omitempty"`

	// timeoutSeconds shortens the Tool's timeoutSeconds; it never lengthens it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// deadlineSeconds bounds the whole call from its creation, over every wait.
	// When it is over, a call that has not started never starts.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	DeadlineSeconds int32 `json:"deadlineSeconds,omitempty"`

	// ttlSecondsAfterFinished is how long the caller wishes the finished call to
	// be kept. The controller keeps it within bounds of its own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// context is set by the caller's runtime, exactly as trustworthy as the caller.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Context map[string]ContextValue `json:"context,omitempty"`

	// cancel ends the call. The only field that may change: from false to true.
	// +optional
	Cancel bool `json:"cancel,omitempty"`

	// requester is who created the call. The API server writes it from the
	// authenticated request; what a client writes here is overwritten.
	// +optional
	Requester *Requester `json:"requester,omitempty"`
}

// ContextValue is one value of a call's context.
// +kubebuilder:validation:MaxLength=256
type ContextValue string

// ToolReference names a Tool by object name or by function name.
// +kubebuilder:validation:XValidation:rule="has(self.name) != has(self.functionName)",message="exactly one of name and functionName must be set"
type ToolReference struct {
	// name of the Tool object.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// functionName of the Tool.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	FunctionName string `json:"functionName,omitempty"`

	// namespace of the Tool. Default: the call's own.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// Requester is the authenticated identity that created a call.
type Requester struct {
	// username of the identity, for a ServiceAccount system:serviceaccount:NAMESPACE:NAME.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Username string `json:"username,omitempty"`

	// uid of the identity, empty for some kinds of users.
	// +optional
	// +kubebuilder:validation:MinLength=0
	// +kubebuilder:validation:MaxLength=1024
	UID *string `json:"uid,omitempty"`

	// groups of the identity.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MaxLength=1024
	Groups []string `json:"groups,omitempty"`
}

// ToolCall is what an agent proposes: one call of one Tool. The controller
// checks it, runs the tool in an isolated container, and answers in
// status.result.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=callgate,shortName=tc
// +kubebuilder:printcolumn:name="Tool",type=string,JSONPath=`.spec.toolRef['name','functionName']`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Succeeded")].reason`
// +kubebuilder:printcolumn:name="OK",type=boolean,JSONPath=`.status.result.ok`
// +kubebuilder:printcolumn:name="Requester",type=string,JSONPath=`.spec.requester.username`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Succeeded")].message`
type ToolCall struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the agent proposes.
	// +required
	Spec ToolCallSpec `json:"spec,omitzero"`

	// status is the life of the call, and its result.
	// +optional
	// +default={"observedGeneration":-1}
	Status ToolCallStatus `json:"status,omitzero"`
}

// ToolCallList is a list of ToolCalls.
// +kubebuilder:object:root=true
type ToolCallList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ToolCalls.
	// +required
	Items []ToolCall `json:"items"`
}
