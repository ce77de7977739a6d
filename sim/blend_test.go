package sim

import (
	"testing"

	"grebe/plan"
)

// A prompt of which all KV is reused computes the shares that the scenario says, an item that is missing whole.
func TestBlendCost(t *testing.T) {
	p := prompt{preamble: 200, question: 20, blend: Blend{History: .5, Items: .25}}
	c := &call{blended: true, shared: [2]bool{true, true}, tiers: []plan.Tier{plan.Host, plan.Missing}}
	c.UserTokens, c.ItemTokens = 400, []int32{80, 100}
	w := p.cost(c, 0)
	rows, keys := w.Rows, w.Keys
	if want := 200 + 20 + 100 + 20; rows != want {
		t.Errorf("%d rows, want %d", rows, want)
	}
	if full := causal(0, 600, 200); keys != full*340/600 {
		t.Errorf("%d keys, want %d of %d", keys, full*340/600, full)
	}
	p.blend.Whole = 1
	if w = p.cost(c, 0); w.Rows != 600 || w.Keys != causal(0, 600, 200) {
		t.Errorf("%d rows and %d keys if all layers compute all tokens", w.Rows, w.Keys)
	}
}

func TestBlendedPromptsAreFaster(t *testing.T) {
	items := func(s *Scenario) {
		s.Prompt.Preamble, s.Users.Count, s.Users.Zipf = 200, 1e6, 0 // nobody comes back
		s.Fleet.Nodes, s.Network.Bandwidth, s.Network.Exchange = 2, 1e11, false
		s.Placement.Kind, s.Placement.Preload = "hash", true
		s.Prompt.Policy = "user"
	}
	plain, _ := play(t, small(t, items), Options{})
	blended, _ := play(t, small(t, func(s *Scenario) {
		items(s)
		s.Prompt.Blend = Blend{History: .3, Items: .3, Whole: 1. / 28}
	}), Options{})
	if blended.Latency.P50 > .8*plain.Latency.P50 || blended.Hits.Host < .3 || blended.RemoteBytes > 0 {
		t.Errorf("P50 %.2f ms of %.2f, hits %+v, %d bytes between nodes",
			blended.Latency.P50, plain.Latency.P50, blended.Hits, blended.RemoteBytes)
	}
}

// Without overlap, a slow network adds its time to batches; with it, items are computed where that is faster.
func TestFetchesThatDoNotOverlap(t *testing.T) {
	mode := func(overlap bool, rate Bandwidth) *Result {
		r, _ := play(t, small(t, func(s *Scenario) {
			s.Fleet.Nodes, s.Network.Bandwidth, s.Network.Overlap, s.Cache.KeepPeer = 2, rate, overlap, false
			s.Placement.Kind, s.Placement.Preload, s.Cache.ItemMemory = "hash", true, 3e9
			s.Prompt.Policy, s.Load.Rate = "item", 20
		}), Options{})
		return r
	}
	fast, slow, overlapped := mode(false, 1e12), mode(false, 2e9), mode(true, 2e9)
	if fast.Hits.Peer < .1 || slow.Hits.Peer < .1 || overlapped.Hits.Peer > .05 {
		t.Errorf("from peers: %v, %v over a slow network, %v where computing is faster", fast.Hits.Peer, slow.Hits.Peer,
			overlapped.Hits.Peer)
	}
	// Half of 1,000 tokens of 28,672 bytes at 2 Gb/s are 57 ms.
	if extra := slow.Latency.P50 - fast.Latency.P50; extra < 40 || extra > 100 {
		t.Errorf("a slow network adds %.1f ms to %.1f", extra, fast.Latency.P50)
	}
}
