package history

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"

	"grebe/catalog/filter"
)

// Bounds of the columns that are kept. A column takes 12 bytes for each value.
const (
	maxColumns      = 16
	maxColumnValues = 64 << 20 // of all columns

	maxPrepared       = 4        // columns that are made before a question
	maxPreparedValues = 16 << 20 // of all of them, about
	samples           = 512      // items that say which they are
)

// columns keeps the ordered values of attributes. All tables of a generation share it.
type columns struct {
	mu     sync.Mutex
	kept   map[columnOf]*Column
	values int // of all of them
}

type columnOf struct {
	name string
	kind filter.Kind
}

// Column has the values of one kind that slots have of an attribute, ascending. It never changes.
type Column struct {
	Keys  []int64
	Slots []uint32
	upTo  int // slots that it covers
}

// Column returns the values of an attribute, of slots in use or not. The first question goes over all items; later
// ones, also of later tables, over those that came since. It may cover slots of later tables.
func (t *Table) Column(name string, kind filter.Kind) *Column {
	defer runtime.KeepAlive(t)
	c := t.ordered
	c.mu.Lock()
	defer c.mu.Unlock()
	of := columnOf{name, kind}
	was := c.kept[of]
	if was != nil && was.upTo >= t.Slots() {
		return was
	}
	if was == nil {
		was = &Column{}
	}
	col := was.with(t.since(was.upTo, name, kind))
	col.upTo = t.Slots()
	c.keep(of, col)
	return col
}

// Prepare makes the columns of attributes that look like numbers or times, so that the first question does not wait. It
// leaves out those that are there already, and ends early with the context.
func (t *Table) Prepare(ctx context.Context) {
	for i, of := range t.likely() {
		if i == maxPrepared || (i+1)*t.Slots() > maxPreparedValues || ctx.Err() != nil {
			return
		}
		c := t.ordered
		c.mu.Lock()
		known := c.kept[of] != nil
		c.mu.Unlock()
		if !known {
			t.Column(of.name, of.kind)
		}
	}
}

// likely returns the attributes that most items of a sample have, and whose values there are all numbers, or all times.
// Those of most items come first.
func (t *Table) likely() (out []columnOf) {
	defer runtime.KeepAlive(t)
	has, values := map[string]int{}, map[columnOf]int{}
	n := min(samples, t.Slots())
	for i := range n {
		r := t.record(uint32(i * t.Slots() / n))
		r.names(func(shared string) bool {
			name := strings.Clone(shared)
			all := map[filter.Kind]bool{filter.Number: true, filter.Time: true}
			r.values(name, func(v string) bool {
				for kind := range all {
					_, ok := kind.Key(v)
					all[kind] = all[kind] && ok
				}
				return true
			})
			has[name]++
			for kind, ok := range all {
				if ok {
					values[columnOf{name, kind}]++
				}
			}
			return len(has) < samples
		})
	}
	for of, count := range values {
		if count == has[of.name] && count > n/2 {
			out = append(out, of)
		}
	}
	slices.SortFunc(out, func(a, b columnOf) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a.name, b.name), cmp.Compare(a.kind, b.kind))
	})
	return out
}

// pair is a value and its slot.
type pair struct {
	key  int64
	slot uint32
}

// since returns the values of the slots from one on, ascending.
func (t *Table) since(from int, name string, kind filter.Kind) []pair {
	var out []pair
	for slot, r := range t.all(from) {
		r.values(name, func(v string) bool {
			if key, ok := kind.Key(v); ok {
				out = append(out, pair{key, uint32(slot)})
			}
			return true
		})
	}
	return sorted(out)
}

// sorted orders pairs by their keys. Equal ones keep their order. It is a radix sort, which takes a fraction of the
// time of a comparing one for a million items.
func sorted(in []pair) []pair {
	out := make([]pair, len(in))
	for shift := 0; shift < 64; shift += 8 {
		var starts [256]int
		for _, p := range in {
			starts[digit(p.key, shift)]++
		}
		if len(in) == 0 || starts[digit(in[0].key, shift)] == len(in) {
			continue // all have the same digit
		}
		sum := 0
		for d, n := range starts {
			starts[d] = sum
			sum += n
		}
		for _, p := range in {
			d := digit(p.key, shift)
			out[starts[d]] = p
			starts[d]++
		}
		in, out = out, in
	}
	return in
}

// digit returns eight bits of a key, in the order of signed numbers.
func digit(key int64, shift int) uint8 { return uint8((uint64(key) ^ 1<<63) >> shift) }

// with returns the column with more values, which ascend and whose slots are larger.
func (c *Column) with(more []pair) *Column {
	n := len(c.Keys) + len(more)
	out := &Column{Keys: make([]int64, 0, n), Slots: make([]uint32, 0, n)}
	at := 0
	for _, p := range more {
		i, _ := slices.BinarySearch(c.Keys[at:], p.key+1) // behind equal ones
		if p.key+1 < p.key {
			i = len(c.Keys) - at
		}
		out.Keys, out.Slots = append(out.Keys, c.Keys[at:at+i]...), append(out.Slots, c.Slots[at:at+i]...)
		out.Keys, out.Slots = append(out.Keys, p.key), append(out.Slots, p.slot)
		at += i
	}
	out.Keys, out.Slots = append(out.Keys, c.Keys[at:]...), append(out.Slots, c.Slots[at:]...)
	return out
}

// keep remembers a column. If there are too many, it forgets the others: those in use come back soon.
func (c *columns) keep(of columnOf, col *Column) {
	if was := c.kept[of]; was != nil {
		c.values -= len(was.Keys)
	}
	if c.kept == nil || len(c.kept) >= maxColumns && c.kept[of] == nil || c.values+len(col.Keys) > maxColumnValues {
		c.kept, c.values = map[columnOf]*Column{}, 0
	}
	if len(of.name) <= maxNamed && len(col.Keys) <= maxColumnValues {
		c.kept[of] = col
		c.values += len(col.Keys)
	}
}
