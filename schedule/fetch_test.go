package schedule

import (
	"testing"
	"time"

	"grebe/plan"
)

// A request waits for peers as long as it would queue and compute, and leaves half of its spare time.
func TestFetchWait(t *testing.T) {
	for _, c := range []struct {
		left               time.Duration
		deadline           bool
		queue, alone, with float64
		want               time.Duration
	}{
		{0, false, 0, 10, 4, 6 * time.Millisecond},
		{0, false, 20, 10, 4, 26 * time.Millisecond},
		{time.Second, true, 20, 10, 4, 26 * time.Millisecond},
		{40 * time.Millisecond, true, 20, 10, 4, 5 * time.Millisecond},
		{20 * time.Millisecond, true, 20, 10, 4, 26 * time.Millisecond}, // only KV that comes early can help
		{0, false, 0, 4, 10, 0},
	} {
		if got := FetchWait(c.left, c.deadline, c.queue, c.alone, c.with); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Cached counts what Decide loads: without it, the option has as many rows and keys more.
func TestCachedTokensOfATier(t *testing.T) {
	costs := DefaultCosts(PrefillModel{Row: 1, Key: .001})
	in := &Request{Preamble: 3, LeadIn: 2, Question: 4, User: 20, Items: []int32{5, 6, 7}}
	in.ItemTier = []plan.Tier{plan.Host, plan.Peer, plan.Peer}
	in.UserCached[plan.Host], in.UserCached[plan.Peer] = 6, 9
	with := Decide(in, &costs, Predicted)
	without := *in
	without.ItemTier = []plan.Tier{plan.Host, plan.Missing, plan.Missing}
	without.UserCached[plan.Peer] = 0
	alone := Decide(&without, &costs, Predicted)
	for order, o := range map[plan.Order][2]*Option{plan.UserFirst: {&with.User, &alone.User},
		plan.ItemFirst: {&with.Item, &alone.Item}} {
		rows, keys := in.Cached(order, plan.Peer)
		if rows == 0 || o[0].Rows+rows != o[1].Rows || o[0].Keys+keys != o[1].Keys {
			t.Errorf("%v: %d rows and %d keys of peers: %+v, and without %+v", order, rows, keys, o[0], o[1])
		}
	}
}
