package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world drives a Batcher as one worker would, with random requests, and checks all its guarantees.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	queue   *Batcher
	config  BatcherConfig
	name    string
	waiting map[uint64]Job // the plain version of the queue
	done    map[uint64]string
	passed  time.Duration // time of small batches while huge ones waited
	waits   int           // times that a batch was held
	patient int           // small batches that ran before a huge request
}

func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 8))
	c := DefaultBatcher(1+rng.IntN(40), time.Duration(20+rng.IntN(200))*time.Millisecond)
	c.Efficiency = .5 + .49*rng.Float64()
	c.Margin = .2 * rng.Float64()
	if rng.IntN(2) == 0 {
		c.MaxRows = 500 + rng.IntN(5000)
	}
	m := PrefillModel{Fixed: 5 * rng.Float64(), Row: .02 * rng.Float64(), Key: 1e-6 * rng.Float64(),
		Request: .1 * rng.Float64()}
	if rng.IntN(2) == 0 {
		m.Square = 1e-6 * rng.Float64()
	}
	b, err := NewBatcher(c, m)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, rng: rng, queue: b, config: c, name: fmt.Sprintf("seed %d", seed),
		waiting: map[uint64]Job{}, done: map[uint64]string{}}
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(w.name+": "+format, args...)
}

func (w *world) alone(j Job) time.Duration { return w.queue.predict(load{}.plus(&j)) }

func (w *world) isHuge(j Job) bool { return w.alone(j) > w.config.SLO/2 }

func (w *world) add(id uint64, now time.Duration) {
	j := Job{ID: id, Rows: 1 + w.rng.IntN(1000), Arrival: now}
	if w.rng.IntN(20) == 0 {
		j.Rows *= 20
	}
	j.Keys = j.Rows * w.rng.IntN(3000)
	if w.rng.IntN(3) > 0 {
		j.Deadline = now + time.Duration(w.rng.Float64()*3*float64(w.config.SLO))
	}
	full := len(w.waiting) == w.config.Capacity
	if w.queue.Add(j) == full {
		w.fatal("%d of %d wait, added: %v", len(w.waiting), w.config.Capacity, !full)
	}
	if full {
		w.done[id] = "refused"
		return
	}
	if w.queue.Add(j) {
		w.fatal("request %d waits twice", id)
	}
	if j.Deadline == 0 {
		j.Deadline = now + w.config.SLO
	}
	w.waiting[id] = j
}

func (w *world) take(j Job, how string) {
	if before, ok := w.done[j.ID]; ok {
		w.fatal("request %d: %s after %s", j.ID, how, before)
	}
	if w.waiting[j.ID] != j {
		w.fatal("request %+v was never added, or as %+v", j, w.waiting[j.ID])
	}
	delete(w.waiting, j.ID)
	w.done[j.ID] = how
}

func (w *world) remove(id uint64) {
	j, there := w.waiting[id]
	if w.queue.Remove(id) != there {
		w.fatal("request %d waits: %v, removed: %v", id, there, !there)
	}
	if there {
		w.take(j, "removed")
		w.forget()
	}
}

// forget resets the fairness counts when no huge request waits.
func (w *world) forget() {
	for _, j := range w.waiting {
		if w.isHuge(j) {
			return
		}
	}
	w.passed = 0
}

// step checks one decision. It returns when the worker is free again, or the wake time if nothing ran.
func (w *world) step(now time.Duration) (next time.Duration, ran bool) {
	batch, shed, wake := w.queue.Step(now)
	for _, j := range shed {
		w.take(j, "shed")
		if now+w.alone(j) <= j.Deadline {
			w.fatal("at %v request %d was shed, but alone it takes %v of the %v left", now, j.ID, w.alone(j), j.Deadline-now)
		}
	}
	w.forget()
	var sum load
	for i, j := range batch {
		w.take(j, "run")
		sum = sum.plus(&batch[i])
	}
	for _, j := range w.waiting {
		if now+w.alone(j) > j.Deadline {
			w.fatal("at %v request %d waits on, but must miss its deadline %v", now, j.ID, j.Deadline)
		}
	}
	if w.queue.Len() != len(w.waiting) {
		w.fatal("the queue says that %d wait, there are %d", w.queue.Len(), len(w.waiting))
	}
	if len(batch) == 0 {
		w.checkWait(now, wake)
		return wake, false
	}
	took := w.queue.predict(sum)
	w.checkBatch(now, batch, sum, took)
	w.checkFairness(now, batch[0], took)
	return now + took, true
}

func (w *world) checkBatch(now time.Duration, batch []Job, sum load, took time.Duration) {
	for _, j := range batch {
		if now+took > j.Deadline {
			w.fatal("at %v a batch of %v misses the deadline %v of request %d", now, took, j.Deadline, j.ID)
		}
	}
	if !slices.IsSortedFunc(batch, func(a, b Job) int { return int(a.Deadline - b.Deadline) }) {
		w.fatal("batch not in the order of deadlines: %+v", batch)
	}
	last := batch[len(batch)-1]
	for _, j := range w.waiting {
		if w.isHuge(j) == w.isHuge(last) && j.Deadline < last.Deadline {
			w.fatal("request %d (deadline %v) overtook %d (deadline %v)", last.ID, last.Deadline, j.ID, j.Deadline)
		}
	}
	if len(batch) == 1 {
		return
	}
	if took > w.queue.Target() || w.config.MaxRows > 0 && sum.rows > w.config.MaxRows {
		w.fatal("a batch of %d takes %v of %v and %d of %d rows", len(batch), took, w.queue.Target(), sum.rows,
			w.config.MaxRows)
	}
	for _, j := range batch {
		if w.isHuge(j) {
			w.fatal("the huge request %d runs in company", j.ID)
		}
	}
}

// checkFairness checks the stated bounds. Small batches before a huge request take at most its own time and half an
// SLO. Until then it does not overtake small ones that would miss their deadlines.
func (w *world) checkFairness(now time.Duration, first Job, took time.Duration) {
	var small load
	deadline, hugest := Never, time.Duration(0)
	for _, j := range w.waiting {
		if w.isHuge(j) {
			hugest = max(hugest, w.alone(j))
			continue
		}
		small = small.plus(&j)
		deadline = min(deadline, j.Deadline)
	}
	if w.isHuge(first) {
		if small.requests > 0 && w.passed < took && now+took+w.queue.predict(small) > deadline {
			w.fatal("at %v a huge request of %v passes small ones due at %v after %v of their batches", now, took, deadline,
				w.passed)
		}
		w.passed = 0
		return
	}
	if hugest == 0 {
		return
	}
	w.patient++
	if w.passed += took; w.passed > hugest+w.config.SLO/2 {
		w.fatal("a huge request of %v let %v of small batches pass", hugest, w.passed)
	}
}

// checkWait checks that an idle worker has a reason to wait.
func (w *world) checkWait(now, wake time.Duration) {
	if len(w.waiting) == 0 {
		if wake != Never {
			w.fatal("nobody waits, yet wake at %v", wake)
		}
		return
	}
	w.waits++
	if wake <= now || wake == Never {
		w.fatal("%d wait at %v without a batch, wake at %v", len(w.waiting), now, wake)
	}
	bound := w.queue.time(w.queue.model.Fixed)
	for _, j := range w.waiting {
		if w.isHuge(j) {
			w.fatal("huge request %d waits on an idle worker", j.ID)
		}
		if wake+w.alone(j) > j.Deadline {
			w.fatal("held until %v, request %d would miss its deadline %v", wake, j.ID, j.Deadline)
		}
		if wake > j.Arrival+bound {
			w.fatal("held until %v, request %d of %v waits for more than %v for company", wake, j.ID, j.Arrival, bound)
		}
	}
}

// live adds requests and runs the worker until all are gone.
func (w *world) live(requests uint64) {
	gap := float64(10*time.Millisecond) * math.Exp(2*w.rng.NormFloat64())
	var arrival, free time.Duration // of the next request, of the worker
	decide := Never                 // when the worker decides next
	for id := uint64(0); id < requests || len(w.waiting) > 0; {
		if id == requests || decide < arrival {
			var ran bool
			now := decide
			if decide, ran = w.step(now); ran {
				free = decide
			}
			continue
		}
		w.add(id, arrival)
		id++
		if w.rng.IntN(15) == 0 {
			w.remove(uint64(w.rng.IntN(int(id))))
		}
		decide = max(arrival, free)
		arrival += time.Duration(w.rng.ExpFloat64() * gap)
	}
}

func TestBatcherKeepsItsPromises(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		w := newWorld(t, seed)
		w.live(300)
		for _, how := range w.done {
			seen[how]++
		}
		seen["waits for company"] += w.waits
		seen["huge passed by small"] += w.patient
	}
	t.Log(seen)
	for _, how := range []string{"run", "shed", "removed", "refused", "waits for company", "huge passed by small"} {
		if seen[how] == 0 {
			t.Errorf("no random world shows: %s", how)
		}
	}
}

// slots agrees with a map.
func TestSlotsAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	s, plain := newSlots(50), map[uint64]int32{}
	for range 50_000 {
		id := uint64(rng.IntN(120)) << 32 // few homes, many collisions
		at, ok := s.find(id)
		want, there := plain[id]
		if ok != there || ok && s.slot[at] != want {
			t.Fatalf("id %d: found %v, want %v", id, ok, there)
		}
		switch {
		case ok:
			s.remove(id)
			delete(plain, id)
		case len(plain) < 50:
			s.ids[at], s.slot[at] = id, int32(rng.IntN(50))
			plain[id] = s.slot[at]
		}
	}
}

// heap agrees with a sorted list.
func TestHeapAgainstSort(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 9))
	h, in := newHeap(40), []int32{}
	for seq := range uint64(20_000) {
		slot := int32(rng.IntN(40))
		if i := slices.Index(in, slot); i >= 0 {
			h.remove(slot)
			h.remove(slot)
			in = slices.Delete(in, i, i+1)
		} else {
			h.push(slot, time.Duration(rng.IntN(10)), seq)
			in = append(in, slot)
		}
		if h.len() != len(in) {
			t.Fatalf("%d in the heap, want %d", h.len(), len(in))
		}
		if len(in) == 0 {
			continue
		}
		want := slices.MinFunc(in, func(a, b int32) int {
			if h.before(a, b) {
				return -1
			}
			return 1
		})
		if got, _ := h.first(); got != want {
			t.Fatalf("slot %d is first, want %d", got, want)
		}
	}
}

func TestBatcherDoesNotAllocate(t *testing.T) {
	b, err := NewBatcher(DefaultBatcher(64, 200*time.Millisecond), gpu)
	if err != nil {
		t.Fatal(err)
	}
	id, now := uint64(0), time.Duration(0)
	if n := testing.AllocsPerRun(2000, func() {
		for range 10 {
			id++
			b.Add(Job{ID: hash(id), Rows: 100 + int(id*7919%4000), Arrival: now})
		}
		b.Remove(hash(id))
		b.Step(now)
		now += 10 * time.Millisecond
	}); n != 0 {
		t.Errorf("%v allocations per step", n)
	}
}

func TestBatcherConfigIsChecked(t *testing.T) {
	good := DefaultBatcher(8, time.Second)
	for _, change := range []func(*BatcherConfig){
		func(c *BatcherConfig) { c.Capacity = 0 }, func(c *BatcherConfig) { c.SLO = 0 },
		func(c *BatcherConfig) { c.MaxRows = -1 }, func(c *BatcherConfig) { c.Efficiency = 1 },
		func(c *BatcherConfig) { c.Margin = math.Inf(1) },
	} {
		c := good
		change(&c)
		if _, err := NewBatcher(c, gpu); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, err := NewBatcher(good, PrefillModel{Row: -1}); err == nil {
		t.Error("a negative model was accepted")
	}
}

func BenchmarkBatcher(b *testing.B) {
	q, err := NewBatcher(DefaultBatcher(4096, time.Hour), gpu)
	if err != nil {
		b.Fatal(err)
	}
	id, now := uint64(0), time.Duration(0)
	add := func() {
		id++
		q.Add(Job{ID: hash(id), Rows: 300, Keys: 300_000, Arrival: now})
	}
	for range 4000 {
		add()
	}
	b.ReportAllocs()
	for b.Loop() {
		batch, _, _ := q.Step(now)
		for range batch {
			add()
		}
		now += time.Millisecond
	}
}
