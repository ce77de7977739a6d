// Package catalog keeps items and users by id, in memory.
//
// It hands out items and users in the form that package prompt takes. What was handed out is never
// changed afterwards: a Put replaces an entry. A Catalog is safe for concurrent use; its one lock is
// held for map operations only.
package catalog

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	grebev1 "grebe/api/grebe/v1"
	"grebe/prompt"
)

// ErrFull says that the catalog holds as many entries as it may.
var ErrFull = errors.New("the catalog is full")

// maxID bounds the length of an id in bytes.
const maxID = 512

// Options bound a catalog. Zero means the default.
type Options struct {
	MaxItems int // 10 million
	MaxUsers int // 10 million
}

// Catalog holds items and users.
type Catalog struct {
	opt     Options
	mu      sync.RWMutex
	items   map[string]*prompt.Item
	users   map[string]*grebev1.User
	version uint64 // changes so far
}

// New returns an empty catalog.
func New(opt Options) *Catalog {
	if opt.MaxItems <= 0 {
		opt.MaxItems = 10_000_000
	}
	if opt.MaxUsers <= 0 {
		opt.MaxUsers = 10_000_000
	}
	return &Catalog{opt: opt, items: map[string]*prompt.Item{}, users: map[string]*grebev1.User{}}
}

// Counts returns the number of items and users, and a version that changes with every change.
func (c *Catalog) Counts() (items, users int, version string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.items), len(c.users), strconv.FormatUint(c.version, 10)
}

// Item returns an item. The caller MUST NOT change it.
func (c *Catalog) Item(id string) (*prompt.Item, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	it, ok := c.items[id]
	return it, ok
}

// PutItem adds or replaces an item and reports whether it is new. The catalog keeps what m refers to.
func (c *Catalog) PutItem(m *grebev1.Item) (bool, error) {
	if err := checkID(m.Id); err != nil {
		return false, err
	}
	it := Item(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, old := c.items[m.Id]
	if !old && len(c.items) >= c.opt.MaxItems {
		return false, fmt.Errorf("%w: %d items", ErrFull, len(c.items))
	}
	c.items[m.Id] = it
	c.version++
	return !old, nil
}

// DeleteItem removes an item and reports whether it was there.
func (c *Catalog) DeleteItem(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.items[id]
	if ok {
		delete(c.items, id)
		c.version++
	}
	return ok
}

// User returns a user as it was put. The caller MUST NOT change it.
func (c *Catalog) User(id string) (*grebev1.User, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	u, ok := c.users[id]
	return u, ok
}

// PutUser adds or replaces a user and reports whether it is new. The catalog keeps m.
func (c *Catalog) PutUser(m *grebev1.User) (bool, error) {
	if err := checkID(m.Id); err != nil {
		return false, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, old := c.users[m.Id]
	if !old && len(c.users) >= c.opt.MaxUsers {
		return false, fmt.Errorf("%w: %d users", ErrFull, len(c.users))
	}
	c.users[m.Id] = m
	c.version++
	return !old, nil
}

// DeleteUser removes a user and reports whether it was there.
func (c *Catalog) DeleteUser(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.users[id]
	if ok {
		delete(c.users, id)
		c.version++
	}
	return ok
}

// Resolve turns a user into what prompt takes. The history is looked up now: items that are not in
// the catalog, for instance because they were deleted since, are left out and counted. A user
// without history but with events has the events' items as history.
func (c *Catalog) Resolve(m *grebev1.User) (u *prompt.User, unknown int) {
	u = &prompt.User{ID: m.Id, Text: m.GetText(), Tokens: m.Tokens}
	c.mu.RLock()
	defer c.mu.RUnlock()
	add := func(id string) {
		if it, ok := c.items[id]; ok {
			u.History = append(u.History, it)
		} else {
			unknown++
		}
	}
	for _, id := range m.History {
		add(id)
	}
	if len(m.History) == 0 {
		for _, e := range m.Events {
			add(e.Item)
		}
	}
	return u, unknown
}

// Item turns a message into what prompt takes; both share memory.
func Item(m *grebev1.Item) *prompt.Item {
	it := &prompt.Item{ID: m.Id, Text: m.GetText(), Tokens: m.Tokens, Identifier: -1, Codes: m.Codes}
	if m.Identifier != nil {
		it.Identifier = *m.Identifier
	}
	if len(m.Attributes) > 0 {
		it.Attributes = make(map[string][]string, len(m.Attributes))
		for name, v := range m.Attributes {
			it.Attributes[name] = v.GetValues()
		}
	}
	return it
}

// Message is the inverse of Item.
func Message(it *prompt.Item) *grebev1.Item {
	m := &grebev1.Item{Id: it.ID, Tokens: it.Tokens, Codes: it.Codes}
	if it.Text != "" {
		m.Text = &it.Text
	}
	if it.Identifier >= 0 {
		m.Identifier = &it.Identifier
	}
	if len(it.Attributes) > 0 {
		m.Attributes = make(map[string]*grebev1.Values, len(it.Attributes))
		for name, v := range it.Attributes {
			m.Attributes[name] = &grebev1.Values{Values: v}
		}
	}
	return m
}

func checkID(id string) error {
	if id == "" {
		return errors.New("id: is missing")
	}
	if len(id) > maxID {
		return fmt.Errorf("id: %d bytes, at most %d", len(id), maxID)
	}
	return nil
}
