package reuse

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/blend"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/proto/rows"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// few returns a small pool, whose prototypes are built quickly.
func few(seed uint64) *Pool {
	p := people(seed, 12)
	p.Config.Lessons = 20
	return p
}

// A changed item with more tokens than are computed at once is computed alone.
func TestALongItemThatChangesIsComputedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, 7, nil, "", false)
		defer m.close()
		m.opt.Load = linear{}
		item := func(n int, first int32) []int32 { out := make([]int32, n); out[0] = first; return out }
		var computed []int // items of each batch
		do := func(_ context.Context, j *engine.Job) (*engine.Result, error) {
			computed = append(computed, len(j.Plan.Segments))
			return m.dryRun(t, j), nil
		}
		const half = refreshTokens / 2
		was := [][]int32{item(4, 1), item(refreshTokens+1, 2), item(half, 3), item(half, 4), item(1, 5)}
		if _, _, err := m.Precompute(t.Context(), do, was, nil); err != nil {
			t.Fatal(err)
		}
		computed = nil
		var changes []Change
		for _, tokens := range was {
			is := slices.Clone(tokens)
			is[0] += 10
			changes = append(changes, m.Changed([]*prompt.Item{{Tokens: tokens}}, &prompt.Item{Tokens: is}))
		}
		if err := m.Apply(changes); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { m.Refresh(ctx, do, func(err error) { t.Error(err) }) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []int{1, 1, 2, 1}; !slices.Equal(computed, want) {
			t.Errorf("%v items at a time, want %v", computed, want)
		}
		for _, c := range changes {
			if _, there := m.Heat(c.Want); !there {
				t.Errorf("an item of %d tokens is not computed", len(c.Want))
			}
		}
		cancel()
		wg.Wait()
	})
}

// Space that was freed by evicting known prefixes is not free room: users kept next evict others.
func TestRoomThatPrefixesMade(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	m.opt.Load = linear{}
	all := int(m.opt.Pool.Stats().Total / m.bytesPerToken)
	room := func() bool {
		v := m.Begin(&Request{UserID: "u", User: []int32{100, 101}, Items: [][]int32{{5}}, Policy: schedule.None})
		return v.in.UserRoom
	}
	for i := range int32(31) { // in all, most of the cache
		tokens := make([]int32, all/32)
		tokens[0] = i
		e, err := m.store.Reserve(kv.Chain, len(tokens), nil)
		if err != nil {
			t.Fatal(err)
		}
		m.store.Insert(m.userSpace, tokens, e)
		e.Release()
	}
	if !room() {
		t.Fatal("a part of the cache is free, and there is no room for two tokens")
	}
	e, err := m.store.Reserve(kv.Chain, all/8, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.Release()
	if room() {
		t.Error("prefixes made room, and that counts as free")
	}
}

// Each of two caches over a store knows its own entries, in memory and on disk.
func TestEntriesOnDiskAreKnownToTheirCache(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	other := m.led(t, nil, nil)
	item := []int32{1, 2, 3}
	other.keep(t, plan.Item, other.ItemKey(item), len(item), nil)
	m.store.Flush()
	for _, where := range []string{"in memory too", "on disk alone"} {
		if m.Known() != 0 || other.Known() != 1 {
			t.Errorf("%s: %d entries are known of the one, and %d of the other, want 0 and 1", where, m.Known(), other.Known())
		}
		if _, there := m.Heat(item); there {
			t.Errorf("%s: an item of another cache is found", where)
		}
		if _, there := other.Heat(item); !there {
			t.Errorf("%s: an item on disk is not found", where)
		}
		m.toDisk(t)
	}
	m.keep(t, plan.Item, m.ItemKey(item), len(item), nil)
	if m.Known() != 1 || other.Known() != 1 {
		t.Errorf("%d entries are known of the one, and %d of the other, want one of each", m.Known(), other.Known())
	}
}

// A prompt without room for an answer is an error.
func TestImportanceOfAPromptThatCannotBe(t *testing.T) {
	m := newMachine(t, 1, nil, "", false)
	b, err := prompt.New(prompt.Config{}, nil, vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	m.prompt = b
	if _, err := m.LearnImportance(t.Context(), m.engine.Do, lists(2, 1)); !errors.Is(err, prompt.ErrNoInstruction) {
		t.Errorf("without an instruction: %v", err)
	}
}

// Building prototypes fails if there is no folder for their file, or if the model fails.
func TestPrototypesThatCannotBeBuilt(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	users := few(1)
	users.Fresh = true
	if built, err := m.BuildPrototypes(t.Context(), m.engine.Do, filepath.Join(file, "x.proto"), users); err == nil {
		t.Errorf("built %+v in a folder that is a file", built)
	}
	broken := errors.New("broken")
	fails := func(context.Context, *engine.Job) (*engine.Result, error) { return nil, broken }
	empty := filepath.Join(t.TempDir(), "x.proto")
	if _, err := m.BuildPrototypes(t.Context(), fails, empty, users); !errors.Is(err, broken) {
		t.Errorf("by a model that fails: %v", err)
	}
	good := filepath.Join(t.TempDir(), "x.proto")
	built := m.build(t, good, few(1))
	other := newMachine(t, 7, nil, "", false) // has none of the pages
	lost := few(1)
	lost.Bytes = int64(built.Prototypes) * m.bytesPerToken // no further page: histories are read only for the pages
	lost.History = func(int) ([]int32, error) { return nil, broken }
	if _, err := other.BuildPrototypes(t.Context(), other.engine.Do, good, lost); !errors.Is(err, broken) {
		t.Errorf("of histories that cannot be read: %v", err)
	}
}

// A full index of prototypes does not change.
func TestAFullPoolOfPrototypes(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	built := m.build(t, file, few(1))
	users := few(2)
	users.Bytes = int64(built.Prototypes) * m.bytesPerToken // no further page
	again := m.build(t, file, users)
	if again.Added != 0 || again.Prototypes != built.Prototypes || again.Computed != 0 || again.Bytes != built.Bytes {
		t.Errorf("%+v after %+v", *again, *built)
	}
	users.Bytes *= 2
	var done, all int
	users.Progress = func(part string, n, of int) {
		if part == "pages" {
			done, all = n, of
		}
	}
	defer func() {
		if done != all || all == 0 {
			t.Errorf("%d of %d pages are done at the end", done, all)
		}
	}()
	if more := m.build(t, file, users); built.Added != built.Prototypes || more.Added != more.Prototypes-built.Prototypes {
		t.Errorf("%+v, and then %+v", *built, *more)
	}
}

// A history's KV is the same as the user's in a ranking.
func TestHistoryKVIsThatOfRankings(t *testing.T) {
	user := []int32{11, 12, 13, 14, 15}
	for _, preamble := range [][]int32{nil, {1, 2, 3}} {
		m := newMachine(t, 7, nil, "", false).led(t, preamble, nil)
		m.rank(t, &Request{UserID: "u", User: user, Items: [][]int32{{21}}, Policy: schedule.User})
		e, _ := m.store.GetPrefix(m.UserKey("u", nil), user)
		if e == nil {
			t.Fatal("the user is not kept")
		}
		s := m.Shape()
		want, err := rows.Read(m.Memory(), &s, e)
		e.Release()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.store.Delete(m.preamble.key); err != nil { // it is computed again the first time
			t.Fatal(err)
		}
		for range 2 {
			got, err := m.HistoryKV(t.Context(), m.engine.Do, user)
			if err != nil {
				t.Fatal(err)
			}
			for layer := range s.Layers {
				for i := range user {
					a, b := vectors(&s, got, layer, i, len(preamble)+i), vectors(&s, want, layer, i, len(preamble)+i)
					if !slices.Equal(a, b) {
						t.Fatalf("preamble %v: layer %d of token %d differs", preamble, layer, i)
					}
				}
			}
			m.rank(t, &Request{UserID: "v", User: user, Items: [][]int32{{21}}, Policy: schedule.User})
		}
	}
}

// If little of a user is on the device, prototypes replace it, and it does not count as reused from there.
func TestPrototypesInsteadOfAPartOnTheDevice(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", true)
	m.opt.Load = linear{}
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, few(1))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	tokens, _ := few(2).History(0)
	part := tokens[:len(tokens)/4]
	m.visitOf(t, &Request{User: part, Items: [][]int32{{5, 6}}, Policy: schedule.User}) // leaves a known prefix
	how := &Blend{Prototypes: p, Layers: 1}
	r := &Request{UserID: "new", User: tokens, Items: [][]int32{{7, 8}}}
	if v := m.Begin(r); v.in.UserCached[plan.Device] == 0 {
		t.Fatalf("nothing of the user is on the device: %v", v.in.UserCached)
	}
	if _, a, _, _ := m.blended(t, r, how); a.Device != 3 || a.Prototype == 0 {
		t.Errorf("%+v, want the preamble from the device and prototypes", a)
	}
}

// Blocks and pages of prototypes on disk are read for the parts they belong to.
func TestBlocksAndPrototypesFromADisk(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	m.opt.Load = linear{}
	m.costs.Transfer[plan.Disk] = schedule.Transfer{}
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, few(1))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	items := [][]int32{{151, 152, 153, 154}, {155, 156}}
	m.visitOf(t, &Request{User: []int32{5}, Items: items, Policy: schedule.Item})
	tokens, _ := few(2).History(0)
	for _, itemsFirst := range []bool{false, true} {
		how := &Blend{Prototypes: p, Layers: 1, ItemsFirst: itemsFirst}
		r := &Request{UserID: "new", User: tokens, Items: items}
		inMemory, want, _, _ := m.blended(t, r, how)
		m.lower(t)
		res, got, v, l := m.blended(t, r, how)
		got.Disk, got.Host = got.Disk+got.Host, 0
		want.Disk, want.Host = want.Disk+want.Host, 0
		if res.Late != 0 || got != want || want.Prototype == 0 || !slices.Equal(res.Logits[0], inMemory.Logits[0]) {
			t.Errorf("items first %v: %+v from a disk, %d late, %+v from memory", itemsFirst, got, res.Late, want)
		}
		if n, source := v.Part(res, l.Items, l.ItemAt[0]); n > 0 && source != "disk" {
			t.Errorf("items first %v: %d tokens of a block came from %q", itemsFirst, n, source)
		}
	}
	if err := m.Settle(); err != nil {
		t.Error(err)
	}
}

// A job that had to run without the cache counts as computed, including the blocks beside the prompt.
func TestAccountOfAJobWithoutItsCache(t *testing.T) {
	m := newMachine(t, 7, nil, "", false).led(t, []int32{1, 2}, []int32{4, 5})
	items := [][]int32{{21, 22, 23}, {31, 32}}
	m.rank(t, &Request{User: []int32{5}, Items: [][]int32{{41}}, Policy: schedule.Item}) // leaves preamble and lead-in
	r := &Request{UserID: "u", User: []int32{11, 12, 13}, Items: items}
	how := &Blend{Budget: blend.Budget{Items: 1, History: 1}, Layers: 1}
	m.blended(t, r, how)
	for _, cached := range []bool{true, false} {
		v := m.BeginBlend(r)
		l, err := m.prompt.Rank(how.Order(), r.User, items)
		if err != nil {
			t.Fatal(err)
		}
		job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1}}}}
		v.Attach(t.Context(), &l, job, how, how.Budget)
		if !cached {
			job.Segments = nil
		}
		res, err := m.engine.Do(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		a, made := v.Account(res), 5
		if !cached {
			made += 2 // the lead-in
		}
		reused := map[bool]int{true: 5, false: 0}[cached]
		if a.Computed+a.Reused() != l.Plan.Tokens() || a.Beside != made || a.Reused() != reused || a.Host != reused {
			t.Errorf("cached %v: %+v of %d tokens, want %d beside", cached, a, l.Plan.Tokens(), made)
		}
		v.End(&l, nil)
		for _, e := range res.Kept {
			if e != nil {
				e.Release()
			}
		}
	}
}

// A lesson about a token is its keys, rotated back to position 0, and its values, of all layers but the first. Each is
// scaled to the same length so that the whole has length 1.
func TestLessonsOfHistories(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	tokens, at := []int32{11, 12, 13, 14, 15, 16}, []int{4, 0, 5}
	got, err := (&poolBuild{cache: m.Cache, do: m.engine.Do}).teach(t.Context(), tokens, at)
	if err != nil {
		t.Fatal(err)
	}
	chunks, err := m.HistoryKV(t.Context(), m.engine.Do, tokens)
	if err != nil {
		t.Fatal(err)
	}
	s := m.Shape()
	for i, token := range at {
		var want []float32
		for layer := 1; layer < s.Layers; layer++ {
			v := vectors(&s, chunks, layer, token, 3+token)
			for half := range slices.Chunk(v, len(v)/2) {
				sum := 0.0
				for _, x := range half {
					sum += float64(x) * float64(x)
				}
				for _, x := range half {
					want = append(want, float32(float64(x)/math.Sqrt(sum*2*float64(s.Layers-1))))
				}
			}
		}
		if len(got[i]) != len(want) {
			t.Fatalf("token %d: %d numbers, want %d", token, len(got[i]), len(want))
		}
		for k := range want {
			if math.Abs(float64(got[i][k]-want[k])) > 1e-6 {
				t.Fatalf("token %d: number %d is %v, want %v", token, k, got[i][k], want[k])
			}
		}
	}
}
