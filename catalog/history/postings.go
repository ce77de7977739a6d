package history

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// What is remembered is bounded: what clients filter by is not. Of a question with many values nothing is
// remembered.
const (
	maxPostings = 1024
	minPosted   = 1 << 16 // slots of all postings, or twice those of the table
	maxAtOnce   = 8
	maxNamed    = 1024 // bytes of an attribute's name and value
	maxNames    = 4096 // attributes whose names are remembered
)

// postings remembers which slots have an attribute. All tables of a generation share it.
type postings struct {
	mu    sync.Mutex
	kept  map[attribute]*posting
	total int // slots of all of them

	names map[string]bool // of attributes, of the slots below named
	named int
}

type attribute struct{ name, value string }

// posting is the slots below upTo that have an attribute, ascending.
type posting struct {
	upTo  int
	slots []uint32
}

// Having returns, for each value of an attribute, the slots whose items have it, ascending, in use or
// not. The first question goes over all items; later ones, also of later tables, over those that came
// since. The caller MUST NOT change what it gets.
func (t *Table) Having(name string, values []string) [][]uint32 {
	p := t.found
	p.mu.Lock()
	defer p.mu.Unlock()
	all, stale, total := make([]*posting, len(values)), map[string]*posting{}, 0
	for i, v := range values {
		if all[i] = p.kept[attribute{name, v}]; all[i] == nil {
			if all[i] = stale[v]; all[i] == nil {
				all[i] = &posting{}
			}
		}
		if all[i].upTo < t.Slots() && stale[v] == nil {
			stale[v] = all[i]
			total -= len(all[i].slots) // what is counted already; 0 of a new one
		}
	}
	t.post(name, stale)
	many := len(stale) > maxAtOnce
	for v, s := range stale {
		if p.kept[attribute{name, v}] == nil && (many || len(name)+len(v) > maxNamed) {
			delete(stale, v)
			continue
		}
		total += len(s.slots)
	}
	p.keep(t, name, stale, total)
	out := make([][]uint32, len(values))
	for i, found := range all {
		n, _ := slices.BinarySearch(found.slots, uint32(t.Slots())) // a later table may have found more
		out[i] = found.slots[:n:n]
	}
	return out
}

// Named reports whether an item has an attribute, in use or not; if none has, it returns the names that there are,
// sorted. Of more than 4,096 names all are taken to be there.
func (t *Table) Named(name string) (has bool, all []string) {
	p := t.found
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.names == nil {
		p.names = map[string]bool{}
	}
	if p.names[name] || len(p.names) > maxNames {
		return true, nil
	}
	if p.named < t.Slots() {
		for _, r := range t.all(p.named) {
			r.names(func(n string) bool {
				if !p.names[n] {
					p.names[strings.Clone(n)] = true
				}
				return len(p.names) <= maxNames
			})
		}
		p.named = t.Slots()
	}
	if p.names[name] || len(p.names) > maxNames {
		return true, nil
	}
	return false, slices.Sorted(maps.Keys(p.names))
}

func (p *postings) keep(t *Table, name string, found map[string]*posting, total int) {
	if p.kept == nil {
		p.kept = map[attribute]*posting{}
	}
	if len(p.kept)+len(found) > maxPostings || p.total+total > max(minPosted, 2*t.Slots()) {
		p.kept, p.total = map[attribute]*posting{}, 0 // what is in use comes back soon
		return
	}
	for v, s := range found {
		p.kept[attribute{name, v}] = s
	}
	p.total += total
}

// post goes over the slots that some postings do not know.
func (t *Table) post(name string, stale map[string]*posting) {
	from := t.Slots()
	for _, p := range stale {
		from = min(from, p.upTo)
	}
	if len(stale) == 0 {
		return
	}
	for slot, r := range t.all(from) {
		r.values(name, func(v string) bool {
			p := stale[v]
			if p != nil && slot >= p.upTo && (len(p.slots) == 0 || p.slots[len(p.slots)-1] != uint32(slot)) {
				p.slots = append(p.slots, uint32(slot))
			}
			return true
		})
	}
	for _, p := range stale {
		p.upTo = t.Slots()
	}
}
