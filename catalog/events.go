package catalog

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
)

// A user's events are in the order of their times. One without a time counts as of the time of the event before it.
// Which ids of events a user has had is known for as long as the events are kept: at most Options.MaxHistory of them.

// maxEventID bounds the length of an event's id in bytes.
const maxEventID = 128

// checkEvents reports what is wrong with events to append.
func checkEvents(events []*grebev1.Event) error {
	if len(events) == 0 {
		return &wire.Error{Field: "events", Problem: "give at least one"}
	}
	for i, e := range events {
		switch field := fmt.Sprintf("events[%d]", i); {
		case e.GetItem() == "":
			return &wire.Error{Field: field + ".item", Problem: "is missing"}
		case len(e.Item) > maxID:
			return &wire.Error{Field: field + ".item", Problem: fmt.Sprintf("%d bytes, at most %d", len(e.Item), maxID)}
		case len(e.Id) > maxEventID:
			return &wire.Error{Field: field + ".id", Problem: fmt.Sprintf("%d bytes, at most %d", len(e.Id), maxEventID)}
		}
	}
	return nil
}

// appendAll appends the events of many users. Events of one user become one change, in their order.
func (c *Catalog) appendAll(ctx context.Context, ops []Op) []Result {
	out := make([]Result, len(ops))
	at := make(map[string]int, len(ops)) // the first op of each user, by id
	users := make([]int, 0, len(ops))
	events := make(map[string][]*grebev1.Event, len(ops))
	for i := range ops {
		a := ops[i].AppendEvents
		if out[i].Err = checkID(a.Id); out[i].Err == nil {
			out[i].Err = checkEvents(a.Events)
		}
		if out[i].Err != nil {
			continue
		}
		if _, known := at[a.Id]; !known {
			at[a.Id] = i
			users = append(users, i)
		}
		events[a.Id] = append(events[a.Id], a.Events...)
	}
	if len(users) == 0 {
		return out
	}
	w := &writer{muts: make([]mutation, len(users))}
	for k, i := range users {
		id := ops[i].AppendEvents.Id
		w.muts[k] = mutation{verb: appendEvents, id: id, record: eventsRecord(events[id])}
	}
	c.write(ctx, w)
	for k, i := range users {
		out[i] = w.muts[k].Result
		out[i].Duplicates = w.muts[k].duplicates
	}
	for i := range ops {
		if first, ok := at[ops[i].AppendEvents.Id]; ok && first != i && out[i].Err == nil {
			out[i] = out[first]
			out[i].Created, out[i].Duplicates = false, 0
		}
	}
	return out
}

// newOnes returns the events whose ids the user does not have; those without an id are always new.
func newOnes(old *userEntry, events []*grebev1.Event) []*grebev1.Event {
	if !slices.ContainsFunc(events, func(e *grebev1.Event) bool { return e.Id != "" }) {
		return events
	}
	has := make(map[string]bool, len(events)) // false: asked for, not there
	for _, e := range events {
		if e.Id != "" {
			has[e.Id] = false
		}
	}
	if old != nil {
		for _, e := range old.user.Events {
			if e.Id == "" {
				continue
			}
			if _, asked := has[e.Id]; asked {
				has[e.Id] = true
			}
		}
	}
	out := make([]*grebev1.Event, 0, len(events))
	for _, e := range events {
		if e.Id != "" {
			if has[e.Id] {
				continue
			}
			has[e.Id] = true
		}
		out = append(out, e)
	}
	return out
}

// inOrder reports whether new events may simply follow the old ones.
func inOrder(old, events []*grebev1.Event) bool {
	last := int64(0)
	for _, e := range slices.Backward(old) {
		if e.Time != 0 {
			last = e.Time
			break
		}
	}
	for _, e := range events {
		if e.Time == 0 {
			continue
		}
		if e.Time < last {
			return false
		}
		last = e.Time
	}
	return true
}

// insert puts events into a user's, each behind those that are not later, in arrays of their own. Where the end of the
// history is the events' items, it is kept so.
func insert(u *grebev1.User, events []*grebev1.Event) {
	type timed struct {
		at int64
		e  *grebev1.Event
	}
	all := make([]timed, 0, len(u.Events)+len(events))
	add := func(list []*grebev1.Event) {
		at := int64(0)
		if n := len(all); n > 0 {
			at = all[n-1].at
		}
		for _, e := range list {
			if e.Time != 0 {
				at = e.Time
			}
			all = append(all, timed{at, e})
		}
	}
	add(u.Events)
	add(events)
	follows := len(u.History) >= len(u.Events)
	if follows {
		tail := u.History[len(u.History)-len(u.Events):]
		follows = slices.EqualFunc(tail, u.Events, func(id string, e *grebev1.Event) bool { return id == e.Item })
	}
	head := len(u.History) - len(u.Events)
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	u.Events = make([]*grebev1.Event, len(all))
	for i := range all {
		u.Events[i] = all[i].e
	}
	if len(u.History) == 0 {
		return
	}
	if !follows { // it is not known where they belong
		u.History = slices.Clip(u.History)
		for _, e := range events {
			u.History = append(u.History, e.Item)
		}
		return
	}
	u.History = slices.Clip(u.History[:head])
	for _, e := range u.Events {
		u.History = append(u.History, e.Item)
	}
}
