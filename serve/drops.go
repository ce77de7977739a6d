package serve

import (
	"context"
	"sync"
	"time"

	"grebe/catalog"
	"grebe/prompt"
	"grebe/reuse"
)

// drops removes cached KV of changed items and deleted users in the background, so that writes to the catalog wait
// for no model and no KV disk. It removes many at once. Deleted users go first; their deletion waits for the removal
// (await).
//
// Writers of items reserve their changes and wait while too many are pending, which bounds the list. The goroutine
// that removes KV runs while something is pending. It leaves most of the processor to requests in flight.
type drops struct {
	mu       sync.Mutex
	users    []*userDrop
	byUser   map[string]*userDrop // the last drop of each user, until it is done
	items    []*itemDrop
	byItem   map[string]*itemDrop // the elements of items
	pending  int                  // changes of items that are listed or being removed
	reserved int                  // changes that writers reserved
	running  bool
	closed   bool          // the service is closed: those who change something remove it themselves
	moved    chan struct{} // closed when pending or reserved shrank, or all is done; nil: nobody waits
}

// userDrop is a deleted user.
type userDrop struct {
	id    string
	taken bool
	done  chan struct{}
}

// itemDrop is an item that changed, once or more: its earlier forms and its present one, if any.
type itemDrop struct {
	id  string
	was []*prompt.Item
	is  *prompt.Item
}

const (
	// mostDrops is the number of pending changes of items from which on writers wait.
	mostDrops = 1024
	// dropsAtOnce is the number of users or items that one call of a cache removes.
	dropsAtOnce = 256
	// dropShare limits removals to 1/dropShare of the time while requests are in flight.
	dropShare = 10
	// dropSlice is how long removals run before they pause for requests.
	dropSlice = 500 * time.Microsecond
	// dropsAtEnd is the time for removals of items at shutdown. KV that is left is never used again, and is evicted
	// in time.
	dropsAtEnd = 300 * time.Millisecond
)

// changed receives a change of the catalog. It returns at once.
func (s *Service) changed(c catalog.Change) {
	switch {
	case c.Ended:
		return
	case c.OldItem != nil || c.NewItem != nil:
		if c.NewItem == nil {
			s.hotItems.forget(c.ID)
		}
		s.items.add(c.ID)
		s.drops.addItem(c)
	case c.NewUser == nil:
		s.present.deleted(c.ID)
		s.drops.addUser(c.ID)
	default:
		return
	}
	s.startDrops()
}

func (d *drops) addUser(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if u := d.byUser[id]; u != nil && !u.taken {
		return
	}
	if d.byUser == nil {
		d.byUser = map[string]*userDrop{}
	}
	u := &userDrop{id: id, done: make(chan struct{})}
	d.byUser[id] = u
	d.users = append(d.users, u)
}

func (d *drops) addItem(c catalog.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	it := d.byItem[c.ID]
	if it == nil {
		if d.byItem == nil {
			d.byItem = map[string]*itemDrop{}
		}
		it = &itemDrop{id: c.ID}
		d.byItem[c.ID] = it
		d.items = append(d.items, it)
		d.pending++
	}
	if c.OldItem != nil {
		it.was = append(it.was, c.OldItem)
	}
	it.is = c.NewItem
}

// reserve waits until n more changes of items may be pending. The caller MUST call done when it has made the changes.
func (d *drops) reserve(ctx context.Context, n int) (done func(), err error) {
	d.mu.Lock()
	for d.pending+d.reserved > 0 && d.pending+d.reserved+n > mostDrops {
		moved := d.wait()
		d.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		d.mu.Lock()
	}
	d.reserved += n
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.reserved -= n
		d.signal()
	}, nil
}

// wait returns a channel that signal closes. The caller holds the lock.
func (d *drops) wait() chan struct{} {
	if d.moved == nil {
		d.moved = make(chan struct{})
	}
	return d.moved
}

// signal wakes those who wait. The caller holds the lock.
func (d *drops) signal() {
	if d.moved != nil {
		close(d.moved)
		d.moved = nil
	}
}

// await waits until the KV of a deleted user is removed, or ctx ends.
func (d *drops) await(ctx context.Context, id string) error {
	d.mu.Lock()
	u := d.byUser[id]
	d.mu.Unlock()
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close makes later changes remove their KV themselves.
func (d *drops) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// Settle waits until all changes of the catalog so far have taken effect on the caches, or ctx ends.
func (s *Service) Settle(ctx context.Context) error {
	d := &s.drops
	d.mu.Lock()
	for d.running {
		moved := d.wait()
		d.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
		d.mu.Lock()
	}
	d.mu.Unlock()
	return nil
}

// startDrops removes what is pending: in the background, or at once after close.
func (s *Service) startDrops() {
	d := &s.drops
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running {
		return
	}
	d.running = true
	if !d.closed {
		s.background.Go(s.runDrops)
		return
	}
	d.mu.Unlock()
	s.runDrops()
	d.mu.Lock()
}

// runDrops removes until nothing is pending.
func (s *Service) runDrops() {
	var end time.Time // of removals of items, at shutdown
	for {
		users, items := s.drops.take()
		switch {
		case len(users) > 0:
			s.removeUsers(users)
		case len(items) == 0:
			return
		default:
			if s.life.Err() != nil && end.IsZero() {
				end = time.Now().Add(dropsAtEnd)
			}
			if !end.IsZero() && time.Now().After(end) {
				s.log.Warn("KV of changed items was not removed before shutdown: it will be evicted",
					"items", s.drops.abandon(len(items)))
				continue
			}
			_ = s.contained(func() error { s.removeItems(items); return nil })
			s.drops.finished(len(items))
		}
	}
}

// take returns what to remove next. If it returns nothing, runDrops must end.
func (d *drops) take() (users []*userDrop, items []*itemDrop) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := min(dropsAtOnce, len(d.users)); n > 0 {
		users, d.users = d.users[:n:n], d.users[n:]
		for _, u := range users {
			u.taken = true
		}
		return users, nil
	}
	n := min(dropsAtOnce, len(d.items))
	if n == 0 {
		d.users, d.items, d.running = nil, nil, false
		d.signal()
		return nil, nil
	}
	items, d.items = d.items[:n:n], d.items[n:]
	for _, it := range items {
		delete(d.byItem, it.id)
	}
	return nil, items
}

// finished records that changes of items were removed.
func (d *drops) finished(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending -= n
	d.signal()
}

// abandon drops all pending changes of items, and the taken ones, and returns their number.
func (d *drops) abandon(taken int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := taken + len(d.items)
	d.items, d.byItem, d.pending = nil, nil, 0
	d.signal()
	return n
}

// removeUsers removes the KV of deleted users.
func (s *Service) removeUsers(users []*userDrop) {
	ids := make([]string, len(users))
	for i, u := range users {
		ids[i] = u.id
	}
	err := s.contained(func() error { return s.FinishDeletion(ids...) })
	d := &s.drops
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, u := range users {
		s.present.failed(u.id, err)
		if d.byUser[u.id] == u {
			delete(d.byUser, u.id)
		}
		close(u.done)
	}
}

// contained runs f. It logs and counts a panic, and returns it as an error.
func (s *Service) contained(f func() error) (err error) {
	defer s.Rescue("catalog", &err)
	return f()
}

// removeItems removes the KV of items' earlier forms. The caches then compute the new forms.
func (s *Service) removeItems(items []*itemDrop) {
	rest := s.pace()
	for _, sl := range s.served {
		for _, m := range sl.hold() {
			if m.Cache != nil && m.ReadsTexts() {
				s.removeFrom(m, items, rest)
			}
			sl.release(m)
		}
	}
}

func (s *Service) removeFrom(m *checkpoint, items []*itemDrop, rest func()) {
	changes := make([]reuse.Change, 0, len(items))
	for _, it := range items {
		changes = append(changes, m.Cache.Changed(it.was, it.is))
		rest()
	}
	if err := m.Cache.Apply(changes); err != nil {
		s.log.Error("cached KV could not be removed", "model", m.Name, "error", err)
	}
	rest()
}

// pace returns a function to call between pieces of background work. While requests are in flight it sleeps, to leave
// them most of the processor.
func (s *Service) pace() func() {
	began := time.Now()
	return func() {
		worked := time.Since(began)
		if worked < dropSlice {
			return
		}
		if s.underWay.Load() > 0 && s.life.Err() == nil {
			sleep := time.NewTimer((dropShare - 1) * worked)
			defer sleep.Stop()
			select {
			case <-sleep.C:
			case <-s.life.Done():
			}
		}
		began = time.Now()
	}
}
