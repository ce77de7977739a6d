package serve

import "sync"

// itemChanges numbers the changes of the catalog's items, and has the ids of the last ones. So what was made of items
// is known to be right as long as none of them has changed since.
type itemChanges struct {
	mu   sync.RWMutex
	last uint64                    // changes so far
	ids  [rememberedChanges]string // change n is at (n−1) mod rememberedChanges
}

const rememberedChanges = 1024

// add notes a change. Readers of the catalog see it already, and whoever made it does not know yet that it is made.
func (x *itemChanges) add(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids[x.last%rememberedChanges] = id
	x.last++
}

// now returns the number of the last change.
func (x *itemChanges) now() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.last
}

// since returns the number of the last change, and the ids of the items that changed after change n; false: they are
// too many to know. An id may be there twice.
func (x *itemChanges) since(n uint64) (last uint64, ids []string, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.last == n {
		return n, nil, true
	}
	if x.last-n > rememberedChanges {
		return x.last, nil, false
	}
	for from, left := n%rememberedChanges, x.last-n; left > 0; from = 0 {
		part := min(left, rememberedChanges-from)
		ids = append(ids, x.ids[from:from+part]...)
		left -= part
	}
	return x.last, ids, true
}
