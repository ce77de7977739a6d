package profile

import (
	"context"
	"math"
	"os"
	"path/filepath"
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
func TestFitFront(t *testing.T) {
	want := sim.Front{Request: .5, Token: .0004, Item: .006}
	tokens := [4]float64{400, 1700, 1900, 3300}
	var ms [4]float64
	for i, shape := range frontShapes {
		ms[i] = want.Request + want.Token*tokens[i] + want.Item*float64(shape.items)
	}
	if got := fitFront(ms, tokens); math.Abs(got.Request-.5) > 1e-3 || math.Abs(got.Token-.0004) > 1e-6 || math.Abs(got.Item-.006) > 1e-5 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := fitFront([4]float64{1, .9, .8, .7}, tokens); got.Token != 0 || got.Item != 0 || got.Request <= 0 {
		t.Errorf("times that fall with the size give %+v", got)
	}
}

// A server whose batches take half as long again as predicted has that slowdown, whatever their sizes are.
func TestSlowdown(t *testing.T) {
	m := schedule.PrefillModel{Fixed: 1, Row: .01, Key: 1e-6}
	var r served
	for i := range 101 {
		var a answer
		a.Usage.Prompt, a.Usage.User, a.Usage.Items, a.Usage.Question, a.Usage.Computed = 510+float64(i), 300+i, 150, 50, 510+i
		b := a.batch(10)
		want := 10*11/2 + (300+i)*10 + (300+i)*(301+i)/2 + 10*(15*(310+i)+15*16/2) + 50*(460+i) + 50*51/2
		if b.Keys != want || b.Rows != 510+i {
			t.Fatalf("%+v, want %d keys", b, want)
		}
		b.Ms = m.Predict(b.Rows, b.Keys, 1) * 1.5 * math.Exp(.2*(float64(i)-50)/50)
		r.batches = append(r.batches, b)
	}
	median, noise := r.slowdown(&m)
	if math.Abs(median-1.5) > 1e-9 || math.Abs(noise-.2/1.349) > .01 {
		t.Errorf("slowdown %v with a noise of %v", median, noise)
	}
	p := sim.Profile{Prefill: m}
	other := Models["qwen2-0.5b"]
	if r.describe(&p, &other); p.Slowdown != 0 {
		t.Error("a model that was not served has a slowdown")
	}
}
