// Package embedtest is the conformance suite of embedding stores: what embed.Store promises, tried on a store
// beside a plain map.
package embedtest

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"grebe/embed"
)

// Keys are those that a store under test must be able to hold: 0 … Keys−1.
const Keys = 512

// Row makes the row of a key at a version: every word says which.
func Row(key, version uint64, bytes int) []byte {
	row := make([]byte, 0, bytes)
	for w := range bytes / 8 {
		row = binary.LittleEndian.AppendUint64(row, key<<32|version<<8|uint64(w&0xFF))
	}
	return row
}

// Run tries empty stores that open makes.
func Run(t *testing.T, open func(t *testing.T) embed.Store) {
	for name, test := range map[string]func(*testing.T, embed.Store){
		"model": model, "none": none, "sizes": sizes, "ended": ended, "concurrent": concurrent,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			test(t, s)
		})
	}
}

// model does random operations on the store and on a map.
func model(t *testing.T, s embed.Store) {
	r, want := rand.New(rand.NewPCG(7, 7)), map[uint64]uint64{}
	rb := s.RowBytes()
	for step := range 300 {
		keys := make([]uint64, 1+r.IntN(40))
		for i := range keys {
			keys[i] = r.Uint64N(Keys)
		}
		switch r.IntN(4) {
		case 0:
			var rows []byte
			for i, k := range keys {
				want[k] = uint64(step*64 + i)
				rows = append(rows, Row(k, want[k], rb)...)
			}
			if err := s.Put(t.Context(), keys, rows); err != nil {
				t.Fatalf("put %d rows: %v", len(keys), err)
			}
		case 1:
			keys = keys[:min(len(keys), 3)]
			for _, k := range keys {
				delete(want, k)
			}
			if err := s.Delete(t.Context(), keys); err != nil {
				t.Fatalf("delete %d rows: %v", len(keys), err)
			}
		default:
			gather(t, s, keys, want)
		}
	}
}

func gather(t *testing.T, s embed.Store, keys []uint64, want map[uint64]uint64) {
	t.Helper()
	rb := s.RowBytes()
	rows, found := make([]byte, len(keys)*rb), make([]bool, len(keys))
	if err := s.Gather(t.Context(), keys, rows, found); err != nil {
		t.Fatalf("gather %d rows: %v", len(keys), err)
	}
	for i, k := range keys {
		version, ok := want[k]
		if found[i] != ok {
			t.Fatalf("row %d: found is %v, want %v", k, found[i], ok)
		}
		if got := rows[i*rb : (i+1)*rb]; ok && string(got) != string(Row(k, version, rb)) {
			t.Fatalf("row %d is %x…, want version %d", k, got[:8], version)
		}
	}
}

func none(t *testing.T, s embed.Store) {
	gather(t, s, nil, nil)
	gather(t, s, []uint64{1, 2, 1}, nil)
	if err := s.Delete(t.Context(), []uint64{3}); err != nil {
		t.Errorf("delete what is not there: %v", err)
	}
	found := []bool{true}
	if err := s.Gather(t.Context(), []uint64{1 << 60}, make([]byte, s.RowBytes()), found); err != nil || found[0] {
		t.Errorf("a key far outside: found %v, error %v; want neither", found[0], err)
	}
}

func sizes(t *testing.T, s embed.Store) {
	for _, n := range []int{0, s.RowBytes() - 8, 2 * s.RowBytes()} {
		if err := s.Put(t.Context(), []uint64{1}, make([]byte, n)); !errors.Is(err, embed.ErrRow) {
			t.Errorf("put one row from %d bytes: %v, want ErrRow", n, err)
		}
	}
}

// ended calls with a context that is over: an error, and the store goes on working.
func ended(t *testing.T, s embed.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Gather(ctx, []uint64{1}, make([]byte, s.RowBytes()), make([]bool, 1)); err == nil {
		t.Error("gather with a context that is over: no error")
	}
	if err := s.Put(ctx, []uint64{1}, Row(1, 1, s.RowBytes())); err == nil {
		t.Error("put with a context that is over: no error")
	}
	if err := s.Delete(t.Context(), []uint64{1}); err != nil {
		t.Errorf("the store does not go on: %v", err)
	}
	gather(t, s, []uint64{1}, nil)
}

// concurrent writers and readers: each row read is one that was written, whole.
func concurrent(t *testing.T, s embed.Store) {
	rb := s.RowBytes()
	var wg sync.WaitGroup
	for w := range uint64(2) {
		wg.Go(func() {
			for v := range uint64(100) {
				k := v % 8
				if err := s.Put(t.Context(), []uint64{k}, Row(k, v*2+w, rb)); err != nil {
					t.Errorf("put: %v", err)
					return
				}
			}
		})
		wg.Go(func() {
			keys := []uint64{0, 1, 2, 3, 4, 5, 6, 7}
			rows, found := make([]byte, len(keys)*rb), make([]bool, len(keys))
			for range 100 {
				if err := s.Gather(t.Context(), keys, rows, found); err != nil {
					t.Errorf("gather: %v", err)
					return
				}
				for i, k := range keys {
					row := rows[i*rb : (i+1)*rb]
					version := binary.LittleEndian.Uint64(row) << 32 >> 40
					if found[i] && string(row) != string(Row(k, version, rb)) {
						t.Errorf("row %d is torn: %x", k, row)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
