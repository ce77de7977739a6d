package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/plan"
	"grebe/pool"
)

// gate is a tier of which a test says when, and whether, records are read.
type gate struct {
	*disk.Store
	read func(key plan.Key) bool // false: the record cannot be read; nil: all can
}

func (g *gate) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	if g.read != nil && !g.read(key) {
		return nil, false, nil
	}
	return g.Store.Get(key, place)
}

// watched is a model that tells when the first layer's attention of a batch that blends was begun.
type watched struct {
	model.Blender
	begun func()
}

func (w *watched) Blend(r compute.Runner, b *compute.Batch, repair *model.Repair, keep []int32) error {
	if w.begun != nil {
		r = &watchedRunner{r.(compute.Blender), w.begun}
	}
	return w.Blender.Blend(r, b, repair, keep)
}

type watchedRunner struct {
	compute.Blender
	begun func()
}

func (w *watchedRunner) Attend(layer int) {
	w.Blender.Attend(layer)
	if layer == 0 {
		w.begun()
	}
}

func (w *watchedRunner) Start() {
	if s, ok := w.Blender.(compute.Starter); ok {
		s.Start()
	}
}

// onDisk is an engine whose cache lies in memory, in the host's too if the device has its own, and on a disk.
type onDisk struct {
	*tiny
	model *watched
	gate  *gate
	close func()
}

func openOnDisk(t *testing.T, dev compute.Device, dir string, room int64) *onDisk {
	t.Helper()
	folder := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(modeltest.Write(folder, modeltest.Spec{Architecture: "Qwen3ForCausalLM", Hidden: 128, Layers: 3, Heads: 4,
		KVHeads: 2, HeadDim: 64, Inter: 160, Vocab: 200, Seed: 7}))
	m, err := model.Open(folder, dev, model.Options{DType: "bf16"})
	must(err)
	d, err := disk.Open(dir, disk.Options{Budget: 64 << 20})
	must(err)
	pools := []*pool.Pool{nil}
	pools[0], err = pool.Over(dev.Memory(), room, 4096)
	must(err)
	w := &onDisk{model: &watched{Blender: m.(model.Blender)}, gate: &gate{Store: d}}
	store := kv.New(m.Shape(), pools[0])
	if dev.Memory().Host() != dev.Memory() {
		host, err := pool.Over(dev.Memory().Host(), room, 4096)
		must(err)
		must(store.SetHost(host))
		pools = append(pools, host)
	}
	store.SetDisk(w.gate)
	e, err := New(w.model, dev, Options{Cache: store})
	must(err)
	w.tiny = &tiny{e, store, pools[0]}
	w.close = sync.OnceFunc(func() {
		err := errors.Join(e.Close(), m.Close())
		store.Close()
		err = errors.Join(err, d.Close())
		for _, p := range pools {
			err = errors.Join(err, p.Close())
		}
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.close)
	return w
}

// shelve computes prompts and the blocks of their items, which are then on disk and nowhere else.
func shelve(t *testing.T, dev compute.Device, dir string, seed uint64, n int) []*ordinary {
	t.Helper()
	w := openOnDisk(t, dev, dir, 32<<20)
	r := rand.New(rand.NewPCG(seed, 12))
	var out []*ordinary
	for k := range n {
		o := makeOrdinary(t, w.tiny, r)
		for i, b := range o.blocks {
			w.store.Publish(plan.Item, o.key(k, i), nil, b)
			b.Release()
		}
		o.blocks = nil
		out = append(out, o)
	}
	w.store.Flush()
	w.close()
	return out
}

// key names a block of a prompt.
func (o *ordinary) key(prompt, item int) plan.Key { return plan.Key{1, byte(prompt), byte(item)} }

// reader brings the blocks of a prompt, and keeps them until it is let go.
type reader struct {
	*brought
	wg   sync.WaitGroup
	pins []*kv.Entry
}

// late is a job of the prompt whose blocks are on their way.
func (w *onDisk) late(o *ordinary, prompt int, budget blend.Budget) (*Job, *reader) {
	r := &reader{brought: newBrought()}
	parts := o.parts()
	r.wg.Go(func() {
		defer r.end()
		for i := range parts {
			if r.stopped() {
				return
			}
			if w.store.Fetch(context.Background(), o.key(prompt, i)) == plan.Missing {
				continue
			}
			if e, _ := w.store.Get(o.key(prompt, i)); e != nil {
				r.pins = append(r.pins, e)
				r.bring(i, e)
			}
		}
	})
	return o.job(&Blend{Parts: parts, Budget: budget, Layers: 2, Load: r.brought}), r
}

// release waits for what is being read and lets all go.
func (r *reader) release() {
	r.Stop()
	r.wg.Wait()
	for _, e := range r.pins {
		e.Release()
	}
}

// simple is the job, with what came for it, as one that had all of that before it began.
func (o *ordinary) simple(j *Job) *Job {
	b := *j.Blend
	b.Load, b.Parts = nil, slices.Clone(b.Parts)
	return o.job(&b)
}

// same compares a job's result to that of the simple way.
func (w *onDisk) same(t *testing.T, what string, o *ordinary, j *Job, got *Result) {
	t.Helper()
	want, err := w.Do(context.Background(), o.simple(j))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Logits[0], want.Logits[0]) || got.Computed != want.Computed ||
		!slices.Equal(got.Reused, want.Reused) || got.Late != want.Late {
		t.Errorf("%s: %d computed, %v reused, %d late; with the same blocks read ahead %d, %v, %d; answers are off by %g",
			what, got.Computed, got.Reused, got.Late, want.Computed, want.Reused, want.Late,
			distance(got.Logits[0], want.Logits[0]))
	}
}

// Blocks are read from a disk while the layers compute that need none of them: here nothing is read before the first
// layer has begun. Answers are those of the same blocks read ahead, to the bit.
func TestBlocksAreReadBesideFirstLayers(t *testing.T) {
	near, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	devices := farDevices(t)
	devices["near"] = near
	for name, dev := range devices {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			prompts := shelve(t, dev, dir, 3, 3)
			budget := blend.Budget{Items: 0.3}
			w := openOnDisk(t, dev, dir, 32<<20)
			var ahead []*Result
			for k, o := range prompts { // the simple way
				j, r := w.late(o, k, budget)
				<-r.ended
				got, err := w.Do(t.Context(), j)
				if err != nil {
					t.Fatal(err)
				}
				w.same(t, "read ahead", o, j, got)
				ahead = append(ahead, got)
				r.release()
			}
			w.close()
			w = openOnDisk(t, dev, dir, 32<<20) // blocks are on disk again
			for k, o := range prompts {
				begun := make(chan struct{})
				w.gate.read = func(plan.Key) bool { <-begun; return true }
				w.model.begun = sync.OnceFunc(func() { close(begun) })
				j, r := w.late(o, k, budget)
				got, err := w.Do(t.Context(), j)
				if err != nil {
					t.Fatal(err)
				}
				if got.Late != 0 || sum(got.Reused) == 0 {
					t.Errorf("prompt %d: %d tokens did not come, %v were reused", k, got.Late, got.Reused)
				}
				if !slices.Equal(got.Logits[0], ahead[k].Logits[0]) || got.Computed != ahead[k].Computed {
					t.Errorf("prompt %d: off by %g of what was read ahead", k, distance(got.Logits[0], ahead[k].Logits[0]))
				}
				w.model.begun = nil
				w.same(t, "read beside", o, j, got)
				r.release()
			}
		})
	}
}

// Whatever becomes of reads, and whenever (they fail, are late, are given up, find no room), a job's answer is that of
// the simple way with the blocks that came, alone or in a batch with others; what did not come is computed.
func TestWhatDoesNotComeIsComputed(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	dir := t.TempDir()
	prompts := shelve(t, dev, dir, 5, 4)
	late, all := 0, 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 8))
		room := int64(32 << 20)
		if seed%3 == 0 {
			room = 64 << 10 // for a few blocks
		}
		w := openOnDisk(t, dev, dir, room)
		held, fails, stops := make(chan struct{}), r.IntN(3), r.IntN(4) == 0
		w.gate.read = func(key plan.Key) bool {
			switch int(key[1]+key[2]) % 3 {
			case fails:
				return false
			case (fails + 1) % 3:
				<-held
			}
			return true
		}
		var jobs []*Job
		var readers []*reader
		for _, k := range r.Perm(len(prompts))[:1+r.IntN(3)] {
			j, reads := w.late(prompts[k], k, blend.Budget{Items: r.Float64()})
			j.Blend.Patience = 1 // no time at all
			if stops {
				reads.Stop()
			}
			jobs, readers = append(jobs, j), append(readers, reads)
		}
		of := func(j *Job) *ordinary {
			return prompts[slices.IndexFunc(prompts, func(o *ordinary) bool { return o.plan == j.Plan })]
		}
		jobs = append(jobs, prompts[0].job(nil))
		out := make([]Outcome, len(jobs))
		w.Run(jobs, out)
		for i, j := range jobs {
			if out[i].Err != nil {
				t.Fatal(out[i].Err)
			}
			if j.Blend == nil {
				want, err := w.Do(t.Context(), j)
				if err != nil || !slices.Equal(want.Logits[0], out[i].Logits[0]) {
					t.Errorf("seed %d: a job that reads nothing differs beside others: %v", seed, err)
				}
				continue
			}
			o := of(j)
			if n := o.plan.Tokens(); out[i].Computed+sum(out[i].Reused) != n || out[i].Late+out[i].Blended != o.tokens() {
				t.Errorf("seed %d: of %d tokens %d were computed, %v reused; %d did not come and %d did, of %d", seed, n,
					out[i].Computed, out[i].Reused, out[i].Late, out[i].Blended, o.tokens())
			}
			late, all = late+out[i].Late, all+o.tokens()
			w.same(t, fmt.Sprint("seed ", seed, " job ", i), o, j, &out[i].Result)
		}
		close(held)
		for _, reads := range readers {
			reads.release()
		}
		w.close()
	}
	if late == 0 || late == all {
		t.Errorf("%d of %d tokens did not come: nothing was tried", late, all)
	}
}

// A damaged record is computed, never used.
func TestDamagedBlocksAreComputed(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	dir := t.TempDir()
	o := shelve(t, dev, dir, 9, 1)[0]
	err = filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := 20000; i < len(b); i += 30000 { // some of the payloads
			b[i] ^= 4
		}
		return os.WriteFile(path, b, info.Mode())
	})
	if err != nil {
		t.Fatal(err)
	}
	w := openOnDisk(t, dev, dir, 32<<20)
	j, r := w.late(o, 0, blend.Budget{})
	got, err := w.Do(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if got.Late == 0 {
		t.Error("nothing was damaged")
	}
	w.same(t, "damaged", o, j, got)
	r.release()
}

// Who asks an engine directly and leaves has it wait for no disk.
func TestAnEngineWaitsForNobodyWhoLeft(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	dir := t.TempDir()
	o := shelve(t, dev, dir, 9, 1)[0]
	w := openOnDisk(t, dev, dir, 32<<20)
	hangs := make(chan struct{})
	w.gate.read = func(plan.Key) bool { <-hangs; return true }
	j, r := w.late(o, 0, blend.Budget{})
	ctx, cancel := context.WithCancel(t.Context())
	w.model.begun = cancel
	got, err := w.Do(ctx, j)
	if err != nil || got.Late != o.tokens() {
		t.Errorf("%v; %+v", err, got)
	}
	close(hangs)
	r.release()
}
