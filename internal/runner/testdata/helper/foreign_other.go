//go:build linux && !amd64

package main

func foreign() {}

func int80Limits() {}
