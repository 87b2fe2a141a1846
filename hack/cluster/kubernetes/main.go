// Command kubernetes is every Kubernetes program the local cluster needs in one
// binary. It dispatches on the name it was started under, so one link per
// program name makes one 150 MB file serve for six: linking each of them alone
// would take six times the time and disk.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build info metric
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs maps a program's name to the constructor of its command.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	newCommand, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%q is no program of this binary; start it through a link named kube-apiserver, "+
			"kube-controller-manager, kube-proxy, kube-scheduler, kubelet or kubectl\n", name)
		os.Exit(2)
	}
	if name == "kubectl" {
		// kubectl prints its errors itself; cli.RunNoErrOutput would keep cobra quiet.
		if err := cli.RunNoErrOutput(newCommand()); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(newCommand()))
}
