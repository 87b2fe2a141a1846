// Command orders is the tool behind update-order-status: it sets the status
// of one order through the shop's API and prints one JSON value.
//
//	orders set-status 4821 --to=shipped
//	echo '{"order_id": 4821, "status": "shipped"}' | orders set-status
//
// ORDERS_URL is the API, API_TOKEN the token it wants. Exit 0 with
// {"updated":true,…} on stdout; 75 (EX_TEMPFAIL) when the connection was
// refused, so that nothing was done and a later try is safe; 1 otherwise,
// with one line on stderr.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// apiTimeout bounds the whole exchange with the API; it is shorter than the
// Tool's timeoutSeconds, so that the tool itself can say what happened.
const apiTimeout = 5 * time.Second

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	out, err := setStatus(ctx, args, stdin, getenv("ORDERS_URL"), getenv("API_TOKEN"))
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "orders:", err) // the exit code still tells
		return exitCode(err)
	}
	if _, err := stdout.Write(append(out, '\n')); err != nil {
		_, _ = fmt.Fprintln(stderr, "orders: the status was set, the answer was not written:", err)
		return 1
	}
	return 0
}
