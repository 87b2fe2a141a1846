package doctor

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The bounds of what the doctor waits for. Each is named in the row of the
// check that it ends.
const (
	// wholeTime bounds all trials together.
	wholeTime = 6 * time.Minute
	// apiTime bounds the requests of one check that needs no pod.
	apiTime = 30 * time.Second
	// startTime is how long a trial pod may take to start, its image's pull included.
	startTime = 90 * time.Second
	// cleanTime is how long the trial pods may take to be gone.
	cleanTime = 60 * time.Second
)

// Doctor tries what Callgate promises on one cluster.
type Doctor struct {
	// Client with the kinds of Kubernetes and Callgate, and Set and Config for
	// logs and attach.
	Client client.Client
	Set    kubernetes.Interface
	Config *rest.Config
	// Namespace of the trials; nothing else may be in it but the doctor.
	Namespace string
	// ControllerNamespace is where Callgate's controller runs.
	ControllerNamespace string
	// Image of the trial pods has this program at /callgate; RunnerImage has the
	// runner at /runner.
	Image, RunnerImage string
	// Progress is told what is tried. Writes to it may come from several goroutines.
	Progress io.Writer
}

// Run makes all checks and returns their rows, in the table's order. It removes
// what an earlier run left before, and all it made itself after, whatever
// happened; an error says that it could not.
func (d *Doctor) Run(ctx context.Context) ([]Row, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wholeTime, fmt.Errorf("all trials together took longer than %s", wholeTime))
	defer cancel()
	if err := d.clean(ctx); err != nil {
		return nil, fmt.Errorf("remove what an earlier run left: %w", err)
	}
	rows := append(d.CheckCluster(ctx), d.checkNodes(ctx)...)
	if err := d.clean(context.WithoutCancel(ctx)); err != nil {
		return rows, fmt.Errorf("remove the trial pods: %w", err)
	}
	return rows, nil
}

// checkNodes makes the checks that need pods, all at once, since most of the time
// goes into waiting; but for that of the network, where milliseconds count.
func (d *Doctor) checkNodes(ctx context.Context) []Row {
	networks := d.tryNetwork(ctx)
	classes, err := d.runtimeClasses(ctx)
	var (
		wg       sync.WaitGroup
		plain    = look{Failure: "not tried"} // without a RuntimeClass
		volume   = plain
		attaches = make([]attached, len(classes)+1)
	)
	wg.Go(func() { plain = d.tryLook(ctx, "users", "", false, true) })
	wg.Go(func() { volume = d.tryLook(ctx, "volume", "", true, false) })
	wg.Go(func() { attaches[0] = d.tryAttach(ctx, "attach", "") })
	for i := range classes {
		c := &classes[i]
		wg.Go(func() { c.look = d.tryLook(ctx, fmt.Sprintf("class-%d", i), c.Name, true, false) })
		wg.Go(func() { attaches[i+1] = d.tryAttach(ctx, fmt.Sprintf("class-%d-attach", i), c.Name) })
	}
	wg.Wait()

	rows := []Row{judgeEgress(networks), judgeIngress(networks), judgeWindow(networks), judgeUserNamespace(plain), judgeImageVolume(volume)}
	switch {
	case err != nil:
		rows = append(rows, broken("RuntimeClasses", err))
	case len(classes) == 0:
		rows = append(rows, Row{"RuntimeClasses", Skipped, "there is none", "For hostile code install one whose pods have a kernel of their own, such as gVisor or Kata Containers"})
	}
	for _, c := range classes {
		c.HostKernel = or(plain.Kernel, volume.Kernel)
		rows = append(rows, judgeRuntimeClass(c))
	}
	for i, a := range attaches {
		if i > 0 && classes[i-1].Failure != "" {
			continue // its pods do not start, which its row says
		}
		rows = append(rows, judgeAttach(a), judgeLog(a))
	}
	return rows
}

func (d *Doctor) say(format string, args ...any) {
	_, _ = fmt.Fprintf(d.Progress, "doctor: "+format+"\n", args...) // progress only
}
