package kv

import (
	"context"
	"errors"
	"fmt"

	"grebe/plan"
	"grebe/residency"
)

// Loan is an entry that another node reads: its content, and the metadata that Arrival.Place takes there. The bytes do
// not change before Return. The store MUST NOT be stopped while there are loans.
type Loan struct {
	Meta   []byte
	Pieces [][]byte
	// Sum is the CRC-32C of the pieces if Summed is true. Return keeps it for the next loan of the entry.
	Sum    uint32
	Summed bool

	entry *Entry
	stage *stage // nil: the pieces are the entry's memory
	size  int    // bytes of the stage
}

// Errors of Lend.
var (
	ErrMissing = errors.New("kv: no such entry")
	ErrBusy    = errors.New("kv: too many loans of the device's memory")
)

// maxStaged is the most loans at a time of entries that the host cannot see. Each takes host memory of its size.
const maxStaged = 4

// Lend fills l with the entry under a key. It appends to Meta and Pieces. A user's entry is lent if its first tokens
// have this digest, or all of its tokens if it has fewer: then the other node compares them. The digest of other
// entries is 0, because their key is one. An entry that is only on disk is read into memory first.
//
// Lend counts as a use, but the entry stays where it is. It returns ErrMissing or ErrBusy. After nil the caller MUST
// call Return.
func (s *Store) Lend(ctx context.Context, key plan.Key, tokens int, digest uint64, l *Loan) error {
	err := s.lend(key, tokens, digest, l)
	if errors.Is(err, ErrMissing) && s.Fetch(ctx, key) != plan.Missing {
		err = s.lend(key, tokens, digest, l)
	}
	return err
}

func (s *Store) lend(key plan.Key, tokens int, digest uint64, l *Loan) error {
	e, kind, named := s.borrow(key, tokens, digest)
	if e == nil {
		return ErrMissing
	}
	meta, pieces := l.Meta, l.Pieces
	*l = Loan{Meta: appendMeta(meta, kind, e.len, named), Pieces: pieces, entry: e}
	if err := s.expose(l); err != nil {
		e.Release()
		*l = Loan{Meta: meta, Pieces: pieces}
		return err
	}
	if sum := e.sum.Load(); sum != 0 {
		l.Sum, l.Summed = uint32(sum), true
	}
	return nil
}

// borrow returns the part of an entry that is lent, with a reference, and the tokens of a user.
func (s *Store) borrow(key plan.Key, tokens int, digest uint64) (e *Entry, kind plan.Kind, named []int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.books.Get(key)
	if p == nil || p.Named != (digest != 0) {
		return nil, 0, nil
	}
	e, named = p.Value.entry, p.Value.tokens
	n := e.len
	if p.Named {
		n = min(n, tokens, MostBelow)
		if n == 0 || n == tokens && residency.Digest(named[:n]) != digest {
			return nil, 0, nil
		}
		named = named[:n]
	}
	if s.rec.On() {
		s.rec.In("read", [32]byte(key))
	}
	s.books.Read(key)
	if n < e.len {
		return e.Leading(n), p.Kind, named
	}
	e.Retain()
	return e, p.Kind, named
}

// expose appends the content of a loan's entry to its pieces. Content that the host cannot see is copied to a stage.
func (s *Store) expose(l *Loan) error {
	seen := true
	for _, c := range l.entry.chunks {
		b := c.run.Slice(0, s.shape.ChunkBytes(c.tokens, false))
		seen = seen && b.Bytes != nil
		l.Pieces, l.size = append(l.Pieces, b.Bytes), l.size+b.Size
	}
	if seen {
		return nil
	}
	select {
	case l.stage = <-s.lending:
	default:
		return ErrBusy
	}
	m, first := s.top.pool.Memory(), len(l.Pieces)-len(l.entry.chunks)
	b, err := l.stage.take(m.Host(), l.size)
	if err != nil {
		s.lending <- l.stage
		return err
	}
	at := 0
	for i, c := range l.entry.chunks {
		n := s.shape.ChunkBytes(c.tokens, false)
		to := b.Bytes[at : at+n : at+n]
		if err := m.Read(to, c.run.Slice(0, n)); err != nil {
			l.unstage(s)
			return fmt.Errorf("kv: read %d bytes of the device's memory: %w", n, err)
		}
		l.Pieces[first+i] = to
		at += n
	}
	return nil
}

func (l *Loan) unstage(s *Store) {
	g := l.stage
	l.stage = nil
	g.give(l.size)
	s.lending <- g
}

// Return ends a loan.
func (s *Store) Return(l *Loan) {
	if l.Summed {
		l.entry.sum.Store(1<<32 | uint64(l.Sum))
	}
	if l.stage != nil {
		l.unstage(s)
	}
	l.entry.Release()
	*l = Loan{}
}
