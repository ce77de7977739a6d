package serve

import (
	"context"
	"errors"
	"strconv"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
)

// Bounds of a batch of lines.
const (
	batchLines  = 512       // lines made durable together
	batchBytes  = 512 << 10 // bytes of such lines
	batchErrors = 100       // errors that a response lists
)

// Batch applies a stream of lines to the catalog. Each line is a change of its own: a bad line is reported, and the
// others take effect.
type Batch struct {
	s     *Service
	ctx   context.Context
	place func(context.Context) (release func(), err error)
	from  *Import // nil: a batch of users or events
	resp  grebev1.BatchResponse
	ops   []catalog.Op
	lines []int64 // line numbers of ops
	bytes int

	unknown catalog.UnknownItems
	// stopped is the error after which no more changes can be made.
	stopped error
}

// NewBatch begins a batch. A batch of items is part of the import from; for users and events from is nil. The batch
// calls place to wait for a slot before each write.
func (s *Service) NewBatch(ctx context.Context, from *Import,
	place func(context.Context) (release func(), err error)) *Batch {
	return &Batch{s: s, ctx: ctx, from: from, place: place}
}

// Held returns the bytes of lines in memory.
func (b *Batch) Held() int { return b.bytes }

// Count counts a line that is not blank.
func (b *Batch) Count() { b.resp.Lines++ }

// Add adds the change of a line. After an error no more can be added.
func (b *Batch) Add(line int64, op catalog.Op, bytes int) error {
	b.from.foresee(&op)
	b.ops, b.lines, b.bytes = append(b.ops, op), append(b.lines, line), b.bytes+bytes
	if len(b.ops) >= batchLines || b.bytes >= batchBytes {
		b.stopped = b.flush()
		return b.stopped
	}
	return nil
}

// End makes the last changes and returns the result of all. failed is the error that ended the stream of lines; nil:
// all lines were read.
func (b *Batch) End(failed error) (*grebev1.BatchResponse, error) {
	resp, err := b.end(failed)
	if im := b.from; im != nil {
		if err == nil && im.named {
			err = im.begin() // even if nothing changed
		}
		if im.ends && (im.begun || err == nil) {
			err = errors.Join(err, im.end(b.ctx))
		}
	}
	return resp, err
}

func (b *Batch) end(failed error) (*grebev1.BatchResponse, error) {
	if failed != nil && b.stopped == nil {
		failed = errors.Join(failed, b.flush()) // keep the lines before the failure: sending them again changes nothing
	}
	if failed != nil {
		return nil, failed
	}
	if err := b.flush(); err != nil {
		return nil, err
	}
	if b.from != nil && b.from.ends {
		if err := b.from.end(b.ctx); err != nil {
			return nil, err
		}
	}
	if b.from != nil && b.from.forecast != nil {
		for _, m := range b.from.forecast.Impacts() {
			if text := m.Warning(); text != "" {
				b.resp.Warnings = append(b.resp.Warnings, text)
			}
		}
	}
	if text := b.unknown.Warning(); text != "" {
		b.resp.Warnings = append(b.resp.Warnings, text)
	}
	b.resp.Version = strconv.FormatUint(b.s.catalog.Stats().Version, 10)
	return &b.resp, nil
}

// Fail records the error of a line.
func (b *Batch) Fail(line int64, err error) {
	b.resp.Failed++
	if len(b.resp.Errors) == batchErrors {
		return
	}
	e := AsError(err)
	b.resp.Errors = append(b.resp.Errors, &grebev1.LineError{
		Line: line, Code: e.Code(), Message: e.Error(), Field: e.field})
}

// flush applies the changes added so far. It fails if the catalog accepts no more writes.
func (b *Batch) flush() error {
	if len(b.ops) == 0 {
		return nil
	}
	done, err := b.s.drops.reserve(b.ctx, b.items())
	if err != nil {
		return AsError(err)
	}
	defer done()
	release, err := b.place(b.ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := b.from.begin(); err != nil {
		return err
	}
	results := b.s.people.ApplyWithin(b.ctx, b.from.name(), b.ops)
	unknown := b.forget(results)
	for i, res := range results {
		op := &b.ops[i]
		switch {
		case errors.Is(res.Err, catalog.ErrFailed), errors.Is(res.Err, catalog.ErrClosed),
			errors.Is(res.Err, catalog.ErrUnavailable),
			errors.Is(res.Err, catalog.ErrUncertain), errors.Is(res.Err, catalog.ErrMember),
			errors.Is(res.Err, catalog.ErrUsers), res.Err != nil && errors.Is(res.Err, b.ctx.Err()):
			return b.s.catalogError(res.Err)
		case res.Err != nil:
			b.Fail(b.lines[i], b.s.catalogError(res.Err))
		case op.DeleteUser != "" && b.left(i, res.Changed, unknown):
		case op.AppendEvents != nil:
			added := int64(len(op.AppendEvents.Events) - res.Duplicates)
			b.resp.Created, b.resp.Unchanged = b.resp.Created+added, b.resp.Unchanged+int64(res.Duplicates)
			b.s.unknown(&b.unknown, op)
		case !res.Changed:
			b.resp.Unchanged++
		case op.PutItem == nil && op.PutUser == nil:
			b.resp.Deleted++
		case res.Created:
			b.resp.Created++
		default:
			b.resp.Replaced++
		}
	}
	clear(b.ops)
	b.ops, b.lines, b.bytes = b.ops[:0], b.lines[:0], 0
	return nil
}

// items counts the changes of items.
func (b *Batch) items() int {
	n := 0
	for i := range b.ops {
		if b.ops[i].PutUser == nil && b.ops[i].DeleteUser == "" && b.ops[i].AppendEvents == nil {
			n++
		}
	}
	return n
}

// unknown counts a change's events whose items are unknown.
func (s *Service) unknown(n *catalog.UnknownItems, op *catalog.Op) {
	for _, e := range op.AppendEvents.GetEvents() {
		if !s.knows(e.Item) {
			n.Add(e.Item, 1)
		}
	}
}

// forget removes the KV of deleted users whom the catalog did not have.
func (b *Batch) forget(results []catalog.Result) error {
	var ids []string
	for i := range results {
		if id := b.ops[i].DeleteUser; id != "" && !results[i].Changed && results[i].Err == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return b.s.FinishDeletion(ids...)
}

// left reports whether KV of a deleted user could not be removed, and records that as the line's error. unknown is
// the error of removing users whom the catalog did not have.
func (b *Batch) left(i int, there bool, unknown error) bool {
	if there {
		unknown = nil
	}
	err := b.s.forgotten(b.ctx, b.ops[i].DeleteUser, unknown)
	if err != nil {
		b.Fail(b.lines[i], err)
	}
	return err != nil
}
