// Command etcd is etcd's own main function, here so that its version and the
// versions of everything below it stand in this folder's go.mod and go.sum:
// etcd's server module has no main package.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
