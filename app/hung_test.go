package app

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// unlessStill waits as long as the disk makes progress, however slowly, and not much longer. The work continues in the
// background.
func TestADiskThatHangsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps, other := 0, errors.New("another error")
		progress := func() any { return steps }
		slow := func() error {
			for range 10 {
				time.Sleep(hungAfter - time.Second)
				steps++
			}
			return other
		}
		if err := unlessStill(progress, "close", slow); err != other {
			t.Errorf("a slow disk: %v", err)
		}
		back, ended := make(chan struct{}), false
		hangs := func() error {
			<-back
			ended = true
			return nil
		}
		start := time.Now()
		if err := unlessStill(progress, "close", hangs); !errors.Is(err, errHung) || time.Since(start) > 2*hungAfter {
			t.Errorf("a disk that hangs: %v after %v", err, time.Since(start))
		}
		close(back)
		synctest.Wait()
		if !ended {
			t.Error("what waited for the disk did not go on")
		}
	})
}

// What a goroutine that waits for a disk uses is not closed.
func TestNothingIsClosedBelowAHungDisk(t *testing.T) {
	var closed []string
	closes := func(name string, err error) func() error {
		return func() error {
			closed = append(closed, name)
			return err
		}
	}
	s := &App{}
	s.closers.add(closes("memory", nil))
	s.closers.add(closes("store", errHung))
	s.closers.add(closes("engine", errors.New("another error")))
	if err := s.Close(); !errors.Is(err, errHung) || len(closed) != 2 || closed[1] != "store" {
		t.Errorf("closed %q: %v", closed, err)
	}
	if err := s.Close(); err != nil || len(closed) != 2 {
		t.Errorf("closed %q at last: %v", closed, err)
	}
}
