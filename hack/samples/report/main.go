// Command report prints what came of the demo's calls and checks it.
//
//	report EXPECTED < CALLS
//
// CALLS is a sequence of {"seconds": number, "call": ToolCall}. EXPECTED has
// one line per call, in the same order, its fields separated by tabs: the
// call's name, the ServiceAccount that made it, "ok" or the error code, a part
// of the data or of the message, and what the call shows. It prints a table,
// then each result envelope, and exits 1 if a call ended in another way.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// outcome is the part of a ToolCall that is shown.
type outcome struct {
	Seconds json.Number `json:"seconds"`
	Call    struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			ToolRef struct {
				Name         string `json:"name"`
				FunctionName string `json:"functionName"`
			} `json:"toolRef"`
			Requester struct {
				Username string `json:"username"`
			} `json:"requester"`
		} `json:"spec"`
		Status struct {
			Result *struct {
				OK        bool            `json:"ok"`
				Data      json.RawMessage `json:"data"`
				ErrorCode *string         `json:"errorCode"`
				Message   *string         `json:"message"`
				Retryable bool            `json:"retryable"`
			} `json:"result"`
		} `json:"status"`
	} `json:"call"`
}

// expectation is one line of EXPECTED.
type expectation struct{ name, agent, code, part, shows string }

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: report EXPECTED < CALLS")
		os.Exit(2)
	}
	expected, err := os.ReadFile(os.Args[1])
	ok := false
	if err == nil {
		ok, err = report(os.Stdout, os.Stdin, expected)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// report says whether every call ended as expected.
func report(w io.Writer, calls io.Reader, expected []byte) (bool, error) {
	var want []expectation
	lines := bufio.NewScanner(bytes.NewReader(expected))
	for lines.Scan() {
		f := strings.Split(lines.Text(), "\t")
		if len(f) != 5 {
			return false, fmt.Errorf("the expectation %q has %d fields, not 5", lines.Text(), len(f))
		}
		want = append(want, expectation{f[0], f[1], f[2], f[3], f[4]})
	}
	if err := lines.Err(); err != nil {
		return false, err
	}
	var got []outcome
	for dec := json.NewDecoder(calls); ; {
		var o outcome
		err := dec.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return false, fmt.Errorf("call %d: %w", len(got)+1, err)
		}
		got = append(got, o)
	}
	if len(got) != len(want) || len(got) == 0 {
		return false, fmt.Errorf("%d calls for %d expectations", len(got), len(want))
	}

	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "  CALL\tTOOL\tREQUESTER\tOUTCOME\tSECONDS\tCHECK") // a tabwriter fails in Flush
	allGood := true
	var details strings.Builder
	for i, o := range got {
		tool := o.Call.Spec.ToolRef.FunctionName + o.Call.Spec.ToolRef.Name
		who := o.Call.Spec.Requester.Username
		code, envelope := o.envelope()
		check, why := "as expected", want[i].differs(o, code, envelope)
		if why != "" {
			check, allGood = "DIFFERENT", false
		}
		_, _ = fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\n", o.Call.Metadata.Name, tool,
			strings.TrimPrefix(who, "system:serviceaccount:"), code, o.Seconds, check)
		fmt.Fprintf(&details, "\n  %s: %s\n  %s\n", o.Call.Metadata.Name, want[i].shows, envelope)
		if why != "" {
			fmt.Fprintf(&details, "  DIFFERENT: %s\n", why)
		}
	}
	if err := table.Flush(); err != nil {
		return false, err
	}
	_, err := io.WriteString(w, details.String()+"\n")
	return allGood, err
}

// envelope returns "ok" or the error code, and the result as every surface
// that agents see prints it: five fields, null for what is empty.
func (o outcome) envelope() (code, text string) {
	r := o.Call.Status.Result
	if r == nil {
		return "no result", "null"
	}
	data := r.Data
	if len(data) == 0 {
		data = json.RawMessage("null")
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		OK        bool            `json:"ok"`
		Data      json.RawMessage `json:"data"`
		ErrorCode *string         `json:"error_code"`
		Message   *string         `json:"message"`
		Retryable bool            `json:"retryable"`
	}{r.OK, data, r.ErrorCode, r.Message, r.Retryable})
	if err != nil { // cannot be: data came out of a decoder
		return "no result", err.Error()
	}
	code = "ok"
	if !r.OK {
		code = "no error code"
		if r.ErrorCode != nil {
			code = *r.ErrorCode
		}
	}
	return code, strings.TrimSuffix(buf.String(), "\n")
}

// differs says what is not as expected, or nothing.
func (e expectation) differs(o outcome, code, envelope string) string {
	// The part is looked for in the text itself, not in its JSON form.
	text := envelope
	if r := o.Call.Status.Result; r != nil && r.Message != nil {
		text = *r.Message
	}
	switch user := "system:serviceaccount:agents:" + e.agent; {
	case o.Call.Metadata.Name != e.name:
		return fmt.Sprintf("the call is %s, expected %s", o.Call.Metadata.Name, e.name)
	case o.Call.Spec.Requester.Username != user:
		return fmt.Sprintf("spec.requester is %q, but %q made the call", o.Call.Spec.Requester.Username, user)
	case code != e.code:
		return fmt.Sprintf("the outcome is %s, expected %s", code, e.code)
	case !strings.Contains(text, e.part):
		return fmt.Sprintf("the answer does not contain %s", e.part)
	}
	return ""
}
