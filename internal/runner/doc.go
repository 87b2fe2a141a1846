// Package runner is what runs in a sandbox: PID 1 of its only container.
//
// It waits on stdin for one call, makes sure that no second one is ever taken
// in this pod, starts the tool as its child, holds it to its bounds, and prints
// the result on stdout as frames of package wire. The tool shares its user and
// its PID namespace with the runner and is not trusted: it has no descriptor of
// the runner's, cannot read its memory or environment, and cannot change its
// limits or priority. Under a Linux kernel no
// signal of its ends or disturbs PID 1; gVisor lets SIGKILL and SIGSTOP through,
// which harms nothing but the tool's own call.
package runner
