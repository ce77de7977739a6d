package engine

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/plan"
)

// A failure of the device fails all jobs of the batch, whatever it was doing, keeps nothing, and says whether the
// device is lost. The next batch is computed.
func TestDevicesThatFail(t *testing.T) {
	dev := &losing{Device: oneThread(t)}
	e := newTiny(t, dev.Device, "f32", Options{})
	f := &failing{Model: e.model, err: errors.New("no more")}
	other, err := New(f, dev, Options{Cache: e.store, MaxTokens: 500})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	head := e.packed(t, 1, 2)
	job := &Job{Plan: user(1, 2, 3), Hidden: []int{0}, Want: []Want{{Head: head}, {IDs: ids(2)}}, Segments: keeping(true)}
	for _, lost := range []error{nil, errors.New("gone")} {
		dev.lost = lost
		for _, step := range []string{"forward", "logits", "project", "hidden"} {
			f.step = step
			out := make([]Outcome, 2)
			other.Run([]*Job{job, {Plan: user(4, 5)}}, out)
			for i := range out {
				if !errors.Is(out[i].Err, f.err) || errors.Is(out[i].Err, ErrLost) != (lost != nil) || out[i].Kept != nil ||
					out[i].Logits != nil {
					t.Errorf("%s, lost %v, job %d: %+v", step, lost, i, out[i])
				}
			}
			if used := e.pool.Stats().Used; used != 0 {
				t.Errorf("%s: %d bytes of KV are in use", step, used)
			}
		}
	}
	f.step, dev.lost = "", nil
	r, err := other.Do(t.Context(), job)
	if err != nil || len(r.Kept) != 1 || r.Kept[0] == nil {
		t.Fatalf("afterwards: %v", err)
	}
	r.Kept[0].Release()
	if other.MaxTokens() != 500 || !slices.Equal(other.Sizes(9), []int{1, 9}) || other.pass.multiple != 16 ||
		e.Sizes(9) != nil ||
		e.pass.multiple != 1 {
		t.Errorf("%d tokens, sizes %v, multiples of %d", other.MaxTokens(), other.Sizes(9), other.pass.multiple)
	}
	if got := multiple(nil, Options{Multiple: 4}); got != 4 {
		t.Errorf("multiples of %d, want 4", got)
	}
	dev.open = errors.New("busy")
	if _, err := New(f, dev, Options{}); !errors.Is(err, dev.open) {
		t.Errorf("a device that cannot be opened: %v", err)
	}
	called := 0
	if _, err := e.Do(t.Context(), &Job{Plan: user(1), Meanwhile: func() { called++ }}); err != nil || called != 1 {
		t.Errorf("what is done meanwhile was done %d times, %v", called, err)
	}
}

// A batch whose segments fill scratch memory to its last byte is computed, again and again.
func TestScratchIsFilledToItsEnd(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	r := rand.New(rand.NewPCG(3, 3))
	p := &plan.Plan{}
	for range 50 {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Item, Tokens: randomTokens(r, 64)})
	}
	var first []float32
	for range 3 {
		res, err := e.Do(t.Context(), &Job{Plan: p, Hidden: []int{49}})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = res.Hidden[0]
		}
		if !slices.Equal(res.Hidden[0], first) || e.pass.used != e.pass.scratch.Size || e.pass.used <= 1<<20 {
			t.Errorf("%d of %d bytes are used", e.pass.used, e.pass.scratch.Size)
		}
	}
}

// Scratch memory is kept while batches need it, and given back when they need much less for long.
func TestScratchMemory(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	p := &pass{}
	defer p.free()
	need := func(tokens int) int {
		p.tasks = []task{{job: &Job{Plan: user(make([]int32, tokens)...)}, out: &Outcome{}}}
		if err := p.reserveScratch(e.Engine); err != nil {
			t.Fatal(err)
		}
		return p.scratch.Size
	}
	if got := need(10); got != 1<<20 {
		t.Errorf("%d bytes for a few tokens", got)
	}
	large := 3 * keptScratch / e.shape.ChunkBytes(1, true)
	most := need(large)
	if most != align(e.shape.ChunkBytes(large, true)) {
		t.Errorf("%d bytes for %d tokens", most, large)
	}
	for i := range scratchUnused - 1 {
		if got := need(10); got != most {
			t.Fatalf("%d bytes after %d small batches", got, i+1)
		}
	}
	if got := need(large / 2); got != most { // half of it is much
		t.Errorf("%d bytes for half of the tokens", got)
	}
	for range scratchUnused - 1 {
		need(10)
	}
	if got := need(10); got != 1<<20 {
		t.Errorf("%d bytes after %d small batches", got, scratchUnused)
	}
	for n, want := range map[int]int{0: 0, 1: 256, 255: 256, 256: 256, 257: 512} {
		if got := align(n); got != want {
			t.Errorf("%d aligned is %d", n, got)
		}
	}
	p.free()
	mem := &tallied{Memory: e.memory}
	broken := &Engine{shape: e.shape, memory: mem, opt: e.opt}
	for _, tokens := range []int{10, 3000, 6000} { // each needs more than the one before
		p.tasks = []task{{job: &Job{Plan: user(make([]int32, tokens)...)}, out: &Outcome{}}}
		if err := p.reserveScratch(broken); err != nil || mem.blocks != 1 {
			t.Errorf("%v, %d blocks for scratch", err, mem.blocks)
		}
	}
	p.free()
	if mem.blocks != 0 {
		t.Errorf("%d blocks are left", mem.blocks)
	}
	mem.full = errors.New("no room")
	if err := p.reserveScratch(broken); !errors.Is(err, mem.full) {
		t.Errorf("no room for scratch: %v", err)
	}
}
