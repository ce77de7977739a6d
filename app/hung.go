package app

import (
	"errors"
	"fmt"
	"time"

	"grebe/kv/disk"
)

// errHung means that a disk does not answer and a goroutine still waits for it. Everything that the goroutine uses
// MUST stay open.
var errHung = errors.New("the disk does not answer: work that waits for it is abandoned, and its memory stays in use")

const (
	hungAfter = 30 * time.Second // a disk without progress for so long counts as hung
	looks     = 3                // checks in that time: a single one may come too early if the process was stopped
)

// unlessHung runs f, which may wait for the disk of a store. It returns errHung if the disk makes no progress. f then
// continues in the background, should the disk answer. Without a disk it only runs f.
func unlessHung(d *disk.Store, what string, f func() error) error {
	if d == nil {
		return f()
	}
	return unlessStill(func() any { return d.Stats() }, what, f) // Stats does not wait for I/O
}

// unlessStill does the work of unlessHung. progress returns a value that changes as the disk works.
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
