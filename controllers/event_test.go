package controllers_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// How a call ended is an Event on it, which the controller has the right to write.
func TestEventOfACall(t *testing.T) {
	t.Parallel()
	tools := openNamespace(t)
	allow(t, tools)
	call := waitForEnd(t, newCall(t, tools, "no-such-tool"))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	clientset, err := kubernetes.NewForConfig(environment.Config)
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := clientset.CoreV1().Events(call.Namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(call.UID)})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		if e, ok := event.Object.(*corev1.Event); ok && e.Reason == "ToolNotFound" {
			return
		}
	}
	t.Error("no Event within 30 s says that the call ended with tool_not_found")
}
