package disk

import (
	"errors"
	"fmt"

	"grebe/plan"
)

// Delete removes records durably. When it returns nil, the files have no byte of their metadata or payload,
// and no crash or power cut brings them back. This includes older records of the keys that were evicted or
// replaced. A crash during Delete leaves each record either whole or gone. Unknown keys are not an error.
// After an error the records are no longer served, but their bytes may still be on disk: call Delete again.
// Deleting many keys at once costs little more than deleting one.
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

// Drop removes records from the index without any I/O. The next write erases and frees their space; a crash before that
// brings them back. Unknown keys are ignored.
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

// scrub erases all pending extents, and makes these and all earlier erasures durable. It erases the headers
// first and syncs them, so that no power cut leaves half a record. Then it writes zeros over the bytes and
// syncs them before it frees the space. The caller holds w.
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
			s.putPending(e) // it is zero already, and only has to be freed
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

// overwrite writes zeros over the part of each extent and syncs them.
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
