package disk

import (
	"errors"
	"fmt"
	"hash/crc32"

	"grebe/plan"
)

// Put writes a record, in place of the one the key may have had. It makes room by evicting; where
// that is not enough or the system fails it returns an error, and the store is as if Put had not been
// called, less what was evicted. The record can be found when Put returns; it is durable after Sync.
func (s *Store) Put(key plan.Key, meta []byte, payload [][]byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("disk: put: %d bytes of meta, at most %d", len(meta), MaxMeta)
	}
	h := header{key: key, payload: length(payload), meta: len(meta), metaCRC: checksum(meta)}
	size := recordSize(h.meta, h.payload)
	if size > s.opt.Budget-block {
		return fmt.Errorf("disk: put %d bytes: %w", size, ErrTooLarge)
	}
	s.w.Lock()
	defer s.w.Unlock()
	if s.isClosed() {
		return ErrClosed
	}
	h.version = s.version
	err := s.put(&h, size, meta, payload)
	if !errors.Is(err, ErrNoRoom) {
		s.writing.Note(err)
	}
	if err != nil {
		s.countWriteError()
		return fmt.Errorf("disk: put %d bytes: %w", size, err)
	}
	return nil
}

// SetVersion changes the version of records to come. Those that are there can still be found, until the next Open.
func (s *Store) SetVersion(v [32]byte) {
	s.w.Lock()
	defer s.w.Unlock()
	s.version = v
}

func (s *Store) put(h *header, size int64, meta []byte, payload [][]byte) error {
	if err := s.drain(); err != nil {
		return err // evicting more would not free more
	}
	if err := s.limitSegments(); err != nil {
		return err
	}
	seg, err := s.reserve(size)
	if err != nil {
		return err
	}
	s.seq++
	h.nonce, h.offset, h.seq = seg.nonce, uint64(seg.end-size), s.seq
	if err := write(seg, h, meta, payload); err != nil {
		s.abandon(seg, size)
		return err
	}
	s.publish(seg, h)
	seg.writeback()
	s.erasing.Note(s.drain()) // what failed stays pending
	return nil
}

// writebackStep is how many bytes of a segment are written before the system is asked to put them on the disk. Left to
// itself it collects for half a minute, and then a sync of any other file may wait for hundreds of megabytes.
const writebackStep = 1 << 20

// writeback has the system write what was added to a segment, if that is much. The caller holds Store.w.
func (seg *segment) writeback() {
	if n := seg.end - seg.started; n >= writebackStep {
		seg.f.Writeback(seg.started, n)
		seg.started = seg.end
	}
}

// write writes a record, its header last: until then there is none.
func write(seg *segment, h *header, meta []byte, payload [][]byte) error {
	off := int64(h.offset)
	seg.dirty = true
	if _, err := seg.f.WriteAt(meta, off+headerSize); err != nil {
		return fmt.Errorf("write meta: %w", err)
	}
	at := off + h.payloadAt()
	for _, p := range payload {
		for len(p) > 0 {
			part := p[:min(step, len(p))]
			h.payloadCRC = crc32.Update(h.payloadCRC, castagnoli, part)
			if _, err := seg.f.WriteAt(part, at); err != nil {
				return fmt.Errorf("write payload: %w", err)
			}
			at += int64(len(part))
			p = p[len(part):]
		}
	}
	return writeHeader(seg, h)
}

func writeHeader(seg *segment, h *header) error {
	var b [headerSize]byte
	h.encode(b[:])
	if _, err := seg.f.WriteAt(b[:], int64(h.offset)); err != nil {
		return fmt.Errorf("write header: %w", err)
	}
	return nil
}

// reserve takes the next size bytes of the active segment: they end at its end. The caller holds w.
func (s *Store) reserve(size int64) (*segment, error) {
	for {
		if s.active != nil && !s.fits(size) {
			s.seal()
		}
		fresh := s.active == nil
		need := size
		if fresh {
			need += block
		}
		if err := s.makeRoom(need); err != nil {
			return nil, err
		}
		if (s.active == nil) != fresh || !fresh && !s.fits(size) {
			continue // making room changed the active segment
		}
		if fresh {
			if err := s.newSegment(); err != nil {
				return nil, err
			}
		}
		s.take(size)
		return s.active, nil
	}
}

// fits reports whether the active segment has place. One record may be larger than a segment.
func (s *Store) fits(size int64) bool {
	return s.active.end == block || s.active.end+size <= s.opt.Segment
}

// take moves the end of the active segment; a negative size moves it back.
func (s *Store) take(size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active.end += size
	s.active.bytes += size
	s.held += size
}

// abandon undoes a failed write of the last size bytes of the active segment.
func (s *Store) abandon(seg *segment, size int64) {
	off := seg.end - size
	if err := s.truncate(seg, off); err == nil {
		s.take(-size)
		return
	}
	s.mu.Lock()
	s.pending = append(s.pending, extent{seg, off, size})
	s.mu.Unlock()
}

// truncate cuts a segment for good: what comes next to this place must not meet, after a power cut,
// the remains of what was there.
func (s *Store) truncate(seg *segment, size int64) error {
	seg.dirty, seg.erased = true, true
	if err := seg.f.Truncate(size); err != nil {
		return err
	}
	return s.syncSegment(seg)
}

// publish makes a written record the one its key finds. The caller holds w.
func (s *Store) publish(seg *segment, h *header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.index.find(&h.key); old != 0 {
		s.remove(old)
	}
	s.place(s.index.add(&h.key), seg, h)
	s.live += recordSize(h.meta, h.payload)
}

// place says where a record is. The caller holds mu.
func (s *Store) place(id uint32, seg *segment, h *header) {
	r := s.index.at(id)
	r.seg, r.block, r.meta, r.payload = seg.id, uint32(h.offset/block), uint32(h.meta), h.payload
	seg.records++
}

// makeRoom evicts until n more bytes fit. The caller holds w.
func (s *Store) makeRoom(n int64) error {
	limit := s.opt.Budget
	if !s.punch {
		limit = max(limit-s.opt.Segment/2, n) // what compaction copies needs place too
	}
	for {
		s.mu.Lock()
		held, lingering, oldest := s.held, s.lingering, s.index.oldest()
		s.mu.Unlock()
		if held-lingering+n <= limit {
			if held+n > s.opt.Budget {
				return ErrNoRoom
			}
			return nil
		}
		if victim := s.halfDead(); victim != nil {
			if err := s.compact(victim); err != nil {
				return err
			}
			continue
		}
		if oldest == 0 {
			return ErrNoRoom
		}
		s.evict(oldest)
		if err := s.drain(); err != nil {
			return err
		}
	}
}

// evict forgets a record to make room, unless a reader just did. The caller holds w.
func (s *Store) evict(id uint32) {
	defer s.reportDrops()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.at(id).seg != 0 {
		s.forget(id)
		s.stats.Evictions++
	}
}

// drain erases what awaits it and gives the space back. What fails stays. The caller holds w.
func (s *Store) drain() error {
	errs := []error{s.removeDoomed()}
	for _, e := range s.takePending() {
		if err := s.erase(e); err != nil {
			errs = append(errs, err)
			s.putPending(e)
		}
	}
	return errors.Join(errs...)
}

func (s *Store) takePending() []extent {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.pending
	s.pending = nil
	return list
}

func (s *Store) putPending(list ...extent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, list...)
}

// erase makes an extent zero, the header first so that there is no moment with half a record, and
// gives its space back.
func (s *Store) erase(e extent) error {
	e.seg.dirty, e.seg.erased = true, true
	head := min(e.n, block)
	err := zeroFill(e.seg.f, e.off, head)
	if err == nil && !s.punch {
		err = zeroFill(e.seg.f, e.off+head, e.n-head)
	}
	if err != nil && !s.punch {
		s.countWriteError()
		return fmt.Errorf("erase in segment %d: %w", e.seg.id, err)
	}
	return s.free(e)
}

// free gives the space of an erased extent back.
func (s *Store) free(e extent) error {
	if s.punch {
		if err := e.seg.f.Punch(e.off, e.n); err != nil {
			s.countWriteError()
			return fmt.Errorf("punch hole in segment %d: %w", e.seg.id, err)
		}
	}
	s.mu.Lock()
	e.seg.bytes -= e.n
	if s.punch {
		s.held -= e.n
	}
	s.mu.Unlock()
	s.dropIfEmpty(e.seg)
	return nil
}

var zeros [step]byte

// zeroFill overwrites a range as far as the file goes.
func zeroFill(f file, off, n int64) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	for end := min(off+n, size); off < end; {
		part := zeros[:min(step, end-off)]
		if _, err := f.WriteAt(part, off); err != nil {
			return err
		}
		off += int64(len(part))
	}
	return nil
}
