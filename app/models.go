package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/reuse"
	"grebe/server"
)

// models are the checkpoints that are loaded.
type models struct {
	front atomic.Pointer[server.Server] // that serves them; nil: none does yet
	spare *reuse.Spare                  // when their caches compute ahead

	mu    sync.Mutex
	units map[string][]*Model // by name, the oldest first
	slo   time.Duration       // that a signal brought; 0: the configuration's

	closeBy atomic.Int64 // nanoseconds since 1970 by which all shall be closed; 0: whenever
}

func newModels() *models { return &models{spare: reuse.NewSpare()} }

// closing returns a context for what may be left undone when all is closed.
func (l *models) closing() (context.Context, context.CancelFunc) {
	if by := l.closeBy.Load(); by != 0 {
		return context.WithDeadline(context.Background(), time.Unix(0, by))
	}
	return context.WithCancel(context.Background())
}

func (l *models) of(model string) []*Model {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.units[model])
}

func (l *models) add(u *Model) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.units == nil {
		l.units = map[string][]*Model{}
	}
	l.units[u.config.Name] = append(l.units[u.config.Name], u)
	if l.slo > 0 {
		u.queue.SetSLO(l.slo)
	}
}

// setSLO changes the latency that batches are made for, also of checkpoints to come.
func (l *models) setSLO(slo time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slo = slo
	for _, units := range l.units {
		for _, u := range units {
			u.queue.SetSLO(slo)
		}
	}
}

// remove forgets a unit and returns those that are left of its model.
func (l *models) remove(u *Model) []*Model {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := slices.DeleteFunc(l.units[u.config.Name], func(o *Model) bool { return o == u })
	l.units[u.config.Name] = left
	return slices.Clone(left)
}

// Close frees all of them, then their memory, which keeps on disk what is there.
func (l *models) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	var memories []*Memory
	for _, units := range l.units {
		for _, u := range slices.Backward(units) {
			errs = append(errs, u.closers.close())
			if !slices.Contains(memories, u.memory) {
				memories = append(memories, u.memory)
			}
		}
	}
	for _, m := range memories {
		err := m.closers.close()
		if errs = append(errs, err); errors.Is(err, errHung) {
			break // all are on one disk
		}
	}
	l.units = nil
	return errors.Join(errs...)
}
