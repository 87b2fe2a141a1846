// Command cluster runs a real one-node Kubernetes on this machine, built from
// source: no container runtime, no registry and no image has to be there
// before. See README.md beside this file.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

const usage = `usage: go run . [-dir FOLDER] COMMAND

  build      build all binaries into the cache and install missing Debian packages
  up         start the cluster; does nothing when it runs, restarts what died
  down       stop it and remove everything it made, the state folder too
  status     one line for each component, the node and the API server
  restart COMPONENT
             kill a component as a crash would, start it again and wait until
             the cluster is ready
  load TAR   import the images of a docker-archive or OCI tar file
  assets     print the folder with kube-apiserver, etcd, kube-controller-manager
             and kubectl (KUBEBUILDER_ASSETS), building it first if needed

-dir (or CLUSTER_DIR) is the state folder, <repository>/.cluster by default;
the cluster's kubeconfig is FOLDER/kubeconfig, its programs are in FOLDER/bin.
`

// otherCluster tells who cannot run this cluster how to go on.
const otherCluster = "Any other cluster serves as well: make one with kind, k3d or minikube, load the images into it with that tool, and set KUBECONFIG to its kubeconfig"

// say prints a line about what happens. Results go to stdout, all else to stderr.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "cluster: "+format+"\n", args...) }

func main() {
	state := os.Getenv("CLUSTER_DIR")
	if state == "" {
		state = filepath.Join("..", "..", ".cluster")
	}
	flag.StringVar(&state, "dir", state, "state folder")
	flag.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	flag.Parse()
	if err := run(state, flag.Args()); err != nil {
		say("%v", err)
		os.Exit(1)
	}
}

func run(state string, args []string) error {
	if len(args) == 0 {
		flag.Usage()
		return fmt.Errorf("no command given")
	}
	command, args := args[0], args[1:]
	wanted := 0
	if command == "load" || command == "restart" {
		wanted = 1
	}
	if len(args) != wanted {
		flag.Usage()
		return fmt.Errorf("%s takes %d arguments, got %d", command, wanted, len(args))
	}
	if err := checkHost(command); err != nil {
		return err
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	if state, err = filepath.Abs(state); err != nil {
		return err
	}
	switch command {
	case "build":
		_, err = buildAll(here)
		return err
	case "assets":
		bin, err := buildAll(here)
		if err == nil {
			fmt.Println(bin)
		}
		return err
	case "up", "restart":
		bin, err := buildAll(here)
		if err != nil {
			return err
		}
		if command == "restart" {
			return restart(newLayout(state, bin), args[0])
		}
		return up(newLayout(state, bin))
	case "down":
		return down(state)
	case "status":
		return status(os.Stdout, state)
	case "load":
		return load(state, args[0])
	}
	flag.Usage()
	return fmt.Errorf("there is no command %q", command)
}

// buildAll makes the binaries of the versions pinned here and returns their folder.
func buildAll(here string) (string, error) {
	bin, err := binDir(here)
	if err != nil {
		return "", err
	}
	return bin, build(here, bin)
}
