// Package e2e runs Callgate on a real cluster: real Jobs in real containers.
package e2e

import (
	"os"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"callgate.dev/callgate/test/cluster"
)

// What the cluster's tests share, by short names.
var (
	config            *rest.Config
	admin, agent      client.WithWatch
	toolsNS, agentsNS string
	images            map[string]string
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Main("e2e", func() int {
		config, admin, agent, images = cluster.Config, cluster.Admin, cluster.Agent, cluster.Images
		toolsNS, agentsNS = cluster.ToolsNS, cluster.AgentsNS
		return m.Run()
	}))
}
