package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/policy"
)

// policyLists are all policies that may speak of the Tools of one namespace.
type policyLists struct {
	namespaced []v1alpha1.ToolPolicy
	cluster    []v1alpha1.ClusterToolPolicy
}

// listPolicies reads them. The objects are the cache's own, where the reader is
// one: they are only read.
func listPolicies(ctx context.Context, reader client.Reader, namespace string) (policyLists, error) {
	var namespaced v1alpha1.ToolPolicyList
	var cluster v1alpha1.ClusterToolPolicyList
	if err := reader.List(ctx, &namespaced, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return policyLists{}, err
	}
	err := reader.List(ctx, &cluster, client.UnsafeDisableDeepCopy)
	return policyLists{namespaced.Items, cluster.Items}, err
}

// policyCache compiles each policy once per generation.
type policyCache struct {
	compiledCache[*policy.Policy]
}

func (c *policyCache) compile(l policyLists) []*policy.Policy {
	out := make([]*policy.Policy, 0, len(l.namespaced)+len(l.cluster))
	for i := range l.namespaced {
		out = append(out, c.of(&l.namespaced[i], &l.namespaced[i].Spec))
	}
	for i := range l.cluster {
		out = append(out, c.of(&l.cluster[i], &l.cluster[i].Spec))
	}
	return out
}

func (c *policyCache) of(o client.Object, spec *v1alpha1.ToolPolicySpec) *policy.Policy {
	return c.get(o, func() *policy.Policy {
		return policy.Compile(o.GetNamespace(), o.GetName(), spec)
	})
}
