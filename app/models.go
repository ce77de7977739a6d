package app

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/app/budget"
	"grebe/reuse"
	"grebe/serve"
	"grebe/server"
)

// models are the checkpoints that are loaded.
type models struct {
	service atomic.Pointer[serve.Service] // answers for them; nil before serving
	front   atomic.Pointer[server.Server] // takes requests for it; nil before serving
	spare   *reuse.Spare                  // time in which their caches compute ahead

	budget *budget.Budget // host memory that they compete for; nil: none do
	moving closers        // the goroutine that moves its limits

	shares      sync.Mutex
	checkpoints []*checkpoint // that Models can share

	mu    sync.Mutex
	units map[string][]*Model // by name, oldest first
	slo   time.Duration       // set by a signal; 0: that of the configuration

	closeBy atomic.Int64 // deadline for closing all, nanoseconds since 1970; 0: none
}

func newModels() *models { return &models{spare: reuse.NewSpare()} }

// closing returns the context for work that may be left undone when the App closes.
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

// setSLO changes the target latency of batches, for loaded and for later checkpoints.
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

// remove forgets a Model and returns all others, those of the same name last.
func (l *models) remove(u *Model) []*Model {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := u.config.Name
	l.units[name] = slices.DeleteFunc(l.units[name], func(o *Model) bool { return o == u })
	var left []*Model
	for other, units := range l.units {
		if other != name {
			left = append(left, units...)
		}
	}
	return append(left, l.units[name]...)
}

// Close closes all models and then their memory. KV on disk stays.
func (l *models) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.moving.close()}
	var memories []*Memory
	for _, units := range l.units {
		for _, u := range slices.Backward(units) {
			errs = append(errs, u.closers.close())
			if !slices.Contains(memories, u.memory) {
				memories = append(memories, u.memory)
			}
		}
	}
	hung := false
	for _, m := range memories {
		err := m.closers.close()
		if errs = append(errs, err); errors.Is(err, errHung) {
			hung = true
			break // all are on the same disk
		}
	}
	if l.budget != nil && !hung {
		errs = append(errs, l.budget.Close())
		l.budget = nil
	}
	l.units = nil
	return errors.Join(errs...)
}
