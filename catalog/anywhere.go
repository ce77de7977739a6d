package catalog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/internal/wire"
)

// maxRequest bounds the bytes of mutations that are one request, beyond the first: requests and records are messages.
const maxRequest = 4 << 20

// writeAnywhere makes a writer's mutations in a cluster: here if this node leads, else through the leader. It returns
// when readers of this node see them too. Each mutation is a change of its own, so a large writer becomes several.
func (c *Catalog) writeAnywhere(ctx context.Context, w *writer) {
	for muts := w.muts; len(muts) > 0; {
		n, bytes := 1, len(muts[0].record)
		for n < len(muts) && bytes+len(muts[n].record) <= maxRequest {
			bytes += len(muts[n].record)
			n++
		}
		c.writePart(ctx, &writer{muts: muts[:n:n], from: w.from})
		muts = muts[n:]
	}
}

func (c *Catalog) writePart(ctx context.Context, w *writer) {
	if c.bad(w) {
		return
	}
	hook := c.log.outside()
	if hook == nil {
		w.fail(ErrUnavailable)
		return
	}
	request := w.request()
	for {
		if _, err := hook.Term(); err == nil {
			if err := c.enqueue(ctx, w); err != nil {
				w.fail(err)
				return
			}
			if !w.refused() {
				c.seen(ctx, hook)
				return
			}
		}
		reply, err := hook.Forward(ctx, request, w.repeatable())
		if errors.Is(err, ErrLeads) {
			continue
		}
		if err == nil {
			err = c.finish(ctx, w, reply)
		}
		if err != nil {
			w.fail(err)
		}
		return
	}
}

// bad reports whether no mutation of a writer can be made.
func (c *Catalog) bad(w *writer) bool {
	return !slices.ContainsFunc(w.muts, func(m mutation) bool { return m.Err == nil })
}

// refused reports whether a round refused a writer because this node does not lead, or cannot write at the moment. The
// writer is then as before.
func (w *writer) refused() bool {
	refused := false
	for i := range w.muts {
		if m := &w.muts[i]; errors.Is(m.Err, ErrNotLeader) || errors.Is(m.Err, ErrUnavailable) {
			refused, m.Err = true, nil
		}
	}
	return refused
}

// repeatable reports whether making a writer's mutations twice is the same as making them once. Events without ids
// would be appended twice.
func (w *writer) repeatable() bool {
	for i := range w.muts {
		if m := &w.muts[i]; m.verb == appendEvents {
			events, _, err := newEvents(m.record)
			if err != nil {
				return false
			}
			for _, e := range events {
				if e.Id == "" {
					return false
				}
			}
		}
	}
	return true
}

// request encodes the mutations of a writer.
func (w *writer) request() []byte {
	b := appendBytes(nil, w.from)
	for i := range w.muts {
		if m := &w.muts[i]; m.Err == nil {
			b = append(b, byte(m.verb))
			b = binary.AppendUvarint(b, uint64(m.dropped))
			b = appendBytes(b, m.id)
			b = appendBytes(b, m.record)
		}
	}
	return b
}

func parseRequest(b []byte) (*writer, error) {
	from, b, ok := takeBytes(b)
	w := &writer{from: string(from)}
	for ok && len(b) > 0 {
		m := mutation{verb: verb(b[0])}
		dropped, k := binary.Uvarint(b[1:])
		if m.verb > endImport || k <= 0 {
			return nil, errRecord
		}
		m.dropped = int(dropped)
		var id, r []byte
		if id, b, ok = takeBytes(b[1+k:]); ok {
			r, b, ok = takeBytes(b)
		}
		m.id, m.record = string(id), r
		var err error
		switch m.verb {
		case putItem:
			_, err = newItem(m.record)
			m.digest = m.record.digest()
		case putUser:
			m.user, err = newUser(m.record)
		case appendEvents:
			_, _, err = newEvents(m.record)
		}
		if err != nil {
			return nil, err
		}
		w.muts = append(w.muts, m)
	}
	if !ok || len(w.muts) == 0 {
		return nil, errRecord
	}
	return w, nil
}

// Serve carries out a request of another node's Log.Forward and returns the reply. It returns ErrNotLeader,
// ErrUnavailable or a context's error if nothing was changed, and ErrUncertain if the outcome is unknown.
func (c *Catalog) Serve(ctx context.Context, request []byte) (reply []byte, err error) {
	w, err := parseRequest(request)
	if err != nil {
		return nil, fmt.Errorf("catalog: request of another node: %w", err)
	}
	if err := c.enqueue(ctx, w); err != nil {
		return nil, err
	}
	for i := range w.muts {
		for _, whole := range []error{ErrNotLeader, ErrUnavailable, ErrUncertain} {
			if err := w.muts[i].Err; errors.Is(err, whole) {
				return nil, err
			}
		}
	}
	return w.reply(c.seen(ctx, c.log.outside())), nil
}

// seen waits for readers of other nodes: who writes here may read there. It returns the index that readers of this node
// see.
func (c *Catalog) seen(ctx context.Context, hook Log) uint64 {
	state, _ := c.LogState()
	hook.Seen(ctx, state.Shown)
	return state.Shown
}

// Kinds of errors in a reply.
const (
	noError = iota
	fieldError
	fullError
	failedError
	otherError
)

const created, changed = 1, 2

// reply encodes what became of the mutations of a writer, and an index of the log that has them all.
func (w *writer) reply(index uint64) []byte {
	b := binary.AppendUvarint(nil, index)
	for i := range w.muts {
		m := &w.muts[i]
		flags := 0
		if m.Created {
			flags |= created
		}
		if m.Changed {
			flags |= changed
		}
		version := m.version
		if m.entry != nil {
			version = m.entry.Version
		}
		for _, n := range []uint64{uint64(flags), uint64(m.dropped), uint64(m.duplicates), version} {
			b = binary.AppendUvarint(b, n)
		}
		b = appendError(b, m.Err)
	}
	return b
}

func appendError(b []byte, err error) []byte {
	var field *wire.Error
	switch {
	case err == nil:
		return append(b, noError)
	case errors.As(err, &field):
		return appendBytes(appendBytes(append(b, fieldError), field.Field), field.Problem)
	case errors.Is(err, ErrFull):
		return appendBytes(append(b, fullError), err.Error())
	case errors.Is(err, ErrFailed):
		return appendBytes(append(b, failedError), err.Error())
	}
	return appendBytes(append(b, otherError), err.Error())
}

// remoteError is an error of the leader.
type remoteError struct {
	text string
	kind error // a sentinel; nil: none
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// takeError returns the error of a mutation, and the rest; malformed: there is none.
func takeError(b []byte) (rest []byte, malformed bool, err error) {
	if len(b) == 0 {
		return nil, true, nil
	}
	kind, b := b[0], b[1:]
	if kind == noError {
		return b, false, nil
	}
	text, b, ok := takeBytes(b)
	if !ok {
		return nil, true, nil
	}
	switch kind {
	case fieldError:
		problem, b, ok := takeBytes(b)
		return b, !ok, &wire.Error{Field: string(text), Problem: string(problem)}
	case fullError:
		return b, false, &remoteError{string(text), ErrFull}
	case failedError:
		return b, false, &remoteError{string(text), ErrFailed}
	}
	return b, false, &remoteError{string(text), nil}
}

// showWithin bounds how long a write waits for its own node.
const showWithin = 10 * time.Second

// finish takes the leader's reply and waits until this node has the writer's changes. After an error the changes are
// made, but readers of this node may not see them.
func (c *Catalog) finish(ctx context.Context, w *writer, b []byte) error {
	index, k := binary.Uvarint(b)
	if k <= 0 {
		return fmt.Errorf("%w: reply of the leader: %w", ErrUncertain, errRecord)
	}
	b = b[k:]
	for i := range w.muts {
		m := &w.muts[i]
		if m.Err != nil {
			continue // it was not sent
		}
		var n [4]uint64
		for j := range n {
			if n[j], k = binary.Uvarint(b); k <= 0 {
				return fmt.Errorf("%w: reply of the leader: %w", ErrUncertain, errRecord)
			}
			b = b[k:]
		}
		rest, malformed, err := takeError(b)
		if malformed {
			return fmt.Errorf("%w: reply of the leader: %w", ErrUncertain, errRecord)
		}
		b = rest
		m.Result = Result{Created: n[0]&created != 0, Changed: n[0]&changed != 0, Err: err}
		m.dropped, m.duplicates, m.version = int(n[1]), int(n[2]), n[3]
	}
	soon, cancel := context.WithTimeout(ctx, showWithin)
	defer cancel()
	if err := c.AwaitShown(soon, index); err != nil {
		return fmt.Errorf("%w: the leader has made the change, and this node does not see it yet: %w", ErrUncertain, err)
	}
	for i := range w.muts {
		if m := &w.muts[i]; m.verb == appendEvents && m.Err == nil {
			u, ok := c.User(m.id)
			if !ok {
				return fmt.Errorf("%w: user %q was deleted meanwhile", ErrUncertain, m.id)
			}
			m.entry = &User{User: u, Version: m.version, Duplicates: m.duplicates}
		}
	}
	return nil
}
