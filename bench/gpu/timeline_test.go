package gpu

import (
	"strings"
	"testing"
	"time"

	"grebe/compute/cuda"
)

// Levels count selections, and times are medians of all runs.
func TestTimelineOf(t *testing.T) {
	run := func(ms int) []cuda.Phase {
		at := time.Duration(ms) * time.Millisecond
		return []cuda.Phase{{Name: "begin"}, {Name: "selection", Host: at, Device: 2 * at},
			{Name: "layers", Host: at, Device: 5 * at}}
	}
	got := timelineOf([][]cuda.Phase{run(1), run(30), run(2)})
	want := []Phase{{Name: "begin"}, {Name: "selection", Host: 2, Device: 4, Took: 4},
		{Name: "layers", Level: 1, Host: 2, Device: 10, Took: 6}}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("phase %d is %+v, want %+v", i, got[i], want[i])
		}
	}
	var b strings.Builder
	r := Report{Timeline: got}
	if err := r.write(&b, false); err != nil || !strings.Contains(b.String(), "layers") {
		t.Errorf("%v, the table is %q, want one with the layers", err, b.String())
	}
}
