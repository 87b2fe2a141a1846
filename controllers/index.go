package controllers

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/gate"
	"callgate.dev/callgate/internal/sandbox"
)

// Field indexes of the cache, so that nothing on the way of a call lists all
// objects.
const (
	indexName         = "name"         // Tool, by metadata.name: the cache has no index of its own for it
	indexFunctionName = "functionName" // Tool, by FunctionName()
	indexUnfinished   = "unfinished"   // ToolCall not complete, by the namespace of its Tool
	indexFinished     = "finished"     // ToolCall complete: "true"
	indexCallUID      = "callUID"      // Pod, by LabelCallUID
	indexRuntimeClass = "runtimeClass" // Tool, by the RuntimeClass it has
	indexUID          = "uid"          // Tool, by metadata.uid
	indexHolder       = "holder"       // Lease, by spec.holderIdentity
	indexApprovedCall = "approvedCall" // ToolCallApproval, by spec.toolCallRef.uid
	indexSandbox      = "sandbox"      // ToolCall, by namespace/name of the sandboxes in its attempts
	indexPoolOf       = "poolOf"       // Job made before its call, by the name of its Tool
	indexJob          = "job"          // Pod, by the name of its Job
)

// allNamespaces is the value of indexUnfinished that every such call has; no
// namespace has the name.
const allNamespaces = "*"

func addIndexes(ctx context.Context, indexer client.FieldIndexer, classes sandbox.RuntimeClasses) error {
	for _, index := range []struct {
		object  client.Object
		name    string
		extract func(client.Object) []string
	}{
		{&v1alpha1.Tool{}, indexName, func(o client.Object) []string { return []string{o.GetName()} }},
		{&v1alpha1.Tool{}, indexFunctionName, func(o client.Object) []string { return []string{o.(*v1alpha1.Tool).FunctionName()} }},
		{&v1alpha1.Tool{}, indexUID, func(o client.Object) []string { return []string{string(o.GetUID())} }},
		{&v1alpha1.Tool{}, indexRuntimeClass, func(o client.Object) []string {
			if rc := classes.Of(o.(*v1alpha1.Tool)); rc != "" {
				return []string{rc}
			}
			return nil
		}},
		{&v1alpha1.ToolCall{}, indexUnfinished, func(o client.Object) []string {
			if call := o.(*v1alpha1.ToolCall); !complete(call) {
				return []string{gate.ToolNamespace(call), allNamespaces}
			}
			return nil
		}},
		{&v1alpha1.ToolCall{}, indexFinished, func(o client.Object) []string {
			if complete(o.(*v1alpha1.ToolCall)) {
				return []string{"true"}
			}
			return nil
		}},
		{&coordinationv1.Lease{}, indexHolder, func(o client.Object) []string {
			return []string{ptr.Deref(o.(*coordinationv1.Lease).Spec.HolderIdentity, "")}
		}},
		{&v1alpha1.ToolCallApproval{}, indexApprovedCall, func(o client.Object) []string {
			return []string{string(o.(*v1alpha1.ToolCallApproval).Spec.ToolCallRef.UID)}
		}},
		{&corev1.Pod{}, indexCallUID, func(o client.Object) []string { return []string{o.GetLabels()[v1alpha1.LabelCallUID]} }},
		{&v1alpha1.ToolCall{}, indexSandbox, func(o client.Object) []string {
			var names []string
			for _, a := range o.(*v1alpha1.ToolCall).Status.Attempts {
				names = append(names, a.Namespace+"/"+a.Sandbox)
			}
			return names
		}},
		{&batchv1.Job{}, indexPoolOf, func(o client.Object) []string {
			if o.GetLabels()[v1alpha1.LabelPool] == "" {
				return nil
			}
			return []string{o.GetAnnotations()[v1alpha1.AnnotationTool]}
		}},
		{&corev1.Pod{}, indexJob, func(o client.Object) []string {
			if owner := metav1.GetControllerOf(o); owner != nil && owner.Kind == "Job" {
				return []string{owner.Name}
			}
			return nil
		}},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.extract); err != nil {
			return err
		}
	}
	return nil
}

// complete says whether a call has its result.
func complete(call *v1alpha1.ToolCall) bool {
	return apimeta.IsStatusConditionTrue(call.Status.Conditions, v1alpha1.ConditionComplete)
}
