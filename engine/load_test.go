package engine

import (
	"sync"
	"time"

	"grebe/kv"
)

// brought is a Load that a test fills. It waits for the end where it may wait for ever, and otherwise not at all.
type brought struct {
	mu    sync.Mutex
	came  map[int]*kv.Entry // by part
	ended chan struct{}     // closed by end
	left  chan struct{}     // closed by Stop
	once  sync.Once
	asked []Wait        // by batches
	waits time.Duration // that Take says it waited
}

func newBrought() *brought {
	return &brought{came: map[int]*kv.Entry{}, ended: make(chan struct{}), left: make(chan struct{})}
}

func (b *brought) bring(part int, e *kv.Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came[part] = e
}

func (b *brought) end() { close(b.ended) }

func (b *brought) Stop() { b.once.Do(func() { close(b.left) }) }

func (b *brought) stopped() bool {
	select {
	case <-b.left:
		return true
	default:
		return false
	}
}

func (b *brought) Take(parts []Part, w Wait) time.Duration {
	if w.Patience == 0 {
		select {
		case <-b.ended:
		case <-b.left:
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, w)
	for i, e := range b.came {
		parts[i].Entry = e
	}
	return b.waits
}
