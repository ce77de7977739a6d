package schedule

import (
	"testing"
	"time"

	"grebe/plan"
)

// Reads are predicted by their pace while it is recent, and by a guess otherwise.
func TestPaceAndGuess(t *testing.T) {
	guess := Transfer{Entry: 2, Token: .5}
	p := Pace{Token: 1e6, Last: time.Minute}
	for _, c := range []struct {
		pace Pace
		now  time.Duration
		want float64
	}{
		{Pace{}, 0, 3*2 + 7*.5},
		{p, time.Minute, 7},
		{p, time.Minute + 30*time.Second - 1, 7},
		{p, time.Minute + 30*time.Second, 3*2 + 7*.5},
	} {
		if got := c.pace.Ms(c.now, 3, 7, guess); got != c.want {
			t.Errorf("%+v at %v: %v ms, want %v", c.pace, c.now, got, c.want)
		}
	}
	if d, known := p.Expect(3); d != 3*time.Millisecond || !known {
		t.Errorf("three tokens take %v, known %v", d, known)
	}
	if d, known := new(Pace).Expect(3); d != 0 || known {
		t.Errorf("three tokens take %v, and nothing was read", d)
	}
}

// Nothing is allocated to decide on blending or prototypes.
func TestBlendingDoesNotAllocate(t *testing.T) {
	in := Request{User: 100, Items: []int32{50, 50}, ItemTier: []plan.Tier{plan.Disk, plan.Host}}
	m := PrefillModel{Fixed: 1, Row: .01}
	b := Blending{Layers: 4, First: 1}
	p := Prototypes{Tokens: 100, Matched: 50, Layers: 4}
	skipped := false
	if n := testing.AllocsPerRun(100, func() {
		b.Pays(&in, &m, &Option{Ms: 3})
		if p.Search() && !p.Few() {
			p.Invest(&in, &m)
		}
		b.Pace.Observe(10, 100, 7)
		if near, _ := b.Pace.Near(&Reading{Left: 10, Now: 5, Begun: true}, 3); !near {
			skipped = SkipDisk(PrefixWait(9, true, 1, 1), BlockWait(9, true, 1, 1), float64(BatchWait(3, 2, 1, 4, 5)))
		}
	}); n != 0 {
		t.Errorf("%v allocations, and the disk is skipped: %v", n, skipped)
	}
}

// The pace of a disk follows the reads: the last 1,024 tokens count half.
func TestPaceFollowsReads(t *testing.T) {
	p := &Pace{}
	if _, known := p.Expect(1); known {
		t.Error("a pace is known before anything was read")
	}
	p.Observe(0, time.Hour, 5)
	p.Observe(-1, time.Hour, 6)
	p.Observe(10, 100, 7)
	if p.Last != 7 {
		t.Errorf("the last read ended at %v", p.Last)
	}
	if d, _ := p.Expect(1); d != 10 {
		t.Errorf("%v for a token", d)
	}
	p.Observe(1024, 1024*20, 7)
	if d, _ := p.Expect(2); d != 30 {
		t.Errorf("%v for two tokens, want 30", d)
	}
	p.Observe(1024, 0, 7)
	if d, _ := p.Expect(2); d != 16 { // half of 15 and of the least, each
		t.Errorf("%v for two tokens, want 16", d)
	}
}
