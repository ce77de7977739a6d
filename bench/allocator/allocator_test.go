package allocator

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grebe/alloc"
	"grebe/bench/allocator/smart"
	"grebe/workload/regime"
)

// short is a workload of few epochs.
func short(t *testing.T, name string, epochs int) regime.Spec {
	t.Helper()
	s, err := regime.Named(name, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.Hot = s.Hot[:regime.Warm+epochs]
	return s
}

func costs(t *testing.T) *Cost {
	t.Helper()
	c, err := Costs("derived")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wander moves the boundary at random.
type wander struct{ r *rand.Rand }

func (w wander) Decide(o *alloc.Observation) alloc.Decision {
	return alloc.Decision{From: o.Alpha, To: alloc.MinShare + 0.8*w.r.Float64()}
}

// However the boundary moves, each side owns what its caches say and all pages come back.
func TestPagesAreNeitherLostNorOwnedTwice(t *testing.T) {
	t.Run("burst", func(t *testing.T) { ownedOnce(t, short(t, "burst", 0)) })
	t.Run("node-burst", func(t *testing.T) { // grains of four pieces
		spec := short(t, "node-burst", 0)
		spec.GPUs, spec.Rate = 1, 300
		ownedOnce(t, spec)
	})
}

func ownedOnce(t *testing.T, spec regime.Spec) {
	n, err := newNode(costs(t), &spec, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	w := wander{rand.New(rand.NewPCG(4, 4))}
	for n.next() {
		alpha := w.Decide(&alloc.Observation{}).To
		n.move(float64(n.epoch)*regime.EpochSeconds, alpha)
		runs := 0
		n.kv.books.All(func(h *entry) { runs += len(h.Value.runs) })
		if err := n.kv.books.Check(func(*entry) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if got := n.pool.Stats().Used; got != int64(runs)*piece {
			t.Fatalf("epoch %d: KV owns %d bytes and its entries have %d", n.epoch, got, int64(runs)*piece)
		}
		sets, _ := n.emb.Sets()
		if got := n.emb.pool.Stats().Used; got != int64(sets)*int64(n.emb.SetBytes()) {
			t.Fatalf("epoch %d: embeddings own %d bytes and have %d sets", n.epoch, got, sets)
		}
		n.emb.Check(func(_ uint64, at, _ int) {
			if at >= sets {
				t.Fatalf("epoch %d: set %d has rows and no pages", n.epoch, at)
			}
		})
		if over := n.pool.Over() + n.emb.pool.Over(); over != 0 {
			t.Fatalf("epoch %d: %d bytes on the wrong side after a move to %.2f", n.epoch, over, alpha)
		}
		if want := alpha * float64(costs(t).Pool); math.Abs(float64(n.emb.pool.Stats().Used)-want) > float64(
			n.emb.SetBytes()) {
			t.Fatalf("epoch %d: embeddings own %d bytes, want about %.0f", n.epoch, n.emb.pool.Stats().Used, want)
		}
	}
	for n.kv.evict(nil) {
	}
	n.emb.pool.FreeRuns(n.emb.runs)
	if err := n.pool.Close(); err != nil {
		t.Error(err)
	}
}

// half moves to a share after the fifth part of every epoch.
type half struct {
	to    float64
	parts []alloc.Observation
}

func (h *half) Decide(o *alloc.Observation) alloc.Decision {
	return alloc.Decision{From: o.Alpha, To: start}
}

func (h *half) Glance(o *alloc.Observation) (alloc.Decision, bool) {
	h.parts = append(h.parts, *o)
	return alloc.Decision{From: o.Alpha, To: h.to}, len(h.parts)%alloc.Glances == 5
}

// Parts of an epoch make an epoch, and a boundary that moves in the middle has moved for the rest of it.
func TestGlances(t *testing.T) {
	spec := short(t, "burst", 2)
	h := &half{to: 0.3}
	p, err := play(costs(t), &spec, h, how{})
	if err != nil {
		t.Fatal(err)
	}
	if want := len(spec.Hot) * alloc.Glances; len(h.parts) != want {
		t.Fatalf("%d glances, want %d", len(h.parts), want)
	}
	requests := 0
	for i, o := range h.parts[regime.Warm*alloc.Glances:] {
		requests += o.Requests
		if want := map[bool]float64{true: start, false: h.to}[i%alloc.Glances < 5]; o.Alpha != want {
			t.Errorf("part %d: a share of %v, want %v", i, o.Alpha, want)
		}
	}
	if requests != len(p.all) {
		t.Errorf("%d requests in the parts, %d in the epochs", requests, len(p.all))
	}
}

// The same workload under the same controller is the same to the bit.
func TestPlayIsDeterministic(t *testing.T) {
	spec := short(t, "trend", 2)
	var last *played
	for range 2 {
		p, err := play(costs(t), &spec, newClimb(), how{})
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && (p.P99() != last.P99() || p.kvHit != last.kvHit || p.alpha[1] != last.alpha[1]) {
			t.Errorf("P99 %v and %v of the same requests", p.P99(), last.P99())
		}
		last = p
	}
}

// More memory for embeddings gives more hits there and fewer in KV.
func TestSidesPullAtEachOther(t *testing.T) {
	spec := short(t, "steady", 3)
	low, err := play(costs(t), &spec, alloc.Static(0.15), how{})
	if err != nil {
		t.Fatal(err)
	}
	high, err := play(costs(t), &spec, alloc.Static(0.9), how{})
	if err != nil {
		t.Fatal(err)
	}
	if low.embHit >= high.embHit || low.kvHit <= high.kvHit {
		t.Errorf("hits of KV and rows %.3f and %.3f with a share of 0.15, %.3f and %.3f with 0.9", low.kvHit, low.embHit,
			high.kvHit, high.embHit)
	}
}

func TestTrainingIsReproducible(t *testing.T) {
	var first []byte
	for range 2 {
		b, err := Train(context.Background(), TrainOptions{Rounds: 1, Episodes: 2}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := smart.ReadPolicy(b); err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(first, b) {
			t.Error("two trainings from one seed differ")
		}
		first = b
	}
}

func TestAdvantages(t *testing.T) {
	steps := []step{{reward: 1, value: 0.5}, {reward: 0, value: 0.25}}
	estimate(steps, 2)
	last := 0 + gamma*2 - 0.25
	want := 1 + gamma*0.25 - 0.5 + gamma*lambda*last
	if steps[1].advantage != last || math.Abs(steps[0].advantage-want) > 1e-15 ||
		steps[0].target != steps[0].advantage+0.5 {
		t.Errorf("advantages %v and %v, want %v and %v", steps[0].advantage, steps[1].advantage, want, last)
	}
}

// Gradients through time equal differences of the loss.
func TestRecurrentGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	n := newRecurrent(r)
	n.numbers(func(_ int, w *float64) { *w += r.NormFloat64() / 3 })
	seq, want := make([][smart.Features]float64, 6), make([]float64, 6)
	for i := range seq {
		want[i] = r.Float64()
		for j := range seq[i] {
			seq[i][j] = r.Float64()
		}
	}
	loss := func() float64 {
		sum := 0.0
		for i, m := range n.run(seq) {
			sum += (m.y - want[i]) * (m.y - want[i]) / 2 / float64(len(seq))
		}
		return sum
	}
	var g recurrent
	n.backward(n.run(seq), want, &g)
	grads := map[int]float64{}
	g.numbers(func(i int, w *float64) { grads[i] = *w })
	const h = 1e-6
	n.numbers(func(i int, w *float64) {
		if i%7 != 0 {
			return
		}
		old := *w
		*w = old + h
		up := loss()
		*w = old - h
		down := loss()
		*w = old
		if d := (up - down) / (2 * h); math.Abs(d-grads[i]) > 1e-6 {
			t.Errorf("weight %d: gradient %v, difference %v", i, grads[i], d)
		}
	})
}

func TestReportNamesAll(t *testing.T) {
	v := Verdict{Workload: "trend", Seeds: 5, Optimum: []float64{0.5, 0.4}, Hot: []float64{0.2, 0.3}, Lines: []Line{
		{Controller: "climb", P99: 20, Within: 0.999, ToStatic: Interval{0.97, 0.96, 0.98},
			ToOptimum: Interval{1.01, 1, 1.02}, Alpha: []float64{0.5, 0.45}},
	}}
	r := Report{Verdicts: []Verdict{v}}
	r.check()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"trend", "climb", "polyline", "0.970 (0.960 to 0.980)"} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("the page has no %q", s)
		}
	}
	if Passed(r.Checks) {
		t.Error("a P99 of 0.97 of the best static passed the bar of 0.8")
	}
	if _, err := (Options{Parts: []string{"all"}}).orDefaults(); err == nil {
		t.Error("an unknown part gave no error")
	}
}

// A request goes to the GPU that is done with it first, and waits for that one's link and computing alone.
func TestNodesServeInParallel(t *testing.T) {
	n := &node{links: make([]float64, 2), gpus: make([]float64, 2)}
	for i, want := range []float64{3, 3, 5, 5, 7} { // fetching takes 1, computing 2
		if got := n.run(0, 1, 2); got != want {
			t.Errorf("request %d is done at %v, want %v", i, got, want)
		}
	}
}

// The optimum of a node is never worse than the best static share, on the seed that it was found on.
func TestOptimumOfANode(t *testing.T) {
	spec := short(t, "node-trend", 3)
	spec.GPUs, spec.Rate = 1, 300
	cost := costs(t)
	shares, specs := []float64{0.3, 0.5, 0.7}, []regime.Spec{spec}
	runs, err := sweep(cost, specs, shares, how{})
	if err != nil {
		t.Fatal(err)
	}
	ideal, err := optimum(cost, specs, shares, runs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := play(cost, &spec, &oracle{shares: ideal}, how{})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range runs {
		if p.P99() > 1.001*r[0].P99() {
			t.Errorf("P99 %.2f with the optimum's shares %v, %.2f with %.1f", p.P99(), ideal, r[0].P99(), shares[i])
		}
	}
}

// Every epoch may be taken from another run: of two with one slow epoch each, none is left.
func TestIdealTakesEachEpochsBest(t *testing.T) {
	quick, slow := make([]float64, 100), make([]float64, 100)
	for i := range quick {
		quick[i], slow[i] = 10, 20
	}
	run := func(epochs ...[]float64) *played {
		p := &played{lats: epochs}
		for _, e := range epochs {
			p.all = append(p.all, e...)
		}
		slices.Sort(p.all)
		return p
	}
	if got := idealP99([]*played{run(quick, slow), run(slow, quick)}); math.Abs(got-10) > 0.01 {
		t.Errorf("P99 of %v, want 10", got)
	}
	if got := idealP99([]*played{run(quick, slow), run(quick, slow)}); math.Abs(got-20) > 0.01 {
		t.Errorf("P99 of %v, want 20", got)
	}
}

// No share and no schedule is below the ideal of a workload.
func TestBoundIsBelowAll(t *testing.T) {
	spec := short(t, "node-burst", 6)
	spec.GPUs, spec.Rate = 1, 300
	shares := []float64{0.3, 0.5, 0.7}
	b, err := bound(costs(t), []regime.Spec{spec}, shares)
	if err != nil {
		t.Fatal(err)
	}
	if b.Ideal > b.Static {
		t.Errorf("P99 of %.2f, the best static share has %.2f", b.Ideal, b.Static)
	}
	p, err := play(costs(t), &spec, &oracle{shares: []float64{0.5, 0.3, 0.3, 0.3, 0.3, 0.7}}, how{})
	if err != nil {
		t.Fatal(err)
	}
	if b.Ideal > p.P99() {
		t.Errorf("P99 of %.2f, a schedule has %.2f", b.Ideal, p.P99())
	}
	if got, want := phasesOf(&spec), []int{phaseCalm, phaseFirst, phaseSecond, phaseBurst, phaseBurst,
		phaseAfter}; !slices.Equal(got, want) {
		t.Errorf("phases %v, want %v", got, want)
	}
}
