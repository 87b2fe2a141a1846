//go:build linux

package main

// archCalls: none that only this architecture has.
var archCalls = map[string]uintptr{}
