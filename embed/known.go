package embed

import "sync"

// listeners are told of rows that change.
type listeners struct {
	mu    sync.Mutex
	on    bool // the store tells, too
	next  int
	heard map[int]func(keys []uint64)
}

// Listen has changed called with the keys of rows whose content has changed, or nil if all may have: after a Put or
// Delete through the table, and after a store reported what others wrote. Stores in Pebble and files do not report
// others. The table's own cache has forgotten the rows before. A store's connection may be made anew, so call Listen
// before requests come. stop ends the calls; none is under way when it returns.
func (t *Table) Listen(changed func(keys []uint64)) (stop func()) {
	l := &t.listeners
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.heard == nil {
		l.heard = map[int]func([]uint64){}
	}
	l.next++
	n := l.next
	l.heard[n] = changed
	if w, ok := t.store.(watched); ok && !l.on {
		l.on = true
		w.Watch(t.changed)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.heard, n)
	}
}

// changed has the cache forget keys, nil: all, and then tells the listeners: what they fetch from now on is not older.
func (t *Table) changed(keys []uint64) {
	l := &t.listeners
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.cache != nil {
		t.cache.changed(keys)
	}
	for _, f := range l.heard {
		f(keys)
	}
}
