package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
)

const segmentSuffix = ".seg"

func segmentName(id uint32) string { return fmt.Sprintf("%08x%s", id, segmentSuffix) }

// segment is a file of records.
type segment struct {
	id    uint32
	nonce uint64
	f     file

	// Guarded by Store.w.
	end     int64 // where the next record goes, a multiple of block
	started int64 // the system was asked to write the bytes before this offset
	dirty   bool  // some writes are not durable yet
	erased  bool  // some of these are erasures, which Delete must make durable
	failed  error // error of a failed sync: it is unknown which bytes are durable, and the segment gets no more records

	// Guarded by Store.mu.
	bytes   int64 // of records and of pending extents
	records int   // in the index
	refs    int   // number of readers, and one for the store
	dropped bool  // removed from the store
}

// holds returns the size of the file in bytes, a multiple of block.
func (s *Store) holds(seg *segment) int64 {
	if s.punch {
		return block + seg.bytes
	}
	return seg.end
}

func (s *Store) segments() []*segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*segment, 0, len(s.segs))
	for _, seg := range s.segs {
		all = append(all, seg)
	}
	slices.SortFunc(all, func(a, b *segment) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

// newSegment makes an empty active segment and makes it durable. The caller holds w and has made room for a
// block.
func (s *Store) newSegment() error {
	seg := &segment{id: s.nextSeg, nonce: rand.Uint64(), end: block, refs: 1}
	f, err := s.dir.Create(segmentName(seg.id))
	if err != nil {
		return fmt.Errorf("create segment %d: %w", seg.id, err)
	}
	s.nextSeg++
	seg.f = f
	s.mu.Lock()
	s.segs[seg.id] = seg
	s.held += block
	s.mu.Unlock()
	_, err = f.WriteAt(encodeSegment(seg.nonce), 0)
	if err == nil {
		err = s.syncSegment(seg)
	}
	if err == nil {
		err = s.dir.Sync()
	}
	if err != nil {
		s.drop(seg)
		return fmt.Errorf("write segment %d: %w", seg.id, err)
	}
	s.active = seg
	return nil
}

// seal stops writing to the active segment. The caller holds w.
func (s *Store) seal() {
	seg := s.active
	s.active = nil
	s.dropIfEmpty(seg)
}

// dropIfEmpty removes an empty segment, unless it is the active one and takes no space. The caller holds w.
func (s *Store) dropIfEmpty(seg *segment) {
	if seg == s.active && (s.punch || seg.end == block) {
		return
	}
	s.mu.Lock()
	empty := seg.bytes == 0
	s.mu.Unlock()
	if empty {
		s.drop(seg)
	}
}

// drop removes a segment without records. Its space is free when the last reader releases it. The caller
// holds w.
func (s *Store) drop(seg *segment) {
	if seg == s.active {
		s.active = nil
	}
	s.mu.Lock()
	if seg.dropped {
		s.mu.Unlock()
		return
	}
	seg.dropped = true
	delete(s.segs, seg.id)
	s.pending = slices.DeleteFunc(s.pending, func(e extent) bool { return e.seg == seg })
	s.lingering += s.holds(seg)
	s.mu.Unlock()
	s.doomed = append(s.doomed, seg)
	if err := s.removeDoomed(); err != nil {
		s.erasing.Note(err)
	}
}

// removeDoomed removes the files of dropped segments. Files that cannot be removed are tried again later. The caller
// holds w.
func (s *Store) removeDoomed() error {
	var errs []error
	s.doomed = slices.DeleteFunc(s.doomed, func(seg *segment) bool {
		err := s.dir.Remove(segmentName(seg.id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.countWriteError()
			errs = append(errs, fmt.Errorf("remove segment %d: %w", seg.id, err))
			return false
		}
		s.unlinked = true
		s.release(seg)
		return true
	})
	return errors.Join(errs...)
}

// release drops a reference to a segment. The last one closes the file.
func (s *Store) release(seg *segment) {
	s.mu.Lock()
	seg.refs--
	last := seg.refs == 0
	s.mu.Unlock()
	if !last {
		return
	}
	_ = seg.f.Close() // removed, or synced by Close
	s.mu.Lock()
	if seg.dropped { // only now its space is free
		n := s.holds(seg)
		s.held -= n
		s.lingering -= n
	}
	s.mu.Unlock()
}

// walk calls whole for each record of a segment, in the order of their offsets. It calls remains for each
// allocated range between records; torn says whether the range has bytes other than zero. It reads one block
// per record.
func (seg *segment) walk(size int64, whole func(header), rest func(off, n int64, torn bool)) error {
	buf := make([]byte, block)
	first, last, torn := int64(-1), int64(0), false // since the last record
	note := func(off, end int64, bad bool) {
		if first < 0 {
			first = off
		}
		last, torn = end, torn || bad
	}
	flush := func() {
		if first >= 0 {
			rest(first, last-first, torn)
		}
		first, torn = -1, false
	}
	for off := int64(block); off < size; {
		data, err := seg.f.NextData(off)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("look for data: %w", err)
		}
		if off = max(off, data/block*block); off >= size {
			break
		}
		n, err := seg.f.ReadAt(buf, off)
		unreadable := err != nil && !errors.Is(err, io.EOF)
		h, ok := decode(buf[:n], seg.nonce, off)
		if ok && h.end() <= size {
			flush()
			whole(h)
			off = roundUp(h.end(), block)
			continue
		}
		if ok { // cut off by the end of the file
			note(off, roundUp(size, block), true)
			break
		}
		note(off, off+block, unreadable || !zero(buf[:n]))
		off += block
	}
	flush()
	return nil
}

func zero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.NativeEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
