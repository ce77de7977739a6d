package disk

import (
	"errors"
	"fmt"
	"hash/crc32"

	"grebe/plan"
)

// Put writes a record and replaces the older one of the key. It evicts records to make room. If that is not
// enough, or if the system fails, Put returns an error and changes nothing but the evictions. When Put
// returns nil the record can be found; it is durable after Sync.
func (s *Store) Put(key plan.Key, meta []byte, payload [][]byte) error {
	return s.PutAs(s.opt.Version, key, meta, payload)
}

// PutAs is Put for a record of any version. It can be found until the next Open, which takes over records of its own
// version.
func (s *Store) PutAs(version [32]byte, key plan.Key, meta []byte, payload [][]byte) error {
	if len(meta) > MaxMeta {
		return fmt.Errorf("disk: put: %d bytes of meta, at most %d", len(meta), MaxMeta)
	}
	h := header{version: version, key: key, payload: length(payload), meta: len(meta), metaCRC: checksum(meta)}
	size := recordSize(h.meta, h.payload)
	if size > s.opt.Budget-block {
		return fmt.Errorf("disk: put %d bytes: %w", size, ErrTooLarge)
	}
	s.w.Lock()
	defer s.w.Unlock()
	if s.isClosed() {
		return ErrClosed
	}
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

func (s *Store) put(h *header, size int64, meta []byte, payload [][]byte) error {
	if err := s.drain(); err != nil {
		return err // more evictions would not free more space
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
	s.erasing.Note(s.drain()) // extents that failed stay pending
	return nil
}

// writebackStep is the number of bytes of a segment after which the system is asked to write them to the disk. By
// itself the system waits for half a minute, and then a sync of any other file may wait for hundreds of megabytes.
const writebackStep = 1 << 20

// writeback asks the system to write the new bytes of a segment, if there are many. The caller holds Store.w.
func (seg *segment) writeback() {
	if n := seg.end - seg.started; n >= writebackStep {
		seg.f.Writeback(seg.started, n)
		seg.started = seg.end
	}
}

// write writes a record. The header comes last and makes the record valid.
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

// reserve takes the next size bytes of the active segment, up to its new end. The caller holds w.
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

// fits reports whether the active segment has room. An empty segment takes a record of any size.
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

// truncate cuts a segment durably. Otherwise old bytes could be back after a power cut, behind a record that
// was written here later.
func (s *Store) truncate(seg *segment, size int64) error {
	seg.dirty, seg.erased = true, true
	if err := seg.f.Truncate(size); err != nil {
		return err
	}
	return s.syncSegment(seg)
}

// publish makes a written record the one of its key. The caller holds w.
func (s *Store) publish(seg *segment, h *header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.index.find(&h.key); old != 0 {
		s.remove(old)
	}
	s.place(s.index.add(&h.key), seg, h)
	s.live += recordSize(h.meta, h.payload)
}

// place sets the place of a record. The caller holds mu.
func (s *Store) place(id uint32, seg *segment, h *header) {
	r := s.index.at(id)
	r.seg, r.block, r.meta, r.payload = seg.id, uint32(h.offset/block), uint32(h.meta), h.payload
	seg.records++
}

// makeRoom evicts until n more bytes fit. The caller holds w.
func (s *Store) makeRoom(n int64) error {
	limit := s.opt.Budget
	if !s.punch {
		limit = max(limit-s.opt.Segment/2, n) // the copies of a compaction need room too
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

// evict drops a record to make room, unless a reader has just dropped it. The caller holds w.
func (s *Store) evict(id uint32) {
	defer s.reportDrops()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index.at(id).seg != 0 {
		s.forget(id)
		s.stats.Evictions++
	}
}

// drain erases pending extents and frees their space. Extents that fail stay pending. The caller holds w.
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

// erase makes an extent zero and frees its space. It erases the header first, so that there is never half a
// record.
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

// free frees the space of an erased extent.
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

// zeroFill writes zeros over a range, up to the end of the file.
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
