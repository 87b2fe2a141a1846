package abuse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// table is what `make test-abuse` prints at its end.
var table rows

type rows struct {
	mu   sync.Mutex
	rows map[string][]string // by attack and runtime
}

// outside stands where a row has no runtime.
const outside = "outside"

// row is one attack under one runtime, while it is made.
type row struct {
	t         *testing.T
	name      string
	runtime   string
	got       []string
	contained bool
}

// newRow begins a row; it is written when the test ends.
func newRow(t *testing.T, name, runtime string) *row {
	t.Helper()
	i := slices.IndexFunc(Attacks, func(a Attack) bool { return a.Name == name })
	if i < 0 {
		t.Fatalf("%s is not in the list of attacks", name)
	}
	r := &row{t: t, name: name, runtime: runtime, contained: true}
	t.Cleanup(func() {
		contained := "yes"
		switch {
		case !r.contained:
			contained = "NO"
		case t.Skipped():
			contained = "not tried"
		case t.Failed() || len(r.got) == 0:
			contained = "no proof"
			if !t.Failed() {
				t.Errorf("%s under %s: the row says nothing of what the attack got", name, runtime)
			}
		}
		table.mu.Lock()
		defer table.mu.Unlock()
		if table.rows == nil {
			table.rows = map[string][]string{}
		}
		table.rows[name+"/"+runtime] = []string{name, runtime, Attacks[i].Tried, strings.Join(r.got, "; "), contained}
	})
	return r
}

// gotf says what the attack got.
func (r *row) gotf(format string, a ...any) {
	r.t.Helper()
	r.got = append(r.got, strings.Join(strings.Fields(fmt.Sprintf(format, a...)), " "))
	r.t.Logf("%s under %s got "+format, append([]any{r.name, r.runtime}, a...)...)
}

// breach says that the attack was not contained.
func (r *row) breach(format string, a ...any) {
	r.t.Helper()
	r.contained = false
	r.got = append(r.got, fmt.Sprintf(format, a...))
	r.t.Errorf("NOT CONTAINED: %s under %s: "+format, append([]any{r.name, r.runtime}, a...)...)
}

// untried says that the attack did not take place, so that it proves nothing.
func (r *row) untried(format string, a ...any) {
	r.t.Helper()
	r.t.Errorf("NO PROOF: %s under %s did not take place: "+format, append([]any{r.name, r.runtime}, a...)...)
}

// write writes the table. If all tests ran, every row must be there.
func (t *rows) write(path string, whole bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("ATTACK | RUNTIME | TRIED | GOT | CONTAINED\n")
	var missing []string
	for _, a := range Attacks {
		runtimes := a.Runtimes
		if runtimes == nil {
			runtimes = []string{outside}
		}
		for _, rt := range runtimes {
			if cells, ok := t.rows[a.Name+"/"+rt]; ok {
				out.WriteString(strings.Join(cells, " | ") + "\n")
			} else {
				missing = append(missing, a.Name+" under "+rt)
			}
		}
	}
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		return err
	}
	if whole && len(missing) > 0 {
		return fmt.Errorf("attacks that were not made: %s", strings.Join(missing, ", "))
	}
	return nil
}
