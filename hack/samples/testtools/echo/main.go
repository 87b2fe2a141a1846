// Command echo copies stdin to stdout and exits: the smallest tool there is,
// so that what a benchmark measures is not the tool.
package main

import (
	"io"
	"os"
)

func main() {
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		os.Exit(1)
	}
}
