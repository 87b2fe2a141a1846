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

// WriteTable prints the rows and a last line that counts them. Long cells go on
// below, so that the table fits a wide terminal.
func WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	count := map[Result]int{}
	_, _ = fmt.Fprintln(w, "CHECK\tRESULT\tWHAT WAS SEEN\tWHAT TO DO") // what fails, fails again in Flush
	for _, r := range rows {
		count[r.Result]++
		check, seen, do := wrap(cell(r.Check), 34), wrap(cell(r.Seen), 68), wrap(cell(r.Do), 46)
		result := []string{string(r.Result)}
		for i := range max(len(check), len(seen), len(do)) {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", at(check, i), at(result, i), at(seen, i), at(do, i))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%d ok, %d warnings, %d FAILED, %d skipped\n", count[OK], count[Warning], count[Failed], count[Skipped])
	return err
}

// wrap breaks a cell at spaces into lines of width bytes; a longer word has its own.
func wrap(s string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// cell makes one printable line of words that may be anybody's.
func cell(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if len(s) > maxCell {
		s = strings.ToValidUTF8(s[:maxCell], "") + "…"
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
