package disk

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// found is a record that Open found.
type found struct {
	seq uint64
	id  uint32
}

// recover builds the index from the segments of the folder and erases everything else in them. Times of use
// are not kept on disk. After recover the order of use is the order of writing.
func (s *Store) recover() error {
	names, err := s.dir.List()
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	slices.Sort(names)
	s.unlinked = true   // the last process may have created or removed files
	seqs := []uint64{0} // by id
	marked := s.dir.Marked()
	for _, name := range names {
		id, ok := segmentID(name)
		if !ok {
			continue
		}
		s.nextSeg = max(s.nextSeg, id+1)
		if seqs, err = s.load(id, seqs); err != nil {
			return fmt.Errorf("segment %d: %w", id, err)
		}
		if seg := s.segs[id]; seg != nil && id == marked && seg.failed == nil {
			s.fail(seg, errFailedBefore)
		}
	}
	s.dir.Mark(0)
	s.orderByAge(seqs)
	for _, seg := range s.segments() {
		if seg.records == 0 && seg != s.active {
			s.drop(seg)
		}
	}
	// Put, Delete and Sync try again to erase or evict what fails here.
	if err := s.drain(); err != nil {
		s.opt.Logger.Error("disk: erase what a crash left", "error", err)
	} else if err := s.makeRoom(0); err != nil {
		s.opt.Logger.Error("disk: keep to the budget", "error", err)
	}
	return nil
}

func segmentID(name string) (uint32, bool) {
	hex, ok := strings.CutSuffix(name, segmentSuffix)
	id, err := strconv.ParseUint(hex, 16, 32)
	return uint32(id), ok && err == nil && name == segmentName(uint32(id)) && id != 0
}

// load adds one segment. The last one that is loaded becomes the active one.
func (s *Store) load(id uint32, seqs []uint64) ([]uint64, error) {
	f, err := s.dir.Open(segmentName(id))
	if err != nil {
		return seqs, err
	}
	size, err := f.Size()
	if err != nil {
		_ = f.Close()
		return seqs, err
	}
	first := make([]byte, block)
	n, err := f.ReadAt(first, 0) // after an error the segment is invalid
	nonce, failed, ok := decodeSegment(first[:n])
	if !ok {
		s.opt.Logger.Warn("disk: a file is no segment", "segment", id, "bytes", size, "error", err)
		s.discard(&segment{id: id, f: f, end: roundUp(size, block), refs: 1})
		return seqs, nil
	}
	// A process that was killed may have written it, and it may be in the page cache only.
	seg := &segment{id: id, nonce: nonce, f: f, end: block, refs: 1, dirty: true, erased: true}
	if failed {
		seg.failed = errFailedBefore
	}
	s.segs[id] = seg
	var rest []extent
	err = seg.walk(size, func(h header) { seqs = s.admit(seg, &h, seqs) }, func(off, n int64, torn bool) {
		if torn {
			s.stats.TornRecords++
		}
		if torn || s.punch {
			rest = append(rest, extent{seg, off, n})
		}
	})
	if err != nil {
		return seqs, err
	}
	s.cut(seg, size, rest)
	s.held += s.holds(seg)
	if seg.failed == nil {
		s.active = seg
	}
	return seqs, nil
}

// discard removes a file that is not a valid segment: it was not completed, is damaged, or has another
// version.
func (s *Store) discard(seg *segment) {
	if seg.end > 0 {
		s.stats.TornRecords++
	}
	seg.bytes = max(0, seg.end-block)
	s.segs[seg.id] = seg
	s.held += s.holds(seg)
	s.drop(seg)
}

// admit adds a valid record to the index, unless it has another version or the key has a newer record.
func (s *Store) admit(seg *segment, h *header, seqs []uint64) []uint64 {
	s.seq = max(s.seq, h.seq)
	size := recordSize(h.meta, h.payload)
	seg.end = int64(h.offset) + size
	seg.bytes += size
	old := s.index.find(&h.key)
	if h.version != s.opt.Version || old != 0 && seqs[old] >= h.seq {
		s.stats.StaleRecords++
		s.pending = append(s.pending, extent{seg, int64(h.offset), size})
		return seqs
	}
	if old != 0 {
		s.stats.StaleRecords++
		s.remove(old)
	}
	id := s.index.add(&h.key)
	for len(seqs) <= int(id) {
		seqs = append(seqs, 0)
	}
	seqs[id] = h.seq
	s.place(id, seg, h)
	s.live += size
	return seqs
}

// cut sets the end of a segment after its last record, and notes everything else in it for erasure.
func (s *Store) cut(seg *segment, size int64, rest []extent) {
	if size > seg.end {
		if err := s.truncate(seg, seg.end); err != nil {
			s.stats.WriteErrors++
			seg.end = roundUp(size, block)
		}
	}
	for _, e := range rest {
		if e.off < seg.end {
			seg.bytes += e.n
			s.pending = append(s.pending, e)
		}
	}
}

// orderByAge makes the order of use the order of writing.
func (s *Store) orderByAge(seqs []uint64) {
	all := make([]found, 0, s.index.len)
	for id := s.index.oldest(); id != 0; id = s.index.at(id).newer {
		all = append(all, found{seqs[id], id})
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.seq, b.seq) })
	for _, f := range all {
		s.index.touch(f.id)
	}
}
