package offer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
)

// members are kv members that take note of offers.
type members struct {
	names   []string
	boot    int
	has     map[plan.Key]bool
	got     map[plan.Key]string // who was offered a block last
	sent    int                 // blocks
	busy    int                 // offers that are refused
	failing bool
	pending bool // deletions are under way
}

func (m *members) Holders() (out []placement.Member, generation string) {
	for _, n := range m.names {
		out = append(out, placement.Member{Name: n, Weight: 1})
	}
	return out, fmt.Sprint(m.names, m.boot)
}

func (m *members) Has(_ string, blocks []Block, has []bool) {
	for i := range blocks {
		has[i] = m.has[blocks[i].Key]
	}
}

func (m *members) Send(_ context.Context, member string, o *Offer) (bool, error) {
	if m.failing {
		return false, errors.New("gone")
	}
	if m.busy > 0 {
		m.busy--
		return true, nil
	}
	m.sent += len(o.Blocks)
	for i := range o.Blocks {
		m.got[o.Blocks[i].Key] = member
	}
	return false, nil
}

func (m *members) Shown() (uint64, bool) { return 1, !m.pending }

func newOfferer(t *testing.T, m *members) (*Offerer, *keeper) {
	k := newKeeper(t)
	k.store.Follow(7, 64)
	m.got, m.has = map[plan.Key]string{}, map[plan.Key]bool{}
	return &Offerer{Node: "n1", Books: k.store, Members: m, Log: slog.New(slog.DiscardHandler)}, k
}

// events returns everything that a store holds.
func events(k *keeper) []residency.Event {
	all, _, _ := k.store.Snapshot()
	return all
}

// rounds runs until nothing is left to do.
func rounds(t *testing.T, o *Offerer) {
	t.Helper()
	for range 100 {
		if o.round(t.Context()) > 0 {
			return
		}
	}
	t.Fatal("it does not come to an end")
}

func TestOffersWhatMembersMiss(t *testing.T) {
	m := &members{}
	o, k := newOfferer(t, m)
	k.item(t, 1)
	if rounds(t, o); m.sent != 0 {
		t.Fatal("offered to nobody")
	}
	m.names = []string{"k1", "k2"}
	if rounds(t, o); m.sent != 1 {
		t.Errorf("%d blocks offered to new members, want the one that is there", m.sent)
	}
	k.user(t, 1, 80)
	k.publish(t, plan.Preamble, plan.Key{9}, nil, 3)
	if rounds(t, o); m.sent != 2 {
		t.Errorf("%d blocks offered, want the user too, and no preamble", m.sent)
	}
	m.has[itemKey(2)] = true
	k.item(t, 2)
	if rounds(t, o); m.sent != 2 {
		t.Error("a block that the owner has was offered")
	}
	m.boot++ // a member came back without its memory
	clear(m.has)
	if rounds(t, o); m.sent != 5 {
		t.Errorf("%d blocks offered after a restart of a member, want all three again", m.sent-2)
	}
	for i := range 200 { // more events than the feed keeps
		k.publish(t, plan.Item, plan.Key{3, byte(i)}, nil, 2)
	}
	if rounds(t, o); len(m.got) != 3+200 {
		t.Errorf("%d blocks were offered, want all", len(m.got))
	}
	m.failing = true
	k.item(t, 3)
	rounds(t, o)
	if m.failing = false; m.got[itemKey(3)] != "" {
		t.Error("offered to a member that is gone")
	}
}

// A busy member is offered again. Users wait for deletions under way, items do not wait for ever.
func TestOffersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &members{names: []string{"k1"}, busy: 3, pending: true}
		o, k := newOfferer(t, m)
		o.owners, _ = NewOwners([]placement.Member{{Name: "k1", Weight: 1}})
		_, o.generation = m.Holders()
		k.item(t, 1)
		k.user(t, 1, 70)
		began := time.Now()
		o.offer(t.Context(), events(k))
		if took := time.Since(began); m.sent != 1 || m.got[userKey(1)] != "" || took != busyTries*lookEvery+3*busyPause {
			t.Errorf("%d blocks after %v: want the item alone", m.sent, took)
		}
		m.pending = false
		if o.offer(t.Context(), events(k)); m.got[userKey(1)] != "k1" {
			t.Error("the user was not offered after the deletions")
		}
		m.busy = 1 << 30
		if o.offer(t.Context(), events(k)); m.busy != 1<<30-busyTries {
			t.Errorf("a member that stays busy was asked %d times", 1<<30-m.busy)
		}
	})
}

// A member more or less moves its own share alone, and the shares are about equal.
func TestOwners(t *testing.T) {
	owners := func(names ...string) Owners {
		var list []placement.Member
		for _, n := range names {
			list = append(list, placement.Member{Name: n, Weight: 1})
		}
		o, err := NewOwners(list)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	two, three := owners("k1", "k2"), owners("k1", "k2", "k3")
	share := map[string]int{}
	for i := range 10_000 {
		key := plan.Key{byte(i), byte(i >> 8), byte(i % 7)}
		before, now := two.Of(&key), three.Of(&key)
		if share[now]++; now != before && now != "k3" {
			t.Fatalf("key %d moved from %s to %s when k3 came", i, before, now)
		}
	}
	for _, n := range []string{"k1", "k2", "k3"} {
		if share[n] < 2700 || share[n] > 4000 {
			t.Errorf("%s owns %d of 10000 keys", n, share[n])
		}
	}
}
