package engine

import (
	"errors"
	"math/rand/v2"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/plan"
	"grebe/pool"
)

// farDevices are those whose memory is not the host's: an imitation, which uses pinned memory in place or does not, and
// a GPU, where there is one.
func farDevices(t *testing.T) map[string]compute.Device {
	t.Helper()
	out := map[string]compute.Device{}
	for name, pinned := range map[string]bool{"far": false, "far, pinned": true} {
		dev, err := cpu.New(cpu.Options{Threads: 2})
		if err != nil {
			t.Fatal(err)
		}
		out[name] = computetest.Far(dev, pinned)
	}
	if gpu, err := cuda.New(cuda.Options{}); err == nil {
		out["cuda"] = gpu
	} else {
		t.Logf("no GPU is tested: %v", err)
	}
	for _, dev := range out {
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return out
}

// levels is an engine with a cache of three levels: the device's memory, the host's and a disk.
type levels struct {
	*Engine
	store        *kv.Store
	model        model.Model
	device, host *pool.Pool
	disk         *disk.Store
}

// room is the size of the two pools: an entry of 140 tokens fits, a second one does not.
func openLevels(t *testing.T, dev compute.Device, dtype, dir string, room int64) *levels {
	t.Helper()
	folder := t.TempDir()
	spec := modeltest.Spec{Architecture: "Qwen3ForCausalLM", Hidden: 128, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 64,
		Inter: 160,
		Vocab: 200, Seed: 7}
	err := modeltest.Write(folder, spec)
	w := &levels{}
	if err == nil {
		w.model, err = model.Open(folder, dev, model.Options{DType: "bf16", KV: dtype})
	}
	if err == nil {
		w.device, err = pool.Over(dev.Memory(), room, 4096)
	}
	if err == nil {
		w.host, err = pool.Over(dev.Memory().Host(), room, 4096)
	}
	if err == nil {
		w.disk, err = disk.Open(dir, disk.Options{Budget: 64 << 20})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.store = kv.New(w.model.Shape(), w.device)
	if err := errors.Join(w.store.SetHost(w.host), w.store.SetPolicy("lru")); err != nil {
		t.Fatal(err)
	}
	w.store.SetDisk(w.disk)
	if w.Engine, err = New(w.model, dev, Options{Cache: w.store}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *levels) close(t *testing.T) {
	t.Helper()
	err := errors.Join(w.Engine.Close(), w.model.Close())
	w.store.Close()
	if err := errors.Join(err, w.disk.Close(), w.device.Close(), w.host.Close()); err != nil {
		t.Error(err)
	}
}

// job asks for logits behind a user.
func (w *levels) job(user []int32, cached *kv.Entry) *Job {
	p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: user},
		{Kind: plan.Instruction, Tokens: []int32{3, 4}, Start: len(user), Sees: []int32{0}}}}
	return &Job{Plan: p, Want: []Want{{Segment: 1, IDs: ids(50)}}, Hidden: []int{1},
		Segments: []Segment{{Entry: cached, Keep: true}, {}}}
}

// keep computes a user and publishes its KV.
func (w *levels) keep(t *testing.T, key plan.Key, user []int32) *Result {
	t.Helper()
	got, err := w.Do(t.Context(), w.job(user, nil))
	if err != nil || got.Kept[0] == nil {
		t.Fatalf("user %d is not kept: %v", key[0], err)
	}
	w.store.Publish(plan.User, key, user, got.Kept[0])
	got.Kept[0].Release()
	return got
}

// TestKVSurvivesTheTiers: KV that went from the device to the host's memory, to disk, through a restart and back
// yields the bits that it yielded in the device's, scales of FP8 and all.
func TestKVSurvivesTheTiers(t *testing.T) {
	for name, dev := range farDevices(t) {
		for _, dtype := range []string{"bf16", "fp8"} {
			t.Run(name+"/"+dtype, func(t *testing.T) { survivesTheTiers(t, dev, dtype) })
		}
	}
}

func survivesTheTiers(t *testing.T, dev compute.Device, dtype string) {
	r, dir := rand.New(rand.NewPCG(3, 4)), t.TempDir()
	user, other := randomTokens(r, 140), randomTokens(r, 140)
	const room = 384 << 10
	w := openLevels(t, dev, dtype, dir, room)
	first := w.keep(t, plan.Key{1}, user)
	var want *Result
	again := func(where string, place plan.Tier) {
		t.Helper()
		e, at := w.store.Get(plan.Key{1})
		if e == nil || at != place {
			t.Fatalf("%s: the user is in place %v, want %v", where, at, place)
		}
		defer e.Release()
		got, err := w.Do(t.Context(), w.job(user, e))
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		if got.Cached != len(user) {
			t.Errorf("%s: %d tokens of %d were cached", where, got.Cached, len(user))
		}
		for _, k := range got.Kept {
			if k != nil {
				k.Release()
			}
		}
		if want == nil {
			want = got // the device's own, whose batch has other sizes than that of the first
			return
		}
		compare(t, where, got, want)
	}
	again("from the device's memory", plan.Device)
	if dtype == "bf16" && name(dev) != "cuda" {
		compare(t, "computed and cached", want, first)
	}
	fill := func(to plan.Tier) {
		for i := byte(2); ; i++ {
			if _, at := w.store.PeekPrefix(plan.Key{1}, user); at == to {
				return
			}
			if i > 60 {
				t.Fatalf("the user does not go to place %v", to)
			}
			w.keep(t, plan.Key{i}, append([]int32{int32(i)}, other...))
		}
	}
	fill(plan.Host)
	again("from the host's memory", plan.Host)
	w.store.Flush()
	fill(plan.Missing)
	at := w.store.Fetch(t.Context(), plan.Key{1})
	if at == plan.Missing {
		t.Fatalf("the user is not on the disk: %+v", w.store.BelowStats())
	}
	again("from the disk", at)
	w.close(t)
	w = openLevels(t, dev, dtype, dir, room)
	defer w.close(t)
	if at = w.store.Fetch(t.Context(), plan.Key{1}); at == plan.Missing {
		t.Fatal("the user is not on the disk after a restart")
	}
	again("after a restart", at)
}

func name(dev compute.Device) string { return dev.Name()[:4] }
