package catalog

import "context"

// Preview returns what Apply would do to each Op by itself, and changes nothing. Limits of the catalog's size are not
// checked.
func (c *Catalog) Preview(ops []Op) []Result {
	out := make([]Result, len(ops))
	for i := range ops {
		m := c.mutationOf(&ops[i])
		if m.Err != nil {
			out[i].Err = m.Err
			continue
		}
		out[i] = c.preview(&m)
	}
	return out
}

// preview compares a mutation with the catalog.
func (c *Catalog) preview(m *mutation) Result {
	c.mu.RLock()
	item, user := c.items.find(m.id), c.users[m.id]
	c.mu.RUnlock()
	return m.against(item, user)
}

// PreviewWithin is Preview of one Op, with the store's users. The Result's error is ErrUsers if the store does not
// answer.
func (u *Users) PreviewWithin(ctx context.Context, op *Op) Result {
	var m mutation
	if m.prepare(op, u.c.opt.MaxHistory); m.Err != nil {
		return Result{Err: m.Err}
	}
	if m.verb == putItem || m.verb == deleteItem {
		return u.c.preview(&m)
	}
	old, err := u.get(ctx, m.id)
	if err != nil {
		return Result{Err: err}
	}
	return m.against(nil, old)
}

// against compares a mutation with the entry that it would replace; nil: there is none.
func (m *mutation) against(item *itemEntry, user *userEntry) Result {
	switch m.verb {
	case putItem:
		return Result{Created: item == nil, Changed: !item.same(m.record)}
	case putUser:
		return Result{Created: user == nil, Changed: user == nil || user.digest != m.user.digest}
	case appendEvents:
		events, _, err := newEvents(m.record)
		if err != nil {
			return Result{Err: err}
		}
		fresh := newOnes(user, events)
		return Result{Created: user == nil, Changed: len(fresh) > 0, Duplicates: len(events) - len(fresh)}
	case deleteUser:
		return Result{Changed: user != nil}
	}
	return Result{Changed: item != nil}
}
