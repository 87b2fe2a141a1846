// Command dial makes one TCP connection. It is built for another architecture
// than the runner's.
package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

func main() {
	_, err := net.DialTimeout("tcp", os.Args[1], 2*time.Second)
	fmt.Println("dial:", err)
}
