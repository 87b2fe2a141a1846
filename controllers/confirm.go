package controllers

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// confirmer reads the Tools and policies of a namespace past the cache. All
// calls that wait for a namespace share one read: the next one that begins,
// never one that is under way, since that may be older than the call.
type confirmer struct {
	reader client.Reader

	mu      sync.Mutex
	waiting map[string]*read // the read that has not begun yet
	reading map[string]*read // the read under way
}

type read struct {
	done     chan struct{}
	tools    []v1alpha1.Tool
	policies policyLists
	err      error
}

func (c *confirmer) get(ctx context.Context, namespace string) ([]v1alpha1.Tool, policyLists, error) {
	c.mu.Lock()
	if c.waiting == nil {
		c.waiting, c.reading = map[string]*read{}, map[string]*read{}
	}
	r := c.waiting[namespace]
	if r == nil {
		r = &read{done: make(chan struct{})}
		c.waiting[namespace] = r
		go c.run(namespace, r, c.reading[namespace]) //nolint:gosec // the read is for all who wait, not for this caller's context
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.tools, r.policies, r.err
	case <-ctx.Done():
		return nil, policyLists{}, ctx.Err()
	}
}

// run does one read, after the one before it.
func (c *confirmer) run(namespace string, r, before *read) {
	if before != nil {
		<-before.done
	}
	c.mu.Lock()
	delete(c.waiting, namespace)
	c.reading[namespace] = r
	c.mu.Unlock()

	// The context of the first caller must not end the read of the others.
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	var tools v1alpha1.ToolList
	if r.err = c.reader.List(ctx, &tools, client.InNamespace(namespace)); r.err == nil {
		r.policies, r.err = listPolicies(ctx, c.reader, namespace)
	}
	r.tools = tools.Items

	c.mu.Lock()
	if c.reading[namespace] == r {
		delete(c.reading, namespace)
	}
	c.mu.Unlock()
	close(r.done)
}
