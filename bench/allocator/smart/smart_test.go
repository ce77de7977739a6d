package smart

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"grebe/alloc"
	"grebe/bench/allocator/net"
)

// constant is a policy that always chooses one change.
func constant(t *testing.T, action int) *Policy {
	t.Helper()
	n := net.New(rand.New(rand.NewPCG(1, 1)), 0, PolicySizes()...)
	b := n.AppendBinary(nil)
	at := len(b) - 4*(len(Deltas)-action)
	copy(b[at:], []byte{0, 0, 0xA0, 0x42}) // 80: all others are unlikely
	p, err := ReadPolicy(b)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// HLM-3: the share is the last one, the policy's change and the adapter's, clipped; the adapter starts at zero.
func TestSmartAddsAndClips(t *testing.T) {
	s := New(constant(t, 5), Config{SLO: 30})
	o := alloc.Observation{State: alloc.State{Alpha: 0.5, P99: 20}}
	d := s.Decide(&o)
	if d.Base != 0.04 || d.Residual != 0 || math.Abs(d.To-0.54) > 1e-12 || d.Recovery {
		t.Errorf("decided %+v, want a change of 0.04 by the policy alone", d)
	}
	o.Alpha = 0.89
	if d := s.Decide(&o); d.To != alloc.MaxShare {
		t.Errorf("the share went to %v, want it clipped to %v", d.To, alloc.MaxShare)
	}
}

// HLM-3: a P99 beyond the average and three deviations of ten epochs is a burst: towards KV when hot users are many.
func TestSmartRecovers(t *testing.T) {
	for _, c := range []struct{ hot, want float64 }{{0.4, 0.44}, {0.1, 0.5}} {
		s := New(constant(t, 6), Config{SLO: 30, NoAdapter: true})
		o := alloc.Observation{State: alloc.State{Hot: c.hot, Alpha: 0.5, P99: 20}}
		for range 12 {
			if d := s.Decide(&o); d.Recovery {
				t.Fatal("recovery from calm")
			}
		}
		o.P99 = 45
		d := s.Decide(&o)
		if !d.Recovery || math.Abs(d.To-c.want) > 1e-12 {
			t.Errorf("hot share %v: decided %+v, want recovery to %v", c.hot, d, c.want)
		}
		if !strings.Contains(d.String(), "recovery") {
			t.Errorf("the explanation %q does not name the recovery", d)
		}
	}
}

// The adapter learns to go against moves after which latency rose.
func TestAdapterLearns(t *testing.T) {
	s := New(constant(t, 6), Config{SLO: 30, NoRescue: true})
	o := alloc.Observation{State: alloc.State{Hot: 0.3, KVHit: 0.3, EmbHit: 0.5, Alpha: 0.5, P99: 20}}
	var d alloc.Decision
	for i := range 4000 {
		o.P99 = 20 + 10*float64(i%3) // rises, rises, falls far: most moves up are followed by a rise
		d = s.Decide(&o)
		s.Learn()
	}
	o.P99 = 20
	if d = s.Decide(&o); d.Residual >= 0 {
		t.Errorf("the correction is %+.4f after moves up that latency followed", d.Residual)
	}
	if math.Abs(d.Residual) > adapterReach {
		t.Errorf("the correction %v is beyond its reach", d.Residual)
	}
	if len(s.replay) > replaySize {
		t.Errorf("%d samples are remembered", len(s.replay))
	}
}

// The policy in the binary is one, small as HLM-3 wants it.
func TestTrainedPolicy(t *testing.T) {
	p, err := TrainedPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if n := p.net.Parameters(); n >= 25000 {
		t.Errorf("%d parameters", n)
	}
	var x [Features]float64
	Vector(&alloc.State{Hot: 2, Events: 1e6, P99: 1e4}, &x, 30)
	for i, v := range x {
		if v < 0 || v > 1 {
			t.Errorf("feature %d is %v", i, v)
		}
	}
}

// The policy rests where nothing is to be gained: in a good part of all states it leaves the boundary where it is. Each
// change is chosen somewhere.
func TestThePolicyRests(t *testing.T) {
	p, err := TrainedPolicy()
	if err != nil {
		t.Fatal(err)
	}
	const states = 50_000
	r, chosen := rand.New(rand.NewPCG(31, 41)), map[float64]int{}
	var x [Features]float64
	for range states {
		for i := range x {
			x[i] = r.Float64()
		}
		chosen[p.Choose(&x)]++
	}
	if chosen[0] < states/10 || len(chosen) < len(Deltas)-1 {
		t.Errorf("of %d states it chose %v", states, chosen)
	}
}

// Under traffic that does not change, the share goes where the policy wants neither more nor less, and stays.
func TestThePolicyHolds(t *testing.T) {
	p, err := TrainedPolicy()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(59, 26))
	holds := 0
	const traffics = 500
	for range traffics {
		o := alloc.Observation{State: alloc.State{Hot: r.Float64(), KVHit: r.Float64(), EmbHit: r.Float64(),
			Events: 15000 * r.Float64(), Late: 0.02 * r.Float64(), Alpha: r.Float64(), P99: 30 * r.Float64()}}
		s := New(p, Config{SLO: 30, NoAdapter: true})
		for range 40 {
			o.Alpha = s.Decide(&o).To
		}
		low, high := o.Alpha, o.Alpha
		for range 40 {
			o.Alpha = s.Decide(&o).To
			low, high = min(low, o.Alpha), max(high, o.Alpha)
		}
		if high-low > 0.05 {
			t.Errorf("%+v: the share goes between %.3f and %.3f", o.State, low, high)
		}
		if high-low < 1e-9 {
			holds++
		}
	}
	if holds < traffics*9/10 {
		t.Errorf("it holds in %d of %d traffics", holds, traffics)
	}
}

func BenchmarkSmart(b *testing.B) {
	p, err := TrainedPolicy()
	if err != nil {
		b.Fatal(err)
	}
	s := New(p, Config{SLO: 30})
	o := alloc.Observation{State: alloc.State{Hot: 0.3, KVHit: 0.2, EmbHit: 0.6, Events: 9000, Alpha: 0.5, P99: 20}}
	for b.Loop() {
		s.Decide(&o)
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	s, o := New(constant(t, 2), Config{SLO: 30}), alloc.Observation{
		State: alloc.State{Hot: 0.3, Alpha: 0.5, P99: 20}, Requests: 1000}
	if a := testing.AllocsPerRun(2000, func() { s.Decide(&o) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
