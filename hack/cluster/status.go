//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// status prints one line for each component, the node, the DNS and the API server. It
// returns an error unless all of them are well.
func status(out io.Writer, state string) error {
	r, err := readRecord(runDir)
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("no cluster runs on this machine: start it with up")
	}
	if r.State != state {
		say("the cluster on this machine is that of %s", r.State)
	}
	l := newLayout(r.State, r.Bin)
	all, err := mountedHierarchies()
	if err != nil {
		return err
	}
	cgroup, err := componentsCgroup(all)
	if err != nil {
		return err
	}
	up, err := uptime()
	if err != nil {
		return err
	}
	processes := running(cgroup)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	bad := 0
	line := func(name, state, more string) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", name, state, more) // Flush reports it
	}
	for _, c := range components(l) {
		if p, ok := processes[c.name]; ok {
			line(c.name, "running", fmt.Sprintf("pid %d, up %s", p.pid, max(up-p.started, 0).Round(time.Second)))
		} else {
			bad++
			line(c.name, "stopped", "log: "+l.logFile(c.name))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var node object
	client, err := apiClient(l)
	if err == nil {
		err = get(ctx, client, nodeURL, &node)
	}
	switch {
	case err != nil:
		bad++
		line("node "+nodeName, "unknown", err.Error())
	case node.ready() != nil:
		bad++
		line("node "+nodeName, "not ready", node.ready().Error())
	default:
		line("node "+nodeName, "ready", node.Status.NodeInfo.KubeletVersion)
	}
	if err := resolve(ctx); err != nil {
		bad++
		line("cluster DNS", "does not answer", err.Error())
	} else {
		line("cluster DNS", "answers", "Service kube-dns in kube-system, "+dnsIP)
	}
	line("API server", apiServer, "KUBECONFIG="+l.kubeconfig())
	if err := table.Flush(); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%d of the lines above are not well; up starts what stopped", bad)
	}
	return nil
}
