package attend

import (
	"os"
	"testing"

	"grebe/compute/cuda/kernels"
	"grebe/compute/cuda/split"
)

// TestLessons: what a model is fitted to has room in a sweep, and the ways to cut it differ.
func TestLessons(t *testing.T) {
	p := plan{cut: cut{costs: measuredCosts}}
	cut := 0
	for i, b := range lessons() {
		p.build(b, nil, Held{}, tileRows/6)
		p.cutUnits(2, 132, 264)
		if len(b.Tokens) > sweepRows || p.slots > sweepSlots || len(b.Tokens) == 0 {
			t.Errorf("lesson %d has %d rows and %d tokens", i, len(b.Tokens), p.slots)
		}
		if l, ok := p.work.Load(split.Split{Form: split.Balanced}); ok && l.Merged > 1 && p.parts > 0 {
			cut++
		}
	}
	if cut < len(lessons())/3 {
		t.Errorf("only %d of %d lessons are cut", cut, len(lessons()))
	}
}

// TestTunes fits a model on the GPU, reads it back, and makes it anew where what was kept is damaged.
func TestTunes(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures for some seconds")
	}
	c := gpu(t)
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	cfg := Config{Shape: shapeOf(4, 2, 64)}
	first, err := Tune(c, cfg, false)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Tune(c, cfg, false)
	if err != nil || *again != *first {
		t.Errorf("read back %+v, %v; want %+v", again, err, first)
	}
	file, err := kernels.Kept(c, "split", "attend.cu", defines(&cfg)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := Tune(c, cfg, false); err != nil || m == nil {
		t.Errorf("with a damaged file: %v", err)
	}
	if _, ok := kernels.ReadKept(file); !ok {
		t.Error("the damaged file was not written anew")
	}
	t.Logf("%+v", first.Report())
}
