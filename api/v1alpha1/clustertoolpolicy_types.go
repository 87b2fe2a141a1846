package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterToolPolicy says who may call which Tools of all namespaces. It and the
// ToolPolicies of a Tool's namespace decide together: a Deny in either beats
// every Allow.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=callgate,shortName=ctpol
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Rules",type=string,JSONPath=`.spec.rules[*].name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterToolPolicy struct {
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

// ClusterToolPolicyList is a list of ClusterToolPolicies.
// +kubebuilder:object:root=true
type ClusterToolPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ClusterToolPolicies.
	// +required
	Items []ClusterToolPolicy `json:"items"`
}
