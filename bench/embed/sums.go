package embed

import (
	"context"
	"fmt"
	"unsafe"

	table "grebe/embed"
)

// summer is SparseLengthsSum: rows are gathered, then added up, eight to a sum.
type summer struct {
	rows []byte
	out  []float32
}

// counts of lookups, of those that hit, and of rows asked of the store.
type counts struct{ lookups, hits, asked int }

func (c *counts) add(d counts) {
	c.lookups, c.hits, c.asked = c.lookups+d.lookups, c.hits+d.hits, c.asked+d.asked
}

func (c *counts) share(n int) float64 { return float64(n) / float64(c.lookups) }

func newSums(batch int) *summer {
	return &summer{rows: make([]byte, batch*lookups*rowBytes), out: make([]float32, batch*rowFloats)}
}

// run computes the sums of all keys in batches.
func (s *summer) run(ctx context.Context, t *table.Table, keys []uint64, batch int) (c counts, err error) {
	for n := batch * lookups; len(keys) >= n; keys = keys[n:] {
		g := t.Gather(ctx, keys[:n], s.rows[:n*rowBytes])
		if g.Err != nil || g.Default > 0 {
			return c, fmt.Errorf("%d of %d rows are defaults: %w", g.Default, n, g.Err)
		}
		c.add(counts{lookups: n, hits: g.Hits, asked: g.Asked})
		for b := range batch {
			s.sum(b)
		}
	}
	return c, ctx.Err()
}

func (s *summer) sum(b int) {
	out := (*[rowFloats]float32)(s.out[b*rowFloats:])
	if hasAddRows {
		addRows(&out[0], (*float32)(unsafe.Pointer(&s.rows[b*lookups*rowBytes])), lookups)
		return
	}
	clear(out[:])
	for i := range lookups {
		row := (*[rowFloats]float32)(unsafe.Pointer(&s.rows[(b*lookups+i)*rowBytes]))
		for j := range out {
			out[j] += row[j]
		}
	}
}

// check compares the sums of a batch, by every contender, with those of rows from memory. The numbers are small
// integers: sums are exact.
func (s *summer) check(ctx context.Context, truth table.Store, cs []*contender, keys []uint64) error {
	plain, err := table.NewTable(truth, nil, table.TableConfig{})
	if err != nil {
		return err
	}
	n := len(keys) / lookups
	if _, err := s.run(ctx, plain, keys, n); err != nil {
		return err
	}
	want := append([]float32(nil), s.out[:n*rowFloats]...)
	for _, c := range cs {
		if _, err := s.run(ctx, c.table, keys, n); err != nil {
			return err
		}
		for i, v := range want {
			if s.out[i] != v {
				return fmt.Errorf("%s: sum %d is %v, want %v", c.policy, i, s.out[i], v)
			}
		}
	}
	return nil
}
