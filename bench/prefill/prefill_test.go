package prefill

import (
	"bytes"
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"grebe/compute"
	"grebe/model/modeltest"
)

// small is a model that runs in milliseconds.
func small() *modeltest.Spec {
	return &modeltest.Spec{
		Architecture: modeltest.Qwen2, Hidden: 64, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 32, Inter: 96,
		Vocab: 512, MaxPositions: 4096, Tied: true, DType: compute.BF16,
	}
}

func TestRunReportsEveryLengthFormatAndOrder(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "model"), Tokens: []int{1, 40}, Repeats: 3, Threads: 2, JSON: true,
		Spec: small()}
	var out bytes.Buffer
	r, err := Run(context.Background(), o, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 4 || len(r.Ranks) != 4 || len(r.Loads) != 2 {
		t.Fatalf("%d lines, %d rankings, %d loads, want 4, 4, 2", len(r.Lines), len(r.Ranks), len(r.Loads))
	}
	for _, l := range r.Lines {
		if l.TokensPerSecond <= 0 || l.GemmGFLOPS <= 0 || l.Ratio <= 0 {
			t.Errorf("a line without a rate: %+v", l)
		}
	}
	for _, x := range r.Ranks {
		// The instruction is one word.
		if want := userTokens + candidates*itemTokens + 1; x.Tokens != want || x.TotalMS <= 0 {
			t.Errorf("a ranking of %d tokens in %v ms, want %d tokens", x.Tokens, x.TotalMS, want)
		}
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back.Lines) != len(r.Lines) {
		t.Errorf("the JSON has %d lines (%v), want %d", len(back.Lines), err, len(r.Lines))
	}
}

// The count is checked against one made product by product, row by row.
func TestPassFLOPs(t *testing.T) {
	s := compute.Shape{Layers: 3, Hidden: 8, Heads: 4, KVHeads: 2, HeadDim: 6, Inter: 10}
	const n = 5
	want := 0
	for layer := range s.Layers {
		for row := range n {
			want += 2 * (s.Heads + 2*s.KVHeads) * s.HeadDim * s.Hidden
			want += 4 * s.Heads * s.HeadDim * (row + 1)
			if layer < s.Layers-1 || row == n-1 {
				want += 2 * s.Heads * s.HeadDim * s.Hidden
				want += 2*2*s.Inter*s.Hidden + 2*s.Inter*s.Hidden
			}
		}
	}
	if got := passFLOPs(&s, n); got != float64(want) {
		t.Errorf("%v FLOPs, want %d", got, want)
	}
}

func TestCancelStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := Options{Dir: filepath.Join(t.TempDir(), "model"), Tokens: []int{8}, Spec: small()}
	if _, err := Run(ctx, o, &bytes.Buffer{}); err == nil {
		t.Error("a cancelled run reports no error")
	}
}
