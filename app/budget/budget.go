// Package budget lets the models of a process compete for host memory. All of it is one pool. Each model has a part
// of the pool with a limit, and alloc.Budget moves the limits four times a second. A model whose limit falls evicts
// entries until it is below it. The size of the pool itself never changes.
//
// Each model reports what its memory is worth: the tokens that hits saved, and the tokens that were computed again
// after their entry was evicted. The scheduler's prefill model converts tokens to milliseconds.
//
// A Budget is safe for concurrent use. Lock order: Budget.mu, then the locks of a store, then Tenant.mu.
package budget

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/alloc"
	"grebe/compute"
	"grebe/internal/tick"
	"grebe/pool"
)

// Budget is host memory that tenants share.
type Budget struct {
	root *pool.Pool

	mu      sync.Mutex
	core    alloc.Budget
	tenants []*Tenant // those whose limits move
	claims  []*alloc.Claim
}

// New allocates bytes of m, in pages of page bytes. The caller MUST Close the Budget after its last tenant has left.
func New(m compute.Memory, bytes int64, page int) (*Budget, error) {
	root, err := pool.Over(m, bytes, page)
	if err != nil {
		return nil, fmt.Errorf("budget: %w", err)
	}
	root.SetLimit(0)
	return &Budget{root: root, core: alloc.Budget{Bytes: root.Stats().Arena}}, nil
}

// Close frees the memory.
func (b *Budget) Close() error { return b.root.Close() }

// Join adds a tenant. It may own limit bytes until Work is called, and always at least least bytes. The caller MUST
// call its Leave.
func (b *Budget) Join(name string, limit, least int64) *Tenant {
	t := &Tenant{budget: b, name: name, pool: b.root.Join(), ghost: alloc.NewGhost(ghostEntries)}
	t.pool.SetLimit(max(limit, least))
	t.claim.Least = least
	return t
}

// Step makes and applies one decision.
func (b *Budget) Step() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims = b.claims[:0]
	for _, t := range b.tenants {
		t.report()
		b.claims = append(b.claims, &t.claim)
	}
	b.core.Decide(b.claims)
	for _, t := range b.tenants {
		t.pool.SetLimit(t.claim.Limit)
		t.store.Trim() // entries in use are evicted at a later step
	}
}

// Run calls Step once per epoch until ctx ends.
func (b *Budget) Run(ctx context.Context) {
	const epoch = time.Duration(alloc.BudgetEpoch * float64(time.Second))
	timer := time.NewTimer(tick.Wait(epoch))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(tick.Wait(epoch))
			b.Step()
		}
	}
}

func (b *Budget) add(t *Tenant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenants = append(b.tenants, t)
}

func (b *Budget) remove(t *Tenant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenants = slices.DeleteFunc(b.tenants, func(o *Tenant) bool { return o == t })
}

var limitDesc = prometheus.NewDesc("grebe_pool_limit_bytes",
	"Bytes that a model may own now of the host memory that models share.", []string{"model"}, nil)

// Describe implements prometheus.Collector.
func (b *Budget) Describe(ch chan<- *prometheus.Desc) { ch <- limitDesc }

// Collect implements prometheus.Collector. If a model has memory for two shapes, it reports the sum of the limits.
func (b *Budget) Collect(ch chan<- prometheus.Metric) {
	limits := map[string]int64{}
	b.mu.Lock()
	for _, t := range b.tenants {
		limits[t.name] += t.pool.Stats().Total
	}
	b.mu.Unlock()
	for name, limit := range limits {
		ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(limit), name)
	}
}
