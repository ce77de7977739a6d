package serve

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
)

// stranger draws the tokens of a user without an id, who often shares a prefix with an earlier one.
func (w *cacheWorld) stranger() []int32 {
	var tokens []int32
	switch known := slices.Concat(w.strangers, w.users); w.rand.IntN(4) {
	case 0:
	case 1:
		tokens = known[w.rand.IntN(len(known))]
	default:
		k := known[w.rand.IntN(len(known))]
		tokens = k[:w.rand.IntN(len(k)+1)]
	}
	tokens = append(slices.Clone(tokens), w.tokens(1+w.rand.IntN(100))...)
	if w.strangers = append(w.strangers, tokens); len(w.strangers) > 8 {
		w.strangers = w.strangers[1:]
	}
	return tokens
}

// compareScores scores and, where the model can, reranks with and without the cache.
func (w *cacheWorld) compareScores(t *testing.T, step int) {
	t.Helper()
	req := &grebev1.ScoreRequest{
		Query: &grebev1.Input{Tokens: w.stranger()}, LabelTokenIds: []int32{11, 12, 13},
		ApplySoftmax: w.rand.IntN(4) > 0, ItemFirst: w.rand.IntN(3) == 0,
	}
	for range 1 + w.rand.IntN(4) {
		req.Items = append(req.Items, &grebev1.Input{Tokens: w.items[w.rand.IntN(len(w.items))]})
	}
	req.Items = append(req.Items, &grebev1.Input{Tokens: []int32{}})
	w.sameScores(t, fmt.Sprint("step ", step), req)
	if w.plain.served[0].serving().Scoring.Kind != Pointwise {
		return
	}
	text := strings.Repeat("which of these ", 1+w.rand.IntN(8))
	ranked := &grebev1.RerankRequest{Query: text + fmt.Sprint(w.rand.IntN(3)),
		Documents: []string{"one", "another", "one", "the third"}}
	got, err := w.cached.Rerank(t.Context(), ranked)
	must(t, err)
	want, err := w.plain.Rerank(t.Context(), ranked)
	must(t, err)
	if !slices.EqualFunc(got.Results, want.Results, func(a, b *grebev1.Relevance) bool {
		return a.Index == b.Index && a.RelevanceScore == b.RelevanceScore
	}) {
		t.Fatalf("step %d: reranked %v, want %v", step, got.Results, want.Results)
	}
}

func (w *cacheWorld) sameScores(t *testing.T, when string, req *grebev1.ScoreRequest) {
	t.Helper()
	got, err := w.cached.Score(t.Context(), req)
	must(t, err)
	want, err := w.plain.Score(t.Context(), req)
	must(t, err)
	if !slices.EqualFunc(got.Scores, want.Scores, func(a, b *grebev1.Scores) bool {
		return slices.Equal(a.Values, b.Values)
	}) {
		t.Fatalf("%s: item first %v: scores %v, want %v", when, req.ItemFirst, got.Scores, want.Scores)
	}
}

// counted returns a counter of tokens from the server's metrics.
func (w *cacheWorld) counted(t *testing.T, op, source string) (n int) {
	t.Helper()
	name := fmt.Sprintf("grebe_tokens_total{op=%q,source=%q} ", op, source)
	_, after, _ := strings.Cut(exposed(t, w.cached), name)
	_, _ = fmt.Sscan(after, &n)
	return n
}

// countedAll returns the tokens of an operation in the server's metrics, from all sources.
func (w *cacheWorld) countedAll(t *testing.T, op string) (n int) {
	t.Helper()
	for line := range strings.Lines(exposed(t, w.cached)) {
		if after, ok := strings.CutPrefix(line, fmt.Sprintf("grebe_tokens_total{op=%q,source=", op)); ok {
			_, value, _ := strings.Cut(after, "} ")
			f, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			must(t, err)
			n += int(f)
		}
	}
	return n
}

// A user, with or without an id, computes only tokens that no user without an id brought before.
func TestKnownPrefixesSaveWork(t *testing.T) {
	w := newCacheWorld(t, 2, false)
	shared, item, id := w.tokens(130), w.tokens(5), int32(231)
	rank := func(name string, tokens []int32) int {
		t.Helper()
		r, err := w.cached.Rank(t.Context(), &grebev1.RankRequest{
			Prefix: "user", User: &grebev1.User{Id: name, Tokens: tokens},
			Candidates: []*grebev1.Item{{Tokens: item, Identifier: &id}}})
		must(t, err)
		if u := r.Usage; u.CachedTokens+u.ComputedTokens != u.PromptTokens || u.BySource.Host != u.CachedTokens {
			t.Errorf("the account does not add up: %v", u)
		}
		return int(r.Usage.ComputedTokens) - len(item) - 2 // tokens of the user
	}
	with := func(n int) []int32 { return append(slices.Clone(shared), w.tokens(n)...) }
	rank("", with(20))
	for _, c := range []struct {
		name   string
		tokens []int32
		want   int
	}{
		{"", with(30), 30},
		{"", shared[:77], 0},
		{"ann", with(9), 9},
		{"bob", append(slices.Clone(shared[:100]), w.tokens(40)...), 40},
	} {
		if got := rank(c.name, c.tokens); got != c.want {
			t.Errorf("user %q: %d tokens computed, want %d", c.name, got, c.want)
		}
	}
	must(t, w.cache.DropUser("ann"))
	if got := rank("ann", with(12)); got != 12 {
		t.Errorf("a user whose entry is gone: %d tokens computed, want 12", got)
	}
	secret := w.tokens(90)
	rank("carl", secret)
	if got := rank("", secret); got != len(secret) {
		t.Errorf("%d tokens of a named user were taken for somebody else", len(secret)-got)
	}

	before := w.counted(t, "score", "host")
	query := &grebev1.Input{Tokens: with(10)}
	_, err := w.cached.Score(t.Context(), &grebev1.ScoreRequest{
		Query: query, Items: []*grebev1.Input{{Tokens: item}}, LabelTokenIds: []int32{9}, ApplySoftmax: true})
	must(t, err)
	fixed := len(w.plain.served[0].serving().Prompt.Preamble())
	if got, want := w.counted(t, "score", "host")-before, fixed+len(shared); got != want {
		t.Errorf("a score whose query begins alike reused %d tokens, want %d", got, want)
	}
	st := w.store.Stats(kv.Prefix)
	if st.Entries == 0 || w.store.Stats(plan.User).Entries != 3 {
		t.Errorf("%+v and %+v, want prefixes and three users", st, w.store.Stats(plan.User))
	}
}

// Without an instruction the query or the item answers, and is computed even if its KV is known.
func TestScoresOfWhatIsKnown(t *testing.T) {
	w := newCacheWorld(t, 3, false)
	for _, preamble := range [][]int32{nil, {1, 2}} {
		b, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: preamble}}, nil, 11000)
		must(t, err)
		m := *w.plain.served[0].serving().Model
		m.Prompt = b
		w.plain, err = New(Config{Models: []Model{m}, SLO: w.plain.cfg.SLO})
		must(t, err)
		m.Cache = reuse.New(b, reuse.Options{Store: w.store, Pool: w.pool, Load: steady{}, Shape: w.shape,
			Policy: schedule.Predicted})
		w.cached, err = New(Config{Models: []Model{m}, SLO: w.plain.cfg.SLO})
		must(t, err)
		query := w.tokens(64)
		for _, q := range [][]int32{query, {}, query[:1]} {
			for i := range 6 {
				items := []*grebev1.Input{{Tokens: query[:3]}}
				if len(q)+len(preamble) > 0 && i%2 == 0 {
					items = append(items, &grebev1.Input{Tokens: []int32{}})
				}
				w.sameScores(t, fmt.Sprintf("preamble %v, query of %d", preamble, len(q)), &grebev1.ScoreRequest{
					Query: &grebev1.Input{Tokens: q}, Items: items, LabelTokenIds: []int32{5, 6}, ItemFirst: i >= 3})
			}
		}
	}
}

// searched is memory that a test can search.
type searched struct {
	compute.Memory
	blocks []compute.Block
}

func (m *searched) Host() compute.Memory { return m }

func (m *searched) Alloc(n int) (compute.Block, error) {
	b, err := m.Memory.Alloc(n)
	m.blocks = append(m.blocks, b)
	return b, err
}

// has reports whether any of the rows is in memory.
func (m *searched) has(rows [][]byte) bool {
	return slices.ContainsFunc(rows, func(row []byte) bool {
		return slices.ContainsFunc(m.blocks, func(b compute.Block) bool { return bytes.Contains(b.Bytes, row) })
	})
}

// rows returns the keys of an entry's tokens from one on in the last layer, which depend on all tokens before them.
func rows(e *kv.Entry, shape compute.Shape, from int) [][]byte {
	row := shape.HeadDim * shape.KV.Size()
	var out [][]byte
	first := 0
	for _, c := range e.AppendChunks(nil) {
		plane := c.Bytes[(shape.Layers-1)*2*shape.KVHeads*c.Tokens*row:]
		for t := max(from, first); t < min(e.Len(), first+c.Tokens); t++ {
			out = append(out, bytes.Clone(plane[(t-first)*row:][:row]))
		}
		first += c.Tokens
	}
	return out
}

// No page has KV of a deleted user: neither a prefix that the user extended, nor KV that users without an id left
// since.
func TestDeletedUserLeavesNothing(t *testing.T) {
	memory := &searched{Memory: compute.NewHostMemory()}
	w := newCacheWorldOver(t, near, 7, false, func(m compute.Memory, shape compute.Shape) (*pool.Pool, error) {
		return pool.Over(memory, int64(shape.ChunkBytes(4000, false)), 1024)
	})
	shared, id := w.tokens(100), int32(231)
	rank := func(name string, tokens []int32) {
		_, err := w.cached.Rank(t.Context(), &grebev1.RankRequest{
			Prefix: "user", User: &grebev1.User{Id: name, Tokens: tokens},
			Candidates: []*grebev1.Item{{Tokens: w.items[0], Identifier: &id}}})
		must(t, err)
	}
	with := func(n int) []int32 { return append(slices.Clone(shared), w.tokens(n)...) }
	rank("", with(5))
	ann := with(60)
	rank("ann", ann)
	rank("", with(70))
	e, _ := w.store.GetPrefix(w.cache.UserKey("ann", nil), ann)
	if e == nil || e.Len() != len(ann) {
		t.Fatal("the user is not cached")
	}
	own, known := rows(e, w.shape, len(shared)), rows(e, w.shape, 0)[:len(shared)]
	e.Release()
	if !memory.has(own) {
		t.Fatal("the test does not find what is there")
	}
	must(t, w.cache.DropUser("ann"))
	for _, row := range own {
		if memory.has([][]byte{row}) {
			t.Fatal("KV of a deleted user is in memory")
		}
	}
	if !memory.has(known[:1]) {
		t.Error("what strangers brought is gone too")
	}
}
