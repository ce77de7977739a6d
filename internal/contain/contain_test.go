package contain

import (
	"strings"
	"testing"
)

// explode panics; the stack of a contained panic names it.
func explode() { panic("boom") }

// A panic in a goroutine reaches the one that waits, once, with the stack of where it happened; the others end first.
func TestAPanicReachesTheWaiter(t *testing.T) {
	var g Group
	ended := false
	hold := make(chan struct{})
	g.Go(func() { defer close(hold); explode() })
	g.Go(func() { <-hold; ended = true })
	p := caught(g.Wait)
	if p == nil || p.String() != "boom" || !strings.Contains(string(p.Stack), "explode") || !ended {
		t.Errorf("got %v, other ended: %v", p, ended)
	}
	if again := Of(p); again != p {
		t.Error("a panic that is passed on loses where it happened")
	}
	g.Go(func() {})
	if p := caught(g.Wait); p != nil {
		t.Errorf("a panic is raised twice: %v", p)
	}
}

func caught(f func()) (p *Panic) {
	defer func() {
		if r := recover(); r != nil {
			p = Of(r)
		}
	}()
	f()
	return nil
}
