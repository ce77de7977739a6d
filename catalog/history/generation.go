package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"grebe/catalog"
	"grebe/internal/durable"
)

// Digest identifies the items of a version by their contents, whatever their order. It is
// a sum of digests, which guards against mistakes and damage, not against somebody who makes items for it.
type Digest [2]uint64

func (d Digest) String() string {
	b := d.append(nil)
	return hex.EncodeToString(b)
}

func (d Digest) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, d[0]), d[1])
}

func (d Digest) plus(e Digest) Digest  { return Digest{d[0] + e[0], d[1] + e[1]} }
func (d Digest) minus(e Digest) Digest { return Digest{d[0] - e[0], d[1] - e[1]} }

func digestOf(content []byte) Digest {
	h := sha256.Sum256(content)
	return Digest{binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16])}
}

// digest sums over all records, on all cores.
func (s *segment) digest() Digest {
	parts := make([]Digest, runtime.GOMAXPROCS(0))
	each := (len(s.marks)/len(parts) + 1) * markEvery
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			for at, r := range s.records(i * each) {
				if at == (i+1)*each {
					return
				}
				parts[i] = parts[i].plus(digestOf(r.content))
			}
		})
	}
	wg.Wait()
	var sum Digest
	for _, p := range parts {
		sum = sum.plus(p)
	}
	return sum
}

// head describes a version where it is written.
type head struct {
	number  uint64
	created time.Time
	bare    int
	items   int
	digest  Digest
}

// Generation is a base of items and what changed since.
type Generation struct {
	begun     head
	dir       string
	baseSlots int
	plain     bool // of format 1: without texts, and without items that have no codes

	table *Table // of the last version; nil: to be loaded
	ops   []uint32
	now   head     // of the last version
	alive []uint64 // slots in use at the last version

	log  *durable.File
	size int64 // of what is whole in it
	last int64 // where its last frame begins, if it was read

	unsure bool // the process before may have failed to sync its last frame

	stored bool   // its files are there
	safe   uint64 // the last version in them
	failed bool   // the log cannot be appended to

	prior   *Version // what it begins with, in the generation before; until the next version
	numbers []uint32 // slots here, by slots there
}

// An op of a log is a slot, and whether its item goes or comes.
const goes = 1

func newGeneration(dir string, begun head, base segment) *Generation {
	g := &Generation{begun: begun, dir: dir}
	g.fill(base)
	return g
}

// fill begins with the base.
func (g *Generation) fill(base segment) {
	g.now, g.baseSlots = g.begun, base.n
	g.table, g.ops = newTable(base), nil
	g.alive = make([]uint64, (base.n+63)/64)
	for i := range g.alive {
		g.alive[i] = math.MaxUint64
	}
	if tail := base.n % 64; tail != 0 {
		g.alive[len(g.alive)-1] = 1<<tail - 1
	}
}

// first returns the version that the generation began with.
func (g *Generation) first() *Version { return g.version(g.begun, 0, g.baseSlots) }

func (g *Generation) version(h head, ops, slots int) *Version {
	return &Version{Number: h.number, Created: h.created, Items: h.items, Bare: h.bare, Digest: h.digest, gen: g, ops: ops,
		slots: slots}
}

// at returns the table as it was when it had some slots.
func (g *Generation) at(slots int) *Table {
	t := *g.table
	t.tail.n = slots - t.base.n
	return &t
}

func (g *Generation) lives(slot uint32) bool { return g.alive[slot/64]>>(slot%64)&1 != 0 }

// apply makes the changes of a frame and completes it.
func (g *Generation) apply(f *frame) *Version {
	g.settle()
	for _, slot := range f.removed {
		g.alive[slot/64] &^= 1 << (slot % 64)
		g.now.digest = g.now.digest.minus(digestOf(g.table.record(slot).content))
		g.ops = append(g.ops, slot<<1|goes)
	}
	for _, r := range f.added {
		slot := g.table.add(r.version, r.content)
		if int(slot/64) == len(g.alive) {
			g.alive = append(g.alive, 0)
		}
		g.alive[slot/64] |= 1 << (slot % 64)
		g.now.digest = g.now.digest.plus(digestOf(r.content))
		g.ops = append(g.ops, slot<<1)
	}
	total := g.total(&g.now) + len(f.added) - len(f.removed)
	g.now.number, g.now.created, g.now.bare = f.version, f.created, f.bare
	if g.now.items = total; !g.plain {
		g.now.items -= f.bare
	}
	f.items, f.digest = g.now.items, g.now.digest
	return g.version(g.now, len(g.ops), g.table.Slots())
}

// total returns the slots in use at a version.
func (g *Generation) total(h *head) int {
	if g.plain {
		return h.items
	}
	return h.items + h.bare
}

// settle lets go of the generation before, which now nobody goes on from.
func (g *Generation) settle() {
	if g.prior != nil {
		g.prior.gen.retire()
	}
	g.prior, g.numbers = nil, nil
}

// long reports whether it is time for the next generation.
func (g *Generation) long(least int) bool {
	return len(g.ops) > max(least, g.baseSlots/4)
}

// compact makes the next generation, which begins with the items of the last version.
func (g *Generation) compact(v *Version) *Generation {
	var base segment
	numbers := make([]uint32, g.table.Slots())
	for slot, r := range g.table.all(0) {
		if g.lives(uint32(slot)) {
			numbers[slot] = uint32(base.n)
			base.add(r.version, r.content)
		}
	}
	next := newGeneration(g.dir, g.now, base)
	next.prior, next.numbers = v, numbers
	return next
}

// diff returns what makes the last version one of the given items, versions ascending. It fails where one
// version of an item means two things: then the generation is of another catalog.
func (g *Generation) diff(items iter.Seq[catalog.Entry]) (f frame, ok bool) {
	var buf []byte
	add := func(e catalog.Entry) { f.added = append(f.added, record{e.Version, content(nil, e.Item)}) }
	pull, stop := iter.Pull(items)
	defer stop()
	following := func() (catalog.Entry, bool) {
		e, more := pull()
		if more && len(e.Item.Codes) == 0 {
			f.bare++
		}
		return e, more
	}
	e, more := following()
	for slot, r := range g.byVersion() {
		for more && e.Version < r.version {
			add(e)
			e, more = following()
		}
		if more && e.Version == r.version {
			buf = content(buf[:0], e.Item)
			if string(buf) != string(r.content) {
				return f, false
			}
			e, more = following()
			continue
		}
		f.removed = append(f.removed, slot)
	}
	for more {
		add(e)
		e, more = following()
	}
	return f, true
}

// byVersion visits the slots in use in the order of their items' versions. Slots are in that order but for
// items of imports, which get theirs when the import ends.
func (g *Generation) byVersion() iter.Seq2[uint32, record] {
	return func(yield func(uint32, record) bool) {
		last, sorted := uint64(0), true
		for slot, r := range g.table.all(0) {
			if sorted = sorted && (r.version >= last || !g.lives(uint32(slot))); !sorted {
				break
			}
			if g.lives(uint32(slot)) {
				last = r.version
			}
		}
		if sorted {
			for slot, r := range g.table.all(0) {
				if g.lives(uint32(slot)) && !yield(uint32(slot), r) {
					return
				}
			}
			return
		}
		type place struct {
			slot uint32
			r    record
		}
		var order []place
		for slot, r := range g.table.all(0) {
			if g.lives(uint32(slot)) {
				order = append(order, place{uint32(slot), r})
			}
		}
		slices.SortFunc(order, func(a, b place) int { return cmp.Compare(a.r.version, b.r.version) })
		for _, p := range order {
			if !yield(p.slot, p.r) {
				return
			}
		}
	}
}

// net returns what a part of the log comes to.
func (g *Generation) net(from, to int) (removed, added []uint32) {
	first := uint32(math.MaxUint32) // slot that came in this part
	for _, op := range g.ops[from:to] {
		if op&goes == 0 {
			first = op >> 1
			break
		}
	}
	passing := map[uint32]bool{}
	for _, op := range g.ops[from:to] {
		if slot := op >> 1; op&goes != 0 && slot >= first {
			passing[slot] = true
		} else if op&goes != 0 {
			removed = append(removed, slot)
		}
	}
	for _, op := range g.ops[from:to] {
		if op&goes == 0 && !passing[op>>1] {
			added = append(added, op>>1)
		}
	}
	return removed, added
}

// live returns the slots in use at a version.
func (g *Generation) live(v *Version) []uint32 {
	alive := make([]bool, v.slots)
	for i := range g.baseSlots {
		alive[i] = true
	}
	for _, op := range g.ops[:v.ops] {
		alive[op>>1] = op&goes == 0
	}
	out := make([]uint32, 0, v.Items+v.Bare)
	for slot, yes := range alive {
		if yes {
			out = append(out, uint32(slot))
		}
	}
	return out
}
