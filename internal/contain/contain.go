// Package contain brings panics of helper goroutines back to the goroutine that waits for them. A panic ends the
// process unless its own goroutine recovers it, and only the one that waits knows whose work failed.
package contain

import (
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// Panic is what a goroutine panicked with, and where.
type Panic struct {
	Value any
	Stack []byte
}

// Of describes a recovered value. It keeps the stack of one that was brought from another goroutine.
func Of(recovered any) *Panic {
	if p, ok := recovered.(*Panic); ok {
		return p
	}
	return &Panic{Value: recovered, Stack: debug.Stack()}
}

func (p *Panic) String() string { return fmt.Sprint(p.Value) }

// First keeps the first of the panics that are given to it. The zero value is ready.
type First struct{ p atomic.Pointer[Panic] }

// Note keeps a recovered value; nil is none.
func (f *First) Note(recovered any) {
	if recovered != nil {
		f.p.CompareAndSwap(nil, Of(recovered))
	}
}

// Raise panics with what was kept, a *Panic, and forgets it. Without one it returns.
func (f *First) Raise() {
	if f.p.Load() == nil {
		return
	}
	panic(f.p.Swap(nil))
}

// Group waits for goroutines as a sync.WaitGroup does. The zero value is ready.
type Group struct {
	wg    sync.WaitGroup
	first First
}

// Go runs f in a goroutine of its own.
func (g *Group) Go(f func()) {
	g.wg.Go(func() {
		defer func() { g.first.Note(recover()) }()
		f()
	})
}

// Wait returns when all have ended. If one panicked, Wait panics with the *Panic of the first.
func (g *Group) Wait() {
	g.wg.Wait()
	g.first.Raise()
}
