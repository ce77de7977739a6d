package schedule

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Held jobs come back: not before their time or Resume, never later than the next step after it, and none is lost,
// returned twice or kept beyond its deadline.
func TestHeldJobsComeBack(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 21))
		b, err := NewBatcher(DefaultBatcher(1+rng.IntN(8), 200*time.Millisecond), drawModel(rng))
		if err != nil {
			t.Fatal(err)
		}
		held := map[uint64]time.Duration{} // by job in the queue: until when; 0: it is not held
		left, next, now, holds := 0, uint64(1), time.Duration(0), 0
		step := func() {
			jobs, shed, wake := b.Step(now)
			for _, j := range append(append([]Job(nil), jobs...), shed...) {
				until, waits := held[j.ID]
				if !waits {
					t.Fatalf("seed %d: job %d was not in the queue", seed, j.ID)
				}
				if latest := j.Deadline - b.Alone(j.Rows, j.Keys); until > now && latest >= now {
					t.Fatalf("seed %d: job %d is held until %v, and came at %v", seed, j.ID, until, now)
				}
				delete(held, j.ID)
			}
			left -= len(jobs) + len(shed)
			for _, j := range jobs {
				if rng.IntN(2) == 0 {
					until := now + time.Duration(rng.Int64N(int64(50*time.Millisecond)))
					b.Hold(j, until)
					held[j.ID] = until
					left, holds = left+1, holds+1
				}
			}
			for id, until := range held {
				if len(jobs) == 0 && until > 0 && wake > max(until, now) {
					t.Fatalf("seed %d: job %d is held until %v, but the next step is at %v", seed, id, until, wake)
				}
			}
		}
		for range 400 {
			now += time.Duration(rng.Int64N(int64(10 * time.Millisecond)))
			switch rng.IntN(5) {
			case 0, 1:
				if b.Add(Job{ID: next, Rows: 1 + rng.IntN(400), Arrival: now,
					Deadline: now + time.Duration(rng.Int64N(int64(time.Second)))}) {
					held[next] = 0
					left++
				}
				next++
			case 2:
				any := false
				for id, until := range held {
					any = any || until > 0
					held[id] = 0
				}
				if b.Resume() && !any {
					t.Fatalf("seed %d: nothing was held, but resumed", seed)
				}
			case 3:
				id := 1 + rng.Uint64N(next)
				if _, waits := held[id]; b.Remove(id) != waits {
					t.Fatalf("seed %d: job %d is in the queue: %v", seed, id, waits)
				} else if waits {
					delete(held, id)
					left--
				}
			default:
				step()
			}
			if b.Len() != left || len(held) != left {
				t.Fatalf("seed %d: %d in the queue, want %d", seed, b.Len(), left)
			}
		}
		now += time.Hour
		b.Step(now)
		if b.Len() != 0 {
			t.Fatalf("seed %d: %d are left after all deadlines", seed, b.Len())
		}
		if holds == 0 && seed == 0 {
			t.Error("nothing was held: the draw tests too little")
		}
	}
}

// Waiting for a batch and holding a job allocate nothing.
func TestHoldingDoesNotAllocate(t *testing.T) {
	b, err := NewBatcher(DefaultBatcher(4, time.Second), PrefillModel{Fixed: 1, Row: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	n := testing.AllocsPerRun(100, func() {
		now += time.Second
		b.Add(Job{ID: 1, Rows: 100, Arrival: now})
		jobs, _, _ := b.Step(now)
		until := b.Await(&jobs[0], 90, 0, now+50*time.Millisecond, now, now)
		if until <= now {
			t.Error("it does not wait")
		}
		b.Hold(jobs[0], until)
		b.Resume()
		b.Step(now + 60*time.Millisecond)
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}
