package controllers

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

// slowReader has one object of each kind. A list of Tools waits until the test
// lets it go, and says that it has begun.
type slowReader struct {
	client.Reader
	begun, proceed chan struct{}
}

func (r *slowReader) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var o client.ListOptions
	o.ApplyOptions(options)
	switch list := list.(type) {
	case *v1alpha1.ToolList:
		r.begun <- struct{}{}
		<-r.proceed
		list.Items = []v1alpha1.Tool{{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: "tool"}}}
	case *v1alpha1.ToolPolicyList:
		list.Items = []v1alpha1.ToolPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: "own"}}}
	case *v1alpha1.ClusterToolPolicyList:
		if o.Namespace != "" {
			return errors.New("they are in no namespace")
		}
		list.Items = []v1alpha1.ClusterToolPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "everywhere"}}}
	}
	return nil
}

// A refusal by default is confirmed with all that could allow the call, and by
// a read that began after the call was there.
func TestConfirmReads(t *testing.T) {
	t.Parallel()
	reader := &slowReader{begun: make(chan struct{}), proceed: make(chan struct{})}
	c := &confirmer{reader: reader}
	done := make(chan error, 3)
	ask := func() {
		tools, policies, err := c.get(t.Context(), "tools")
		if err == nil && (len(tools) != 1 || tools[0].Namespace != "tools" || len(policies.namespaced) != 1 || len(policies.cluster) != 1) {
			err = errors.New("not all was read")
		}
		done <- err
	}
	go ask()
	<-reader.begun
	// The read under way may be older than what the next two want to know.
	go ask()
	go ask()
	limit := time.Now().Add(10 * time.Second)
	for waiting := false; !waiting; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("nobody waits for a read of its own")
		}
		c.mu.Lock()
		waiting = c.waiting["tools"] != nil
		c.mu.Unlock()
	}
	reader.proceed <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for answers := 1; answers < 3; {
		select {
		case <-reader.begun:
			reader.proceed <- struct{}{}
		case err := <-done:
			answers++
			if err != nil {
				t.Error(err)
			}
		}
	}
}
