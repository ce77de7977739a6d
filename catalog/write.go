package catalog

import (
	"context"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/prompt"
)

// Change is one change of an item or of a user; the entries before and after are nil where there was
// or is none. They MUST NOT be changed.
type Change struct {
	ID               string
	Version          uint64 // of the catalog and of the new entry
	OldItem, NewItem *prompt.Item
	OldUser, NewUser *grebev1.User
	Import           string // the import that made it; "": none
	// Import has ended, or this is a Cut, and nothing else changed: the other fields are empty but Version
	Ended bool
}

// Subscribe makes f hear of every change from now on, one at a time and in the order of versions,
// after it is durable and readers see it, and before the call that caused it returns. f MUST NOT
// write to the catalog, and writers wait for it.
func (c *Catalog) Subscribe(f func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches = append(c.watches[:len(c.watches):len(c.watches)], f)
}

// Failed returns why the catalog takes no more changes, nil while it does.
func (c *Catalog) Failed() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.failed
}

// Op is one change of a batch: exactly one field is set.
type Op struct {
	PutItem                *grebev1.Item
	PutUser                *grebev1.User
	DeleteItem, DeleteUser string // ids
	AppendEvents           *grebev1.AppendEventsRequest

	ready *mutation // of Prepare
}

// Prepare does the part of Apply and Preview that needs no lock: callers with many Ops call it on all cores. It takes
// over what is put, which MUST NOT be changed afterwards. An Op is applied once.
func (c *Catalog) Prepare(op *Op) {
	if op.PutItem == nil && op.PutUser == nil {
		return
	}
	op.ready = &mutation{}
	op.ready.prepare(op, c.opt.MaxHistory)
}

// Check reports what is wrong with an Op, whatever the catalog has. Apply refuses it with the same error.
func (op *Op) Check() error {
	switch {
	case op.PutItem != nil:
		return checkID(op.PutItem.Id)
	case op.PutUser != nil:
		if err := checkID(op.PutUser.Id); err != nil || len(op.PutUser.NewEvents) == 0 {
			return err
		}
		return &wire.Error{Field: "new_events", Problem: "are of a request: give events"}
	case op.AppendEvents != nil:
		if err := checkID(op.AppendEvents.Id); err != nil {
			return err
		}
		return checkEvents(op.AppendEvents.Events)
	case op.DeleteUser != "":
		return checkID(op.DeleteUser)
	}
	return checkID(op.DeleteItem)
}

// mutationOf returns what an Op asks for.
func (c *Catalog) mutationOf(op *Op) (m mutation) {
	if op.ready != nil {
		return *op.ready
	}
	m.prepare(op, c.opt.MaxHistory)
	return m
}

// Result says what became of an Op.
type Result struct {
	Created bool // there was none before
	Changed bool // false: what was put was there already, or what was deleted was not
	Err     error
	// Duplicates counts the events that the user has already. Ops of one call that append to one user and nothing else
	// share a change: the first of them has the duplicates of all.
	Duplicates int
}

// verb is what a mutation does.
type verb uint8

const (
	putItem verb = iota
	deleteItem
	putUser
	deleteUser
	appendEvents
	endImport      // an import has ended: a version of the catalog without a change
	clearDeletions // records of deletions that are done may go
	sweepDone      // no deletion waits for the sweep: its mark may go
)

// mutation is one change asked for, and what became of it.
type mutation struct {
	verb   verb
	id     string
	record record     // what is put or appended
	digest digest     // of an item that is put
	user   *userEntry // that is put, without a version

	Result
	dropped    int    // of a history
	duplicates int    // events that the user has already
	entry      *User  // after appendEvents
	version    uint64 // after endImport
}

// User is a user's entry as AppendEvents left it.
type User struct {
	*grebev1.User
	Version    uint64
	Duplicates int // events that were not appended, since the user has their ids
}

// writer is a call that waits for its mutations.
type writer struct {
	muts []mutation
	from string    // the import that they are part of; "": none
	wake chan bool // true: lead the next round; false: done
	next bool      // it is to lead; of queueMu

	alone func() error // called instead of a round with others
	err   error        // of alone
}

// shared reports whether all nodes of a cluster must see the writer's changes.
func (w *writer) shared() bool { return len(w.muts) > 0 && w.muts[0].verb <= endImport }

// bytes estimates what a writer adds to a round.
func (w *writer) bytes() int {
	n := 0
	for i := range w.muts {
		n += 64 + len(w.muts[i].record)
	}
	return n
}

// PutItem adds or replaces an item and reports whether it is new.
func (c *Catalog) PutItem(m *grebev1.Item) (bool, error) { return c.one(Op{PutItem: m}) }

// DeleteItem removes an item and reports whether it was there.
func (c *Catalog) DeleteItem(id string) (bool, error) { return c.gone(Op{DeleteItem: id}) }

// PutUser adds or replaces a user and reports whether it is new. Of a history or events longer than
// Options.MaxHistory the newest are kept.
func (c *Catalog) PutUser(m *grebev1.User) (bool, error) { return c.one(Op{PutUser: m}) }

// DeleteUser removes a user and reports whether it was there.
func (c *Catalog) DeleteUser(id string) (bool, error) { return c.gone(Op{DeleteUser: id}) }

func (c *Catalog) one(op Op) (bool, error) {
	r := c.Apply([]Op{op})[0]
	return r.Created, r.Err
}

func (c *Catalog) gone(op Op) (bool, error) {
	r := c.Apply([]Op{op})[0]
	return r.Changed, r.Err
}

// Apply makes changes in order, each by itself: one that fails keeps no other from being made. It
// returns when all are durable.
func (c *Catalog) Apply(ops []Op) []Result { return c.ApplyImport("", ops) }

// ApplyImport is Apply as part of an import, which Change names. EndImport ends it.
func (c *Catalog) ApplyImport(id string, ops []Op) []Result {
	return c.ApplyWithin(context.Background(), id, ops)
}

// ApplyWithin is ApplyImport, or Apply without an import, but fails with the context's error when that ends while the
// changes wait for others.
func (c *Catalog) ApplyWithin(ctx context.Context, from string, ops []Op) []Result {
	if len(ops) > 0 && !slices.ContainsFunc(ops, func(op Op) bool { return op.AppendEvents == nil }) {
		return c.appendAll(ctx, ops)
	}
	w := &writer{muts: make([]mutation, len(ops)), from: from}
	for i := range ops {
		w.muts[i] = c.mutationOf(&ops[i])
	}
	c.write(ctx, w)
	out := make([]Result, len(ops))
	for i := range out {
		out[i] = w.muts[i].Result
		out[i].Duplicates = w.muts[i].duplicates
	}
	return out
}

// EndImport tells subscribers that an import has ended, by a Change with the version that it returns.
func (c *Catalog) EndImport(id string) (version uint64, err error) {
	w := &writer{muts: []mutation{{verb: endImport}}, from: id}
	c.write(context.Background(), w)
	return w.muts[0].version, w.muts[0].Err
}

// Shared reports whether the catalog is one of a cluster's nodes.
func (c *Catalog) Shared() bool { return c.log != nil }

// Cut ends a version of a cluster's catalog: subscribers of all nodes hear a Change that has Ended set and no Import,
// at the same version. It does nothing if no item has changed since the last cut, imports apart. It returns when this
// node's subscribers have heard all changes up to the cut, so they must not call it.
func (c *Catalog) Cut(ctx context.Context) error {
	w := &writer{muts: []mutation{{verb: endImport}}}
	c.write(ctx, w)
	if err := w.muts[0].Err; err != nil {
		return err
	}
	// A node that does not lead shows a record before it tells of it. It does both alone.
	return c.alone(ctx, func() error { return nil })
}

// AppendEvents adds events to a user, who is created when unknown; created says so. Events are kept in the order of
// their times, and one whose id the user has already is not added again. Where the user has a history, the events'
// items join it too. Of a history or events that become longer than Options.MaxHistory the oldest quarter and more is
// dropped and counted: the rest then stays as it is, and what was computed for it stays of use, for many appends.
func (c *Catalog) AppendEvents(id string, events []*grebev1.Event) (u User, created bool, dropped int, err error) {
	return c.AppendEventsWithin(context.Background(), id, events)
}

// AppendEventsWithin is AppendEvents, but fails with the context's error when that ends while it waits for others.
func (c *Catalog) AppendEventsWithin(ctx context.Context, id string,
	events []*grebev1.Event) (u User, created bool, dropped int, err error) {
	if err := checkID(id); err != nil {
		return User{}, false, 0, err
	}
	if err := checkEvents(events); err != nil {
		return User{}, false, 0, err
	}
	w := &writer{muts: []mutation{{verb: appendEvents, id: id, record: eventsRecord(events)}}}
	c.write(ctx, w)
	m := &w.muts[0]
	if m.Err != nil {
		return User{}, false, 0, m.Err
	}
	return *m.entry, m.Created, m.dropped, nil
}

// prepare does what needs no lock. What it refuses has an error from here on.
func (m *mutation) prepare(op *Op, maxHistory int) {
	m.Err = op.Check()
	switch {
	case op.PutItem != nil:
		m.verb, m.id = putItem, op.PutItem.Id
		if m.Err == nil {
			m.record = itemRecord(op.PutItem)
			m.digest = m.record.digest()
		}
	case op.PutUser != nil:
		m.verb, m.id = putUser, op.PutUser.Id
		if m.Err == nil {
			m.dropped = trim(op.PutUser, maxHistory, maxHistory)
			m.record = userRecord(op.PutUser)
			m.user, m.Err = newUser(m.record)
		}
	case op.AppendEvents != nil:
		m.verb, m.id = appendEvents, op.AppendEvents.Id
		if m.Err == nil {
			m.record = eventsRecord(op.AppendEvents.Events)
		}
	case op.DeleteUser != "":
		m.verb, m.id = deleteUser, op.DeleteUser
	default:
		m.verb, m.id = deleteItem, op.DeleteItem
	}
}

// trim drops the oldest of a history and of events that are longer than most, down to left.
func trim(u *grebev1.User, most, left int) (dropped int) {
	if n := len(u.History); n > most {
		dropped += n - left
		u.History = u.History[n-left:]
	}
	if n := len(u.Events); n > most {
		dropped += n - left
		u.Events = u.Events[n-left:]
	}
	return dropped
}

// maxRound bounds the bytes of the writers that share a round, beyond the first.
const maxRound = 8 << 20

// write makes a writer's mutations, or has the leader of a cluster make them.
func (c *Catalog) write(ctx context.Context, w *writer) {
	if c.log != nil && w.shared() {
		c.writeAnywhere(ctx, w)
		return
	}
	if err := c.enqueue(ctx, w); err != nil {
		w.fail(err)
	}
}

// enqueue makes a writer's mutations together with those of others that wait. The first writer in the
// queue leads: it makes one round for all that have come, then wakes them and the next leader. A writer whose context
// ends leaves the queue, which is an error; one that is in a round already, or leads the next, stays to its end.
func (c *Catalog) enqueue(ctx context.Context, w *writer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.wake = make(chan bool, 1)
	c.queueMu.Lock()
	if c.closed {
		c.queueMu.Unlock()
		return ErrClosed
	}
	c.queue = append(c.queue, w)
	lead := !c.busy
	c.busy = true
	c.queueMu.Unlock()
	if lead {
		c.lead()
		return nil
	}
	select {
	case lead = <-w.wake:
	case <-ctx.Done():
		if c.leave(w) {
			return ctx.Err()
		}
		lead = <-w.wake
	}
	if lead {
		c.lead()
	}
	return nil
}

// leave takes a writer out of the queue; false when its round runs, or is its own to lead.
func (c *Catalog) leave(w *writer) bool {
	c.queueMu.Lock()
	defer c.queueMu.Unlock()
	i := slices.Index(c.queue, w)
	if i < 0 || w.next {
		return false
	}
	c.queue = slices.Delete(c.queue, i, i+1)
	return true
}

func (c *Catalog) lead() {
	c.queueMu.Lock()
	n, bytes := 1, c.queue[0].bytes()
	for n < len(c.queue) && bytes < maxRound && c.queue[0].alone == nil && c.queue[n].alone == nil {
		bytes += c.queue[n].bytes()
		n++
	}
	group := c.queue[:n:n]
	c.queue = c.queue[n:]
	c.queueMu.Unlock()

	// A subscriber that panics takes its own call down, not those of others.
	defer func() {
		c.queueMu.Lock()
		var next *writer
		if len(c.queue) > 0 {
			next = c.queue[0]
			next.next = true
		} else {
			c.busy = false
		}
		c.queueMu.Unlock()
		for _, w := range group[1:] {
			w.wake <- false
		}
		if next != nil {
			next.wake <- true
		}
	}()
	c.round(group)
}

func (w *writer) fail(err error) {
	for i := range w.muts {
		if m := &w.muts[i]; m.Err == nil {
			m.Result = Result{Err: err}
		}
	}
}
