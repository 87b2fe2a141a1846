//go:build linux

package main

import (
	"fmt"
	"os"
	"syscall"
)

// lockFile takes the lock named by a file, which it creates. It waits for
// whoever holds it, after calling waiting once. The kernel frees the lock of a
// process that dies. The holder may remove the file.
func lockFile(path string, waiting func()) (unlock func(), err error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		fd := int(file.Fd())
		if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			waiting()
			if err := syscall.Flock(fd, syscall.LOCK_EX); err != nil {
				_ = file.Close() // nothing was written
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
		}
		// The file may have been removed while this waited: then it is no lock any more.
		held, err := file.Stat()
		if err != nil {
			_ = file.Close() // nothing was written
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(held, named) {
			return func() { _ = file.Close() }, nil // closing frees the lock
		}
		_ = file.Close() // nothing was written
	}
}
