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
	if raw, err := os.ReadFile(filepath.Join(dir, "null.samples.ndjson")); err != nil || strings.Count(string(raw), "\n") != 1 {
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
		t.Errorf("a row of 72B on four devices takes %.2f times one of 8B on one; %d bytes of KV per token", ratio, four.KVTokenBytes)
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
	if got := fitShapes(ms, tokens); math.Abs(got.Request-.5) > 1e-3 || math.Abs(got.Token-.0004) > 1e-6 || math.Abs(got.Item-.006) > 1e-5 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := fitShapes([4]float64{1, .9, .8, .7}, tokens); got.Token != 0 || got.Item != 0 || got.Request <= 0 {
		t.Errorf("times that fall with the size give %+v", got)
	}
}

// A server whose batches take half as long again as predicted has that slowdown, whatever their sizes are.
func TestSlowdown(t *testing.T) {
	p := sim.Profile{Batches: &sim.Batches{Fixed: 1, Row: .01, Segment: .02}}
	var batches []Measured
	for i := range 101 {
		m := Measured{Work: sim.Work{Requests: 1, Rows: 500 + 7*i, Segments: 1 + i%60}}
		m.Ms = p.Predict(&m.Work) * 1.5 * math.Exp(.2*(float64(i)-50)/50)
		batches = append(batches, m)
	}
	p.Front.Shared = true
	for i := range 11 { // each request that comes while a batch runs delays it by 2 ms
		m := Measured{Work: sim.Work{Requests: 1, Rows: 300 + i}, Arrived: 1 + i%3}
		m.Ms = p.Predict(&m.Work)*1.5 + 2*float64(m.Arrived)
		batches = append(batches, m)
	}
	if err := slowdown(&p, batches); err != nil {
		t.Fatal(err)
	}
	if math.Abs(p.Slowdown-1.5) > 1e-9 || math.Abs(p.Noise-.2/1.349) > .01 || math.Abs(p.Front.Delay-2) > 1e-9 {
		t.Errorf("slowdown %v with a noise of %v and delays of %v ms", p.Slowdown, p.Noise, p.Front.Delay)
	}
	if err := slowdown(&p, batches[101:]); err == nil {
		t.Error("batches that were all disturbed have a slowdown")
	}
}

// Requests that come while a batch runs take longer.
func TestFitFront(t *testing.T) {
	var answers []answer
	for i := range 400 {
		x := answer{shape: i % 4}
		x.Usage.Prompt = []float64{400, 1700, 1900, 3300}[x.shape]
		x.took = 1 + .005*float64(frontShapes[x.shape].items) + 10
		if x.Timing.Compute = 10; i%3 == 0 {
			x.Timing.Queue = 7
			x.took += 7 + 2.5
		}
		answers = append(answers, x)
	}
	if f := fitFront(answers); math.Abs(f.Request-1) > 1e-3 || math.Abs(f.Item-.005) > 1e-5 || math.Abs(f.Busy-2.5) > 1e-3 {
		t.Errorf("%+v", f)
	}
}

// The coefficients and the tile are found again from the times that they make, also where one is 0.
func TestFitBatches(t *testing.T) {
	want := sim.Batches{Fixed: .5, Segment: .01, Row: .006, Tile: 16, Tiled: 5e-5, Cached: 3e-4}
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
	got, err := fitBatches(samples)
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
