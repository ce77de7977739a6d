package kv

import (
	"bytes"
	"errors"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/ref"
	"grebe/plan"
	"grebe/pool"
)

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

// memories are the kinds of memory that a store can be in.
var memories = map[string]func() compute.Memory{
	"host":       compute.NewHostMemory,
	"far":        func() compute.Memory { return computetest.Far(ref.New(), false).Memory() },
	"far pinned": func() compute.Memory { return computetest.Far(ref.New(), true).Memory() },
}

// everywhere runs a test in every kind of memory.
func everywhere(t *testing.T, f func(t *testing.T, m compute.Memory)) {
	for name, m := range memories {
		t.Run(name, func(t *testing.T) { f(t, m()) })
	}
}

func newPool(t *testing.T, m compute.Memory, tokens int) *pool.Pool {
	t.Helper()
	p, err := pool.Over(m, int64(shape.ChunkBytes(tokens, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func newStore(t *testing.T, m compute.Memory, tokens int) (*Store, *pool.Pool) {
	t.Helper()
	p := newPool(t, m, tokens)
	s := New(shape, p)
	t.Cleanup(func() {
		s.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, p
}

func get(s *Store, key plan.Key) *Entry {
	e, _ := s.Get(key)
	return e
}

// fill writes a pattern that names token and plane into tokens [from, len).
func fill(e *Entry, from int, mark byte) {
	eachRow(e, from, e.len, func(t, p int, b []byte) bool {
		for i := range b {
			b[i] = mark + byte(t*13+p)
		}
		return true
	})
}

func check(t *testing.T, e *Entry, to int, mark byte) {
	t.Helper()
	eachRow(e, 0, to, func(tok, p int, b []byte) bool {
		if want := bytes.Repeat([]byte{mark + byte(tok*13+p)}, len(b)); !bytes.Equal(b, want) {
			t.Fatalf("token %d plane %d is %x, want %x", tok, p, b, want)
		}
		return false
	})
}

// eachRow calls f with the bytes of tokens [from, to) in every plane, and keeps what it changed where it
// says so.
func eachRow(e *Entry, from, to int, f func(token, plane int, b []byte) (changed bool)) {
	row := shape.HeadDim * shape.KV.Size()
	first := 0
	for _, c := range e.chunks {
		content := contentOf(c)
		changed := false
		for t := max(from, first); t < min(to, first+c.tokens); t++ {
			for p := range shape.Layers * 2 * shape.KVHeads {
				changed = f(t, p, content[(p*c.tokens+t-first)*row:][:row]) || changed
			}
		}
		if changed {
			if err := c.level.pool.Memory().Write(c.run.Block, content); err != nil {
				panic(err)
			}
		}
		first += c.tokens
	}
}

// contentOf returns a copy of what is in a chunk's memory.
func contentOf(c *chunk) []byte {
	b := make([]byte, c.run.Size)
	if err := c.level.pool.Memory().Read(b, c.run.Block); err != nil {
		panic(err)
	}
	return b
}

func TestGrowthSharesFullChunks(t *testing.T) { everywhere(t, growthSharesFullChunks) }

func growthSharesFullChunks(t *testing.T, m compute.Memory) {
	s, p := newStore(t, m, 1024)
	old, err := s.Reserve(Chain, 150, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(old, 0, 1)
	before := p.Stats().Used
	grown, err := s.Reserve(Chain, 200, old)
	if err != nil {
		t.Fatal(err)
	}
	if grown.chunks[0] != old.chunks[0] || grown.chunks[1] != old.chunks[1] {
		t.Error("the two full chunks of 150 tokens are not shared")
	}
	if grown.chunks[2] == old.chunks[2] {
		t.Error("the partly filled chunk is shared: growing would write to it")
	}
	if got, want := p.Stats().Used-before, int64(2*shape.ChunkBytes(ChainTokens, false)); got != want {
		t.Errorf("growing by 50 tokens took %d bytes, want two chunks of %d", got, want/2)
	}
	fill(grown, 150, 1)
	check(t, grown, 200, 1)
	old.Release()
	check(t, grown, 200, 1)
	grown.Release()
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d bytes in use after the last release", used)
	}
}

func TestEvictionSparesReaders(t *testing.T) { everywhere(t, evictionSparesReaders) }

func evictionSparesReaders(t *testing.T, m compute.Memory) {
	s, _ := newStore(t, m, 80)
	for i := range 10 {
		e, err := s.Reserve(Exact, 8, nil)
		if err != nil {
			t.Fatal(err)
		}
		fill(e, 0, byte(i))
		s.Publish(plan.Item, plan.Key{byte(i)}, nil, e)
		e.Release()
	}
	pinned, _ := s.Get(plan.Key{0}) // least recently published, now most recently used
	get(s, plan.Key{1}).Release()
	e, err := s.Reserve(Exact, 64, nil)
	if err != nil {
		t.Fatalf("64 tokens do not fit although only 8 are pinned: %v", err)
	}
	check(t, pinned, 8, 0)
	if get(s, plan.Key{2}) != nil {
		t.Error("the least recently used entry is still there")
	}
	if _, err := s.Reserve(Exact, 30, nil); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	e.Release()
	pinned.Release()
}

func TestDeleteKeepsReadersMemory(t *testing.T) { everywhere(t, deleteKeepsReadersMemory) }

func deleteKeepsReadersMemory(t *testing.T, m compute.Memory) {
	s, p := newStore(t, m, 64)
	e, err := s.Reserve(Exact, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(e, 0, 7)
	s.Publish(plan.Item, plan.Key{1}, nil, e)
	s.Delete(plan.Key{1})
	if get(s, plan.Key{1}) != nil {
		t.Error("deleted entry found")
	}
	check(t, e, 10, 7)
	e.Release()
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d bytes in use after the last release", used)
	}
}

// A user's entry serves exactly the tokens that a request has in common with it.
func TestUserPrefix(t *testing.T) { everywhere(t, userPrefix) }

func userPrefix(t *testing.T, m compute.Memory) {
	s, p := newStore(t, m, 1024)
	tokens := make([]int32, 150)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	e, err := s.Reserve(Chain, len(tokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(e, 0, 3)
	key := KeyOf(plan.Key{}, nil, "u1")
	s.Publish(plan.User, key, tokens, e)
	e.Release()
	for _, n := range []int{1, 63, 64, 65, 128, 149, 150} {
		changed := append(append([]int32{}, tokens[:n]...), -1, -2)
		if got, _ := s.PeekPrefix(key, changed); got != n {
			t.Errorf("PeekPrefix finds %d of %d common tokens", got, n)
		}
		part, _ := s.GetPrefix(key, changed)
		if part == nil || part.Len() != n {
			t.Fatalf("GetPrefix finds %v of %d common tokens", part, n)
		}
		check(t, part, n, 3)
		if want := (n + 63) / 64; len(part.chunks) != want {
			t.Errorf("%d tokens hold %d chunks, want %d", n, len(part.chunks), want)
		}
		grown, err := s.Reserve(Chain, n+2, part)
		if err != nil {
			t.Fatal(err)
		}
		part.Release()
		fill(grown, n, 9)
		check(t, grown, n, 3)
		grown.Release()
	}
	if e, _ := s.GetPrefix(key, []int32{7}); e != nil {
		t.Error("an entry of other tokens was found")
	}
	shorter, err := s.Reserve(Chain, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Publish(plan.User, key, tokens[:10], shorter)
	shorter.Release()
	if got, _ := s.PeekPrefix(key, tokens); got != 10 {
		t.Errorf("after replacing the entry %d tokens are found, want 10", got)
	}
	if st := s.Stats(plan.User); st.Entries != 1 || st.Bytes != p.Stats().Used {
		t.Errorf("the store counts %+v, the pool %d bytes", st, p.Stats().Used)
	}
}

func TestKeysKeepPartsApart(t *testing.T) {
	seen := map[plan.Key]string{}
	for name, k := range map[string]plan.Key{
		"nothing":   KeyOf(plan.Key{}, nil, ""),
		"context":   KeyOf(plan.Key{1}, nil, ""),
		"one token": KeyOf(plan.Key{}, []int32{1}, ""),
		"another":   KeyOf(plan.Key{}, []int32{2}, ""),
		"two":       KeyOf(plan.Key{}, []int32{1, 0}, ""),
		"id":        KeyOf(plan.Key{}, nil, "\x01\x00\x00\x00"),
		"both":      KeyOf(plan.Key{}, []int32{1}, "x"),
	} {
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[k] = name
	}
}
