// Command callgate is the controller: it takes ToolCalls through their checks,
// runs the tools in sandboxes, and writes the results. As "callgate doctor" it
// tries on the cluster at hand what Callgate promises; see docs/doctor.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/controllers"
	"callgate.dev/callgate/internal/audit"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "doctor" {
		os.Exit(runDoctor(os.Args[2:]))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "callgate:", err)
		os.Exit(1)
	}
}

func run() error {
	var o controllers.Options
	flag.StringVar(&o.RunnerImage, "runner-image", "", "image that holds the runner at /runner; it is mounted into every sandbox")
	flag.BoolVar(&o.RequireNetworkIsolation, "require-network-isolation", true, "whether a tool that may open sockets starts only in a sandbox that has proven that its NetworkPolicy is in force")
	flag.DurationVar(&o.KeepSandboxes, "keep-sandboxes", 30*time.Second, "how long the sandbox of a tool that answered stays, so that its log can be read")
	flag.StringVar(&o.RuntimeClasses.Default, "default-runtime-class", "", "RuntimeClass of Tools that name none; empty means none")
	flag.Func("require-runtime-class", "the only RuntimeClasses that Tools may have, separated by commas: a Tool with another one, or with none, is not Ready", func(s string) error {
		o.RuntimeClasses.Required = nil
		for name := range strings.SplitSeq(s, ",") {
			if name = strings.TrimSpace(name); name == "" {
				return errors.New("an empty name")
			}
			o.RuntimeClasses.Required = append(o.RuntimeClasses.Required, name)
		}
		return nil
	})
	flag.DurationVar(&o.DefaultTTL, "default-ttl", 24*time.Hour, "how long a finished call is kept that does not set ttlSecondsAfterFinished")
	flag.DurationVar(&o.MaxTTL, "max-ttl", 30*24*time.Hour, "how long a finished call is kept at most")
	flag.IntVar(&o.MaxFinished, "max-finished-calls", 10_000, "how many finished calls of one namespace are kept; the oldest go first")
	flag.Func("unfinished-before", "after a restore of the cluster's state, its time (RFC 3339): calls that were created before and are unfinished end with outcome_unknown and are not run", func(s string) (err error) {
		o.UnfinishedBefore, err = time.Parse(time.RFC3339, s)
		return err
	})
	metricsAddress := flag.String("metrics-bind-address", ":8080", "address that metrics are served at")
	healthAddress := flag.String("health-probe-bind-address", ":8081", "address that /healthz and /readyz are served at")
	auditLog := flag.String("audit-log", "", "file that audit records are appended to, one JSON line each; empty means standard output")
	flag.Parse()
	if o.RunnerImage == "" {
		return errors.New("--runner-image must be set to the image that holds the runner")
	}
	if o.MaxFinished < 1 || o.DefaultTTL < 0 || o.MaxTTL < 0 || o.KeepSandboxes < 0 {
		return errors.New("--max-finished-calls must be at least 1, --default-ttl, --max-ttl and --keep-sandboxes must not be negative")
	}
	if c := o.RuntimeClasses; c.Default != "" && c.Refuse(&v1alpha1.Tool{}) != "" {
		return fmt.Errorf("--default-runtime-class %s is not in --require-runtime-class %s: no Tool that names none would be Ready", c.Default, strings.Join(c.Required, ","))
	}
	if o.Install = os.Getenv("POD_NAMESPACE"); o.Install == "" {
		return errors.New("POD_NAMESPACE must be set to the namespace that the controller runs in")
	}
	o.APIServer = net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	logger := zap.New() // to standard error
	ctrl.SetLogger(logger)
	klog.SetLogger(logger) // what client-go says, in the same form
	records := os.Stdout
	if *auditLog != "" {
		var err error
		if records, err = os.OpenFile(*auditLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
			return fmt.Errorf("open the file that --audit-log names: %w", err)
		}
	}
	o.Audit = audit.NewLog(records)

	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	rest, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	// The API server's own priority and fairness is the limit.
	rest.QPS = -1

	mgr, err := ctrl.NewManager(rest, ctrl.Options{
		Scheme:                  scheme,
		Cache:                   controllers.CacheOptions(o.Install),
		Metrics:                 metricsserver.Options{BindAddress: *metricsAddress},
		HealthProbeBindAddress:  *healthAddress,
		Controller:              config.Controller{ReconciliationTimeout: controllers.ReconcileTimeout},
		LeaderElection:          true,
		LeaderElectionID:        "callgate-controller",
		LeaderElectionNamespace: o.Install,
		// The process ends right after; the next leader need not wait for the lease.
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("make the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := controllers.Setup(ctx, mgr, o); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
