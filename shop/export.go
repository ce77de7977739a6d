package shop

import (
	"fmt"
	"io"
	"math/rand/v2"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/workload"
)

// ItemMessage returns an item as the catalog takes it.
func (w *World) ItemMessage(item int) *grebev1.Item {
	it := &w.Items[item]
	text := it.Text()
	one := func(s string) *grebev1.Values { return &grebev1.Values{Values: []string{s}} }
	return &grebev1.Item{Id: it.ID, Text: &text, Attributes: map[string]*grebev1.Values{
		"brand": one(it.Brand), "category": one(it.Category), "department": one(it.Department), "style": one(it.Style),
	}}
}

// UserMessage returns a customer as the catalog takes it: the text, the items bought, and the stream as
// events, whose action is the stars of a purchase and 0 elsewhere. Next and Chosen are not in it.
func (w *World) UserMessage(u *User) *grebev1.User {
	text := w.Text(u)
	m := &grebev1.User{Id: u.ID, Text: &text}
	marks := w.Marks()
	last, k := -1, int64(0)
	for _, r := range w.Stream(u) {
		if r.Day != last {
			last, k = r.Day, 0
		}
		e := &grebev1.Event{Time: date(r.Day).Unix() + 120*k, Action: int32(r.Stars)}
		if k++; r.Purchase() {
			e.Item = w.Items[r.Item].ID
			m.History = append(m.History, e.Item)
		} else {
			e.Item = marks[r.Mark]
		}
		m.Events = append(m.Events, e)
	}
	return m
}

// WriteItems writes the catalog as NDJSON.
func (w *World) WriteItems(out io.Writer) error {
	for i := range w.Items {
		if _, err := out.Write(wire.EncodeItem(w.ItemMessage(i))); err != nil {
			return fmt.Errorf("shop: write items: %w", err)
		}
	}
	return nil
}

// WriteUser writes a customer as a line of NDJSON.
func (w *World) WriteUser(out io.Writer, u *User) error {
	if _, err := out.Write(wire.EncodeUser(w.UserMessage(u))); err != nil {
		return fmt.Errorf("shop: write user %s: %w", u.ID, err)
	}
	return nil
}

// Request is one ranking of a trace.
type Request struct {
	AtMs       int64    `json:"at_ms"` // since the start
	User       string   `json:"user"`
	Candidates []string `json:"candidates"`
}

// Trace returns n requests of customers of a split, per second so many on average. Arrivals are a
// Poisson process. Customers come in sessions of one to six requests among others' requests, and those
// with long histories come more often; each request has another list of offers.
func (w *World) Trace(split Split, users, n int, perSecond float64, seed uint64) []Request {
	r := rand.New(rand.NewPCG(seed, streamTrace))
	arrivals := workload.Poisson(perSecond, seed)
	type session struct {
		user int
		left int
	}
	states := make([]*State, users)
	var weights []uint64
	for i := range users {
		u := w.User(split, i)
		states[i] = w.State(u)
		weights = append(weights, uint64(len(u.Visits)))
	}
	var open []session
	out := make([]Request, n)
	for i := range out {
		at, _ := arrivals.Next() // without end
		if len(open) == 0 || r.IntN(3) == 0 {
			open = append(open, session{draw(r, weights), 1 + r.IntN(6)})
		}
		k := r.IntN(len(open))
		u := open[k].user
		if open[k].left--; open[k].left == 0 {
			open = append(open[:k], open[k+1:]...)
		}
		out[i] = Request{AtMs: at.Milliseconds(), User: fmt.Sprintf("%s-%d", split, u), Candidates: w.IDs(states[u].offer(r))}
	}
	return out
}

// IDs returns the ids of items.
func (w *World) IDs(items []int) []string {
	out := make([]string, len(items))
	for k, i := range items {
		out[k] = w.Items[i].ID
	}
	return out
}
