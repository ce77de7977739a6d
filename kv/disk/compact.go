package disk

import (
	"errors"
	"fmt"
)

// halfDead returns a segment of which at least half is dead space that only rewriting can free, or
// nil. The caller holds w.
func (s *Store) halfDead() *segment {
	if s.punch {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var worst *segment
	var most int64
	for _, seg := range s.segs {
		all := seg.end - block
		if dead := all - seg.bytes; dead > most && 2*dead >= all {
			worst, most = seg, dead
		}
	}
	return worst
}

// limitSegments rewrites the emptiest segment when there are too many: each costs an open file, and
// old ones may hold a few records each that are used again and again. The caller holds w.
func (s *Store) limitSegments() error {
	s.mu.Lock()
	var least *segment
	for _, seg := range s.segs {
		if seg != s.active && (least == nil || seg.bytes < least.bytes) {
			least = seg
		}
	}
	n := len(s.segs)
	s.mu.Unlock()
	if n <= s.maxSegments || least == nil {
		return nil
	}
	s.compact(least)
	return s.drain()
}

// compact copies the records of a segment to the active one and drops it. Readers of the segment go
// on undisturbed. A record that cannot be copied counts as evicted. The caller holds w.
func (s *Store) compact(seg *segment) {
	if seg == s.active {
		s.active = nil
	}
	s.mu.Lock()
	seg.refs++
	s.stats.Compactions++
	s.mu.Unlock()
	defer s.release(seg)
	err := seg.walk(seg.end, func(h header) {
		if err := s.move(seg, h); err != nil {
			s.opt.Logger.Warn("disk: dropped a record while compacting", "segment", seg.id, "error", err)
		}
	}, func(off, n int64, torn bool) {})
	if err != nil {
		s.opt.Logger.Warn("disk: compact", "segment", seg.id, "error", err)
	}
	if s.active != nil {
		_ = s.syncSegment(s.active) // counted; at worst a power cut loses the copies
	}
	s.forgetAll(seg)
	s.drop(seg)
}

var errMoved = errors.New("no longer at its place")

// move copies one record to the active segment.
func (s *Store) move(from *segment, h header) error {
	id := s.owner(from, &h)
	if id == 0 {
		return nil
	}
	size := recordSize(h.meta, h.payload)
	if !s.punch && !s.roomToCopy(size) {
		return nil // forgetAll evicts it
	}
	to, err := s.reserveCopy(size)
	if err != nil {
		return err
	}
	source := int64(h.offset)
	h.nonce, h.offset = to.nonce, uint64(to.end-size)
	err = copyBody(to, from, &h, source)
	if err == nil {
		err = writeHeader(to, &h)
	}
	if err == nil && !s.moved(from, to, source, &h) {
		err = errMoved
	}
	if err != nil {
		s.abandon(to, size)
	}
	return err
}

// owner returns the id of the record at this place of a segment, or 0 if it is nobody's.
func (s *Store) owner(seg *segment, h *header) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.index.find(&h.key)
	if id == 0 || !s.index.at(id).same(&record{seg: seg.id, block: uint32(h.offset / block)}) {
		return 0
	}
	return id
}

func (s *Store) roomToCopy(size int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held+size+block <= s.opt.Budget
}

// reserveCopy is reserve for compaction, which where holes cannot be punched runs because there is no
// room and so must not make any.
func (s *Store) reserveCopy(size int64) (*segment, error) {
	if s.punch {
		return s.reserve(size)
	}
	if s.active != nil && !s.fits(size) {
		s.seal()
	}
	if s.active == nil {
		if err := s.newSegment(); err != nil {
			return nil, err
		}
	}
	s.take(size)
	return s.active, nil
}

func copyBody(to, from *segment, h *header, source int64) error {
	to.dirty = true
	buf := make([]byte, step)
	n := h.len()
	for done := int64(headerSize); done < n; {
		part := buf[:min(step, n-done)]
		if err := readFull(from.f, part, source+done); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if _, err := to.f.WriteAt(part, int64(h.offset)+done); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		done += int64(len(part))
	}
	return nil
}

// moved makes the copy the record, keeping its time of use, unless the record is gone meanwhile.
func (s *Store) moved(from, to *segment, source int64, h *header) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.index.find(&h.key)
	if id == 0 || !s.index.at(id).same(&record{seg: from.id, block: uint32(source / block)}) {
		return false
	}
	from.records--
	s.place(id, to, h)
	return true
}

// forgetAll evicts what the index still has in a segment.
func (s *Store) forgetAll(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := uint32(1); seg.records > 0 && id < s.index.ids; id++ {
		if s.index.at(id).seg == seg.id {
			s.forget(id)
			s.stats.Evictions++
		}
	}
}
