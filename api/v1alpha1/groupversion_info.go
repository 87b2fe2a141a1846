package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is callgate.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "callgate.dev", Version: "v1alpha1"}

var schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Tool{}, &ToolList{},
		&ToolCall{}, &ToolCallList{},
		&ToolPolicy{}, &ToolPolicyList{},
		&ClusterToolPolicy{}, &ClusterToolPolicyList{},
		&ToolCallApproval{}, &ToolCallApprovalList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
})

// AddToScheme registers the kinds of this package in a scheme. It never fails
// for a scheme that does not hold other types under the same names.
var AddToScheme = schemeBuilder.AddToScheme
