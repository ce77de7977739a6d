package disk

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"

	"grebe/internal/durable/durabletest"
)

const lossKeys = 20

func lossMeta(k, gen int) []byte    { return pattern(keyOf(k), 'm', gen, 50) }
func lossPayload(k, gen int) []byte { return pattern(keyOf(k), 'p', gen, k*3000) }

// survivor follows what a store owes its caller through kills, power cuts and failed syncs.
type survivor struct {
	t       *testing.T
	r       *rand.Rand
	d       *memFolder
	opt     Options
	what    string
	gen     map[int]int  // of the last Put that was tried
	put     map[int]bool // Put returned, and nothing since could have taken the record
	synced  map[int]bool // likewise, and Sync returned
	deleted map[int]bool // Delete returned
	evicted bool
}

func newSurvivor(t *testing.T, seed uint64, fails, holes bool) *survivor {
	v := &survivor{
		t: t, r: rand.New(rand.NewPCG(seed, 21)), d: newMemFolder(t, holes),
		opt:  Options{Budget: 4 * mib, Segment: 128 << 10},
		what: fmt.Sprintf("fails=%v holes=%v seed=%d", fails, holes, seed),
		gen:  map[int]int{}, put: map[int]bool{}, synced: map[int]bool{}, deleted: map[int]bool{},
	}
	if seed%3 == 0 {
		v.opt.Budget = mib // evicts and compacts
	}
	return v
}

// Puts, deletes and syncs, interrupted at any system call by a kill or a power cut, several times in any order, with
// and without syncs that fail: what Sync acknowledged is there, what Delete acknowledged is not, in records and in
// bytes.
func TestKillsAndPowerCuts(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	n, _ := durabletest.Sequences(8)
	for _, fails := range []bool{false, true} {
		for _, holes := range []bool{true, false} {
			for seed := range n {
				v := newSurvivor(t, seed, fails, holes)
				for range 5 {
					killed, cut := v.live(fails, 1+v.r.IntN(150), math.MaxInt)
					if v.r.IntN(2) == 0 {
						v.d = killed
						continue
					}
					v.loses(cut)
				}
			}
		}
	}
}

// The same calls, interrupted at every system call in turn: by a power cut, by a kill, and by a kill and a power cut
// after the restart. A test run tries every 41st.
func TestPowerCutsAtEveryCall(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	step, tried := 41, 0
	if _, campaign := durabletest.Sequences(0); campaign {
		step = 1
	}
	for _, fails := range []bool{false, true} {
		for _, holes := range []bool{true, false} {
			for seed := range uint64(2) { // one of them evicts
				for at := 1; ; at += step {
					v := newSurvivor(t, seed, fails, holes)
					v.what = fmt.Sprintf("%s, call %d", v.what, at)
					killed, cut := v.live(fails, at, 60)
					if killed == nil {
						break
					}
					lost := v.copy()
					lost.loses(cut)
					lost.check(mustOpen(t, lost.d, v.opt))
					v.d = killed
					v.check(mustOpen(t, v.d, v.opt))
					v.loses(v.d.powerCut(nil))
					v.check(mustOpen(t, v.d, v.opt))
					tried += 3
				}
			}
		}
	}
	t.Logf("opened %d times after a kill or a power cut", tried)
}

func (v *survivor) copy() *survivor {
	c := *v
	c.gen, c.put, c.synced, c.deleted = maps.Clone(v.gen), maps.Clone(v.put), maps.Clone(v.synced), maps.Clone(v.deleted)
	return &c
}

// loses goes on with what a power cut left.
func (v *survivor) loses(cut *memFolder) {
	v.d = cut
	clear(v.put)
	for k := range v.synced {
		v.put[k] = true
	}
}

// live opens the store, checks it, and uses it until it is interrupted at a system call, or for some steps: then it
// returns nil.
func (v *survivor) live(fails bool, calls, steps int) (killed, cut *memFolder) {
	v.t.Helper()
	s := mustOpen(v.t, v.d, v.opt)
	v.check(s)
	failing := 0
	v.d.fail = func(op string) error {
		if calls--; calls <= 0 && killed == nil {
			killed, cut = v.d.copyOf(), v.d.powerCut(v.any())
		}
		if failing > 0 && op == "sync" {
			failing--
			return syscall.EIO
		}
		return nil
	}
	interrupted := func() bool { return killed != nil }
	for ; steps > 0 && !interrupted(); steps-- {
		if failing = 0; fails && v.r.IntN(6) == 0 {
			failing = 1 + v.r.IntN(3)
		}
		v.step(s, interrupted)
	}
	v.d.fail = nil
	v.evicted = v.evicted || s.Stats().Evictions > 0
	return killed, cut
}

// any is how a power cut chooses what is left: in a third of them nothing that is not durable is.
func (v *survivor) any() *rand.Rand {
	if v.r.IntN(3) == 0 {
		return nil
	}
	return v.r
}

func (v *survivor) step(s *Store, interrupted func() bool) {
	k := v.r.IntN(lossKeys)
	switch op := v.r.IntN(20); {
	case op < 3:
		there := map[int]bool{} // a record that a power cut damaged is none
		for k := range v.put {
			_, _, there[k] = fetch(v.t, s, keyOf(k))
		}
		if err := s.Sync(); err == nil && !interrupted() {
			for k := range v.put {
				v.synced[k] = there[k]
			}
		}
	case op < 7:
		delete(v.put, k)
		delete(v.synced, k)
		if err := s.Delete(keyOf(k)); err == nil && !interrupted() {
			v.deleted[k] = true
		}
	case op < 8:
		fetch(v.t, s, keyOf(k))
	default:
		delete(v.put, k) // the old record may go before the new one is durable
		delete(v.synced, k)
		delete(v.deleted, k)
		v.gen[k]++
		if err := s.Put(keyOf(k), lossMeta(k, v.gen[k]), [][]byte{lossPayload(k, v.gen[k])}); err == nil && !interrupted() {
			v.put[k] = true
		}
	}
}

func (v *survivor) check(s *Store) {
	v.t.Helper()
	v.evicted = v.evicted || s.Stats().Evictions > 0
	all := v.d.all()
	for k := range lossKeys {
		meta, payload, ok := fetch(v.t, s, keyOf(k))
		if ok && v.deleted[k] {
			v.t.Fatalf("%s: deleted record %d came back", v.what, k)
		}
		if ok && !v.known(k, meta, payload) {
			v.t.Fatalf("%s: record %d is wrong", v.what, k)
		}
		if !ok && (v.synced[k] || v.put[k]) && !v.evicted {
			v.t.Fatalf("%s: record %d is lost (synced: %v): %+v", v.what, k, v.synced[k], s.Stats())
		}
		if !ok {
			delete(v.synced, k)
			delete(v.put, k)
		}
		if !v.deleted[k] {
			continue
		}
		for gen := 1; gen <= v.gen[k]; gen++ {
			b := lossPayload(k, gen)
			found := bytes.Contains(all, lossMeta(k, gen)[:24])
			for at := 0; at+24 <= len(b); at += 4000 {
				found = found || bytes.Contains(all, b[at:at+24])
			}
			if found {
				v.t.Fatalf("%s: bytes of deleted record %d are in the files", v.what, k)
			}
		}
	}
}

// known reports whether a record is one that was put.
func (v *survivor) known(k int, meta, payload []byte) bool {
	for gen := v.gen[k]; gen > 0; gen-- {
		if bytes.Equal(meta, lossMeta(k, gen)) {
			return bytes.Equal(payload, lossPayload(k, gen))
		}
	}
	return false
}

// A process is killed right after a sync that failed, before its next system call. The next one finds pages that are
// clean and not durable: its Sync and Delete do not take them for durable.
func TestAfterAKillRightAfterAFailedSync(t *testing.T) {
	opt := Options{Budget: 2 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		for _, deletes := range []bool{false, true} {
			d := newMemFolder(t, holes)
			s := mustOpen(t, d, opt)
			for k := range 6 {
				mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
			}
			if deletes {
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
			}
			var killed *memFolder
			failed := false
			d.fail = func(op string) error {
				if failed && killed == nil {
					killed = d.copyOf()
				}
				if op == "sync" && !failed {
					failed = true
					return syscall.EIO
				}
				return nil
			}
			change := func(s *Store) error {
				if deletes {
					return s.Delete(keyOf(1))
				}
				return s.Sync()
			}
			_ = change(s) // nobody lives to hear of it
			s = mustOpen(t, killed, opt)
			if err := change(s); err != nil {
				t.Fatal(err)
			}
			s = mustOpen(t, killed.powerCut(nil), opt)
			for k := range 6 {
				if _, _, ok := fetch(t, s, keyOf(k)); ok == (deletes && k == 1) {
					t.Errorf("holes=%v deletes=%v: record %d there: %v", holes, deletes, k, ok)
				}
			}
		}
	}
}

// Delete after a kill and a reopen makes the erasure durable though this process did not write it.
func TestDeleteAfterAKillIsDurable(t *testing.T) {
	opt := Options{Budget: 2 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		d := newMemFolder(t, holes)
		s := mustOpen(t, d, opt)
		for k := range 6 {
			mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		mustPut(t, s, keyOf(1), nil, pattern(keyOf(1), 'p', 1, 1000)) // the durable one is erased, not durably
		d = d.copyOf()
		s = mustOpen(t, d, opt)
		if err := s.Delete(keyOf(1)); err != nil {
			t.Fatal(err)
		}
		mustPut(t, s, keyOf(7), nil, pattern(keyOf(7), 'p', 0, 1000))
		d = d.copyOf()
		s = mustOpen(t, d, opt)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, d.powerCut(nil), opt)
		if _, _, ok := fetch(t, s, keyOf(1)); ok {
			t.Errorf("holes=%v: a record deleted after a kill came back", holes)
		}
		if _, _, ok := fetch(t, s, keyOf(7)); !ok {
			t.Errorf("holes=%v: a record that a killed process put and the next one synced is lost", holes)
		}
	}
}

// Compaction loses no durable record, also where its copies go to more than one segment.
func TestCompactionIsDurableInAllItsTargets(t *testing.T) {
	opt := Options{Budget: 4 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		d := newMemFolder(t, holes)
		s := mustOpen(t, d, opt)
		for k := range 10 {
			mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		s.w.Lock()
		err := s.compact(s.segments()[0])
		s.w.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		d.durable = d.files // the removal of the old segment got through
		s = mustOpen(t, d.powerCut(nil), opt)
		for k := range 10 {
			if _, _, ok := fetch(t, s, keyOf(k)); !ok {
				t.Errorf("holes=%v: record %d was durable and is lost by compaction", holes, k)
			}
		}
	}
}

// When the sync of an erasure fails, Delete does not rely on a second sync: the pages are clean by then.
func TestDeleteWithAFailedSyncIsDurable(t *testing.T) {
	opt := Options{Budget: 2 * mib, Segment: 256 << 10}
	for _, holes := range []bool{true, false} {
		for _, restart := range []bool{false, true} {
			for at := 1; at < 12; at++ { // which sync fails
				d := newMemFolder(t, holes)
				s := mustOpen(t, d, opt)
				for k := range 6 {
					mustPut(t, s, keyOf(k), nil, pattern(keyOf(k), 'p', 0, 70_000))
				}
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				syncs := 0
				d.fail = func(op string) error {
					if op != "sync" {
						return nil
					}
					if syncs++; syncs == at || restart && syncs > at {
						return syscall.EIO
					}
					return nil
				}
				err := s.Delete(keyOf(1), keyOf(4))
				d.fail = nil
				if err != nil && !restart {
					t.Errorf("holes=%v: one failed sync, the %dth, and Delete fails: %v", holes, at, err)
				}
				if restart {
					d = d.copyOf()
					s = mustOpen(t, d, opt)
				}
				if err != nil {
					if err := s.Delete(keyOf(1), keyOf(4)); err != nil {
						t.Fatal(err)
					}
				}
				s = mustOpen(t, d.powerCut(nil), opt)
				for k := range 6 {
					if _, _, ok := fetch(t, s, keyOf(k)); ok == (k == 1 || k == 4) {
						t.Errorf("holes=%v restart=%v sync %d failed: record %d there: %v", holes, restart, at, k, ok)
					}
				}
			}
		}
	}
}
