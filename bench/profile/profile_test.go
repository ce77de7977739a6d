package profile

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/compute/null"
	"grebe/model/modeltest"
	"grebe/schedule"
	"grebe/sim"
)

// A device whose times are known has the profile that says so. The null device takes no time itself: what is fitted is
// the host's part, so that only the shape of the report can be checked here.
func TestRunWritesProfilesThatSimReads(t *testing.T) {
	d := null.New(null.Options{Fixed: 100 * time.Microsecond, Row: 2 * time.Microsecond})
	defer d.Close()
	dir := t.TempDir()
	reports, err := Run(context.Background(), Options{
		Device: d, Label: "null", Models: []string{"demo"}, Repeats: 1, Passes: 1, Command: "test", Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, "null", reports); err != nil {
		t.Fatal(err)
	}
	p, err := sim.LoadProfile(filepath.Join(dir, "null-demo.json"))
	if err != nil {
		t.Fatal(err)
	}
	// Sleeps last longer than asked for, never less.
	if ms := p.Prefill.Predict(8000, 0, 1); ms < 14 || p.KVTokenBytes != 2048 || p.Derived {
		t.Errorf("a batch of 8,000 rows at 2 µs each is predicted to take %.1f ms; profile %+v", ms, p)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "null.samples.ndjson")); err != nil ||
		strings.Count(string(raw), "\n") != 1 {
		t.Errorf("samples: %v, %q", err, raw)
	}
	if _, err := Run(context.Background(), Options{Device: d, Models: []string{"none"}}); err == nil {
		t.Error("an unknown model is measured")
	}
}

func TestDerive(t *testing.T) {
	m := sim.Profile{
		Name: "h200-qwen3-8b", Source: "test", Model: "Qwen3-8B", KVTokenBytes: 147456, DeviceBytes: 1e11, HostBytes: 1e11,
		HostLink: h200.Link * 0.8,
		Prefill:  schedule.PrefillModel{Fixed: 4, Row: 0.024, Key: 1e-6, Request: 0.01},
	}
	m.Prefill.Quality.Largest = schedule.Sample{Rows: 8192, Keys: 1, Requests: 1}
	dir := t.TempDir()
	if err := Derive(dir, func(string) {}); err == nil {
		t.Error("an empty folder has no profile to derive from")
	}
	if err := write(filepath.Join(dir, "h200-qwen3-8b.json"), m); err != nil {
		t.Fatal(err)
	}
	var names []string
	if err := Derive(dir, func(name string) { names = append(names, name) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(names, " "); got != "a100-80g-qwen3-8b a100-80g-x4-qwen-72b" {
		t.Fatalf("derived %s", got)
	}
	one, err := sim.LoadProfile(filepath.Join(dir, names[0]+".json"))
	if err != nil {
		t.Fatal(err)
	}
	if f := &one.Prefill; !near(f.Row, 0.024*989.5/312) || !near(f.Fixed, 4*4.8/2.039) || f.Request != 0.01 {
		t.Errorf("%+v", f)
	}
	if !one.Derived || !near(one.HostLink, 0.8*pcie4) || one.KVTokenBytes != 147456 {
		t.Errorf("%+v", one)
	}
	four, err := sim.LoadProfile(filepath.Join(dir, names[1]+".json"))
	if err != nil {
		t.Fatal(err)
	}
	// 72B has about ten times the weights of 8B, on four devices.
	if ratio := four.Prefill.Row / one.Prefill.Row; ratio < 2.5 || ratio > 6 || four.KVTokenBytes != 327680 {
		t.Errorf("a row of 72B on four devices takes %.2f times one of 8B on one; %d bytes of KV per token", ratio,
			four.KVTokenBytes)
	}
}

func near(a, b float64) bool { return a > b*0.999999 && a < b*1.000001 }

func TestShapes(t *testing.T) {
	// Parameters of the layers, as model cards have them without embeddings.
	for name, want := range map[string]float64{
		"qwen2-0.5b": 0.36e9, "qwen2-1.5b": 1.31e9, "qwen3-8b": 6.95e9, "qwen-72b": 70.2e9, "llama3-1b": 0.97e9,
	} {
		m := Models[name]
		if got := m.weights(); got < want*0.97 || got > want*1.03 {
			t.Errorf("%s has %.3g weights in its layers, want about %.3g", name, got, want)
		}
	}
	if m := Models["qwen2-1.5b"]; m.tokenBytes() != 28672 {
		t.Errorf("KV of a token is %d bytes", m.tokenBytes())
	}
}

// The costs of requests, items and tokens are found again from times that they make.
func TestFitShapes(t *testing.T) {
	want := sim.Front{Request: .5, Token: .0004, Item: .006}
	tokens := [4]float64{400, 1700, 1900, 3300}
	var ms [4]float64
	for i, shape := range frontShapes {
		ms[i] = want.Request + want.Token*tokens[i] + want.Item*float64(shape.items)
	}
	if got := fitShapes(ms, tokens); math.Abs(got.Request-.5) > 1e-3 || math.Abs(got.Token-.0004) > 1e-6 ||
		math.Abs(got.Item-.006) > 1e-5 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := fitShapes([4]float64{1, .9, .8, .7}, tokens); got.Token != 0 || got.Item != 0 || got.Request <= 0 {
		t.Errorf("times that fall with the size give %+v", got)
	}
}

// What a server adds to batches is found again: a factor, milliseconds per batch and per request that comes, and the
// ratios that remain.
func TestSlowdown(t *testing.T) {
	p := sim.Profile{Batches: &sim.Batches{Fixed: 1, Row: .01, Segment: .02}}
	p.Front.Shared = true
	var batches []Measured
	for i := range 400 {
		m := Measured{Work: sim.Work{Requests: 1, Rows: 100 + 7*(i%97), Segments: 1 + i%60}, Arrived: i % 3}
		m.Ms = p.Predict(&m.Work)*1.5 + .5
		switch i % 10 {
		case 0: // some batches take twice as long, and those before them a little less than predicted
			m.Ms *= 2
		case 9:
			m.Ms *= .5
		}
		m.Ms += 2 * float64(m.Arrived)
		batches = append(batches, m)
	}
	if err := slowdown(&p, batches); err != nil {
		t.Fatal(err)
	}
	if math.Abs(p.Slowdown-1.57) > .05 || math.Abs(p.Added-.5) > .3 || math.Abs(p.Front.Delay-2) > .3 {
		t.Errorf("%v times, %v ms added, delays of %v ms", p.Slowdown, p.Added, p.Front.Delay)
	}
	r := p.Ratios
	if n := len(r); n != numParts || r[0] > .6 || math.Abs(r[n/2]-.95) > .05 || r[n-1] < 1.7 {
		t.Errorf("ratios %v", r)
	}
	if err := slowdown(&p, batches[:enoughServed-1]); err == nil {
		t.Error("too few batches have a slowdown")
	}
}

// Batches that are larger than the first size may take longer in a server.
func TestSlowdownOfLargeBatches(t *testing.T) {
	p := sim.Profile{Batches: &sim.Batches{Fixed: 1, Row: .01, Multiple: 128, Sizes: []int{2048, 3072}, Large: .5}}
	var batches []Measured
	for i := range 200 {
		m := Measured{Work: sim.Work{Requests: 1, Rows: 100 + 20*i}}
		if m.Ms = p.Predict(&m.Work); m.Rows > 2048 {
			m.Ms += .7
		}
		batches = append(batches, m)
	}
	if err := slowdown(&p, batches); err != nil {
		t.Fatal(err)
	}
	if p.Slowdown != 1 || p.Added != 0 || math.Abs(p.Batches.Large-1.2) > 1e-6 || p.Ratios[0] < .999 ||
		p.Ratios[numParts-1] > 1.001 {
		t.Errorf("%v times, %v and %v ms added, ratios %v", p.Slowdown, p.Added, p.Batches.Large, p.Ratios)
	}
}

// The parts of values have their means.
func TestParts(t *testing.T) {
	var v []float64
	for i := range 4 * numParts {
		v = append(v, float64(4*numParts-i))
	}
	if got := parts(v); len(got) != numParts || got[0] != 2.5 || got[numParts-1] != 4*numParts-1.5 {
		t.Errorf("%v", got)
	}
	if got := parts([]float64{3, 1}); !slices.Equal(got, sim.Ratios{1, 3}) || len(parts(nil)) != 0 {
		t.Errorf("two values have the parts %v", got)
	}
}

// Sizes that a GPU is tuned for have a step at first.
func TestSteps(t *testing.T) {
	multiple, larger := steps([]int{8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536})
	if multiple != 128 || !slices.Equal(larger, []int{512, 768, 1024, 1536}) {
		t.Errorf("%d and %v", multiple, larger)
	}
	if multiple, larger := steps(nil); multiple != 0 || larger != nil {
		t.Errorf("a CPU has %d and %v", multiple, larger)
	}
}

// Requests that come while a batch runs take longer.
func TestFitFront(t *testing.T) {
	var answers []answer
	for i := range 400 {
		x := answer{shape: i % 4}
		x.Usage.Prompt = []float64{400, 1700, 1900, 3300}[x.shape]
		takes := 1 + .005*float64(frontShapes[x.shape].items)
		if x.Timing.Compute = 10; i%3 == 0 {
			x.Timing.Queue = 7
			takes *= 2.5
		}
		x.took = takes + x.Timing.Queue + x.Timing.Compute
		answers = append(answers, x)
	}
	f := fitFront(answers)
	if math.Abs(f.Request-1) > 1e-3 || math.Abs(f.Item-.005) > 1e-5 || f.Busy != 0 {
		t.Errorf("%+v", f)
	}
	if math.Abs(f.Idle[0]-1) > .01 || math.Abs(f.Idle[numParts-1]-1) > .01 || math.Abs(f.Beside[numParts/2]-2.5) > .01 {
		t.Errorf("ratios %v and %v", f.Idle, f.Beside)
	}
}

// The coefficients and the tile are found again from the times that they make, also where one is 0.
func TestFitBatches(t *testing.T) {
	testFitBatches(t, sim.Batches{Fixed: .5, Segment: .01, Row: .006, Tile: 16, Tiled: 5e-5, Cached: 3e-4}, nil)
	sizes := []int{128, 256, 384, 512, 640, 1024, 2048, 4096, 8192, 16384}
	testFitBatches(t, sim.Batches{Fixed: .5, Segment: .01, Row: .006, Tile: 16, Tiled: 5e-5, Cached: 3e-4, Multiple: 128,
		Sizes: sizes[4:],
		Large: .8, Spare: .002}, sizes)
}

func testFitBatches(t *testing.T, want sim.Batches, sizes []int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	var samples []Sample
	for range 80 {
		var x Sample
		requests, user, items := 1+r.IntN(4), 100+r.IntN(2000), r.IntN(80)
		cached := r.IntN(user)
		for _, tile := range tileSizes {
			x.Work = sim.Work{Requests: requests, Cached: cached}
			for range requests {
				x.Segment(cached, user, 0, tile)
				for i := range items {
					x.Segment(0, 5+i%20, user, tile)
				}
			}
			if x.ByTile = append(x.ByTile, x.Tiled); tile == want.Tile {
				x.Ms = want.Predict(&x.Work)
			}
		}
		samples = append(samples, x)
	}
	got, err := fitBatches(samples, sizes)
	if err != nil {
		t.Fatal(err)
	}
	for i := range samples {
		x := &samples[i]
		x.Tiled = x.ByTile[slices.Index(tileSizes, got.Tile)]
		if ms := got.Predict(&x.Work); math.Abs(ms-x.Ms) > 1e-6*x.Ms {
			t.Fatalf("%+v predicts %v ms, want %v", got, ms, x.Ms)
		}
	}
	if got.Tile != want.Tile || got.Request > 1e-6 {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A model that is served instead of the demo's has its own shape and the demo's tokens.
func TestSpec(t *testing.T) {
	for name, want := range map[string]string{"qwen2-1.5b": modeltest.Qwen2, "qwen3-8b": modeltest.Qwen3,
		"llama3-1b": modeltest.Llama} {
		m := Models[name]
		s := m.spec(1000)
		if s.Architecture != want || s.Vocab != 1000 || s.Layers != m.Shape.Layers || s.Inter != m.Shape.Inter ||
			s.KVHeads != m.Shape.KVHeads {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for _, name := range []string{"none", "hstu-3"} {
		if _, err := NewShop(filepath.Join(t.TempDir(), "shop"), name); err == nil {
			t.Errorf("%s is served", name)
		}
	}
}
