package disk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"grebe/plan"
)

// step is the number of bytes that are read or written between two updates of the checksum. It is small
// enough that the bytes are still in the processor's cache.
const step = 256 << 10

var errDamaged = errors.New("damaged")

// Get reads a record into the memory that place returns: pieces of n bytes in total. It calls place when the
// metadata is verified. It reports whether the record was there and valid; if not, the content of the pieces
// is undefined. It returns only errors of place: any problem with the record is a miss.
func (s *Store) Get(key plan.Key, place func(meta []byte, n int64) ([][]byte,
	error)) (meta []byte, ok bool, err error) {
	r, seg, err := s.pin(&key, true)
	if seg == nil {
		return nil, false, err
	}
	defer s.release(seg)
	h, meta, err := s.readMeta(seg, &r)
	if err != nil {
		s.condemn(&r, err)
		return nil, false, nil
	}
	pieces, err := place(meta, r.payload)
	if err != nil {
		return nil, false, err
	}
	if n := length(pieces); n != r.payload {
		return nil, false, fmt.Errorf("disk: get: place for %d bytes, record has %d", n, r.payload)
	}
	if err := readPayload(seg, &h, pieces); err != nil {
		s.condemn(&r, err)
		return nil, false, nil
	}
	s.reading.Note(nil)
	s.mu.Lock()
	s.stats.Hits++
	s.mu.Unlock()
	return meta, true, nil
}

// Has reports whether a record is in the index, and the size of its payload. It does not access the disk.
func (s *Store) Has(key plan.Key) (size int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.index.find(&key)
	if id == 0 || s.closed {
		return 0, false
	}
	return s.index.at(id).payload, true
}

// Stat reads the metadata of a record from disk, and returns it with the size of the payload. It does not
// count as a use.
func (s *Store) Stat(key plan.Key) (meta []byte, size int64, ok bool) {
	r, seg, _ := s.pin(&key, false)
	if seg == nil {
		return nil, 0, false
	}
	defer s.release(seg)
	_, meta, err := s.readMeta(seg, &r)
	if err != nil {
		s.condemn(&r, err)
		return nil, 0, false
	}
	return meta, r.payload, true
}

// Range calls f for each record until f returns false, in no particular order. Records that are put or
// deleted meanwhile may be left out. f may use the store.
func (s *Store) Range(f func(key plan.Key, meta []byte, size int64) bool) {
	for id := uint32(1); ; id++ {
		key, more := s.keyOf(id)
		if !more {
			return
		}
		if key == nil {
			continue
		}
		if meta, size, ok := s.Stat(*key); ok && !f(*key, meta, size) {
			return
		}
	}
}

// keyOf returns the key with an id, if there is one, and whether there are higher ids.
func (s *Store) keyOf(id uint32) (key *plan.Key, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || id >= s.index.ids {
		return nil, false
	}
	r := s.index.at(id)
	if r.seg == 0 {
		return nil, true
	}
	k := r.key
	return &k, true
}

// pin finds a record and keeps its file open. If it returns a segment, the caller MUST release it.
func (s *Store) pin(key *plan.Key, use bool) (record, *segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return record{}, nil, ErrClosed
	}
	id := s.index.find(key)
	if id == 0 {
		if use {
			s.stats.Misses++
		}
		return record{}, nil, nil
	}
	if use {
		s.index.touch(id)
	}
	r := *s.index.at(id)
	seg := s.segs[r.seg]
	seg.refs++
	return r, seg, nil
}

func (s *Store) readMeta(seg *segment, r *record) (header, []byte, error) {
	buf := make([]byte, headerSize+r.meta)
	if err := readFull(seg.f, buf, r.offset()); err != nil {
		return header{}, nil, err
	}
	h, ok := decode(buf, seg.nonce, r.offset())
	meta := buf[headerSize:]
	if !ok || h.key != r.key || h.payload != r.payload ||
		h.meta != len(meta) || h.metaCRC != checksum(meta) {
		return header{}, nil, errDamaged
	}
	return h, meta, nil
}

func readPayload(seg *segment, h *header, pieces [][]byte) error {
	off, sum := int64(h.offset)+h.payloadAt(), uint32(0)
	for _, p := range pieces {
		for len(p) > 0 {
			part := p[:min(step, len(p))]
			if err := readFull(seg.f, part, off); err != nil {
				return err
			}
			sum = crc32.Update(sum, castagnoli, part)
			off += int64(len(part))
			p = p[len(part):]
		}
	}
	if sum != h.payloadCRC {
		return errDamaged
	}
	return nil
}

// readFull is ReadAt, but treats a file that ends too early as damage.
func readFull(f file, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case errors.Is(err, io.EOF):
		return errDamaged
	}
	return err
}

// condemn turns a failed read into a miss. It removes the record, to be erased later, unless the record was
// evicted, deleted or replaced during the read, which explains the failure.
func (s *Store) condemn(r *record, reason error) {
	defer s.reportDrops()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Misses++
	id := s.index.find(&r.key)
	if id == 0 || s.closed || !s.index.at(id).same(r) {
		return
	}
	s.forget(id)
	if !errors.Is(reason, errDamaged) {
		s.stats.ReadErrors++
		s.reading.Note(reason, "segment", r.seg, "offset", r.offset())
		return
	}
	s.stats.ChecksumFailures++
	s.opt.Logger.Warn("disk: dropped a record", "segment", r.seg, "offset", r.offset(), "reason", reason)
}

// forget drops a record. The caller holds mu, and calls reportDrops after it has released mu.
func (s *Store) forget(id uint32) {
	if s.report != nil {
		s.dropped = append(s.dropped, s.index.at(id).key)
	}
	s.remove(id)
}

// remove removes a record from the index and notes its place for erasure. The caller holds mu.
func (s *Store) remove(id uint32) {
	r := s.index.at(id)
	seg := s.segs[r.seg]
	seg.records--
	s.live -= r.size()
	s.pending = append(s.pending, extent{seg, r.offset(), r.size()})
	s.index.remove(id)
}

func length(pieces [][]byte) (n int64) {
	for _, p := range pieces {
		n += int64(len(p))
	}
	return n
}
