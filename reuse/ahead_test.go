package reuse

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// shelf is a catalog whose items have tokens, and what was computed of it.
type shelf struct {
	*machine
	t        *testing.T
	below    *disk.Store // nil: there is none
	items    map[string]*prompt.Item
	ids      []string
	heat     []schedule.Heat
	computed [][]int32
	during   func() // runs while items are computed
}

func newShelf(t *testing.T, folder string, n, length int) *shelf {
	s := &shelf{machine: newMachine(t, 7, nil, "", false), t: t, items: map[string]*prompt.Item{}}
	s.opt.Load = linear{}
	if folder != "" {
		var err error
		if s.below, err = disk.Open(folder, disk.Options{Budget: 64 << 20, Segment: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		s.store.SetDisk(s.below)
	}
	for i := range n {
		id := fmt.Sprint(i)
		s.items[id] = &prompt.Item{ID: id, Tokens: s.tokens(int32(i), length)}
		s.ids, s.heat = append(s.ids, id), append(s.heat, schedule.Heat{})
	}
	return s
}

func (s *shelf) tokens(first int32, length int) []int32 {
	out := make([]int32, length)
	out[0] = first % vocabulary
	out[1] = first / vocabulary
	return out
}

func (s *shelf) list() Listed {
	l := Listed{IDs: s.ids, Heat: s.heat, Item: func(id string) (*prompt.Item, bool) {
		it, ok := s.items[id]
		return it, ok
	}}
	if s.below != nil {
		l.Disk = func() schedule.Space {
			st := s.below.Stats()
			return schedule.Space{Used: st.LiveBytes, Total: st.Budget}
		}
	}
	return l
}

// do computes nothing, and keeps what it is asked to.
func (s *shelf) do(_ context.Context, j *engine.Job) (*engine.Result, error) {
	if s.during != nil {
		s.during()
	}
	for _, seg := range j.Plan.Segments {
		if seg.Kind == plan.Item {
			s.computed = append(s.computed, seg.Tokens)
		}
	}
	return s.dryRun(s.t, j), nil
}

// step waits until there is time for a step, and does it.
func (s *shelf) step(ctx context.Context, a *Ahead) (did AheadDid, err error) {
	err = s.Idle(ctx, func() error {
		did, err = a.Step(ctx, s.do)
		return err
	})
	return did, err
}

// pass goes over all items, and returns why it stopped.
func (s *shelf) pass() (total AheadDid) {
	s.t.Helper()
	for a := s.Ahead(s.list()); ; {
		did, err := s.step(s.t.Context(), a)
		if err != nil {
			s.t.Fatal(err)
		}
		total.Computed, total.Tokens = total.Computed+did.Computed, total.Tokens+did.Tokens
		if total.Left, total.Step = did.Left, did.Step; did.Step >= schedule.AheadFull {
			return total
		}
	}
}

func (s *shelf) tier(tokens []int32) plan.Tier {
	var at [1]plan.Tier
	s.store.Status([]plan.Key{s.ItemKey(tokens)}, at[:])
	return at[0]
}

// A cold cache computes the items that requests named, then those that histories list, then the others, once.
func TestAColdCacheFillsInOrderOfHeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, "", 40, 8)
		defer s.close()
		s.heat[30].Asked, s.heat[31].Asked, s.heat[5].Listed, s.heat[6].Listed = 1, 2, 9, 10
		if did := s.pass(); did.Step != schedule.AheadDone || did.Computed != 40 || did.Tokens != 320 || did.Left != 0 {
			t.Errorf("%+v, want 40 items of 320 tokens", did)
		}
		var first []int32
		for _, tokens := range s.computed[:6] {
			first = append(first, tokens[0])
		}
		if want := []int32{31, 30, 6, 5, 0, 1}; !slices.Equal(first, want) {
			t.Errorf("computed %v first, want %v", first, want)
		}
		if did := s.pass(); did.Computed != 0 {
			t.Errorf("%d items were computed again", did.Computed)
		}
	})
}

// While requests are under way nothing is computed ahead, and while they come a tenth of the time is used.
func TestRequestsComeBeforeWorkAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, "", 160, 8)
		defer s.close()
		var asked atomic.Bool
		s.opt.Load = backlog{busy: &asked}
		worked := time.Duration(0)
		s.during = func() {
			if asked.Load() {
				t.Error("items are computed while a request is under way")
			}
			time.Sleep(5 * time.Millisecond)
			worked += 5 * time.Millisecond
		}
		asked.Store(true)
		time.AfterFunc(time.Second, func() { asked.Store(false) })
		start := time.Now()
		a := s.Ahead(s.list())
		if _, err := s.step(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < time.Second+50*time.Millisecond {
			t.Errorf("the first step took %v beside a request of a second, and rests for 45 ms", took)
		}
		start, worked = time.Now(), 0
		for range 9 {
			go func() { // a request now and then
				asked.Store(true)
				time.Sleep(2 * time.Millisecond)
				asked.Store(false)
			}()
			synctest.Wait()
			if _, err := s.step(t.Context(), a); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); worked*10 > took {
			t.Errorf("%v of %v were used while requests came, want a tenth", worked, took)
		}
		synctest.Wait()
	})
}

type backlog struct {
	linear
	busy *atomic.Bool
}

func (b backlog) Backlog() (float64, int) {
	if b.busy.Load() {
		return 1, 1
	}
	return 0, 0
}

// Items that nobody asked for take the free half of memory. What requests brought stays.
func TestWorkAheadEvictsNothing(t *testing.T) {
	s := newShelf(t, "", 100, 512)
	defer s.close()
	for u := 0; s.Books().Used < s.Books().Total/4; u++ {
		s.keep(t, plan.User, s.UserKey(fmt.Sprint(u), nil), 512, s.tokens(int32(u), 512))
	}
	users := s.Stats(plan.User).Entries
	did := s.pass()
	if did.Step != schedule.AheadFull || did.Computed == 0 || did.Left == 0 {
		t.Errorf("%+v, want some items and no room for the others", did)
	}
	books := s.Books()
	if books.Used > books.Total/2+books.Total/64 || books.Used < books.Total/3 {
		t.Errorf("%d of %d bytes are used, want half", books.Used, books.Total)
	}
	if st := s.Stats(plan.User); st.Entries != users || st.Evicted != 0 {
		t.Errorf("%d of %d users are left", st.Entries, users)
	}
	for u := users; s.Books().Used < s.Books().Total*9/10; u++ {
		s.keep(t, plan.User, s.UserKey(fmt.Sprint(u), nil), 512, s.tokens(int32(u), 512))
	}
	was := s.Stats(plan.Item).Entries
	if did := s.pass(); did.Computed != 0 || s.Stats(plan.Item).Entries != was {
		t.Errorf("%d items were computed in full memory", did.Computed)
	}
}

// Where memory has no room the disk takes items, and memory is as before.
func TestTheDiskTakesItemsThatMemoryHasNoRoomFor(t *testing.T) {
	s := newShelf(t, t.TempDir(), 100, 256)
	defer s.close()
	for u := 0; s.Books().Used < s.Books().Total*2/5; u++ {
		s.keep(t, plan.User, s.UserKey(fmt.Sprint(u), nil), 512, s.tokens(int32(u), 512))
	}
	did := s.pass()
	if did.Step != schedule.AheadDone || did.Computed != 100 {
		t.Errorf("%+v, want all 100 items", did)
	}
	if books := s.Books(); books.Used > books.Total/2+books.Total/64 {
		t.Errorf("%d of %d bytes are used, want half", books.Used, books.Total)
	}
	if at := s.tier(s.items["99"].Tokens); at != plan.Disk {
		t.Errorf("the last item is in %v, want disk", at)
	}
	if at := s.tier(s.items["0"].Tokens); at != plan.Host {
		t.Errorf("the first item is in %v, want host", at)
	}
	if st := s.Stats(plan.User); st.Evicted != 0 {
		t.Errorf("%d users were evicted", st.Evicted)
	}
	if s.below.Stats().Evictions != 0 {
		t.Error("the disk evicted")
	}
}

// A deleted item is never computed, a changed one in its new form, and nothing is left of one that is deleted or
// changed while it is computed.
func TestWorkAheadHeedsTheCatalog(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} {
		s := newShelf(t, folder, 5, 8)
		old := map[string][]int32{}
		for id, it := range s.items {
			old[id] = it.Tokens
		}
		a := s.Ahead(s.list())
		delete(s.items, "0")
		s.items["1"] = &prompt.Item{ID: "1", Tokens: s.tokens(101, 8)}
		s.during = func() {
			delete(s.items, "2")
			s.items["3"] = &prompt.Item{ID: "3", Tokens: s.tokens(103, 8)}
		}
		if _, err := s.step(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if len(s.computed) != 4 || s.computed[0][0] != s.items["1"].Tokens[0] {
			t.Errorf("computed %v, want the new form of 1 and 2 to 4", s.computed)
		}
		for _, id := range []string{"0", "1", "2", "3"} {
			if at := s.tier(old[id]); at != plan.Missing {
				t.Errorf("what item %s was is in %v", id, at)
			}
		}
		for _, id := range []string{"1", "4"} {
			if s.tier(s.items[id].Tokens) == plan.Missing {
				t.Errorf("item %s is not cached", id)
			}
		}
		if did := s.pass(); did.Computed != 1 || s.tier(s.items["3"].Tokens) == plan.Missing {
			t.Errorf("%d items in the next pass, want the new form of 3", did.Computed)
		}
		s.close()
	}
}

// The end of its context ends a step that waits for requests.
func TestTheEndEndsWorkAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t, "", 5, 8)
		defer s.close()
		var busy atomic.Bool
		busy.Store(true)
		s.opt.Load = backlog{busy: &busy}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.step(ctx, s.Ahead(s.list())); err != context.DeadlineExceeded || len(s.computed) != 0 {
			t.Errorf("%v, %d computed; want that the time is over and nothing", err, len(s.computed))
		}
	})
}

// close ends the machine before its disk.
func (s *shelf) close() {
	s.machine.close()
	if s.below != nil {
		s.below.Close()
	}
}
