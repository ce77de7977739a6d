package kv

import (
	"bytes"
	"errors"
	"testing"

	"grebe/compute"
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
		s.Publish(Key{byte(i)}, e)
		e.Release()
	}
	pinned := s.Get(Key{0}) // least recently published, now most recently used
	s.Get(Key{1}).Release()
	e, err := s.Reserve(Exact, 64, nil)
	if err != nil {
		t.Fatalf("64 tokens do not fit although only 8 are pinned: %v", err)
	}
	check(t, pinned, 8, 0)
	if s.Get(Key{2}) != nil {
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
	s.Publish(Key{1}, e)
	s.Delete(Key{1})
	if s.Get(Key{1}) != nil {
		t.Error("deleted entry found")
	}
	check(t, e, 10, 7)
	e.Release()
	if used := p.Stats().Used; used != 0 {
		t.Errorf("%d bytes in use after the last release", used)
	}
}
