//go:build !linux

package schema

import "time"

// threadTime is the time of the clock on the wall, because the time of a thread is not at hand everywhere.
func threadTime() time.Duration { return wallTime() }
