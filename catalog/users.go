package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	grebev1 "grebe/api/grebe/v1"
)

// UserStore keeps users outside of a catalog, each by itself: a record and its version, which grows with every change
// of the user.
type UserStore interface {
	// Get returns a user's record and version; 0: there is none.
	Get(ctx context.Context, id string) (record []byte, version uint64, err error)
	// Swap writes a record if the user still has that version, and returns the new one. If the user has another version,
	// it returns 0 and the present record with its version. The error is ErrUncertain if the record may have been written,
	// or may be later.
	Swap(ctx context.Context, id string, record []byte, version uint64) (next uint64, now []byte, at uint64, err error)
	// Delete removes a user and reports whether there was one.
	Delete(ctx context.Context, id string) (bool, error)
	// Failing returns why the store does not answer at the moment; nil: it does, or was not asked.
	Failing() error
}

// Users are the users of a catalog whose users lie in a store of their own. They behave as those of the catalog do, but
// each change is one of its own, and a user's changes have versions of the store.
//
// Deletions are in the catalog too, also of users whom it never had: whoever keeps something of users hears of them
// there, after a restart as well.
type Users struct {
	store UserStore
	c     *Catalog
}

// NewUsers returns the users in a store, beside a catalog's items.
func NewUsers(store UserStore, c *Catalog) *Users { return &Users{store: store, c: c} }

// UserWithin returns a user. The caller MUST NOT change it.
func (c *Catalog) UserWithin(_ context.Context, id string) (*grebev1.User, bool, error) {
	u, ok := c.User(id)
	return u, ok, nil
}

// UserWithin returns a user. The error is ErrUsers if the store does not answer.
func (u *Users) UserWithin(ctx context.Context, id string) (*grebev1.User, bool, error) {
	e, err := u.get(ctx, id)
	if err != nil || e == nil {
		return nil, false, err
	}
	return e.user, true, nil
}

// Failing returns why users cannot be read at the moment; nil: they can, or nobody tried.
func (u *Users) Failing() error { return u.store.Failing() }

func (u *Users) get(ctx context.Context, id string) (*userEntry, error) {
	r, version, err := u.store.Get(ctx, id)
	if err != nil || version == 0 {
		return nil, err
	}
	return storedUser(id, r, version)
}

func storedUser(id string, r []byte, version uint64) (*userEntry, error) {
	e, err := newUser(r)
	if err != nil {
		return nil, fmt.Errorf("user %q in the store: %w", id, err)
	}
	e.version = version
	return e, nil
}

// change replaces a user by what next returns of the present one, which may be nil; nil: it stays as it is.
func (u *Users) change(ctx context.Context, id string,
	next func(old *userEntry) (*userEntry, error)) (*userEntry, error) {
	old, err := u.get(ctx, id)
	for {
		if err != nil {
			return nil, err
		}
		e, err := next(old)
		if err != nil || e == nil {
			return old, err
		}
		var before uint64
		if old != nil {
			before = old.version
		}
		version, now, at, err := u.store.Swap(ctx, id, userRecord(e.user), before)
		if err != nil {
			return nil, err
		}
		if version > 0 {
			e.version = version
			return e, nil
		}
		if old = nil; at > 0 { // somebody else was faster
			if old, err = storedUser(id, now, at); err != nil {
				return nil, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// AppendEventsWithin is that of a Catalog.
func (u *Users) AppendEventsWithin(ctx context.Context, id string,
	events []*grebev1.Event) (out User, created bool, dropped int, err error) {
	if err := checkID(id); err != nil {
		return User{}, false, 0, err
	}
	if err := checkEvents(events); err != nil {
		return User{}, false, 0, err
	}
	e, err := u.change(ctx, id, func(old *userEntry) (*userEntry, error) {
		out.Duplicates, created, dropped = 0, false, 0
		fresh := newOnes(old, events)
		if out.Duplicates = len(events) - len(fresh); len(fresh) == 0 {
			return nil, nil
		}
		own, size, err := newEvents(eventsRecord(fresh))
		if err != nil {
			return nil, err
		}
		e, n := grown(old, id, own, size, u.c.opt.MaxHistory)
		created, dropped = old == nil, n
		return e, nil
	})
	if err != nil {
		return User{}, false, 0, err
	}
	out.User, out.Version = e.user, e.version
	return out, created, dropped, nil
}

func (u *Users) put(ctx context.Context, m *grebev1.User) (res Result) {
	mut := mutation{}
	if mut.prepare(&Op{PutUser: m}, u.c.opt.MaxHistory); mut.Err != nil {
		return Result{Err: mut.Err}
	}
	_, res.Err = u.change(ctx, m.Id, func(old *userEntry) (*userEntry, error) {
		res.Created = old == nil
		if res.Changed = old == nil || old.digest != mut.user.digest; !res.Changed {
			return nil, nil
		}
		return mut.user, nil
	})
	if res.Err != nil {
		return Result{Err: res.Err}
	}
	return res
}

// delete removes a user from the store, and then has all nodes hear of it.
func (u *Users) delete(ctx context.Context, id string) (res Result) {
	if err := checkID(id); err != nil {
		return Result{Err: err}
	}
	if res.Changed, res.Err = u.store.Delete(ctx, id); res.Err != nil {
		return Result{Err: res.Err}
	}
	if err := u.c.ApplyWithin(ctx, "", []Op{{DeleteUser: id}})[0].Err; err != nil {
		return Result{Err: err}
	}
	return res
}

func (u *Users) apply(ctx context.Context, op *Op) Result {
	switch {
	case op.PutUser != nil:
		return u.put(ctx, op.PutUser)
	case op.DeleteUser != "":
		return u.delete(ctx, op.DeleteUser)
	}
	a := op.AppendEvents
	out, created, _, err := u.AppendEventsWithin(ctx, a.Id, a.Events)
	return Result{Created: created, Changed: err == nil &&
		out.Duplicates < len(a.Events), Err: err, Duplicates: out.Duplicates}
}

// usersAtOnce bounds the changes of users that a call makes at a time.
const usersAtOnce = 64

// ApplyWithin is that of a Catalog. Changes of items are made by the catalog, those of users by the store. Changes of
// one user are made in their order.
func (u *Users) ApplyWithin(ctx context.Context, from string, ops []Op) []Result {
	out := make([]Result, len(ops))
	var items []int // of ops
	byUser := map[string][]int{}
	var ids []string
	for i := range ops {
		id := ops[i].userID()
		if id == "" && ops[i].PutUser == nil && ops[i].AppendEvents == nil {
			items = append(items, i)
			continue
		}
		if byUser[id] == nil {
			ids = append(ids, id)
		}
		byUser[id] = append(byUser[id], i)
	}
	if len(items) > 0 {
		part := make([]Op, len(items))
		for k, i := range items {
			part[k] = ops[i]
		}
		for k, res := range u.c.ApplyWithin(ctx, from, part) {
			out[items[k]] = res
		}
	}
	var wg sync.WaitGroup
	places := make(chan struct{}, usersAtOnce)
	for _, id := range ids {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			for _, i := range byUser[id] {
				out[i] = u.apply(ctx, &ops[i])
			}
		})
	}
	wg.Wait()
	return out
}

// userID returns the user whom an Op changes; "": it changes an item, or the user has no id.
func (op *Op) userID() string {
	switch {
	case op.PutUser != nil:
		return op.PutUser.Id
	case op.AppendEvents != nil:
		return op.AppendEvents.Id
	}
	return op.DeleteUser
}

// LoadUsersIf is that of a Catalog.
func (u *Users) LoadUsersIf(path string, filter Filter) (int, error) {
	return u.c.load(path, filter, decodeUser, func(ops []Op) []Result {
		return u.ApplyWithin(context.Background(), "", ops)
	})
}

// ErrUsers reports that the store of users does not answer. Nothing was changed.
var ErrUsers = errors.New("the store of users does not answer")
