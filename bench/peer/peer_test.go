package peer

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A small run measures all links and moves the blocks.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Block: 20 << 10, Blocks: 3, Window: 10 * time.Millisecond, Rounds: 2}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rates) != 4 || len(r.Small) != 3 || !strings.Contains(out.String(), "plain TCP") {
		t.Errorf("%+v\n%s", r, out.String())
	}
	for _, x := range r.Rates {
		if !(x.GBps > 0 && x.Ratio > 0) {
			t.Errorf("%+v", x)
		}
	}
	if r.Rates[0].Ratio != 1 {
		t.Errorf("plain TCP is %v times itself", r.Rates[0].Ratio)
	}
}

func TestFetchesMoveTheBlocks(t *testing.T) {
	o := Options{Block: 20 << 10, Blocks: 3}
	from, to := memory(&o), memory(&o)
	links, stop, err := connect(from, to, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, l := range links {
		for i := range to {
			clear(to[i])
		}
		if err := l.whole(t.Context()); err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		for i := range to {
			if !bytes.Equal(from[i], to[i]) {
				t.Errorf("%s: block %d differs", l.name, i)
			}
		}
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		known, first float64
		want         bool
	}{{.7, .7, true}, {.69, .9, false}, {.9, .69, false}} {
		r := Report{Rates: []Rate{
			{Name: plainName, Ratio: 1}, {Name: fetchName, Ratio: c.known}, {Name: sumName, Ratio: c.first},
			{Name: tlsName, Ratio: .1},
		}}
		if r.judge(); r.Passed != c.want {
			t.Errorf("%+v: %v", c, r.Passed)
		}
	}
}
