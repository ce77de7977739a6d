package residency

import (
	"math/rand/v2"
	"testing"

	"grebe/plan"
)

type entry = Held[int]

func newCore(t testing.TB, policy string, slots ...int) *Core[int] {
	t.Helper()
	c := Config{Policy: policy, Below: true, Predict: true, Chunk: 64}
	for i, n := range slots {
		c.Levels = append(c.Levels, LevelConfig{Tier: plan.Device + plan.Tier(i), Slots: n, Bytes: int64(n) * 100})
	}
	core, err := New[int](c)
	if err != nil {
		t.Fatal(err)
	}
	return core
}

func item(k int) *entry {
	return &entry{Key: plan.Key{byte(k), byte(k >> 8)}, Kind: plan.Item, Tokens: 10, Bytes: 100, Value: k}
}

func free(*entry) bool { return true }

// world does what the books decide, and knows where each entry must be.
type world struct {
	*Core[int]
	t       *testing.T
	rng     *rand.Rand
	where   map[plan.Key]plan.Tier // according to the owner's copies
	pinned  map[plan.Key]bool
	writing []*entry
}

// room makes room on a level. It returns false if all entries there are in use.
func (w *world) room(level int) bool {
	for w.Full(level) {
		h, exit := w.Need(level, func(h *entry) bool { return !w.pinned[h.Key] })
		if h == nil {
			return false
		}
		if w.pinned[h.Key] {
			w.t.Fatalf("entry %d leaves while it is read", h.Value)
		}
		switch exit {
		case Lower:
			w.move(h, 1)
		case Drop:
			delete(w.where, h.Key)
		default:
			w.t.Fatalf("exit %d of an entry", exit)
		}
	}
	return true
}

// move copies an entry to a level, or fails to.
func (w *world) move(h *entry, level int) {
	copied := w.room(level) && w.rng.IntN(8) > 0
	if w.rng.IntN(20) == 0 { // deleted meanwhile
		w.Delete(h.Key)
		delete(w.where, h.Key)
	}
	switch w.Moved(h, level, copied) {
	case There:
		w.where[h.Key] = plan.Device + plan.Tier(level)
	case Back:
		if level != 0 || copied && !w.Full(0) {
			w.t.Fatalf("entry %d goes back from level %d", h.Value, level)
		}
		w.where[h.Key] = plan.Host
	case Out:
		delete(w.where, h.Key)
	case Gone:
		if _, ok := w.where[h.Key]; ok {
			w.t.Fatalf("entry %d is gone, and nobody deleted it", h.Value)
		}
	}
}

// check compares the books with where the entries are.
func (w *world) check() {
	if err := w.Check(func(*entry) error { return nil }); err != nil {
		w.t.Fatal(err)
	}
	n := 0
	w.All(func(h *entry) {
		n++
		if at := w.where[h.Key]; h.Level() < 0 || at != plan.Device+plan.Tier(h.Level()) {
			w.t.Fatalf("entry %d is %v, the books say level %d", h.Value, at, h.Level())
		}
	})
	if n != len(w.where) {
		w.t.Fatalf("%d entries are held, the books have %d", len(w.where), n)
	}
}

// In every order of events, the books say where each entry is, no entry in use is evicted, and only entries that are
// not on disk are written.
func TestBooksFollowTheOwner(t *testing.T) {
	for _, policy := range []string{"lru", "default", "sieve"} {
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 1))
			w := &world{Core: newCore(t, policy, 8, 16), t: t, rng: rng, where: map[plan.Key]plan.Tier{},
				pinned: map[plan.Key]bool{}}
			for range 2000 {
				w.step(item(rng.IntN(60)))
				w.check()
			}
		}
	}
}

func (w *world) step(h *entry) {
	switch w.rng.IntN(8) {
	case 0, 1:
		w.publish(h)
	case 2, 3, 4:
		w.use(h.Key)
	case 5:
		if h := w.Delete(h.Key); h != nil {
			delete(w.where, h.Key)
		}
	case 6:
		w.pinned[h.Key] = !w.pinned[h.Key] && len(w.pinned) < 10
	case 7:
		w.write()
	}
}

func (w *world) publish(h *entry) {
	h.Named = h.Value%3 == 0
	if w.Get(h.Key) == nil && !w.room(0) {
		return
	}
	was := w.Get(h.Key)
	did, old, write := w.Publish(h, 0, false)
	switch {
	case was != nil && !was.Named && did != Kept, did == Kept && (was == nil || was.Named):
		w.t.Fatalf("entry %d with %v before it: %d", h.Value, was, did)
	case old != nil && old != was:
		w.t.Fatalf("entry %d replaces another than its own", h.Value)
	case did == Placed:
		w.where[h.Key] = plan.Device
	case did == NoPlace:
		delete(w.where, h.Key)
	}
	if write {
		w.writing = append(w.writing, h)
	}
}

func (w *world) use(key plan.Key) {
	at, held := w.where[key]
	h, how := w.Use(key, func(h *entry) bool { return h.Value%2 == 0 })
	switch {
	case held != (how != Nowhere), held && h.Key != key, how == Coming:
		w.t.Fatalf("a use of what is %v finds %d", at, how)
	case how == Up && at != plan.Host:
		w.t.Fatalf("entry %d comes up from %v", h.Value, at)
	case how == Up:
		w.move(h, 0)
	}
}

// write begins a write, or ends one.
func (w *world) write() {
	if n := len(w.writing); n > 0 && w.rng.IntN(2) == 0 {
		h := w.writing[n-1]
		w.writing = w.writing[:n-1]
		failed := w.rng.IntN(3) == 0
		w.Written(h, !failed, failed)
		return
	}
	level := w.rng.IntN(2)
	before := w.DirtyCount(level)
	h := w.Dirty(level)
	if (h == nil) != (before == 0) {
		w.t.Fatalf("%v is to be written, of %d", h, before)
	}
	if h == nil {
		return
	}
	if h.Clean() || h.Level() != level {
		w.t.Fatalf("entry %d of level %d is to be written from level %d, clean: %v", h.Value, h.Level(), level, h.Clean())
	}
	w.writing = append(w.writing, h)
}

// A write that failed a few times is not tried again.
func TestWritesThatFail(t *testing.T) {
	c := newCore(t, "lru", 4)
	h := item(1)
	h.Named = true // users are not written when they are published
	c.Publish(h, 0, false)
	for i := range MaxTries {
		if got := c.Dirty(0); got != h {
			t.Fatalf("try %d: %v", i, got)
		}
		c.Written(h, false, true)
	}
	if got := c.Dirty(0); got != nil || c.DirtyCount(0) != 0 {
		t.Errorf("after %d failures %v is tried again", MaxTries, got)
	}
}

// An entry in host memory is used in place once and moves up when it is used again. An entry that the device cannot
// read moves up at once.
func TestUsedTwiceComesUp(t *testing.T) {
	c := newCore(t, "lru", 1, 4)
	lower := func(h *entry) {
		c.Publish(h, 0, false)
		if got, exit := c.Need(0, free); got != h || exit != Lower || c.Moved(h, 1, true) != There {
			t.Fatalf("%v leaves by %d", got, exit)
		}
	}
	h := item(1)
	lower(h)
	for i, want := range []Where{Here, Up} {
		if _, how := c.Use(h.Key, free); how != want {
			t.Errorf("use %d: %d, want %d", i, how, want)
		}
	}
	if _, how := c.Use(h.Key, func(*entry) bool { return false }); how != Coming {
		t.Errorf("while it is copied: %d", how)
	}
	if c.Moved(h, 0, true) != There || h.Level() != 0 {
		t.Error("it did not come up")
	}
	other := item(2)
	if got, exit := c.Need(0, free); got != h || exit != Lower || c.Moved(h, 1, true) != There {
		t.Fatal("it does not make room")
	}
	lower(other)
	if _, how := c.Use(other.Key, func(*entry) bool { return false }); how != Up {
		t.Errorf("what the device cannot read: %d", how)
	}
}

// Runs are evicted like entries, have no key, and can be split in two.
func TestRuns(t *testing.T) {
	c := newCore(t, "lru", 4)
	run := func(k byte, tokens int) *entry {
		return &entry{Key: plan.Key{9, k}, Kind: plan.Beam + 1, Tokens: tokens, Bytes: 100}
	}
	whole := run(1, 128)
	c.PutRun(whole, c.Inserted(nil, 128, 0), 0)
	first, rest := run(2, 64), run(1, 64)
	c.Split(whole, first, rest)
	c.UseRun(first, c.Matched(first, 100, 64))
	if n := c.Counts(0, whole.Kind).Entries; n != 2 || c.Get(whole.Key) != nil {
		t.Errorf("%d runs are on the books", n)
	}
	if h, exit := c.Need(0, free); h != rest || exit != Forget {
		t.Errorf("%v leaves by %d, want the run that was not used", h, exit)
	}
	c.TakeRun(first)
	if err := c.Check(func(*entry) error { return nil }); err != nil || c.Places(0) != 4 {
		t.Errorf("%d places, %v", c.Places(0), err)
	}
}

// Uses and evictions do not allocate.
func TestNothingIsAllocated(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		c := newCore(t, policy, 64, 64)
		all := make([]*entry, 64)
		for i := range all {
			all[i] = item(i)
			c.Publish(all[i], 0, false)
		}
		i := 0
		if n := testing.AllocsPerRun(2000, func() {
			c.Use(all[i%64].Key, free)
			h, _ := c.Need(0, free)
			c.Moved(h, 0, true)
			i += 7
		}); n > 0 {
			t.Errorf("%s: %v allocations", policy, n)
		}
	}
}

// An evicted entry is counted at its level, as lowered or as gone.
func TestCounts(t *testing.T) {
	c := newCore(t, "lru", 1, 1)
	first, second := item(1), item(2)
	c.Publish(first, 0, false)
	if h, exit := c.Need(0, free); h != first || exit != Lower || c.Moved(first, 1, true) != There {
		t.Fatal("the first is not lowered")
	}
	c.Publish(second, 0, false)
	if h, _ := c.Need(0, free); h != second || c.Moved(second, 1, false) != Out { // host memory is full
		t.Fatal("the second is not dropped")
	}
	if h, exit := c.Need(1, free); h != first || exit != Drop {
		t.Fatal("the first does not leave")
	}
	if device, host := *c.Counts(0, plan.Item), *c.Counts(1, plan.Item); device != (Counts{Lowered: 2}) ||
		host != (Counts{Evicted: 2}) {
		t.Errorf("counted %+v and %+v", device, host)
	}
	if known, models := c.Forecasts(); known != nil || models != 0 {
		t.Error("LRU predicts")
	}
	if known, _ := newCore(t, "default", 4).Forecasts(); known == nil {
		t.Error("the default predicts nothing")
	}
	if _, err := New[int](Config{Policy: "lru"}); err == nil {
		t.Error("books without a level")
	}
	three := Config{Policy: "lru", Levels: []LevelConfig{{Slots: 1, Bytes: 1}, {Slots: 1, Bytes: 1}, {Slots: 1, Bytes: 1}}}
	if _, err := New[int](three); err == nil {
		t.Error("books with three levels")
	}
}
