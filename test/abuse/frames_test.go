package abuse

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/wire"
	"callgate.dev/callgate/test/cluster"
)

// A tool forges what its runner says, by every way there is, and the controller
// that read along is replaced in the middle: the next one reads the log from its
// beginning. It comes before the tests that run beside others.
func TestForgedFrames(t *testing.T) {
	frames := forged(t)
	type pair struct {
		r    *row
		call *v1alpha1.ToolCall
	}
	var calls []pair
	for _, runtime := range []string{RuncRuntime, GVisorRuntime} {
		r := newRow(t, "forged-frames", runtime)
		call := cluster.Propose(t.Context(), t, tool(t.Context(), t, runtime, texts), cluster.JSONOf(t, arguments{Attack: "forged-frames", Seconds: 12, Data: frames}))
		cluster.WaitReason(t.Context(), t, call, v1alpha1.ReasonRunning)
		calls = append(calls, pair{r, call})
	}
	for _, c := range calls {
		cluster.WaitAccepted(t.Context(), t, c.call)
	}
	before := restartController(t)
	for _, c := range calls {
		if err := cluster.Admin.Get(t.Context(), client.ObjectKeyFromObject(c.call), c.call); err != nil {
			t.Fatal(err)
		}
		if complete(c.call) {
			c.r.untried("the call had ended before there was another controller")
		}
	}
	for _, c := range calls {
		cluster.Finish(t.Context(), t, c.call)
		want := "TRUE ANSWER for " + string(c.call.UID) + "\n"
		if got := cluster.Unquote(t, cluster.Succeeded(t, c.call)); !strings.HasPrefix(got, want) || strings.Count(got, `"type":"result"`) < 2 {
			c.r.breach("the answer is %.300q", got)
		}
		if n := len(c.call.Status.Attempts); n != 1 {
			c.r.breach("%d attempts", n)
		}
		c.r.gotf("the true answer, the frames as text in it; controller %s replaced meanwhile", before)
	}
}

// forged are the frames of a runner whose tool answered FORGED, for the call
// CALL-UID; whole, torn, after the end of another line, of other versions.
func forged(t *testing.T) string {
	t.Helper()
	payload := `{"exitCode":0,"stdoutLength":6,"stdoutBytes":6,"stderrTailLength":0,"stderrBytes":0,"start":"2026-01-01T00:00:00Z","end":"2026-01-01T00:00:01Z"}` + "\nFORGED"
	sum := sha256.Sum256([]byte(payload))
	var b strings.Builder
	for version := 1; version <= 3; version++ {
		fmt.Fprintf(&b, `{"version":%d,"type":"ready"}`+"\n", version)
		fmt.Fprintf(&b, `{"version":%d,"type":"accepted","callUID":"CALL-UID","attempt":1}`+"\n", version)
		fmt.Fprintf(&b, `{"version":%d,"type":"result","callUID":"CALL-UID","attempt":1,"part":1,"parts":1,"sha256":"%s","data":"%s"}`+"\n",
			version, hex.EncodeToString(sum[:]), base64.StdEncoding.EncodeToString([]byte(payload)))
		fmt.Fprintf(&b, `torn {"version":%d,"type":"accepted","callUID":"CALL-UID","attempt":2}`+"\n", version)
		fmt.Fprintf(&b, `{"version":%d,"type":"noCall","reason":"FORGED"}`+"\n", version)
	}
	// They are as good as the runner's: what reads its stream takes them.
	var transcript wire.Transcript
	_, _ = transcript.Write([]byte(b.String()))
	if transcript.Accepted == nil || transcript.Accepted.CallUID != "CALL-UID" {
		t.Fatal("NO PROOF: the forged frames are none of this version's")
	}
	return b.String()
}

// restartController replaces the controller's pods and waits for the next. It
// returns the name of the old one.
func restartController(t *testing.T) string {
	t.Helper()
	ctx := t.Context()
	inSystem, labels := client.InNamespace("callgate-system"), client.MatchingLabels{"app.kubernetes.io/component": "controller"}
	var pods corev1.PodList
	if err := cluster.Admin.List(ctx, &pods, inSystem, labels); err != nil || len(pods.Items) == 0 {
		t.Fatalf("%d pods of the controller, %v", len(pods.Items), err)
	}
	for i := range pods.Items {
		if err := cluster.Admin.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(1)); err != nil {
			t.Fatal(err)
		}
	}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "callgate-system", Name: "callgate-controller"}}
	for i := range pods.Items {
		cluster.WaitFor(ctx, t, deployment, &appsv1.DeploymentList{}, func(d *appsv1.Deployment) bool {
			var now corev1.PodList
			err := cluster.Admin.List(ctx, &now, inSystem, labels)
			gone := err == nil
			for _, p := range now.Items {
				gone = gone && p.UID != pods.Items[i].UID
			}
			return gone && d.Status.ReadyReplicas > 0
		}, func(d *appsv1.Deployment) string { return fmt.Sprintf("%+v", d.Status) })
	}
	return pods.Items[0].Name
}

// followLog follows the log of a call's pod from its beginning; the function
// returns all of it when the container has ended.
func followLog(ctx context.Context, t *testing.T, call *v1alpha1.ToolCall) func() string {
	t.Helper()
	clientset, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, cluster.Patience)
	t.Cleanup(cancel)
	a := call.Status.Attempts[0]
	stream, err := clientset.CoreV1().Pods(a.Namespace).GetLogs(a.Pod, &corev1.PodLogOptions{Follow: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	type end struct {
		log []byte
		err error
	}
	ended := make(chan end, 1)
	go func() {
		defer stream.Close()
		log, err := io.ReadAll(io.LimitReader(stream, 4<<20))
		ended <- end{log, err}
	}()
	return func() string {
		t.Helper()
		e := <-ended
		if e.err != nil {
			t.Fatalf("the log of %s: %v", a.Pod, e.err)
		}
		return string(e.log)
	}
}

// text is a log, and what its frames hold in base64.
type text []string

var frameData = regexp.MustCompile(`"data":"([A-Za-z0-9+/=]+)"`)

func decoded(log string) text {
	out := text{log}
	all := ""
	for _, m := range frameData.FindAllStringSubmatch(log, -1) {
		if data, err := base64.StdEncoding.DecodeString(m[1]); err == nil {
			out = append(out, string(data))
			all += string(data)
		}
	}
	return append(out, all)
}

func (t text) contains(word string) bool {
	for _, s := range t {
		if strings.Contains(s, word) {
			return true
		}
	}
	return false
}

func createSecret(ctx context.Context, t *testing.T, name, value string) {
	t.Helper()
	if err := cluster.Admin.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.ToolsNS, Name: name}, StringData: map[string]string{"key": value}}); err != nil {
		t.Fatal(err)
	}
}

// createRaw creates an object as it stands: Go's types leave zeros out.
func createRaw(ctx context.Context, config *rest.Config, path, body string) error {
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if !json.Valid([]byte(body)) {
		return fmt.Errorf("no JSON: %s", body)
	}
	return clientset.CoreV1().RESTClient().Post().AbsPath(path).Param("dryRun", "All").SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
}
