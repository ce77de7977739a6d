package catalog

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// entryKind says what an entry of a record does.
type entryKind byte

const (
	putsItem entryKind = iota + 1
	putsUser
	appends // events to a user
	deletesItem
	deletesUser // also one whom the catalog did not have: other nodes may have KV of theirs
	endsImport
)

// entry is one change in a record of the log.
type entry struct {
	kind    entryKind
	version uint64
	from    string // import
	id      string // empty for puts: their record has it
	record  record
}

func appendEntry(b []byte, e entry) []byte {
	b = append(b, byte(e.kind))
	b = binary.AppendUvarint(b, e.version)
	b = appendBytes(b, e.from)
	b = appendBytes(b, e.id)
	return appendBytes(b, e.record)
}

func appendBytes[B string | record | []byte](b []byte, s B) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// takeBytes returns what appendBytes wrote, and the rest; false: there is none.
func takeBytes(b []byte) (s, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	b = b[k:]
	return b[:n:n], b[n:], true
}

// entriesOf returns the entries of a record. The last one may come with an error.
func entriesOf(data []byte) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		for len(data) > 0 {
			e, rest, ok := takeEntry(data)
			if !ok {
				yield(entry{}, fmt.Errorf("entry of the log: %w", errRecord))
				return
			}
			if !yield(e, nil) {
				return
			}
			data = rest
		}
	}
}

func takeEntry(b []byte) (e entry, rest []byte, ok bool) {
	e.kind = entryKind(b[0])
	version, k := binary.Uvarint(b[1:])
	if k <= 0 || e.kind < putsItem || e.kind > endsImport {
		return e, nil, false
	}
	e.version = version
	from, b, ok := takeBytes(b[1+k:])
	if !ok {
		return e, nil, false
	}
	id, b, ok := takeBytes(b)
	if !ok {
		return e, nil, false
	}
	r, b, ok := takeBytes(b)
	if !ok {
		return e, nil, false
	}
	e.from, e.id, e.record = string(from), string(id), r
	if e.kind == putsItem || e.kind == putsUser {
		e.id = play(e.record).str()
	}
	return e, b, true
}

// replay puts an entry's effect on disk into a batch.
func (b *batch) replay(e entry, track bool) {
	switch e.kind {
	case putsItem, putsUser:
		user := e.kind == putsUser
		b.put(user, e.id, e.version, e.record)
		b.unbury(user, e.id)
	case appends:
		b.append(e.id, e.version, e.record)
	case deletesItem:
		b.delete(false, e.id)
		b.bury(false, e.id)
	case deletesUser:
		b.delete(true, e.id)
		b.bury(true, e.id)
		if track {
			b.intend(e.id, e.version)
		}
	}
}

// replay adds an entry's effect on the maps to a round.
func (r *round) replay(e entry) error {
	s := step{id: e.id, version: e.version, from: e.from}
	switch e.kind {
	case putsItem:
		if _, err := newItem(e.record); err != nil {
			return err
		}
		it := &itemEntry{record: e.record, version: e.version}
		s.newItem, s.oldItem = it, r.item(e.id)
		r.items[e.id] = it
	case deletesItem:
		s.oldItem, s.deletion = r.item(e.id), true
		r.items[e.id] = nil
	case putsUser:
		u, err := newUser(e.record)
		if err != nil {
			return err
		}
		u.version = e.version
		s.user, s.newUser, s.oldUser = true, u, r.user(e.id)
		r.users[e.id] = u
	case appends:
		events, size, err := newEvents(e.record)
		if err != nil {
			return err
		}
		old := r.user(e.id)
		u, _ := grown(old, e.id, events, size, r.c.opt.MaxHistory)
		u.version = e.version
		s.user, s.newUser, s.oldUser = true, u, old
		r.users[e.id] = u
	case deletesUser:
		s.user, s.oldUser, s.deletion = true, r.user(e.id), true
		r.users[e.id] = nil
	case endsImport:
		s.ended = true
	}
	r.account(&s)
	r.cut(&s)
	r.steps = append(r.steps, s)
	r.totals.version = e.version
	return nil
}

// account adds a step to the totals.
func (r *round) account(s *step) {
	if o := s.oldItem; o != nil {
		r.nItems--
		r.totals.bytes -= o.size()
		r.totals.digest = r.totals.digest.minus(o.digest())
	}
	if n := s.newItem; n != nil {
		r.nItems++
		r.totals.bytes += n.size()
		r.totals.digest = r.totals.digest.plus(n.digest())
	}
	if o := s.oldUser; o != nil {
		r.nUsers--
		r.totals.bytes -= o.size
	}
	if n := s.newUser; n != nil {
		r.nUsers++
		r.totals.bytes += n.size
	}
}
