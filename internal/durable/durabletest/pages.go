// Package durabletest models a disk behind a page cache, for tests of kills and power cuts.
//
// What a process writes is visible at once, to the next process too if it is killed, but durable only after a sync. A
// power cut drops what no sync made durable, whichever process wrote it: all of it, or any part, sector by sector; of a
// folder's names it drops the last changes. Names (created, renamed, removed) are durable after a sync of their folder.
// A sync that fails leaves its pages clean, as Linux does: they stay visible, no later sync writes them, and a power
// cut drops them unless they were written once more.
//
// Pages are the contents of one file. Disk is a tree of files: Pebble databases run on it through FS, and code that
// changes real files through package durable runs beside it after Mount.
package durabletest

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// sector is the unit that reaches the disk whole or not at all.
const sector = 512

// Pages are the contents of a file: what is visible, and what a power cut may leave instead. The zero value is an empty
// file. Pages are not safe for concurrent use.
type Pages struct {
	Data []byte // what is visible; change it with WriteAt, Clear and Resize

	past      map[int64][][]byte // what each changed sector was since it was durable, oldest first
	lost      map[int64][][]byte // likewise, of sectors that a failed sync left clean
	sizes     []int64            // likewise the size
	lostSizes []int64
}

// remember keeps the sectors of a range that is about to change.
func (p *Pages) remember(off, end int64) {
	if p.past == nil {
		p.past, p.lost = map[int64][][]byte{}, map[int64][][]byte{}
	}
	if p.sizes == nil {
		p.sizes, p.lostSizes = p.lostSizes, nil // the inode changes with every write
	}
	for s := off / sector; s*sector < end; s++ {
		was := make([]byte, sector)
		if s*sector < int64(len(p.Data)) {
			copy(was, p.Data[s*sector:])
		}
		if p.past[s] == nil {
			p.past[s] = p.lost[s]
			delete(p.lost, s)
		}
		p.past[s] = append(p.past[s][:len(p.past[s]):len(p.past[s])], was)
	}
}

// Resize changes the size: what comes is zero.
func (p *Pages) Resize(n int64) {
	size := int64(len(p.Data))
	p.remember(min(n, size), size)
	p.sizes = append(p.sizes[:len(p.sizes):len(p.sizes)], size)
	if n <= size {
		p.Data = p.Data[:n:n]
		return
	}
	p.Data = append(p.Data, make([]byte, n-size)...)
}

// WriteAt writes, and grows the file if it must.
func (p *Pages) WriteAt(b []byte, off int64) {
	if len(b) == 0 {
		return
	}
	end := off + int64(len(b))
	p.remember(off, end)
	if end > int64(len(p.Data)) {
		p.Resize(end)
	}
	copy(p.Data[off:], b)
}

// Clear makes a range zero as far as the file goes.
func (p *Pages) Clear(off, n int64) {
	if end := min(off+n, int64(len(p.Data))); end > off {
		p.remember(off, end)
		clear(p.Data[off:end])
	}
}

// Sync makes what was written since the last sync durable.
func (p *Pages) Sync() {
	clear(p.past)
	p.sizes = nil
}

// FailSync is a sync that fails: what was written since the last one is clean, and durable in parts at best.
func (p *Pages) FailSync() {
	maps.Copy(p.lost, p.past)
	if p.sizes != nil {
		p.lostSizes = p.sizes
	}
	clear(p.past)
	p.sizes = nil
}

// Durable reports whether a power cut would leave the file as it is.
func (p *Pages) Durable() bool { return len(p.past)+len(p.lost)+len(p.sizes)+len(p.lostSizes) == 0 }

// Clone returns a copy with the same past, as the next process finds it.
func (p *Pages) Clone() Pages {
	// Versions of sectors never change, and appends copy.
	return Pages{
		Data: slices.Clone(p.Data), past: maps.Clone(p.past), lost: maps.Clone(p.lost),
		sizes: slices.Clone(p.sizes), lostSizes: slices.Clone(p.lostSizes),
	}
}

// Cut returns what a power cut may leave: each sector, and the size, as it was when it was last durable or at any time
// since. Without r nothing that is not durable is left.
func (p *Pages) Cut(r *rand.Rand) Pages {
	oldest := r == nil || r.IntN(3) == 0 // of the sectors
	g := Pages{Data: slices.Clone(p.Data)}
	if sizes := append(slices.Clone(p.lostSizes), p.sizes...); len(sizes) > 0 {
		n := sizes[0]
		if r != nil {
			n = append(sizes, int64(len(p.Data)))[r.IntN(len(sizes)+1)]
		}
		g.Resize(n)
	}
	for s := int64(0); s*sector < int64(len(g.Data)); s++ {
		old := p.past[s]
		if old == nil {
			old = p.lost[s]
		}
		if len(old) == 0 {
			continue
		}
		if oldest {
			copy(g.Data[s*sector:], old[0])
		} else if i := r.IntN(len(old) + 1); i < len(old) {
			copy(g.Data[s*sector:], old[i])
		}
	}
	return Pages{Data: g.Data}
}
