package reuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/internal/durable"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/kv/proto"
	"grebe/kv/proto/rows"
	"grebe/model"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/schedule"
)

type quiet struct{}

func (quiet) Backlog() (float64, int)      { return 0, 0 }
func (quiet) Model() schedule.PrefillModel { return schedule.PrefillModel{} }

// machine is a small random model with a cache.
type machine struct {
	*Cache
	engine *engine.Engine
	store  *kv.Store
	close  func()
}

const vocabulary = 200

// newMachine also keeps entries in folder, if it is not empty. With far, the host cannot read the memory.
func newMachine(t *testing.T, seed uint64, preamble []int32, folder string, far bool) *machine {
	t.Helper()
	var dev compute.Device
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if far {
		dev = computetest.Far(dev, false)
	}
	dir := t.TempDir()
	spec := modeltest.Spec{Architecture: "Qwen3ForCausalLM", Hidden: 64, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 16,
		Inter: 96,
		Vocab: vocabulary, Seed: seed}
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	m, err := model.Open(dir, dev, model.Options{DType: "f32"})
	if err != nil {
		t.Fatal(err)
	}
	memory, err := pool.Over(dev.Memory(), 32<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	store := kv.New(m.Shape(), memory)
	var below *disk.Store
	if folder != "" {
		if below, err = disk.Open(folder, disk.Options{Budget: 64 << 20, Segment: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		store.SetDisk(below)
	}
	e, err := engine.New(m, dev, engine.Options{MaxTokens: 4096, Cache: store})
	if err != nil {
		t.Fatal(err)
	}
	b, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: preamble},
		Instruction: prompt.Text{Tokens: []int32{9}}}, nil, vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.SetHotness(residency.HotnessConfig{Users: 100, Items: 1000}); err != nil {
		t.Fatal(err)
	}
	closed := sync.OnceFunc(func() {
		store.Close()
		if below != nil {
			below.Close()
		}
		if err := errors.Join(e.Close(), m.Close(), memory.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closed)
	c := New(b, Options{Store: store, Pool: memory, Load: quiet{}, Shape: m.Shape(),
		Model: kv.KeyOf(plan.Key{byte(seed)}, nil, "model")})
	return &machine{c, e, store, closed}
}

// people returns users who say the same few sentences in any order. Tokens from 150 on are numbers.
func people(seed uint64, n int) *Pool {
	r := rand.New(rand.NewPCG(5, 5))
	sentences := make([][]int32, 12)
	for i := range sentences {
		for range 4 + r.IntN(6) {
			sentences[i] = append(sentences[i], int32(r.IntN(150)))
		}
	}
	embeddings := make([][]float32, vocabulary)
	for i := range embeddings {
		embeddings[i] = make([]float32, 64)
		for d := range embeddings[i] {
			embeddings[i][d] = float32(r.NormFloat64())
		}
	}
	r = rand.New(rand.NewPCG(seed, 6))
	var histories [][]int32
	p := &Pool{Bytes: 1 << 20, Natural: func(t int32) bool { return t < 150 },
		Config: proto.Config{Radius: 0.5, Lessons: 300}}
	for i := range n {
		var h []int32
		for range 3 + r.IntN(5) {
			h = append(append(h, sentences[r.IntN(len(sentences))]...), int32(150+r.IntN(50)))
		}
		histories = append(histories, h)
		p.Users = append(p.Users, string(rune('a'+seed))+string(rune('A'+i)))
	}
	p.History = func(i int) ([]int32, error) { return histories[i], nil }
	p.Embeddings = func(token int32) []float32 { return embeddings[token] }
	return p
}

func (m *machine) build(t *testing.T, file string, p *Pool) *Built {
	t.Helper()
	built, err := m.BuildPrototypes(context.Background(), m.engine.Do, file, p)
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// For the very token that a prototype was made of, the prototype is the token's own KV, to the bit: found by its user,
// at its place, in memory that the host can or cannot read, and loaded from disk.
func TestPrototypesAreTheirTokensKV(t *testing.T) {
	for name, far := range map[string]bool{"near": false, "far": true} {
		t.Run(name, func(t *testing.T) {
			folder, file := t.TempDir(), filepath.Join(t.TempDir(), "pool", "x.proto")
			users := people(1, 30)
			first := newMachine(t, 7, []int32{1, 2, 3}, folder, far)
			built := first.build(t, file, users)
			if built.Prototypes < 50 || built.Computed != built.Pages || built.Pages < 2 || built.Lost != 0 {
				t.Fatalf("%+v", *built)
			}
			if again := first.build(t, file, users); again.Computed > again.Pages-built.Pages {
				t.Errorf("pages that were there were computed again: %+v after %+v", *again, *built)
			}
			checkOwn(t, first, file, users)
			first.close() // its memory is gone
			checkOwn(t, newMachine(t, 7, []int32{1, 2, 3}, folder, far), file, users)
		})
	}
}

func checkOwn(t *testing.T, m *machine, file string, users *Pool) {
	t.Helper()
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx := context.Background()
	s := m.Shape()
	var found Matches
	own, matched := 0, 0
	for i := range users.Users {
		tokens, _ := users.History(i)
		truth, err := m.HistoryKV(ctx, m.engine.Do, tokens)
		if err != nil {
			t.Fatal(err)
		}
		p.Find(&found, tokens, 0, 3, 0)
		parts := found.Append(nil, 1)
		found.Fetch(parts)
		matched += found.Tokens()
		for k := range parts {
			part := &parts[k]
			if part.Entry == nil || part.Segment != 1 || k > 0 && part.At < parts[k-1].At+parts[k-1].Tokens {
				t.Fatalf("part %d is %+v", k, *part)
			}
			page, err := rows.Read(m.Memory(), &s, part.Entry)
			if err != nil {
				t.Fatal(err)
			}
			for j := range part.Tokens {
				if tokens[part.At+j] >= 150 {
					t.Fatalf("token %d is a number", tokens[part.At+j])
				}
				is := p.index.Prototype(prototypeOf(p, part, j))
				if is.Token != tokens[part.At+j] || part.Turn != part.At+j-int(is.Place) {
					t.Fatalf("prototype %+v stands in for token %d at %d, turned by %d", is, tokens[part.At+j], part.At+j, part.Turn)
				}
				if is.Source != m.source(users.Users[i]) || int(is.Place) != part.At+j {
					continue
				}
				own++
				one, two := make([]byte, s.ChunkBytes(1, false)), make([]byte, s.ChunkBytes(1, false))
				chunk, at := rows.Find(truth, part.At+j)
				rows.Copy(&s, one, 0, 1, chunk, at)
				rows.Copy(&s, two, 0, 1, &page[0], part.First+j)
				if !bytes.Equal(one, two) {
					t.Fatalf("user %d token %d: its prototype's KV is not its own", i, part.At+j)
				}
			}
		}
		found.Release()
	}
	if own < p.Len()/2 || matched < own {
		t.Errorf("%d of %d prototypes were found by the token that they were made of, %d matches", own, p.Len(), matched)
	}
}

// linear takes a hundredth of a millisecond per token.
type linear struct{ quiet }

func (linear) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 0.01} }

// A new user is answered with prototypes. A user who returns is computed exactly once, and kept. From then on all of
// the user is reused, exactly.
func TestUsersWhoComeBackAreKept(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	m.opt.Load = linear{}
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, people(1, 30))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	others := people(2, 8)
	how := &Blend{Budget: blend.Budget{Items: 0.1, History: 0.5}, Prototypes: p}
	ask := func(id string, tokens []int32) (prototypes, cached int) {
		items := [][]int32{{5, 6}}
		v := m.BeginBlend(&Request{UserID: id, User: tokens, Items: items})
		l, err := m.prompt.Rank(how.Order(), tokens, items)
		if err != nil {
			t.Fatal(err)
		}
		job := &engine.Job{Plan: l.Plan}
		v.Attach(t.Context(), &l, job, how, how.Budget)
		r, err := m.engine.Do(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		prototypes = v.Prototypes(r, l.User)
		cached, _ = job.Cached(l.User)
		v.End(&l, r)
		m.opt.Store.Count(m.opt.Now())
		return prototypes, cached
	}
	for i, id := range others.Users {
		tokens, _ := others.History(i)
		if first, cached := ask(id, tokens); first == 0 || cached != 0 {
			t.Errorf("user %d, first visit: %d tokens of prototypes, %d cached", i, first, cached)
		}
		if second, cached := ask(id, tokens); second != 0 || cached != 0 {
			t.Errorf("user %d, second visit: %d tokens of prototypes, %d cached, want to compute all", i, second, cached)
		}
		if third, cached := ask(id, tokens); third != 0 || cached != len(tokens) {
			t.Errorf("user %d, third visit: %d tokens of prototypes, %d of %d cached", i, third, cached, len(tokens))
		}
	}
	// A user is not computed exactly if that costs more than prototypes save.
	in := schedule.Request{User: 1000, Frequency: 1, Returns: 0.1}
	v := &Blended{Visit: &Visit{cache: m.Cache, in: in}}
	if v.invests(&schedule.Prototypes{Matched: 500, Layers: 3, Budget: how.Budget.History}) {
		t.Error("a user who hardly returns is computed whole")
	}
	if v.in.Frequency = 0; v.invests(&schedule.Prototypes{Matched: 10, Layers: 3, Budget: how.Budget.History}) {
		t.Error("a user who never came is computed whole")
	}
}

// A prototype farther away than the limit is not used: its token is computed, and counted as computed. If few are left,
// the user is computed exactly, and kept.
func TestFarPrototypesAreNone(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	m.opt.Load = linear{}
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, people(1, 30))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	others, few := people(2, 8), 0
	for i, id := range others.Users {
		tokens, _ := others.History(i)
		limit := middle(p, tokens)
		near := 0
		for _, d := range found(p, tokens, limit) {
			if near++; d > limit {
				t.Errorf("user %d: a match at %v, the limit is %v", i, d, limit)
			}
		}
		if all := len(found(p, tokens, 0)); near == 0 || near >= all {
			t.Fatalf("user %d: %d of %d matches within %v, want some of them", i, near, all, limit)
		}
		limits := map[float32]int{limit: near, 1e-6: 0}
		if nearest := slices.Min(found(p, tokens, 0)); (&schedule.Prototypes{
			Tokens: len(tokens), Matched: len(found(p, tokens, nearest)),
		}).Few() {
			limits[nearest] = 0
			few++
		}
		for limit, want := range limits {
			how := &Blend{Prototypes: p, Limit: limit}
			v := m.BeginBlend(&Request{UserID: fmt.Sprint(id, limit), User: tokens, Items: [][]int32{{5, 6}}})
			l, err := m.prompt.Rank(how.Order(), tokens, [][]int32{{5, 6}})
			if err != nil {
				t.Fatal(err)
			}
			job := &engine.Job{Plan: l.Plan}
			v.Attach(t.Context(), &l, job, how, how.Budget)
			if kept := job.Segments[l.User].Keep; kept != (want == 0) {
				t.Errorf("user %d with %d matches: kept %v", i, want, kept)
			}
			r, err := m.engine.Do(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			a := v.Account(r)
			if a.Prototype != want || a.Recomputed != 0 || a.Computed+a.Reused() != l.Plan.Tokens() {
				t.Errorf("user %d, %d matches: %+v of %d tokens", i, want, a, l.Plan.Tokens())
			}
			v.End(&l, r)
		}
	}
	if few == 0 {
		t.Error("nobody has few matches")
	}
}

// found returns the drifts of the matches within a limit.
func found(p *Prototypes, tokens []int32, limit float32) (drifts []float32) {
	var m Matches
	defer m.Release()
	p.Find(&m, tokens, 0, 3, limit)
	for _, part := range m.Append(nil, 1) {
		drifts = append(drifts, part.Drift...)
	}
	return drifts
}

// middle is the median of the drifts of a history's matches.
func middle(p *Prototypes, tokens []int32) float32 {
	all := found(p, tokens, 0)
	slices.Sort(all)
	return all[len(all)/2]
}

// prototypeOf returns the number of the prototype that replaces a part's token.
func prototypeOf(p *Prototypes, part *engine.Part, j int) int {
	for page, key := range p.keys {
		if e, _ := p.cache.opt.Store.Get(key); e != nil {
			e.Release()
			if e == part.Entry {
				return page*proto.Page + part.First + j
			}
		}
	}
	return -1
}

func TestPrototypesGrow(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	built := m.build(t, file, people(1, 30))
	more := people(2, 30)
	long := more.History
	more.History = func(i int) ([]int32, error) { // sentences that nobody said before
		h, err := long(i)
		return append([]int32{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13}, h...), err
	}
	grown := m.build(t, file, more)
	if grown.Added <= 0 || grown.Prototypes <= built.Prototypes || grown.Lost != 0 {
		t.Errorf("%+v after %+v", *grown, *built)
	}
}

func TestPrototypesOfOthersAreRefused(t *testing.T) {
	m := newMachine(t, 7, []int32{1}, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, people(1, 20))
	for name, other := range map[string]*machine{
		"weights": newMachine(t, 8, []int32{1}, "", false), "preamble": newMachine(t, 7, []int32{2}, "", false),
	} {
		if _, err := other.OpenPrototypes(file); !errors.Is(err, ErrOtherModel) {
			t.Errorf("other %s: %v", name, err)
		}
	}
	if _, err := m.OpenPrototypes(file + "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	little := people(1, 20)
	little.Bytes = 100
	if _, err := m.BuildPrototypes(context.Background(), m.engine.Do, file, little); err == nil {
		t.Error("100 bytes were room enough")
	}
}

// watching is called before each change of a file.
type watching struct{ call func() }

// Do implements durable.Watcher.
func (w *watching) Do(_ durable.Op, run func() error) error {
	w.call()
	return run()
}

// A user who is deleted leaves nothing in the pool.
func TestPrototypesForgetUsers(t *testing.T) {
	m := newMachine(t, 7, []int32{1}, t.TempDir(), false)
	users := people(1, 30)
	file := filepath.Join(t.TempDir(), "x.proto")
	m.build(t, file, users)
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { p.Close() }()
	var gone []plan.Key
	for i := range p.Len() {
		if p.index.Prototype(i).Source == m.source(users.Users[0]) {
			gone = append(gone, p.keys[i/proto.Page])
		}
	}
	if len(gone) == 0 {
		t.Fatal("the user has no prototype")
	}
	// A kill before the file is written leaves the user in it, so that the next process deletes the pages again.
	// Without the file it would not know them.
	watched := 0
	stop, err := durable.Watch(filepath.Dir(file), &watching{func() {
		watched++
		for _, key := range gone {
			if e, _ := m.store.Get(key); e != nil || m.store.Below(key) {
				t.Error("the file is written before the pages are deleted")
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.file = filepath.Join(file, "nowhere")
	for range 2 { // a second call returns the same error
		if err := p.DropUser(users.Users[0]); err == nil {
			t.Fatal("no error, but the user is still in the file")
		}
	}
	p.file = file
	if err := p.DropUser(users.Users[0]); err != nil {
		t.Fatal(err)
	}
	stop()
	if watched == 0 {
		t.Error("nothing was written")
	}
	for round := range 2 {
		for _, key := range gone {
			e, _ := m.store.Get(key)
			if e != nil || m.store.Below(key) {
				t.Errorf("round %d: a page with the user's KV is there", round)
			}
		}
		var found Matches
		for i := range users.Users {
			tokens, _ := users.History(i)
			p.Find(&found, tokens, 0, 1, 0)
			for _, f := range found.found {
				if f.Prototype >= 0 && p.index.Prototype(int(f.Prototype)).Source == m.source(users.Users[0]) {
					t.Fatalf("round %d: the user's prototype %d is matched", round, f.Prototype)
				}
			}
			found.Release()
		}
		p.Close()
		if p, err = m.OpenPrototypes(file); err != nil { // the file says so too
			t.Fatal(err)
		}
	}
}

func TestBuildPrototypesIsCancelled(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	ctx, cancel := context.WithCancel(context.Background())
	users := people(1, 30)
	users.Progress = func(part string, _, _ int) {
		if part == "pages" {
			cancel()
		}
	}
	if _, err := m.BuildPrototypes(ctx, m.engine.Do, file, users); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	users.Progress = nil
	if built := m.build(t, file, users); built.Computed == 0 || built.Computed >= built.Pages {
		t.Errorf("a build that was stopped went on with %+v", *built)
	}
}

// A page with a token that has changed is not computed: a prototype is the KV of its own token.
func TestPagesOfChangedHistoriesAreLost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pool", "x.proto")
	users := people(1, 30)
	newMachine(t, 7, nil, "", false).build(t, file, users)
	m := newMachine(t, 7, nil, "", false) // the pages are gone
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	second := 1 // of a page, and of the same history as the one before it
	for second%proto.Page == 0 || p.index.Prototype(second).Source != p.index.Prototype(second-1).Source {
		second++
	}
	is := p.index.Prototype(second)
	was := users.History
	users.History = func(i int) ([]int32, error) {
		tokens, err := was(i)
		if m.source(users.Users[i]) == is.Source {
			tokens = append([]int32(nil), tokens...)
			tokens[is.Place] = 199
		}
		return tokens, err
	}
	if built := m.build(t, file, users); built.Lost == 0 {
		t.Errorf("no page was lost: %+v", *built)
	}
	if e, _ := m.store.Get(p.keys[second/proto.Page]); e != nil {
		e.Release()
		t.Errorf("the page has KV of another token for prototype %d, %+v", second, is)
	}
}
