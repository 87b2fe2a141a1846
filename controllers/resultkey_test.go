package controllers_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
)

func resultKeySecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	eventually(t, "the key of results", func() (bool, any) {
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: install, Name: "callgate-result-key"}, secret)
		return err == nil, err
	})
	return secret
}

// The controller makes the key with the rights that it has, keeps it over a
// restart, shares it with another controller, and says so if a result cannot be
// read because somebody replaced it. Not parallel: it stops the controller of all.
func TestResultKey(t *testing.T) {
	tools := openNamespace(t)
	allow(t, tools)
	newTool(t, tools, "tool")
	first := resultKeySecret(t)
	if len(first.Data["key"]) != 32 || bytes.Equal(first.Data["key"], make([]byte, 32)) || !ptr.Deref(first.Immutable, false) {
		t.Errorf("%d bytes, immutable %v", len(first.Data["key"]), first.Immutable)
	}

	// A restart in the middle of a run: the next one reads what the sandbox says.
	start := func() (call *v1alpha1.ToolCall, pod *corev1.Pod, release func()) {
		tool, release := blocked(t)
		call = newCall(t, tools, "tool")
		pod = startPod(t, call, tool)
		eventually(t, "the call taken by the runner", func() (bool, any) { return attachedTo(waitForSend(t, call)) == 1, nil })
		return call, pod, release
	}
	call, pod, release := start()
	restartController(t, func() {})
	release()
	want{}.check(t, waitForEnd(t, call))
	if log := logOf(pod); !strings.Contains(log, `"type":"result"`) || strings.Contains(log, "late") || strings.Contains(log, "ImxhdGUi") {
		t.Errorf("the log has no result, or a readable one: %s", log)
	}
	if again := resultKeySecret(t); again.UID != first.UID || !bytes.Equal(again.Data["key"], first.Data["key"]) {
		t.Error("a restart replaced the key")
	}

	// Lost in the middle of a run, while two controllers start at once.
	call, pod, release = start()
	var second *manager
	restartController(t, func() {
		if err := admin.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		var err error
		if second, err = startManager(environment.Config, false); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		if err := second.stop(); err != nil {
			t.Error(err)
		}
	})
	replaced := resultKeySecret(t)
	if bytes.Equal(replaced.Data["key"], first.Data["key"]) {
		t.Error("the key that was lost is back")
	}
	release()
	endLog(pod)
	setPod(t, pod, terminated(0, "Completed"))
	want{code: v1alpha1.ErrorOutcomeUnknown, message: []string{"does not open", "callgate-result-key", "replaced"}}.check(t, waitForEnd(t, call))

	// Later calls are not touched by it, whichever controller takes them.
	for range 5 {
		call := newCall(t, tools, "tool")
		startPod(t, call, prints(`"as ever"`, 0))
		want{}.check(t, waitForEnd(t, call))
	}
	if again := resultKeySecret(t); again.UID != replaced.UID {
		t.Error("the key was replaced once more")
	}
}

// endLog lets the log of a pod end once its result was printed, as it does when
// the container has ended.
func endLog(pod *corev1.Pod) {
	theNode.mu.Lock()
	defer theNode.mu.Unlock()
	theNode.pods[pod.Namespace+"/"+pod.Name].over = true
}

func logOf(pod *corev1.Pod) string {
	theNode.mu.Lock()
	defer theNode.mu.Unlock()
	return theNode.pods[pod.Namespace+"/"+pod.Name].log.String()
}
