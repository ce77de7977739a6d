package disk

import (
	"errors"
	"fmt"
	"syscall"
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

// limitSegments rewrites the emptiest segment when there are too many of them. Each segment costs an open
// file, and old ones may survive with a few hot records each. The caller holds w.
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
	return errors.Join(s.compact(least), s.drain())
}

// copied is a record that was copied to another segment.
type copied struct {
	to     *segment
	source int64 // its place in the old segment
	h      header
}

func (c *copied) place() extent {
	return extent{c.to, int64(c.h.offset), recordSize(c.h.meta, c.h.payload)}
}

// compact copies the records of a segment to the active segment, and to new ones when that is full. It drops the old
// segment when the copies are durable. Readers of the old segment are not disturbed. A record that cannot be read or
// has no room counts as evicted. If the copies cannot be written or made durable, all records stay where they are, and
// compact returns an error. The caller holds w.
func (s *Store) compact(seg *segment) error {
	if seg == s.active {
		s.active = nil
	}
	s.mu.Lock()
	seg.refs++
	s.stats.Compactions++
	s.mu.Unlock()
	defer s.release(seg)
	var list []copied
	var broken error // writes fail
	err := seg.walk(seg.end, func(h header) {
		if broken != nil {
			return
		}
		c, err := s.copyRecord(seg, h)
		switch {
		case err == nil && c.to != nil:
			list = append(list, c)
		case err == nil:
		case errors.Is(err, errUnread), errors.Is(err, ErrNoRoom), errors.Is(err, syscall.ENOSPC):
			s.opt.Logger.Warn("disk: dropped a record while compacting", "segment", seg.id, "error", err)
		default:
			broken = err
		}
	}, func(off, n int64, torn bool) {})
	if err != nil {
		s.opt.Logger.Warn("disk: compact", "segment", seg.id, "error", err)
	}
	if err := errors.Join(broken, s.syncCopies(list)); err != nil {
		for i := range list {
			s.putPending(list[i].place())
		}
		return fmt.Errorf("compact segment %d: %w", seg.id, err)
	}
	for i := range list {
		if c := &list[i]; !s.moved(seg, c) {
			s.putPending(c.place())
		}
	}
	s.forgetAll(seg)
	s.drop(seg)
	return nil
}

// syncCopies makes the segments that records were copied to durable.
func (s *Store) syncCopies(list []copied) error {
	for i := range list {
		if to := list[i].to; to.dirty {
			if err := s.syncSegment(to); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyRecord copies one record to the active segment. In the result, to is nil if the index no longer has the record,
// or if there is no room.
func (s *Store) copyRecord(from *segment, h header) (c copied, err error) {
	if s.owner(from, &h) == 0 {
		return c, nil
	}
	size := recordSize(h.meta, h.payload)
	if !s.punch && !s.roomToCopy(size) {
		return c, nil // forgetAll evicts it
	}
	to, err := s.reserveCopy(size)
	if err != nil {
		return c, err
	}
	source := int64(h.offset)
	h.nonce, h.offset = to.nonce, uint64(to.end-size)
	err = copyBody(to, from, &h, source)
	if err == nil {
		err = writeHeader(to, &h)
	}
	if err != nil {
		s.abandon(to, size)
		return c, err
	}
	return copied{to, source, h}, nil
}

// owner returns the id of the record at this place of a segment, or 0 if the index has none there.
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

// reserveCopy is reserve for compaction. On file systems without holes, compaction is how room is made, so
// reserveCopy must not make room itself.
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

var errUnread = errors.New("read")

func copyBody(to, from *segment, h *header, source int64) error {
	to.dirty = true
	buf := make([]byte, step)
	n := h.len()
	for done := int64(headerSize); done < n; {
		part := buf[:min(step, n-done)]
		if err := readFull(from.f, part, source+done); err != nil {
			return fmt.Errorf("%w: %w", errUnread, err)
		}
		if _, err := to.f.WriteAt(part, int64(h.offset)+done); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		done += int64(len(part))
	}
	return nil
}

// moved points the index to the copy and keeps the time of use, unless the record was removed meanwhile.
func (s *Store) moved(from *segment, c *copied) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.index.find(&c.h.key)
	if id == 0 || !s.index.at(id).same(&record{seg: from.id, block: uint32(c.source / block)}) {
		return false
	}
	from.records--
	s.place(id, c.to, &c.h)
	return true
}

// forgetAll evicts the records that the index still has in a segment.
func (s *Store) forgetAll(seg *segment) {
	defer s.reportDrops()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := uint32(1); seg.records > 0 && id < s.index.ids; id++ {
		if s.index.at(id).seg == seg.id {
			s.forget(id)
			s.stats.Evictions++
		}
	}
}
