package app

import (
	"errors"
	"fmt"
	"time"

	"grebe/kv/disk"
)

// errHung says that a disk does not answer, and that somebody still waits for it: what lies below that MUST be left as it is.
var errHung = errors.New("the disk does not answer: what waits for it is left to itself, with its memory")

const (
	hungAfter = 30 * time.Second // for as long as that a disk does nothing before it is taken to hang
	looks     = 3                // at it meanwhile: one may be too early where the process was stopped
)

// unlessHung does what may have to wait for the disk of a store, and returns errHung where that does nothing any more. What was begun then goes on by
// itself if the disk ever answers. Without a disk it just does it.
func unlessHung(d *disk.Store, what string, f func() error) error {
	if d == nil {
		return f()
	}
	return unlessStill(func() any { return d.Stats() }, what, f) // which no I/O holds up
}

// unlessStill is unlessHung where progress says how far the disk is.
func unlessStill(progress func() any, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	tick := time.NewTicker(hungAfter / looks)
	defer tick.Stop()
	last, still := progress(), 0
	for still < looks {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
		now := progress()
		if still++; now != last {
			last, still = now, 0
		}
	}
	return fmt.Errorf("%s: %w", what, errHung)
}
