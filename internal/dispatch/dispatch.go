// Package dispatch carries one call to one sandbox and brings back what the
// runner says, live through an attach stream or later from the container's log.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"callgate.dev/callgate/internal/fault"
	"callgate.dev/callgate/internal/sandbox"
	"callgate.dev/callgate/internal/wire"
)

// waits of a session. Each one is named in the error that ends it.
type waits struct {
	// accept is how long a runner may take to accept a call, from the start of
	// the attach.
	accept time.Duration
	// open is how long the API server may take to begin a log.
	open time.Duration
	// whole is how long the log of an ended container may take: all of it is
	// there, and it is small.
	whole time.Duration
	// catchUp is how long a followed log may take to show that a call was
	// accepted. The log holds that line before the runner starts the tool.
	catchUp time.Duration
	// end is how long a stream may take to close after its result.
	end time.Duration
	// slack is what a session may last beyond the tool's own time limit.
	slack time.Duration
}

var defaultWaits = waits{accept: 10 * time.Second, open: 10 * time.Second, whole: 15 * time.Second, catchUp: 3 * time.Second, end: 2 * time.Second, slack: 30 * time.Second}

var (
	// ErrNotAccepted is wrapped by [Snapshot.Err] if the log was followed for
	// long enough to show an accepted call, and showed none.
	ErrNotAccepted = errors.New("the sandbox's log shows no accepted call")
	// ErrNoResult is wrapped by [Snapshot.Err] if the stream came to its own end,
	// and there was no result in it.
	ErrNoResult = errors.New("the sandbox's stream ended without a result")

	errStreamEnded = errors.New("the attach stream ended")
)

// Target is the one pod that may get a call.
type Target struct {
	Call      types.NamespacedName
	CallUID   types.UID
	Attempt   int32
	Namespace string
	Pod       string
	PodUID    types.UID
	// Timeout of the tool bounds the session.
	Timeout time.Duration
	// Key seals and opens the result. Without one a log can be followed, and no
	// result in it opens.
	Key wire.Key
}

// Snapshot is what is known of a session now.
type Snapshot struct {
	wire.State
	// Done: the stream has ended; nothing more will come from it.
	Done bool
	// Err says why the stream ended without a result, if it did.
	Err error
	// FromLog: the stream was the container's log, from its beginning.
	FromLog bool
	// Reads counts the reads of the log that began when the container had ended
	// and reached the API server, this one included.
	Reads int
	// EndTime is when the stream ended, zero before.
	EndTime time.Time
}

// Dispatcher holds the sessions of this process. Nothing in it survives the
// process: what must survive stands in the call's status and in the log.
type Dispatcher struct {
	config *rest.Config
	client kubernetes.Interface
	notify func(types.NamespacedName)
	waits  waits

	mu       sync.Mutex
	sessions map[types.UID]*session
}

type session struct {
	call       types.NamespacedName
	attempt    int32
	cancel     context.CancelFunc
	transcript wire.Transcript
	fromLog    bool
	ended      bool // it began when the container had ended

	// guarded by Dispatcher.mu
	accepted *wire.Accepted // seen by an earlier session of the same attempt
	reads    int
	endTime  time.Time
	err      error
}

// New returns a Dispatcher that calls notify, never blocking for long, when a
// session has ended.
func New(config *rest.Config, client kubernetes.Interface, notify func(types.NamespacedName)) *Dispatcher {
	return &Dispatcher{config: config, client: client, notify: notify, waits: defaultWaits, sessions: map[types.UID]*session{}}
}

// Get returns what is known of the session of an attempt of a call; false if
// this process has none.
func (d *Dispatcher) Get(callUID types.UID, attempt int32) (Snapshot, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[callUID]
	if s == nil || s.attempt != attempt {
		return Snapshot{}, false
	}
	snap := Snapshot{
		State: s.transcript.Snapshot(), Done: !s.endTime.IsZero(), Err: s.err,
		FromLog: s.fromLog, Reads: s.reads, EndTime: s.endTime,
	}
	if snap.Accepted == nil {
		snap.Accepted = s.accepted
	}
	return snap, true
}

// Forget ends the sessions of all calls of that name, which may have been
// deleted and created again, but for the one with the UID keep.
func (d *Dispatcher) Forget(call types.NamespacedName, keep types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, s := range d.sessions {
		if s.call == call && uid != keep {
			s.cancel()
			delete(d.sessions, uid)
		}
	}
}

// Send attaches to the target and sends the call, in the background. The
// caller has written the target's pod UID into the call's status before. While
// a session of the attempt is under way it does nothing; one of an attempt before
// it is over.
func (d *Dispatcher) Send(t Target, call wire.Call) {
	call.ResultKey = t.Key
	d.start(t, &session{}, func(ctx context.Context, s *session) error { return d.attach(ctx, t, call, &s.transcript) })
}

// Follow reads the log of the target from its beginning, in the background,
// until a result, the end of the container, or the proof that no call was
// accepted so far. ended says that the container was seen to have ended, so
// that the log is whole. While a session of the call is under way it does
// nothing.
func (d *Dispatcher) Follow(t Target, ended bool) {
	s := &session{fromLog: true, ended: ended}
	d.start(t, s, func(ctx context.Context, s *session) error { return d.follow(ctx, t, &s.transcript) })
}

func (d *Dispatcher) start(t Target, s *session, run func(context.Context, *session) error) {
	limit := t.Timeout + d.waits.slack
	if s.ended {
		limit = d.waits.whole
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("it took longer than %s", limit))
	s.call, s.attempt, s.cancel = t.Call, t.Attempt, cancel
	s.transcript.Seal = wire.Seal{CallUID: string(t.CallUID), Attempt: t.Attempt, PodUID: string(t.PodUID), Key: t.Key}
	d.mu.Lock()
	switch old := d.sessions[t.CallUID]; {
	case old == nil:
	case old.attempt < t.Attempt:
		old.cancel()
	default:
		if old.endTime.IsZero() || old.attempt > t.Attempt {
			d.mu.Unlock()
			cancel()
			return
		}
		s.reads = old.reads
		if s.accepted = old.transcript.Snapshot().Accepted; s.accepted == nil {
			s.accepted = old.accepted
		}
	}
	if s.ended {
		s.reads++
	}
	d.sessions[t.CallUID] = s
	d.mu.Unlock()

	go func() {
		defer cancel()
		err := run(ctx, s)
		d.mu.Lock()
		s.endTime, s.err = time.Now(), err
		if s.ended && unreachable(err) {
			s.reads--
		}
		d.mu.Unlock()
		d.notify(t.Call)
	}()
}

func (d *Dispatcher) attach(ctx context.Context, t Target, call wire.Call, transcript *wire.Transcript) error {
	// The stream outlives the session for a moment once the result is there.
	streaming, cut := context.WithCancel(context.WithoutCancel(ctx))
	keep := context.AfterFunc(ctx, cut)
	leave := cut
	defer func() { leave() }()
	request := d.client.CoreV1().RESTClient().Get().Resource("pods").Namespace(t.Namespace).Name(t.Pod).SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: sandbox.Container, Stdin: true, Stdout: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(d.config, "GET", request.URL().String())
	if err != nil {
		return fmt.Errorf("attach to the sandbox: %w", err)
	}
	stdin, send := io.Pipe()
	streamed := make(chan error, 1)
	go func() {
		err := executor.StreamWithContext(dialing{streaming, time.Now().Add(d.waits.accept + time.Second)}, remotecommand.StreamOptions{Stdin: stdin, Stdout: transcript})
		// Unblocks the send below, should the stream never have read it.
		_ = stdin.CloseWithError(errStreamEnded) // never fails
		streamed <- err
	}()
	sent := make(chan error, 1)
	go func() {
		sent <- wire.WriteCall(fault.Half("half-frame", send), string(t.CallUID), t.Attempt, string(t.PodUID), call)
	}()

	timer := time.NewTimer(d.waits.accept)
	defer timer.Stop()
	accepted := transcript.AcceptedSeen()
	for {
		select {
		case err := <-sent:
			if err != nil && !errors.Is(err, errStreamEnded) {
				return err
			}
			fault.At("sent")
			sent = nil // why the stream ended comes with its own end
		case <-accepted:
			fault.At("accepted")
			accepted = nil
			timer.Stop()
		case <-transcript.ResultSeen():
			fault.At("result-seen")
			// The runner waits for this before it exits, so that nothing is cut off. The
			// call does not wait for it: with the result there it does not matter how the
			// stream ends.
			_ = send.Close()
			if keep() {
				leave = func() {}
				go func() {
					defer cut()
					select {
					case <-streamed: //nolint:errcheck // how it ended is nobody's business any more
					case <-time.After(d.waits.end):
					}
				}()
			}
			return nil
		case err := <-streamed:
			return streamEnd(ctx, err, transcript)
		case <-timer.C:
			return fmt.Errorf("the sandbox did not accept the call within %s", d.waits.accept)
		}
	}
}

// dialing bounds the set-up of a WebSocket. The library sets the context's
// deadline on the connection until the upgrade is answered, and does not see a
// cancelled context before; with the session's deadline, a server that does
// not answer would hold the connection as long as the tool may run.
type dialing struct {
	context.Context
	deadline time.Time
}

// Deadline of the set-up; the session's own stays that of Done and Err.
func (c dialing) Deadline() (time.Time, bool) { return c.deadline, true }

func (d *Dispatcher) follow(ctx context.Context, t Target, transcript *wire.Transcript) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opening := time.AfterFunc(d.waits.open, func() { cancel(fmt.Errorf("it did not begin within %s", d.waits.open)) })
	defer opening.Stop()
	stream, err := d.client.CoreV1().Pods(t.Namespace).GetLogs(t.Pod, &corev1.PodLogOptions{Container: sandbox.Container, Follow: true}).Stream(ctx)
	if err == nil && !opening.Stop() {
		_ = stream.Close() // it was only read
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the sandbox's log: %w", cause(ctx, err))
	}
	defer stream.Close()
	streamed := make(chan error, 1)
	go func() {
		// A sandbox prints at most MaxOutputBytes; the bound holds for any other log.
		_, err := io.Copy(transcript, io.LimitReader(stream, 4*wire.MaxOutputBytes))
		streamed <- err
	}()
	timer := time.NewTimer(d.waits.catchUp)
	defer timer.Stop()
	accepted := transcript.AcceptedSeen()
	for {
		select {
		case <-accepted:
			accepted = nil
			timer.Stop()
		case <-transcript.ResultSeen():
			return nil
		case err := <-streamed:
			return streamEnd(ctx, err, transcript)
		case <-timer.C:
			return fmt.Errorf("%w after %s", ErrNotAccepted, d.waits.catchUp)
		}
	}
}

// streamEnd is the error for a stream that ended by itself. The last bytes may
// have held the result.
func streamEnd(ctx context.Context, err error, transcript *wire.Transcript) error {
	state := transcript.Snapshot()
	if state.Result != nil {
		return nil
	}
	// A stream that we cut ourselves can end cleanly, too, and proves nothing.
	if err = cause(ctx, err); err != nil {
		return fmt.Errorf("the sandbox's stream broke without a result: %w", err)
	}
	if state.Damaged != "" {
		return fmt.Errorf("%w that could be read: %s", ErrNoResult, state.Damaged)
	}
	return ErrNoResult
}

// unreachable says whether nobody answered at all.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// cause is why ctx ended, if it did: the wait that was over instead of
// "context deadline exceeded".
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}
