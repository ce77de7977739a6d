package divide

import (
	"testing"
	"time"

	"grebe/alloc"
)

// Users who keep coming stay hot even if more users come within a minute than are remembered. The table stays bounded.
func TestKnownUsersStayHotWhenTheTableIsFull(t *testing.T) {
	s := newSystem(t)
	defer s.close(t)
	now := time.Unix(1000, 0)
	d, err := New(Config{Pool: s.pool, Rows: s.rows, KV: s.store, Controller: alloc.Static(0.5),
		Now: func() time.Time { return now }}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	const regulars, rest = 100, mostUsers
	user := uint64(regulars)
	for u := range uint64(regulars) {
		d.Done(Request{User: u + 1})
	}
	for minute := range 4 { // regular users come every 30 seconds, the others once
		for half := range 2 {
			for range rest / 2 {
				user++
				d.Done(Request{User: user})
			}
			now = now.Add(hotWithin / 2)
			hot := d.epoch.hot
			for u := range uint64(regulars) {
				d.Done(Request{User: u + 1})
			}
			if n := d.epoch.hot - hot; n != regulars {
				t.Fatalf("minute %d.%d: %d of %d users who came 30 s ago were hot", minute, half, n, regulars)
			}
		}
		d.Step()
		if n := len(d.seen.at); n > mostUsers {
			t.Fatalf("%d users are remembered, at most %d may be", n, mostUsers)
		}
	}
}

// A full table forgets expired users as new ones come, at most two per request, so that no request pays for all of
// them.
func TestExpiredUsersGoTwoAtATime(t *testing.T) {
	const most = 1000
	v, now := newVisits(most), time.Unix(1000, 0)
	for u := range uint64(most) {
		v.note(u+1, now)
	}
	if v.note(most+1, now.Add(time.Second)); len(v.at) != most {
		t.Fatalf("%d users of at most %d", len(v.at), most)
	}
	now = now.Add(hotWithin)
	if v.note(1, now) {
		t.Error("a user who came a minute ago is hot")
	}
	for u := range uint64(most - 1) {
		before := len(v.at)
		if v.note(2*most+u, now) {
			t.Fatal("a new user is hot")
		}
		if gone := before + 1 - len(v.at); gone < 0 || gone > 2 {
			t.Fatalf("a note forgot %d users", gone)
		}
		if !v.note(2*most+u, now.Add(time.Second)) {
			t.Fatal("a new user was not remembered, and expired ones could go")
		}
	}
	if len(v.at) > most || len(v.items) > most+1 {
		t.Errorf("%d users, %d items, at most %d", len(v.at), len(v.items), most)
	}
	if n := testing.AllocsPerRun(100, func() { v.note(2*most, now.Add(time.Second)) }); n != 0 {
		t.Errorf("refreshing a user allocates %v times", n)
	}
}
