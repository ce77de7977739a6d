package cuda

import (
	"slices"
	"testing"
)

// A timeline has the same phases for each search: the layers, the logits and the selection of every level. A runner
// that measures none records no further events.
func TestTimelineOfASearch(t *testing.T) {
	_, d := simulate(t, Options{})
	x := newTried(t, d)
	defer x.free()
	defer x.r.Close()
	r := x.r.(*runner)
	if err := x.search(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Timeline()); n != 0 {
		t.Errorf("%d phases of a search that was not measured, want none", n)
	}
	r.Trace(true)
	want := []string{"begin"}
	for range x.heads {
		want = append(want, "layers", "logits", "selection")
	}
	want = append(want, "results")
	for i := range 2 {
		if err := x.search(); err != nil {
			t.Fatal(err)
		}
		var names []string
		for j, p := range r.Timeline() {
			names = append(names, p.Name)
			if j > 0 && (p.Host < r.Timeline()[j-1].Host || p.Device <= 0) {
				t.Errorf("search %d: phase %d is %+v behind %+v", i, j, p, r.Timeline()[j-1])
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("search %d: phases %v, want %v", i, names, want)
		}
	}
	r.Trace(false)
	if err := x.search(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Timeline()); n != 0 {
		t.Errorf("%d phases after measuring ended, want none", n)
	}
}
