package kv

import (
	"bytes"
	"errors"
	"testing"

	"grebe/compute"
	"grebe/plan"
	"grebe/pool"
)

var shape = compute.Shape{Layers: 2, KVHeads: 2, HeadDim: 4, KV: compute.BF16}

func newStore(t *testing.T, tokens int) (*Store, *pool.Pool) {
	t.Helper()
	p, err := pool.New(int64(shape.ChunkBytes(tokens, false)), 256)
	if err != nil {
		t.Fatal(err)
	}
	s := New(shape, p)
	t.Cleanup(func() {
		s.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, p
}

func get(s *Store, key Key) *Entry {
	e, _ := s.Get(key)
	return e
}

// fill writes a pattern that names token and plane into tokens [from, len).
func fill(e *Entry, from int, mark byte) {
	row := shape.HeadDim * shape.KV.Size()
	for t := from; t < e.len; t++ {
		c, ct := e.locate(t)
		for p := range shape.Layers * 2 * shape.KVHeads {
			b := c.run.Bytes[(p*c.tokens+ct)*row:][:row]
			for i := range b {
				b[i] = mark + byte(t*13+p)
			}
		}
	}
}

func check(t *testing.T, e *Entry, to int, mark byte) {
	t.Helper()
	row := shape.HeadDim * shape.KV.Size()
	for tok := range to {
		c, ct := e.locate(tok)
		for p := range shape.Layers * 2 * shape.KVHeads {
			b := c.run.Bytes[(p*c.tokens+ct)*row:][:row]
			if want := bytes.Repeat([]byte{mark + byte(tok*13+p)}, row); !bytes.Equal(b, want) {
				t.Fatalf("token %d plane %d is %x, want %x", tok, p, b, want)
			}
		}
	}
}

func TestGrowthSharesFullChunks(t *testing.T) {
	s, p := newStore(t, 1024)
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

func TestEvictionSparesReaders(t *testing.T) {
	s, _ := newStore(t, 80)
	for i := range 10 {
		e, err := s.Reserve(Exact, 8, nil)
		if err != nil {
			t.Fatal(err)
		}
		fill(e, 0, byte(i))
		s.Publish(plan.Item, Key{byte(i)}, nil, e)
		e.Release()
	}
	pinned, _ := s.Get(Key{0}) // least recently published, now most recently used
	get(s, Key{1}).Release()
	e, err := s.Reserve(Exact, 64, nil)
	if err != nil {
		t.Fatalf("64 tokens do not fit although only 8 are pinned: %v", err)
	}
	check(t, pinned, 8, 0)
	if get(s, Key{2}) != nil {
		t.Error("the least recently used entry is still there")
	}
	if _, err := s.Reserve(Exact, 30, nil); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	e.Release()
	pinned.Release()
}

func TestDeleteKeepsReadersMemory(t *testing.T) {
	s, p := newStore(t, 64)
	e, err := s.Reserve(Exact, 10, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(e, 0, 7)
	s.Publish(plan.Item, Key{1}, nil, e)
	s.Delete(Key{1})
	if get(s, Key{1}) != nil {
		t.Error("deleted entry found")
	}
	check(t, e, 10, 7)
	e.Release()
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d bytes in use after the last release", used)
	}
}

// A user's entry serves exactly the tokens that a request has in common with it.
func TestUserPrefix(t *testing.T) {
	s, p := newStore(t, 1024)
	tokens := make([]int32, 150)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	e, err := s.Reserve(Chain, len(tokens), nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(e, 0, 3)
	key := KeyOf(Key{}, nil, "u1")
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
	seen := map[Key]string{}
	for name, k := range map[string]Key{
		"nothing":   KeyOf(Key{}, nil, ""),
		"context":   KeyOf(Key{1}, nil, ""),
		"one token": KeyOf(Key{}, []int32{1}, ""),
		"two":       KeyOf(Key{}, []int32{1, 0}, ""),
		"id":        KeyOf(Key{}, nil, "\x01\x00\x00\x00"),
		"both":      KeyOf(Key{}, []int32{1}, "x"),
	} {
		if other, ok := seen[k]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[k] = name
	}
}
