package embed

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"grebe/pool"
)

// Each row of a mapped file is found, and none behind its end, whatever the number of rows.
func TestEveryRowOfAFileIsFound(t *testing.T) {
	for _, rows := range []int{1, 63, 64, 65, 127, 128, 300} {
		path := filepath.Join(t.TempDir(), "rows")
		data := make([]byte, rows*testRow)
		for k := range rows {
			fill(data[k*testRow:][:testRow], uint64(k), 1)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := OpenFile(path, testRow)
		if err != nil {
			t.Fatal(err)
		}
		keys := []uint64{uint64(rows), uint64(rows) + 64, 1 << 40, 0}
		for k := range rows {
			keys = append(keys, uint64(k))
		}
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		out, found := make([]byte, len(keys)*testRow), make([]bool, len(keys))
		if err := m.Gather(t.Context(), keys, out, found); err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			if found[i] != (k < uint64(rows)) {
				t.Fatalf("%d rows: row %d is found: %v", rows, k, found[i])
			}
			if found[i] && !bytes.Equal(out[i*testRow:][:testRow], data[k*testRow:][:testRow]) {
				t.Fatalf("%d rows: row %d is another", rows, k)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A learner trains as soon as it has half of a first lesson's samples.
func TestLeastLesson(t *testing.T) {
	trained, not := 0, 0
	for n := 200; n < 4000; n += 100 {
		l := newLearner(20)
		for i := range n {
			l.watch(uint64(i%40), uint64(i))
		}
		xs, _ := l.lesson()
		enough := len(xs) >= firstLesson/2
		if l = newLearner(20); enough { // samples are drawn: it is asked for the same ones again
			trained++
		} else {
			not++
		}
		for i := range n {
			l.watch(uint64(i%40), uint64(i))
		}
		if l.train() != enough || (l.table.Load() != nil) != enough {
			t.Errorf("%d samples: trained %v", len(xs), !enough)
		}
		if trained == 2 {
			break
		}
	}
	if trained == 0 || not == 0 {
		t.Errorf("%d lessons were long enough, %d not", trained, not)
	}
}

// Rows of any size are the same by one key or by many, cached or not.
func TestRowsOfAnySize(t *testing.T) {
	const rows = 500
	for _, size := range []int{8, 24, 64, 72, 128, 200, 1024} {
		store := NewMemory(rows, size)
		p, err := pool.New(1<<20, 4096)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCache(p, Config{Rows: 256, RowBytes: size})
		if err != nil {
			t.Fatal(err)
		}
		table, err := NewTable(store, c, TableConfig{})
		if err != nil {
			t.Fatal(err)
		}
		all := make([]byte, rows*size)
		r := rand.New(rand.NewPCG(uint64(size), 3))
		keys := make([]uint64, rows)
		for i := range all {
			all[i] = byte(r.IntN(100))
		}
		for k := range keys {
			keys[k] = uint64(k)
		}
		if err := table.Put(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
		for turn := range 30 {
			n := 1 + r.IntN(1+turn*20)
			asked, out := make([]uint64, n), make([]byte, n*size)
			for i := range asked {
				asked[i] = r.Uint64N(rows)
			}
			if g := table.Gather(t.Context(), asked, out); g.Hits+g.Fetched != n {
				t.Fatalf("%d bytes: %+v of %d", size, g, n)
			}
			for i, k := range asked {
				if !bytes.Equal(out[i*size:][:size], all[int(k)*size:][:size]) {
					t.Fatalf("rows of %d bytes, turn %d: row %d is another", size, turn, k)
				}
			}
		}
		c.Close()
		if err := errors.Join(p.Close(), store.Close()); err != nil {
			t.Error(err)
		}
	}
}
