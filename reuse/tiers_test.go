package reuse

import (
	"path/filepath"
	"slices"
	"testing"

	"grebe/blend"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/schedule"
)

// lower evicts all entries from memory. They stay on disk.
func (m *machine) lower(t *testing.T) {
	t.Helper()
	m.store.Flush()
	for n := int(m.opt.Pool.Stats().Total); ; n /= 2 { // all make room
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			return
		}
	}
}

// visitOf answers a ranking and returns the sources of its tokens.
func (m *machine) visitOf(t *testing.T, r *Request) (logits []float32, sources []string, device, disk int) {
	t.Helper()
	v := m.Begin(r)
	l, err := m.prompt.Rank(v.Order(), r.User, r.Items)
	if err != nil {
		t.Fatal(err)
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2}}}}
	v.Attach(t.Context(), &l, job)
	res, err := m.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Plan.Segments {
		_, at := job.Cached(i)
		sources = append(sources, at.String())
	}
	by := job.Tiers()
	device, disk = by[plan.Device], by[plan.Disk]
	v.End(&l, res)
	m.opt.Store.Count(m.opt.Now())
	return res.Logits[0], sources, device, disk
}

// KV from device memory and from disk equals computed KV, and is counted by its tier.
func TestRankingsFromEveryTier(t *testing.T) {
	user, items := []int32{11, 12, 13, 14, 15}, [][]int32{{21, 22, 23}, {31, 32}}
	for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
		r := &Request{UserID: "u", User: user, Items: items, Policy: policy}
		far := newMachine(t, 7, []int32{1, 2}, "", true)
		far.opt.Load = linear{}
		first, _, device, _ := far.visitOf(t, r)
		if device != 0 {
			t.Errorf("%v: %d tokens of an empty cache were on the device", policy, device)
		}
		again, sources, device, disk := far.visitOf(t, r)
		if !slices.Equal(first, again) || device != 7 || disk != 0 || sources[0] != "device" || sources[1] != "device" {
			t.Errorf("%v: %d tokens on the device, %d on disk, %q", policy, device, disk, sources)
		}
		m := newMachine(t, 7, []int32{1, 2}, t.TempDir(), false)
		m.opt.Load = linear{}
		m.costs.Transfer[plan.Disk] = schedule.Transfer{} // reading costs nothing
		first, _, _, _ = m.visitOf(t, r)
		m.lower(t)
		again, sources, device, disk = m.visitOf(t, r)
		if !slices.Equal(first, again) || device != 0 || disk != 5 || sources[1] != "disk" {
			t.Errorf("%v: %d tokens on the device, %d on disk, %q; same answer %v", policy, device, disk, sources,
				slices.Equal(first, again))
		}
		if _, sources, _, disk = m.visitOf(t, r); disk != 0 || sources[1] != "host" {
			t.Errorf("%v: what was read is in memory: %d tokens on disk, %q", policy, disk, sources)
		}
		if err := m.Settle(); err != nil {
			t.Error(err)
		}
	}
}

// Blocks of blended prompts on disk are read during the prompt and counted as such.
func TestBlocksFromEveryTier(t *testing.T) {
	user, items := []int32{11, 12, 13, 14, 15, 16}, [][]int32{{21, 22, 23, 24}, {31, 32, 33}}
	r := &Request{UserID: "u", User: user, Items: items}
	how := &Blend{Layers: 1}
	far := newMachine(t, 7, []int32{1, 2}, "", true)
	far.opt.Load = linear{}
	for range 2 {
		far.blended(t, r, how)
	}
	_, a, _, _ := far.blended(t, r, how)
	if a.Device != a.Reused() || a.Device < 8 || a.Host+a.Disk+a.Prototype != 0 {
		t.Errorf("on a device: %+v", a)
	}
	m := newMachine(t, 7, []int32{1, 2}, t.TempDir(), false)
	m.opt.Load = linear{}
	m.costs.Transfer[plan.Disk] = schedule.Transfer{}
	for range 2 {
		m.blended(t, r, how)
	}
	inMemory, _, _, _ := m.blended(t, r, how)
	m.lower(t)
	res, a, v, l := m.blended(t, r, how)
	if res.Late != 0 || res.Blended != 7 || a.Disk < 6 || a.Disk+a.Host != a.Reused() ||
		!slices.Equal(res.Logits[0], inMemory.Logits[0]) {
		t.Errorf("from a disk: %d late, %d blended, %+v; same answer %v", res.Late, res.Blended, a,
			slices.Equal(res.Logits[0], inMemory.Logits[0]))
	}
	n, source := v.Part(res, l.Items, l.ItemAt[1])
	if source != "disk" && n > 0 {
		t.Errorf("%d tokens of a block came from %q", n, source)
	}
	if used := pinned(m); used != 0 {
		t.Errorf("%d entries are pinned", used)
	}
	if err := m.Settle(); err != nil {
		t.Error(err)
	}
}

// pinned returns 1 if entries that cannot be evicted take more than a quarter of the memory, else 0.
func pinned(m *machine) int {
	e, err := m.store.Reserve(kv.Exact, int(m.opt.Pool.Stats().Total)*3/4/m.opt.Shape.ChunkBytes(1, false), nil)
	if err != nil {
		return 1
	}
	e.Release()
	return 0
}

// Pages of prototypes on disk are read during the prompt, each once.
func TestPrototypesFromADisk(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, t.TempDir(), false)
	m.opt.Load = linear{}
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, people(1, 30))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	how := &Blend{Budget: blend.Budget{History: .5}, Prototypes: p, Layers: 1}
	tokens, _ := people(2, 8).History(0)
	r := &Request{UserID: "new", User: tokens, Items: [][]int32{{5, 6}}}
	m.lower(t)
	v := m.BeginBlend(r)
	l, err := m.prompt.Rank(how.Order(), tokens, r.Items)
	if err != nil {
		t.Fatal(err)
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1}}}}
	v.Attach(t.Context(), &l, job, how, how.Budget)
	if v.matched == 0 || len(v.missing) == 0 {
		t.Fatalf("%d prototypes, %d pages on disk", v.matched, len(v.missing))
	}
	parts := 0
	for i, w := range v.missing {
		parts += len(w.parts)
		for _, o := range v.missing[:i] {
			if o.key == w.key {
				t.Error("a page is read twice")
			}
		}
	}
	if parts != v.matched {
		t.Errorf("pages are read for %d parts, want %d", parts, v.matched)
	}
	res, err := m.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	a := v.Account(res)
	if res.Late != 0 || a.Prototype == 0 || v.Prototypes(res, l.User) != a.Prototype || v.Prototypes(res, l.Items) != 0 {
		t.Errorf("%d tokens late, %+v", res.Late, a)
	}
	v.End(&l, res)
	if err := m.Settle(); err != nil {
		t.Error(err)
	}
}

// If a user's last token answers, it is computed.
func TestAnsweringUsers(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	m.opt.Load = linear{}
	user := []int32{11, 12, 13}
	for i, want := range []int{0, 2} {
		v := m.Begin(&Request{UserID: "u", User: user, Items: nil, Policy: schedule.User})
		l := m.prompt.Generate(user)
		job := &engine.Job{Plan: l.Plan, Hidden: []int{l.User}}
		v.Attach(t.Context(), &l, job)
		if n, _ := job.Cached(l.User); n != want {
			t.Errorf("visit %d: %d tokens are cached, want %d", i, n, want)
		}
		res, err := m.engine.Do(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		v.End(&l, res)
	}
}
