// Package faults makes everything fail that can fail, on a real cluster, and
// looks at how calls end.
package faults

import (
	"os"
	"testing"

	"callgate.dev/callgate/test/cluster"
)

func TestMain(m *testing.M) {
	os.Exit(cluster.Main("faults", m.Run))
}
