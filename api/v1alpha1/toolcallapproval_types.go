package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ApprovalDecision is what an approver says to a call.
// +kubebuilder:validation:Enum=Approve;Deny
type ApprovalDecision string

// What an approver says.
const (
	DecisionApprove ApprovalDecision = "Approve"
	DecisionDeny    ApprovalDecision = "Deny"
)

// ToolCallApprovalSpec is what one person says to one call. It cannot be
// changed after creation: an admission policy refuses it. Deleting it before the
// call is sent takes it back.
type ToolCallApprovalSpec struct {
	// toolCallRef names the call, in the same namespace.
	// +required
	ToolCallRef ApprovedCallReference `json:"toolCallRef,omitzero"`

	// decision of the approver. The first Deny ends the call.
	// +required
	Decision ApprovalDecision `json:"decision,omitempty"`

	// reason in the approver's words. The caller reads it if the call is denied.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Reason string `json:"reason,omitempty"`

	// approver is who created the approval. The API server writes it from the
	// authenticated request; what a client writes here is overwritten.
	// +optional
	Approver *Requester `json:"approver,omitempty"`
}

// ApprovedCallReference names one call, and optionally exactly what was shown
// of it.
type ApprovedCallReference struct {
	// name of the call.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// uid of the call: another call of that name cannot use the approval.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`

	// approvalDigest is the call's status.approvalDigest as the approver saw it:
	// the approval counts for exactly that call and that state of the Tool. Without
	// it, an approval counts only if the Tool was never changed after its creation,
	// and before the approval's. A Deny does not need it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	ApprovalDigest string `json:"approvalDigest,omitempty"`
}

// ToolCallApproval is what one person says to one call that waits for approval.
// It stands beside the call, in its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=callgate,shortName=tca
// +kubebuilder:printcolumn:name="Call",type=string,JSONPath=`.spec.toolCallRef.name`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.spec.decision`
// +kubebuilder:printcolumn:name="Approver",type=string,JSONPath=`.spec.approver.username`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.spec.reason`
type ToolCallApproval struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the approver says.
	// +required
	Spec ToolCallApprovalSpec `json:"spec,omitzero"`
}

// ToolCallApprovalList is a list of ToolCallApprovals.
// +kubebuilder:object:root=true
type ToolCallApprovalList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ToolCallApprovals.
	// +required
	Items []ToolCallApproval `json:"items"`
}
