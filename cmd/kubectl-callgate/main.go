// Command kubectl-callgate is a kubectl plugin: in the PATH it is `kubectl callgate`.
package main

import (
	"fmt"
	"io"
	"os"

	"callgate.dev/callgate/api/v1alpha1"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1 // something could not be done; what could be done was done
	exitUsage = 2
)

const usage = `Usage: kubectl callgate COMMAND

  approve NAME   approve the ToolCall NAME
  deny NAME      deny it
  import FILE    write Tool manifests for the tool definitions in FILE (MCP tools/list answer, OpenAI functions)
  namespace open NAME
                 let Callgate run tools in the namespace NAME

Run a command with --help for its flags.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run runs a command and returns its exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitUsage
	}
	switch args[0] {
	case "approve":
		return say(v1alpha1.DecisionApprove, args[1:], stdout, stderr)
	case "deny":
		return say(v1alpha1.DecisionDeny, args[1:], stdout, stderr)
	case "import":
		return importTools(args[1:], stdin, stdout, stderr)
	case "namespace":
		return namespace(args[1:], stdout, stderr)
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	default:
		fmt.Fprintf(stderr, "kubectl callgate: there is no command %q\n\n%s", args[0], usage)
		return exitUsage
	}
}
