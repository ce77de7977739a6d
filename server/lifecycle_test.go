package server

import "testing"

// Whoever tells checkpoints of a change holds them: none is freed meanwhile, and one that is being freed is told nothing.
func TestHoldCheckpoints(t *testing.T) {
	sl := &slot{now: newCheckpoint(&Model{})}
	next := newCheckpoint(&Model{})
	sl.bring(next)
	held := sl.hold()
	if len(held) != 2 {
		t.Fatalf("%d checkpoints are held, want 2", len(held))
	}
	sl.retire(next)
	select {
	case <-next.drained:
		t.Fatal("a checkpoint that is told of a change is freed")
	default:
	}
	again := sl.hold() // it is still there
	for _, c := range append(held, again...) {
		sl.release(c)
	}
	select {
	case <-next.drained:
	default:
		t.Fatal("a checkpoint that nobody holds is not freed")
	}
	if last := sl.hold(); len(again) != 2 || len(last) != 1 || last[0] != sl.now {
		t.Errorf("%d checkpoints are held while one drains, %d after it", len(again), len(last))
	}
}
