//go:build !noasm && !race

package embed

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"grebe/evict"
)

var hasWide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasBMI1

// flight is what runWide works on: the lookups' arrays from key 0, and where row from goes.
type flight struct {
	hashes   *uint64
	sets     **set
	masks    *uint64
	slots    *int
	origin   unsafe.Pointer
	out      unsafe.Pointer
	rowBytes int
	from, to int

	// of the table in memory:
	keys    *uint64 // from key 0
	count   int     // keys
	table   unsafe.Pointer
	present *uint64 // a bit per row
	rows    uint64  // 0: there is none
}

// runWide is runPlain for rows of whole cache lines.
//
//go:noescape
func runWide(f *flight)

var hasMarks = hasWide && cpu.X86.HasAVX512DQ && cpu.X86.HasBMI2

// marking is what markWide works on: n keys, the first of which is used now.
type marking struct {
	sets              **set
	slots             *int
	n                 int
	now               uint64
	last, short, long uint64
	more              *[256]uint64
}

// markWide is [evict.Slab]'s Use for the stamps of all keys that have a slot, eight at a time.
//
//go:noescape
func markWide(m *marking)

// marks records the uses of keys from … to−1; false where the caller must.
func (l *lookups) marks(slab evict.Slab, from, to int, now uint64) bool {
	if !hasMarks {
		return false
	}
	last, short, long, more := slab.Parts()
	markWide(&marking{&l.sets[lead+from], &l.slots[lead+from], to - from, now, uint64(last), uint64(short), uint64(long),
		more})
	return true
}

func (l *lookups) run(c *Cache, out []byte, from, to int) {
	if !hasWide || c.rowBytes%64 != 0 {
		l.runPlain(c, out, from, to)
		return
	}
	f := flight{
		hashes: &l.hashes[lead], sets: &l.sets[lead], masks: &l.masks[lead], slots: &l.slots[lead],
		origin: c.origin, out: unsafe.Pointer(&out[max(from, 0)*c.rowBytes]), rowBytes: c.rowBytes, from: from, to: to,
	}
	if m := l.near; m != nil && m.n > 0 && len(l.keys) > 0 {
		f.keys, f.count = &l.keys[0], len(l.keys)
		f.table, f.present, f.rows = unsafe.Pointer(&m.rows[0]), &m.present[0], m.n
	}
	if from < 0 { // no row of these is copied
		f.out = nil
	}
	runWide(&f)
}
