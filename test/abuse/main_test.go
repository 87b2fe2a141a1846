package abuse

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"callgate.dev/callgate/test/cluster"
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(cluster.Main("abuse", func() int {
		code := m.Run()
		whole := flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.skip").Value.String() == ""
		if err := table.write("../../bin/abuse.txt", whole); err != nil {
			fmt.Fprintln(os.Stderr, "abuse:", err)
			return 1
		}
		return code
	}))
}
