package member

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

// Random listings, changes, probe results, absences of the coordinator and ticks. A plain account of what happened to
// each node says whether it may be removed, and how long a dead one may stay.
func TestRandom(t *testing.T) {
	removed := 0
	for seed := range uint64(200) {
		removed += random(t, seed)
	}
	if removed < 200 {
		t.Errorf("only %d nodes were removed in all", removed)
	}
}

// account is what happened to a node.
type account struct {
	listed  bool
	boot    string
	missing time.Duration // since when its record is missing
	failed  int           // probes in a row since then
	probe   *Probe        // under way
	sent    time.Duration
}

func random(t *testing.T, seed uint64) (removed int) {
	rng := rand.New(rand.NewPCG(seed, 3))
	o := Options{}.defaults()
	s := New(Options{})
	nodes := map[string]*account{}
	var now, upSince time.Duration
	up := false
	check := func(changes []Change) {
		for _, c := range changes {
			a := nodes[c.ID]
			if c.To != Gone || c.Boot != a.boot {
				continue
			}
			removed++
			switch {
			case a.listed:
				t.Fatalf("seed %d, %v: %s is gone and its record is there", seed, now, c.ID)
			case !up || now-upSince < o.Gone || now-a.missing < o.Gone:
				t.Fatalf("seed %d, %v: %s is gone; up %v since %v, missing since %v", seed, now, c.ID, up, upSince, a.missing)
			case a.failed < o.Fails:
				t.Fatalf("seed %d, %v: %s is gone after %d failed probes", seed, now, c.ID, a.failed)
			}
			delete(nodes, c.ID)
		}
	}
	put := func(id string, a *account) Record {
		if a.boot == "" || rng.IntN(4) == 0 {
			a.boot = fmt.Sprint("b", rng.IntN(1000))
			a.probe = nil
		}
		a.listed, a.failed, a.probe = true, 0, nil
		return record(id, a.boot)
	}
	for range 500 {
		now += time.Duration(rng.IntN(300)) * time.Millisecond
		id := fmt.Sprint("n", rng.IntN(4))
		a := nodes[id]
		switch k := rng.IntN(20); {
		case k == 0 && up:
			up = false
			s.Away()
		case k == 1:
			if !up {
				up, upSince = true, now
			}
			var records []Record
			for i := range 4 {
				id := fmt.Sprint("n", i)
				if rng.IntN(2) == 0 {
					if nodes[id] == nil {
						nodes[id] = &account{}
					}
					records = append(records, put(id, nodes[id]))
				} else if a := nodes[id]; a != nil && a.listed {
					a.listed, a.missing, a.failed = false, now, 0
				}
			}
			check(s.Listing(at(now), records))
		case k == 2 && up:
			if a == nil {
				a = &account{}
				nodes[id] = a
			}
			check(s.Put(at(now), put(id, a)))
		case k == 3 && up && a != nil && a.listed:
			a.listed, a.missing, a.failed = false, now, 0
			check(s.Remove(at(now), id))
		case k < 10 && a != nil && a.probe != nil:
			p := *a.probe
			answer := []string{"", "", "", "other", a.boot}[rng.IntN(5)]
			if a.probe = nil; answer == a.boot {
				a.failed = 0
			} else {
				a.failed++
			}
			check(s.Probed(at(now), p, answer))
			if again := s.Probed(at(now), p, answer); again != nil {
				t.Fatalf("seed %d, %v: the second result of one probe makes %v", seed, now, again)
			}
		default:
			for _, a := range nodes { // probes without a result
				if a.probe != nil && now-a.sent >= o.Timeout {
					a.probe, a.failed = nil, a.failed+1
				}
			}
			probes, changes := s.Tick(at(now))
			check(changes)
			for _, p := range probes {
				a := nodes[p.ID]
				if a == nil || a.listed || a.boot != p.Boot || a.probe != nil {
					t.Fatalf("seed %d, %v: probes %v of %+v", seed, now, p, a)
				}
				a.probe, a.sent = &p, now
			}
			if next := s.Next(); !next.IsZero() && !next.After(at(now)) {
				t.Fatalf("seed %d, %v: after a tick the next one is due at %v", seed, now, next.Sub(at(0)))
			}
		}
		if got := len(s.Members()); got != len(nodes) {
			t.Fatalf("seed %d, %v: %d members, want %d", seed, now, got, len(nodes))
		}
		for _, m := range s.Members() {
			if a := nodes[m.ID]; a.boot != m.Boot || a.listed != (m.State == Active) {
				t.Fatalf("seed %d, %v: %s/%s is %v, its account %+v", seed, now, m.ID, m.Boot, m.State, a)
			}
		}
	}
	// A dead node without a record does not stay.
	s.Listing(at(now), nil)
	for end := now + o.Gone + o.Every + 4*(o.Timeout+o.Faster); ; {
		next := s.Next()
		if next.IsZero() || next.After(at(end)) {
			break
		}
		s.Tick(next)
	}
	if left := s.Members(); len(left) != 0 {
		t.Fatalf("seed %d: dead nodes stay: %v", seed, left)
	}
	return removed
}

func TestEpoch(t *testing.T) {
	s := New(Options{})
	s.Listing(at(0), []Record{record("n1", "b1")})
	last := s.Epoch()
	for i, c := range []struct {
		do    func()
		grows bool
	}{
		{func() { s.Put(at(0), record("n1", "b1")) }, false},
		{func() { s.Drained([]string{"n1"}) }, true},
		{func() { s.Drained([]string{"n1"}) }, false},
		{func() { r := record("n1", "b1"); r.Zone = "z"; s.Put(at(0), r) }, true},
		{func() { s.Remove(at(0), "n1") }, true},
		{func() { s.Remove(at(0), "n2") }, false},
		{func() { s.Away() }, false},
	} {
		if c.do(); s.Epoch() > last != c.grows {
			t.Errorf("step %d: epoch %d after %d", i, s.Epoch(), last)
		}
		last = s.Epoch()
	}
}

func TestRecord(t *testing.T) {
	full := Record{ID: "n1", Boot: "b1", API: "h:80", Peer: "h:81", Protocol: Protocol{2, 3}, Roles: []string{KV},
		Models:   []Model{{Name: "m", Digest: "sha256:1", Format: "paged/1", Numerics: "avx2"}},
		Capacity: Capacity{1, 2, 3, 0.5}, Zone: "a", Draining: true, Keys: "1f"}
	data, err := full.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(data)
	if err != nil || !reflect.DeepEqual(got, full) || !equal(got, full) {
		t.Errorf("%+v comes back as %+v: %v", full, got, err)
	}
	if !got.Has(KV) || got.Has(Router) {
		t.Errorf("roles %v", got.Roles)
	}
	// equal must look at every field.
	for i := range reflect.TypeFor[Record]().NumField() {
		other := full
		f := reflect.ValueOf(&other).Elem().Field(i)
		f.SetZero()
		if equal(full, other) {
			t.Errorf("records that differ in %s are equal", reflect.TypeFor[Record]().Field(i).Name)
		}
	}
	newer := `{"id":"a","boot":"b","peer":"h:1","protocol":{"min":1,"max":1},"roles":["node","moon"],"new":7}`
	if _, err := Decode([]byte(newer)); err != nil {
		t.Errorf("a newer release's record: %v", err)
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"id":"a","boot":"b"}`,
		`{"id":"a","boot":"b","peer":"h:1","protocol":{"min":2,"max":1},"roles":["kv"]}`,
		`{"id":"a","boot":"b","peer":"h:1","protocol":{"min":1,"max":1}}`,
		`{"id":"a","boot":"b","peer":"h:1","protocol":{"min":1,"max":1},"roles":["kv"],"models":[{"name":"m"}]}`} {
		if r, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%s reads as %+v", bad, r)
		}
	}
	for _, c := range []struct {
		p, q Protocol
		v    int
		ok   bool
	}{{Protocol{1, 3}, Protocol{2, 5}, 3, true}, {Protocol{4, 4}, Protocol{4, 4}, 4, true},
		{Protocol{1, 2}, Protocol{3, 4}, 2, false}} {
		v, ok := c.p.Common(c.q)
		w, also := c.q.Common(c.p)
		if v != c.v || ok != c.ok || w != v || also != ok {
			t.Errorf("%v and %v speak %d, %v", c.p, c.q, v, ok)
		}
	}
}
