package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"callgate.dev/callgate/api/v1alpha1"
)

// A tool prints its Secret and an answer. The Secret is nowhere; the answer is in
// the call and not in the log of the sandbox.
func TestSecretsAndTheLogOfASandbox(t *testing.T) {
	ctx := start(t)
	const token, answer = "s3cr3t-\"token\"-of-the-shop", "the answer of the tool"
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: toolsNS, Name: "shop"}, StringData: map[string]string{"token": token + "\n"}}
	if err := admin.Create(ctx, secret); err != nil {
		t.Fatal(err)
	}
	withToken := func(s *v1alpha1.ToolSpec) {
		s.Container.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeySelector{Name: "shop", Key: "token"}}}}
	}
	// The sandbox stays long enough after this for its log to be followed.
	tool := shell(ctx, t, "tells", `echo "token: $TOKEN" >&2; sleep 3
printf '{"v":"%s","token":"%s"}' "`+answer+`" "$(printf %s "$TOKEN" | sed 's/"/\\u0022/g')"`, withToken)
	call := propose(ctx, t, tool, "")
	waitReason(ctx, t, call, v1alpha1.ReasonRunning)
	log := logOf(ctx, t, call)
	finish(ctx, t, call)
	if data := succeeded(t, call); data != `{"token":"[masked]","v":"`+answer+`"}` && data != `{"v":"`+answer+`","token":"[masked]"}` {
		t.Errorf("data %s", data)
	}
	const note = "values of the Tool's Secrets were replaced by [masked]: 1 on stdout, 1 on stderr"
	if m := call.Status.Result.Message; m != note {
		t.Errorf("message %q, want %q", m, note)
	}
	var stderr strings.Builder
	types := map[string]int{}
	for _, line := range log {
		var f struct {
			Type string
			Data []byte
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("a line of the log that is no frame: %q", line)
		}
		types[f.Type]++
		if f.Type == "stderr" {
			stderr.Write(f.Data)
		}
		for _, text := range []string{line, string(f.Data)} {
			if strings.Contains(text, "s3cr3t") || strings.Contains(text, "answer") || strings.Contains(text, "exitCode") {
				t.Errorf("the log tells: %q", text)
			}
		}
	}
	if types["accepted"] != 1 || types["result"] == 0 {
		t.Errorf("frames in the log: %v", types)
	}
	// Whatever else is in a line of it, the newline of the value itself is not masked.
	if got := stderr.String(); strings.TrimRight(got, "\n") != "token: [masked]" {
		t.Errorf("stderr in the log is %q", got)
	}

	tool = shell(ctx, t, "fails", `echo "cannot log in with $TOKEN" >&2; exit 1`, withToken)
	call = callOf(ctx, t, tool, "")
	failed(t, call, v1alpha1.ErrorToolFailed, false, "cannot log in with [masked]", "replaced by [masked]: 1 on stderr")
}

// logOf follows the log of a call's sandbox to its end.
func logOf(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) (lines []string) {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a := call.Status.Attempts[0]
	stream, err := clientset.CoreV1().Pods(a.Namespace).GetLogs(a.Pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	scanner := bufio.NewScanner(stream)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
	}
	if err := scanner.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
