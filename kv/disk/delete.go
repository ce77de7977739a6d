package disk

import (
	"errors"
	"fmt"

	"grebe/plan"
)

// Delete removes records, durably: when it returns nil no byte of their meta or payload is in the
// files, and no crash or power cut brings them back, whether they were there, had been evicted or
// replaced before. A crash during Delete leaves each record whole or gone. Keys that are not there
// are no error. After an error the records are not served any more, but their bytes may be there:
// call Delete again. Deleting many keys at once costs little more than deleting one.
func (s *Store) Delete(keys ...plan.Key) error {
	s.w.Lock()
	defer s.w.Unlock()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	for i := range keys {
		if id := s.index.find(&keys[i]); id != 0 {
			s.forget(id)
		}
	}
	s.mu.Unlock()
	s.reportDrops()
	if err := s.scrub(); err != nil {
		s.countWriteError()
		return fmt.Errorf("disk: delete: %w", err)
	}
	return nil
}

// Drop forgets records at once. It does no I/O: their space is erased and given back by the next write, and a crash
// before that brings them back. Keys that are not there are ignored.
func (s *Store) Drop(keys ...plan.Key) {
	defer s.reportDrops()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for i := range keys {
		if id := s.index.find(&keys[i]); id != 0 {
			s.forget(id)
		}
	}
}

// scrub erases all that awaits erasure, and makes this and every erasure before it durable. Headers go
// first and for good, so that no power cut can leave half a record; zeros then reach the disk before
// the space is given back, so that they stand where the bytes stood. The caller holds w.
func (s *Store) scrub() error { return s.despiteFailedSyncs(s.scrubOnce) }

func (s *Store) scrubOnce() error {
	list := s.takePending()
	err := s.overwrite(list, func(e extent) (int64, int64) { return e.off, min(e.n, block) })
	if err == nil {
		err = s.overwrite(list, func(e extent) (int64, int64) { return e.off, e.n })
	}
	if err != nil {
		s.putPending(list...)
		return err
	}
	for _, e := range list {
		if err := s.free(e); err != nil {
			s.putPending(e) // zero already: only its space is missing
			s.erasing.Note(err)
		}
	}
	errs := []error{s.removeDoomed()}
	for _, seg := range s.segments() {
		if seg.erased {
			errs = append(errs, s.syncSegment(seg))
		}
	}
	return errors.Join(append(errs, s.syncFolder())...)
}

// overwrite puts zeros, for good, over the part of each extent.
func (s *Store) overwrite(list []extent, part func(extent) (off, n int64)) error {
	touched := map[*segment]bool{}
	for _, e := range list {
		off, n := part(e)
		e.seg.dirty, e.seg.erased = true, true
		if err := zeroFill(e.seg.f, off, n); err != nil {
			return fmt.Errorf("erase in segment %d: %w", e.seg.id, err)
		}
		touched[e.seg] = true
	}
	for seg := range touched {
		if err := s.syncSegment(seg); err != nil {
			return err
		}
	}
	return nil
}
