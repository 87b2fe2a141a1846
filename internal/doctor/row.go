package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Result is what became of one check.
type Result string

// The results of a check.
const (
	OK Result = "ok"
	// Warning: no promise is broken, but somebody should know.
	Warning Result = "warning"
	// Failed: a promise does not hold, or could not be proven.
	Failed Result = "FAILED"
	// Skipped: there is nothing to check.
	Skipped Result = "skipped"
)

// maxCell bounds a cell of the table, in bytes: some words are the cluster's own.
const maxCell = 400

// Row is one line of the doctor's table.
type Row struct {
	Check  string
	Result Result
	// Seen is what was observed, or why the check was skipped.
	Seen string
	// Do is what to do about it; empty if nothing.
	Do string
}

// Sound says whether no check failed.
func Sound(rows []Row) bool {
	return !slices.ContainsFunc(rows, func(r Row) bool { return r.Result == Failed })
}

// WriteTable prints the rows and a last line that counts them.
func WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	count := map[Result]int{}
	_, _ = fmt.Fprintln(w, "CHECK\tRESULT\tWHAT WAS SEEN\tWHAT TO DO") // what fails, fails again in Flush
	for _, r := range rows {
		count[r.Result]++
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", cell(r.Check), r.Result, cell(r.Seen), cell(r.Do))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d warnings, %d FAILED, %d skipped\n", count[OK], count[Warning], count[Failed], count[Skipped])
	return err
}

// cell makes one printable line of words that may be anybody's.
func cell(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if len(s) > maxCell {
		s = strings.ToValidUTF8(s[:maxCell], "") + "…"
	}
	if s == "" {
		return "-"
	}
	return s
}

// some joins the first five of a list, and says how many more there are.
func some(list []string) string {
	const shown = 5
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), len(list)-shown)
}
