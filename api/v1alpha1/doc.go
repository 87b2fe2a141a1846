// Package v1alpha1 is the API of Callgate, group callgate.dev: Tool is what a
// platform team registers, ToolCall what an agent proposes, ToolPolicy who may
// call what.
//
// The types follow the Kubernetes API conventions: no phase but conditions,
// bounded lists and strings, required and optional said explicitly. A field
// whose effect this version does not have yet is present and refused by a
// validation rule, because a silently dropped "approval: Required" would fail
// open.
//
// +kubebuilder:object:generate=true
// +groupName=callgate.dev
package v1alpha1
