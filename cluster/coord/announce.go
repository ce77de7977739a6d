package coord

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// ErrReplaced reports that another process wrote the key of an Announcement.
var ErrReplaced = errors.New("coord: another process has announced itself under this key")

// Announcement keeps a value under a key for as long as its process lives and reaches the coordinator.
type Announcement struct {
	c   Coordinator
	key string
	ttl time.Duration
	log *slog.Logger

	stop    context.CancelFunc
	done    chan struct{}
	changed chan struct{} // capacity 1: Set has a new value

	mu   sync.Mutex
	data []byte // the value to announce

	// Of the goroutine alone.
	sent    [][]byte // the last values that may have been written: one of them under the key is ours
	version int64    // of our last write that was answered; 0: none
	took    bool     // the key was ours once: another's value there now means that we were replaced
	err     error    // read after done
}

// Announce writes data under key with a lease, and again with a new lease whenever the lease or the key was lost. It
// replaces what it finds under the key at its start: the process that started last wins. The data MUST differ between
// processes (a boot id in it does that). Announce returns at once. The caller MUST Close it.
func Announce(c Coordinator, key string, ttl time.Duration, data []byte, log *slog.Logger) (*Announcement, error) {
	if err := Check(key, data); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Announcement{c: c, key: key, ttl: ttl, log: log, stop: stop, done: make(chan struct{}),
		changed: make(chan struct{}, 1), data: data}
	go a.run(ctx)
	return a, nil
}

// Set announces another value.
func (a *Announcement) Set(data []byte) error {
	if err := Check(a.key, data); err != nil {
		return err
	}
	a.mu.Lock()
	a.data = data
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default: // the goroutine has not yet taken the change before this one, and will read this value
	}
	return nil
}

// Done is closed when the announcement has ended, by Close or because another process took the key.
func (a *Announcement) Done() <-chan struct{} { return a.done }

// Err returns ErrReplaced if another process took the key. It is valid after Done.
func (a *Announcement) Err() error { return a.err }

// Close writes the last value of Set, removes the key, unless it is another process's by now, and waits for the
// goroutine. If the coordinator does not answer, the key expires with its lease.
func (a *Announcement) Close() error {
	a.stop()
	<-a.done
	return a.err
}

func (a *Announcement) run(ctx context.Context) {
	defer close(a.done)
	defer a.stop()
	var wait Backoff
	for {
		err := a.hold(ctx, &wait)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrReplaced):
			a.log.Error("another process announced itself under our key", "key", a.key)
			a.err = err
			return
		}
		if wait.Tell() {
			a.log.Warn("announcing this process again", "key", a.key, "reason", err)
		}
		if !wait.Wait(ctx) {
			return
		}
	}
}

// hold announces with one lease, until that is lost. A coordinator that answers slowly costs attempts, not the lease.
func (a *Announcement) hold(ctx context.Context, wait *Backoff) (err error) {
	lease, err := a.c.Grant(ctx, a.ttl)
	if err != nil {
		return err
	}
	defer func() {
		if errors.Is(err, ErrLeaseLost) {
			return // it has ended: what is left of it under the key is written over
		}
		c, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if ctx.Err() != nil && a.version != 0 && !errors.Is(err, ErrReplaced) {
			a.putLast(c, lease)
		}
		_ = lease.Close(c) // if it fails, the lease expires
	}()
	a.version = 0 // whatever is under the key has another lease
	check := time.NewTicker(lease.TTL() / 3)
	defer check.Stop()
	for {
		err = a.put(ctx, lease)
		switch {
		case err == nil:
			wait.Reset()
		case errors.Is(err, ErrUnavailable):
			if !wait.Wait(ctx) {
				return ctx.Err()
			}
			select {
			case <-lease.Lost():
				return ErrLeaseLost
			default:
				continue
			}
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-lease.Lost():
			return ErrLeaseLost
		case <-a.changed:
		case <-check.C: // someone may have deleted the key by hand
		}
	}
}

// putLast makes an attempt to write what Set got just before Close: others see it before the key goes.
func (a *Announcement) putLast(ctx context.Context, lease Lease) {
	ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_ = a.put(ctx, lease) // if it fails, others see only that the key goes
}

// put makes sure that the key has our value and lease.
func (a *Announcement) put(ctx context.Context, lease Lease) error {
	a.mu.Lock()
	data := a.data
	a.mu.Unlock()
	for {
		e, err := a.c.Get(ctx, a.key)
		if err != nil {
			return err
		}
		if e.Version != 0 && e.Version == a.version && bytes.Equal(e.Data, data) {
			return nil
		}
		if e.Version != 0 && a.took && !a.ours(e.Data) {
			return fmt.Errorf("%w: %s", ErrReplaced, a.key)
		}
		a.remember(data)
		version, err := a.c.Swap(ctx, a.key, data, e.Version, lease)
		if errors.Is(err, ErrConflict) {
			continue
		}
		if err != nil {
			return err
		}
		a.version, a.took = version, true
		return nil
	}
}

func (a *Announcement) ours(data []byte) bool {
	for _, s := range a.sent {
		if bytes.Equal(s, data) {
			return true
		}
	}
	return false
}

// remember keeps the last values that were sent: a write that was not answered may be found under the key later.
func (a *Announcement) remember(data []byte) {
	if a.ours(data) {
		return
	}
	a.sent = append(a.sent, data)
	if len(a.sent) > 16 {
		a.sent = a.sent[1:]
	}
}
