package catalog

import (
	"fmt"
	"math"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/pebbleopen"
	"grebe/prompt"
)

// step is one change of a round, in order.
type step struct {
	id       string
	user     bool // else an item
	oldItem  *itemEntry
	newItem  *itemEntry
	oldUser  *userEntry
	newUser  *userEntry
	version  uint64
	deletion bool
	from     string // an import
	ended    bool   // it has ended; nothing else changed
}

// round is what the writers of a group change together: first worked out, then made durable, then
// shown to readers.
type round struct {
	c      *Catalog
	totals totals
	items  map[string]*itemEntry // as they will be; nil: deleted
	users  map[string]*userEntry
	nItems int
	nUsers int
	steps  []step
	gone   []string // users who are not there and whose deletion is recorded all the same
	done   []string // users whose records of a deletion go
	batch  *batch   // nil: in memory alone
	from   string   // the import of the writer whose turn it is
	uncut  bool     // as Catalog.uncut
	term   uint64   // of the record in the log; 0: none
	data   []byte   // of that record
}

// newRound returns an empty round for about n changes, and who is to be told of it.
func (c *Catalog) newRound(n int) (r *round, watches []func(Change)) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return &round{
		c: c, totals: c.totals, uncut: c.uncut, items: make(map[string]*itemEntry, n), users: map[string]*userEntry{},
		steps: make([]step, 0, n), nItems: c.items.n, nUsers: len(c.users),
	}, c.watches
}

func (c *Catalog) round(group []*writer) {
	failed := c.Failed()
	if f := group[0].alone; f != nil {
		if group[0].err = failed; failed == nil {
			group[0].err = f()
		}
		return
	}
	n := 0
	for _, w := range group {
		n += len(w.muts)
	}
	r, watches := c.newRound(n)
	if failed == nil && c.store != nil {
		r.batch = c.store.batch()
		defer r.batch.close()
	}
	for _, w := range group {
		if failed != nil {
			w.fail(failed)
			continue
		}
		if err := r.admit(w); err != nil {
			w.fail(err)
			continue
		}
		r.from = w.from
		for i := range w.muts {
			if m := &w.muts[i]; m.Err == nil {
				r.mutate(m)
			}
		}
	}
	if failed != nil {
		return
	}
	logged, err := r.commit()
	if err != nil {
		err = c.fail(err)
		for _, w := range group {
			w.fail(err)
		}
		return
	}
	if logged.Index > 0 {
		if err := c.log.outside().Commit(logged.Mark); err != nil {
			c.log.wait(logged)
			for _, w := range group {
				w.fail(fmt.Errorf("%w: %w", ErrUncertain, err))
			}
			return
		}
	}
	r.publish()
	if logged.Index > 0 {
		c.log.showed(logged.Mark, r.deletes())
	}
	r.tell(watches)
}

// admit reports why a writer cannot make its changes here and now.
func (r *round) admit(w *writer) (err error) {
	c := r.c
	switch {
	case !w.shared():
	case c.member:
		return ErrMember
	case c.log != nil && r.term == 0:
		r.term, err = c.log.term()
	}
	return err
}

// log adds a change to the round's record.
func (r *round) log(e entry) {
	if r.c.log != nil {
		e.from = r.from
		r.data = appendEntry(r.data, e)
	}
}

// commit makes the round durable. It returns the record that it added to the log; without an index if it added none.
func (r *round) commit() (logged Record, err error) {
	for _, id := range r.gone {
		r.batch.intend(id, max(1, r.totals.version))
	}
	if r.batch == nil || r.batch.empty() && r.totals.version == r.c.totals.version {
		return Record{}, nil
	}
	version, written := r.totals.version, func() {}
	if l := r.c.log; l != nil {
		if len(r.data) > 0 {
			logged = Record{Mark{r.term, l.last.Index + 1}, r.data}
			written = l.extend(r.batch, []Record{logged}, version)
		} else {
			version = l.version // records may wait to be shown
		}
	}
	if err := r.batch.commit(version); err != nil {
		return Record{}, err
	}
	written()
	r.c.store.db.SetNote(pebbleopen.Note{version, uint64(r.nItems), uint64(r.nUsers)})
	return logged, nil
}

// publishAtOnce bounds the map operations during which readers wait.
const publishAtOnce = 128

// publish shows the round to readers.
func (r *round) publish() {
	c := r.c
	for from := 0; from < len(r.steps); from += publishAtOnce {
		c.mu.Lock()
		for i := from; i < min(from+publishAtOnce, len(r.steps)); i++ {
			switch s := &r.steps[i]; {
			case s.ended:
			case s.newItem != nil:
				c.items.put(s.newItem.record, s.newItem.version)
			case s.newUser != nil:
				c.users[s.newUser.user.Id] = s.newUser
			case s.user:
				delete(c.users, s.id)
			default:
				c.items.remove(s.id)
			}
		}
		c.mu.Unlock()
	}
	c.items.tidy(c.changing)
	c.mu.Lock()
	c.totals, c.uncut = r.totals, r.uncut
	c.mu.Unlock()
	if c.store == nil {
		return
	}
	for i := range r.steps {
		if s := &r.steps[i]; s.deletion {
			if s.user && c.opt.TrackDeletions {
				c.deletions.add(s.id, s.version)
			}
			key := keyOf(s.user, s.id)
			c.store.sweeper.Add(key[:])
		}
	}
	for _, id := range r.gone {
		c.deletions.add(id, max(1, r.totals.version))
	}
	for _, id := range r.done {
		c.deletions.cleared(id)
		key := deletionKey(id)
		c.store.sweeper.Add(key[:])
	}
}

// changing calls f while readers wait.
func (c *Catalog) changing(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (r *round) tell(watches []func(Change)) {
	if len(watches) == 0 {
		return
	}
	for i := range r.steps {
		s := &r.steps[i]
		ch := Change{
			ID: s.id, Version: s.version, OldItem: s.oldItem.message(), NewItem: s.newItem.message(),
			OldUser: s.oldUser.message(), NewUser: s.newUser.message(), Import: s.from, Ended: s.ended,
		}
		for _, f := range watches {
			f(ch)
		}
	}
}

func (e *itemEntry) message() *prompt.Item {
	if e == nil {
		return nil
	}
	return e.item()
}

func (e *userEntry) message() *grebev1.User {
	if e == nil {
		return nil
	}
	return e.user
}

// item returns an item as the round leaves it so far. The leader alone changes the maps, so it needs
// no lock to read them.
func (r *round) item(id string) *itemEntry {
	if e, ok := r.items[id]; ok {
		return e
	}
	return r.c.items.find(id)
}

func (r *round) user(id string) *userEntry {
	if e, ok := r.users[id]; ok {
		return e
	}
	return r.c.users[id]
}

func (r *round) mutate(m *mutation) {
	switch m.verb {
	case putItem:
		r.putItem(m)
	case deleteItem:
		r.deleteItem(m)
	case putUser:
		r.putUser(m)
	case deleteUser:
		r.deleteUser(m)
	case appendEvents:
		r.appendEvents(m)
	case clearDeletions:
		r.clearDeletions()
	case endImport:
		if r.from == "" && !r.uncut { // another node was faster
			return
		}
		m.version = r.add(step{ended: true})
		r.log(entry{kind: endsImport, version: m.version})
	case sweepDone:
		if r.batch != nil && r.c.store.sweeper.Idle() && !r.deletes() && !r.c.log.waits() && !r.c.log.owesSweep() {
			r.batch.unmark()
		}
	}
}

func (r *round) deletes() bool {
	if len(r.gone) > 0 {
		return true
	}
	for i := range r.steps {
		if r.steps[i].deletion {
			return true
		}
	}
	return false
}

func (r *round) add(s step) uint64 {
	r.totals.version++
	s.version, s.from = r.totals.version, r.from
	r.steps = append(r.steps, s)
	r.cut(&s)
	return s.version
}

// cut notes whether a step leaves items that no cut has.
func (r *round) cut(s *step) {
	if s.from == "" && !s.user {
		r.uncut = !s.ended
	}
}

// room refuses what would make the catalog larger than it may be.
func (r *round) room(grow int64, created bool, n, most int, what string) error {
	if created && n >= most {
		return fmt.Errorf("%w: %d %s", ErrFull, n, what)
	}
	if grow > 0 && r.totals.bytes+grow > r.c.opt.MaxMemory {
		return fmt.Errorf("%w: %d bytes of memory of at most %d are in use", ErrFull, r.totals.bytes, r.c.opt.MaxMemory)
	}
	return nil
}

func (r *round) putItem(m *mutation) {
	old := r.item(m.id)
	if old.same(m.record) {
		return
	}
	grow := itemSize(m.record)
	if old != nil {
		grow -= old.size()
	}
	if m.Err = r.room(grow, old == nil, r.nItems, r.c.opt.MaxItems, "items"); m.Err != nil {
		return
	}
	if old == nil {
		r.nItems++
	} else {
		r.totals.digest = r.totals.digest.minus(old.digest())
	}
	r.totals.bytes += grow
	r.totals.digest = r.totals.digest.plus(m.digest)
	e := &itemEntry{record: m.record}
	e.version = r.add(step{id: m.id, oldItem: old, newItem: e})
	r.items[m.id] = e
	m.Created, m.Changed = old == nil, true
	if r.batch != nil {
		r.batch.put(false, m.id, e.version, m.record)
		if r.c.log != nil {
			r.batch.unbury(false, m.id)
		}
		r.log(entry{kind: putsItem, version: e.version, record: m.record})
	}
}

func (r *round) deleteItem(m *mutation) {
	old := r.item(m.id)
	if old == nil {
		return
	}
	r.nItems--
	r.totals.bytes -= old.size()
	r.totals.digest = r.totals.digest.minus(old.digest())
	version := r.add(step{id: m.id, oldItem: old, deletion: true})
	r.items[m.id] = nil
	m.Changed = true
	if r.batch != nil {
		r.batch.delete(false, m.id)
		if r.c.log != nil {
			r.batch.bury(false, m.id)
		}
		r.log(entry{kind: deletesItem, version: version, id: m.id})
	}
}

func (r *round) putUser(m *mutation) {
	old := r.user(m.id)
	if old != nil && old.digest == m.user.digest {
		return
	}
	if m.Err = r.replaceUser(old, m.user); m.Err != nil {
		return
	}
	r.totals.dropped += int64(m.dropped)
	m.Created, m.Changed = old == nil, true
	if r.batch != nil {
		r.batch.put(true, m.id, m.user.version, m.record)
		r.log(entry{kind: putsUser, version: m.user.version, record: m.record})
	}
}

// replaceUser puts a new entry in the place of old, or of nothing, unless it does not fit.
func (r *round) replaceUser(old, e *userEntry) error {
	grow := e.size
	if old != nil {
		grow -= old.size
	}
	if err := r.room(grow, old == nil, r.nUsers, r.c.opt.MaxUsers, "users"); err != nil {
		return err
	}
	if old == nil {
		r.nUsers++
		if r.batch != nil {
			r.batch.unbury(true, e.user.Id)
		}
	}
	r.totals.bytes += grow
	e.version = r.add(step{id: e.user.Id, user: true, oldUser: old, newUser: e})
	r.users[e.user.Id] = e
	return nil
}

func (r *round) deleteUser(m *mutation) {
	old := r.user(m.id)
	if old == nil && r.c.log == nil {
		if r.batch != nil && r.c.opt.TrackDeletions && r.c.opt.TrackUnknown {
			r.gone = append(r.gone, m.id)
		}
		return
	}
	if old != nil { // else other nodes are told all the same: they may have KV of such a user
		r.nUsers--
		r.totals.bytes -= old.size
		m.Changed = true
	}
	version := r.add(step{id: m.id, user: true, oldUser: old, deletion: true})
	r.users[m.id] = nil
	if r.batch != nil {
		r.log(entry{kind: deletesUser, version: version, id: m.id})
		r.batch.delete(true, m.id)
		r.batch.bury(true, m.id)
		if r.c.opt.TrackDeletions {
			r.batch.intend(m.id, version)
		}
	}
}

// clearDeletions removes the records of deletions that are done, unless the round makes new ones of the same users:
// those come with a round of their own.
func (r *round) clearDeletions() {
	if r.batch == nil || r.deletes() || r.c.log.waits() {
		return
	}
	r.done = r.c.deletions.takeDone()
	for _, id := range r.done {
		r.batch.fulfil(id)
	}
}

func (r *round) appendEvents(m *mutation) {
	old := r.user(m.id)
	events, size, err := newEvents(m.record)
	if err != nil {
		m.Err = err
		return
	}
	fresh := newOnes(old, events)
	if m.duplicates = len(events) - len(fresh); m.duplicates > 0 {
		if len(fresh) == 0 {
			m.entry = &User{User: old.user, Version: old.version, Duplicates: m.duplicates}
			return
		}
		m.record = eventsRecord(fresh)
		if events, size, err = newEvents(m.record); err != nil {
			m.Err = err
			return
		}
	}
	e, dropped := grown(old, m.id, events, size, r.c.opt.MaxHistory)
	if m.Err = r.replaceUser(old, e); m.Err != nil {
		return
	}
	r.totals.dropped += int64(dropped)
	m.Created, m.Changed, m.dropped = old == nil, true, dropped
	m.entry = &User{User: e.user, Version: e.version, Duplicates: m.duplicates}
	switch {
	case r.batch == nil:
	case old == nil || e.appended == 0:
		whole := userRecord(e.user)
		r.batch.put(true, m.id, e.version, whole)
		r.log(entry{kind: putsUser, version: e.version, record: whole})
	default:
		r.batch.append(m.id, e.version, m.record)
		r.log(entry{kind: appends, version: e.version, id: m.id, record: m.record})
	}
}

// grown returns a user with more events, which take size bytes; old may be nil. Events are in the order of their times.
// An entry with appended == 0 is to be written in full: because it is new, because something was dropped or events came
// late, or because so much was appended that reading it back would take longer than it should.
func grown(old *userEntry, id string, events []*grebev1.Event, size int64, maxHistory int) (e *userEntry, dropped int) {
	if old == nil {
		old = &userEntry{user: &grebev1.User{Id: id}, size: userStruct + int64(len(id))}
	}
	u := &grebev1.User{Id: old.user.Id, Text: old.user.Text, Tokens: old.user.Tokens, History: old.user.History,
		Events: old.user.Events}
	late := !inOrder(u.Events, events)
	if late {
		insert(u, events)
	} else {
		// The arrays are shared with the user before: readers of that one see no further than its end.
		u.Events = append(u.Events, events...)
		if len(u.History) > 0 {
			for _, ev := range events {
				u.History = append(u.History, ev.Item)
			}
		}
	}
	if len(u.History) > 0 {
		size += 16 * int64(len(events))
	}
	e = &userEntry{user: u, size: old.size + size, appended: old.appended + len(events)}
	dropped = trim(u, maxHistory, max(1, int(math.Ceil(float64(maxHistory)*0.75))))
	if dropped > 0 {
		// A fresh copy lets go of what was dropped.
		fresh, err := newUser(userRecord(u))
		if err != nil { // it was made of a user just now
			panic(fmt.Sprintf("catalog: user %q: %v", id, err))
		}
		e = fresh
	}
	if late || e.appended >= max(64, len(u.Events)/2) {
		e.appended = 0
	}
	return e, dropped
}
