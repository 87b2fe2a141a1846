package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

const (
	// answerTime is how long the waiting program may take to answer.
	answerTime = 20 * time.Second
	// endTime is how long a program may take to end, beside what it waits for itself.
	endTime = 45 * time.Second
	// question is what the waiting program is sent.
	question = "is-anybody-there"
)

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// tryAttach attaches to a waiting program, gets an answer and cuts the stream;
// and closes the stdin of a runner that got no call.
func (d *Doctor) tryAttach(ctx context.Context, trial, class string) attached {
	a := attached{Class: class}
	noCall := make(chan struct{})
	go func() {
		defer close(noCall)
		a.NoCallExit, a.NoCallFailure = d.tryNoCall(ctx, trial+"-no-call", class)
	}()
	a.Answer, a.Log, a.Failure = d.tryAnswer(ctx, trial, class)
	<-noCall
	return a
}

func (d *Doctor) tryAnswer(ctx context.Context, trial, class string) (answer time.Duration, log trialLog, failure string) {
	pod := withClass(d.trialPod(trial, "/callgate", "doctor", "probe", "attach"), class)
	pod.Spec.Containers[0].Stdin, pod.Spec.Containers[0].StdinOnce = true, true
	pod, err := d.start(ctx, pod)
	if err != nil {
		return 0, log, err.Error()
	}
	began := time.Now()
	if err := d.ask(ctx, pod); err != nil {
		return 0, log, err.Error()
	}
	answer = time.Since(began)
	if _, err := d.ended(ctx, pod, lastFor+endTime); err != nil {
		return answer, log, err.Error()
	}
	stream, err := d.log(ctx, pod, false)
	if err != nil {
		return answer, trialLog{Failure: err.Error()}, ""
	}
	defer stream.Close()
	log = readTrialLog(stream)
	log.LastedSeconds = int(lastFor / time.Second)
	log.MaxSize = d.logMaxSize(ctx, pod.Spec.NodeName)
	return answer, log, ""
}

// tryNoCall starts a runner as PID 1, from its image volume, and closes its stdin.
func (d *Doctor) tryNoCall(ctx context.Context, trial, class string) (exit int32, failure string) {
	pod := withClass(d.withRunner(d.trialPod(trial, runnerMount+"/runner")), class)
	pod.Spec.Containers[0].Stdin, pod.Spec.Containers[0].StdinOnce = true, true
	pod, err := d.start(ctx, pod)
	if err != nil {
		return 0, err.Error()
	}
	ctxAttach, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	// How the stream ends does not matter, the exit code does.
	attachErr := d.attach(ctxAttach, pod, strings.NewReader(""), io.Discard)
	end, err := d.ended(ctx, pod, endTime)
	if err != nil {
		if attachErr != nil {
			err = fmt.Errorf("%w; attach: %w", err, attachErr)
		}
		return 0, err.Error()
	}
	return end.ExitCode, ""
}

// ask sends the question, waits for the answer, and cuts the stream without closing it first.
func (d *Doctor) ask(ctx context.Context, pod *corev1.Pod) error {
	ctx, cut := context.WithTimeoutCause(ctx, answerTime, fmt.Errorf("the program of pod %s did not answer within %s of the attach", pod.Name, answerTime))
	defer cut()
	in, send := io.Pipe()
	read, out := io.Pipe()
	defer func() { _ = read.Close() }() // lets go what still writes to it; never fails
	streamed := make(chan error, 1)
	go func() {
		err := d.attach(ctx, pod, in, out)
		_ = out.CloseWithError(io.EOF) // never fails
		_ = in.CloseWithError(io.EOF)  // never fails; lets the send below go
		streamed <- err
	}()
	go func() { _, _ = io.WriteString(send, question+"\n") }() // a failure is a missing answer
	answered := false
	for lines := bufio.NewScanner(read); !answered && lines.Scan(); {
		answered = lines.Text() == answerPrefix+question
	}
	if !answered {
		return errors.Join(context.Cause(ctx), <-streamed, errors.New("the attach stream ended without the answer"))
	}
	return nil
}

// attach streams until the program ends or ctx does.
func (d *Doctor) attach(ctx context.Context, pod *corev1.Pod, in io.Reader, out io.Writer) error {
	url := d.Set.CoreV1().RESTClient().Get().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: sandbox.Container, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(d.Config, "GET", url.String())
	if err != nil {
		return err
	}
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out}); err != nil {
		return fmt.Errorf("attach to pod %s: %w", pod.Name, err)
	}
	return nil
}

// readTrialLog reads what [probeAttach] printed.
func readTrialLog(r io.Reader) (log trialLog) {
	lines := bufio.NewScanner(io.LimitReader(r, maxLog))
	for next := 0; lines.Scan(); {
		switch line := lines.Text(); {
		case line == answerPrefix+question:
			log.Answer = true
		case line == eofLine:
			log.EOF = true
		case line == endLine:
			log.End = true
		case log.EOF && line == numberedLine(next):
			next++
			log.Bytes += len(line) + 1
		}
	}
	if err := lines.Err(); err != nil {
		log.Failure = err.Error()
	}
	return log
}

// Lines of the attach trial.
const (
	answerPrefix = "answer "
	eofLine      = "end-of-input"
	endLine      = "end"
	lineBytes    = 4 << 10 // with the newline
)

// numberedLine is one of those that fill the log.
func numberedLine(n int) string {
	number := strconv.Itoa(n)
	return number + " " + strings.Repeat("x", lineBytes-2-len(number))
}

// logMaxSize asks the kubelet, if the doctor may; 0 means unknown.
func (d *Doctor) logMaxSize(ctx context.Context, node string) int64 {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	body, err := d.Set.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("configz").DoRaw(ctx)
	if err != nil {
		return 0
	}
	return parseLogMaxSize(body)
}

func parseLogMaxSize(configz []byte) int64 {
	var answer struct {
		KubeletConfig struct {
			ContainerLogMaxSize string `json:"containerLogMaxSize"`
		} `json:"kubeletconfig"`
	}
	if err := json.Unmarshal(configz, &answer); err != nil {
		return 0
	}
	q, err := resource.ParseQuantity(answer.KubeletConfig.ContainerLogMaxSize)
	if err != nil {
		return 0
	}
	return q.Value()
}

// printed is how much the attach trial prints: as much as a sandbox may.
const printed = wire.MaxOutputBytes
