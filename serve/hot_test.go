package serve

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Every id in more than one of hotKept requests is counted, and its count is too high by at most over.
func TestHotKnowsTheFrequent(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	h, truth, total := newHot(), map[string]int64{}, int64(0)
	zipf := rand.NewZipf(r, 1.2, 1, 100_000)
	for range 200_000 {
		id := fmt.Sprint("i", zipf.Uint64())
		truth[id]++
		total++
		h.note(id)
	}
	known := map[string]hotEntry{}
	for _, e := range h.top(hotKept) {
		known[e.id] = e
		if e.count < truth[e.id] || e.count-e.over > truth[e.id] {
			t.Errorf("%s was asked for %d times; counted %d, at most %d too many", e.id, truth[e.id], e.count, e.over)
		}
	}
	for id, n := range truth {
		if _, ok := known[id]; n > total/hotKept && !ok {
			t.Errorf("%s was asked for %d of %d times and is not known", id, n, total)
		}
	}
	if got := h.top(1)[0]; got.id != "i0" {
		t.Errorf("the hottest is %s, want i0", got.id)
	}
}

func TestHotDoesNotAllocateForKnownIDs(t *testing.T) {
	h := newHot()
	for i := range hotKept {
		h.note(fmt.Sprint(i))
	}
	if n := testing.AllocsPerRun(1000, func() { h.note("7") }); n != 0 {
		t.Errorf("counting a known id allocates %v times", n)
	}
}
