//go:build linux

package main

import (
	"fmt"
	"time"
)

// down removes the cluster of this state folder and the folder itself. Nothing
// there is fine. It leaves the cluster of another, existing folder alone.
func down(state string) error {
	begin := time.Now()
	unlock, err := lockMachine()
	if err != nil {
		return err
	}
	defer unlock()
	machine, err := readRecord(runDir)
	if err != nil {
		return err
	}
	if machine != nil && machine.State != state && exists(machine.State) {
		return fmt.Errorf("the cluster on this machine is that of %s: take it down there, or with CLUSTER_DIR=%s", machine.State, machine.State)
	}
	own, err := readRecord(state)
	if err != nil {
		return err
	}
	if machine == nil {
		machine = afterRestart(own)
	}
	if err := sweep(machine); err != nil {
		return fmt.Errorf("down did not get everything, run it again: %w", err)
	}
	if exists(state) {
		if ok, err := ours(state); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("%s was not made by this program (it has no %s): not removed", state, recordFile)
		}
		if err := removeState(state); err != nil {
			return err
		}
	}
	say("down, nothing left behind (%.1f s)", time.Since(begin).Seconds())
	return nil
}
