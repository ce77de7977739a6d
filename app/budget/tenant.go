package budget

import (
	"sync"
	"sync/atomic"

	"grebe/alloc"
	"grebe/pool"
	"grebe/schedule"
)

// Load provides the compute times of a model, as dispatch.Dispatcher does.
type Load interface {
	Model() schedule.PrefillModel
}

// Store is a cache on a tenant's pages, as kv.Store is.
type Store interface {
	// Trim evicts until the store is within its limit. It returns false if the rest is in use.
	Trim() bool
}

// ghostEntries is the number of evictions that a tenant remembers.
const ghostEntries = 1 << 14

// Tenant is a model's part of a Budget. It implements kv.Watcher.
type Tenant struct {
	budget *Budget
	name   string
	pool   *pool.Pool
	store  Store
	load   atomic.Pointer[Load]
	claim  alloc.Claim // guarded by Budget.mu

	mu    sync.Mutex
	ghost *alloc.Ghost
	used  int64 // bytes at the last report
	saved int64 // tokens that hits saved since the last report
	lost  int64 // tokens computed again that the whole budget would have kept
	kept  int64 // bytes of new entries
	entry int64 // bytes of the largest entry that was kept or refused
}

// Pool returns the tenant's pages.
func (t *Tenant) Pool() *pool.Pool { return t.pool }

// Work starts to move the limit; s follows it. The caller MUST call Stop before it closes s.
func (t *Tenant) Work(s Store) {
	t.store = s
	t.budget.add(t)
}

// Stop stops moving the limit. When it returns, the budget no longer uses the store.
func (t *Tenant) Stop() { t.budget.remove(t) }

// Leave gives back the tenant's part. All its pages MUST be free.
func (t *Tenant) Leave() error { return t.pool.Leave() }

// SetLoad sets the source of compute times. Before that a token counts as a millisecond.
func (t *Tenant) SetLoad(l Load) { t.load.Store(&l) }

// Hit implements kv.Watcher.
func (t *Tenant) Hit(tokens int) {
	t.mu.Lock()
	t.saved += int64(tokens)
	t.mu.Unlock()
}

// Kept implements kv.Watcher.
func (t *Tenant) Kept(key uint64, bytes int64, tokens int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept += bytes
	t.entry = max(t.entry, bytes)
	if depth, ok := t.ghost.Missed(max(key, 1)); ok && t.used+depth <= t.budget.core.Bytes {
		t.lost += int64(tokens)
	}
}

// Evicted implements kv.Watcher.
func (t *Tenant) Evicted(key uint64, bytes int64) {
	t.mu.Lock()
	t.ghost.Evicted(max(key, 1), bytes)
	t.mu.Unlock()
}

// Refused implements kv.Watcher.
func (t *Tenant) Refused(bytes int64) {
	t.mu.Lock()
	t.entry = max(t.entry, bytes)
	t.mu.Unlock()
}

// report fills in the claim of an epoch. The caller holds Budget.mu.
func (t *Tenant) report() {
	ms := t.perToken()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used = t.pool.Stats().Used
	c := &t.claim
	c.Used, c.Kept, c.Entry, c.Saved, c.Lost = t.used, t.kept, t.entry, ms*float64(t.saved), ms*float64(t.lost)
	t.kept, t.entry, t.saved, t.lost = 0, 0, 0, 0
}

const (
	typical = 256  // tokens of the prompt that prices a token
	least   = 1e-6 // lower bound of its milliseconds: if computing takes no time, memory still follows the requests
)

// perToken returns the milliseconds to compute a token.
func (t *Tenant) perToken() float64 {
	l := t.load.Load()
	if l == nil {
		return 1
	}
	times := (*l).Model()
	return max(times.Predict(typical, typical*(typical+1)/2, 1)-times.Fixed-times.Request, least) / typical
}
