package sandbox

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"callgate.dev/callgate/api/v1alpha1"
)

const (
	testInstall = "callgate-system"
	testRunner  = "registry.example/callgate-runner:1"
	testCallUID = types.UID("9b2f1c4e-0000-4000-8000-00000000ca11")
	testToolUID = types.UID("5d7a1c4e-0000-4000-8000-000000007001")
)

func testTool(change ...func(*v1alpha1.Tool)) *v1alpha1.Tool {
	t := &v1alpha1.Tool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tools", Name: "echo", UID: testToolUID, Generation: 3},
		Spec: v1alpha1.ToolSpec{Container: v1alpha1.ToolContainer{
			Image: "registry.example/echo:1", Command: []string{"echo", "$(args.text)"},
		}},
	}
	for _, c := range change {
		c(t)
	}
	return t
}

// testRunnerFolder is where the runner of testInput's sandbox is.
var testRunnerFolder = "/.callgate-runner-" + JobName(testCallUID, 1)

func testInput(t *v1alpha1.Tool) Input {
	return Input{
		Tool: t, Install: testInstall, RunnerImage: testRunner, CallUID: testCallUID, Attempt: 1,
		Call: types.NamespacedName{Namespace: "agents", Name: "say-hello"},
	}
}
