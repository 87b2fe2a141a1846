package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"callgate.dev/callgate/api/v1alpha1"
	"callgate.dev/callgate/internal/doctor"
)

// runDoctor is callgate doctor. It returns the exit code: 0 if all promises
// hold, 1 if one does not, 2 if they could not be tried.
func runDoctor(args []string) int {
	if len(args) > 0 && args[0] == "probe" {
		return doctor.Probe(args[1:])
	}
	sound, err := examine(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintln(os.Stderr, "callgate doctor:", err)
		return 2
	case !sound:
		return 1
	}
	return 0
}

func examine(args []string) (sound bool, err error) {
	d := doctor.Doctor{Namespace: os.Getenv("POD_NAMESPACE"), Progress: os.Stderr}
	flags := flag.NewFlagSet("callgate doctor", flag.ContinueOnError)
	flags.StringVar(&d.Image, "image", "", "image of this program, for the trial pods")
	flags.StringVar(&d.RunnerImage, "runner-image", "", "image that holds the runner at /runner, as the controller has it")
	flags.StringVar(&d.ControllerNamespace, "controller-namespace", "callgate-system", "namespace that the controller runs in")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if d.Image == "" || d.RunnerImage == "" || d.Namespace == "" || flags.NArg() > 0 {
		return false, errors.New("set --image, --runner-image and POD_NAMESPACE, the namespace for the trial pods, and nothing else: see docs/doctor.md")
	}
	// What goes wrong is in the table; a stream that is cut is no error here.
	silent := zap.New(zap.WriteTo(io.Discard))
	ctrl.SetLogger(silent)
	klog.SetLogger(silent)
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return false, err
	}
	if d.Config, err = ctrl.GetConfig(); err != nil {
		return false, fmt.Errorf("find the API server: %w", err)
	}
	d.Config.QPS = -1 // the API server's own priority and fairness is the limit
	if d.Client, err = client.New(d.Config, client.Options{Scheme: scheme}); err != nil {
		return false, err
	}
	if d.Set, err = kubernetes.NewForConfig(d.Config); err != nil {
		return false, err
	}
	rows, err := d.Run(ctrl.SetupSignalHandler())
	if len(rows) > 0 {
		fmt.Println()
		err = errors.Join(err, doctor.WriteTable(os.Stdout, rows))
	}
	return doctor.Sound(rows), err
}
