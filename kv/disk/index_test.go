package disk

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"unsafe"

	"grebe/plan"
)

func TestIndexAgainstMap(t *testing.T) {
	x := newIndex()
	want := map[plan.Key]uint32{}
	var used []plan.Key
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		k := keyOf(r.IntN(3000))
		id := x.find(&k)
		if id != want[k] {
			t.Fatalf("found %d, want %d", id, want[k])
		}
		switch {
		case id == 0:
			want[k] = x.add(&k)
			used = append(used, k)
		case r.IntN(3) == 0:
			x.remove(id)
			delete(want, k)
		}
	}
	if x.len != len(want) {
		t.Fatalf("%d records, want %d", x.len, len(want))
	}
	last := map[plan.Key]int{}
	for i, k := range used {
		last[k] = i
	}
	n, before := 0, -1
	for id := x.oldest(); id != 0; id = x.at(id).newer {
		if at := last[x.at(id).key]; at <= before {
			t.Fatal("not in order of use")
		} else {
			before = at
		}
		n++
	}
	if n != len(want) {
		t.Fatalf("ring of %d, want %d", n, len(want))
	}
}

func TestIndexIsSmall(t *testing.T) {
	for _, n := range []int{100_000, 132_000, 262_144} {
		x := newIndex()
		for i := range n {
			k := keyOf(i)
			x.add(&k)
		}
		bytes := len(x.slabs)*int(unsafe.Sizeof(*x.slabs[0])+8) + 4*len(x.heads)
		if per := float64(bytes) / float64(n); per > 80 {
			t.Errorf("%d records: %.1f bytes each, want at most 80", n, per)
		} else {
			t.Logf("%d records: %.1f bytes each", n, per)
		}
	}
}

func benchmarkSizes(b *testing.B, f func(b *testing.B, s *Store, payload []byte, records int)) {
	for _, n := range []int{20 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", n>>10), func(b *testing.B) {
			s, err := Open(b.TempDir(), Options{Budget: 256 * mib, Segment: 64 * mib})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			b.SetBytes(int64(n))
			f(b, s, make([]byte, n), 128*mib/n)
		})
	}
}

// Puts go to the page cache and evict in steady state.
func BenchmarkPut(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, s *Store, payload []byte, _ int) {
		for i := 0; b.Loop(); i++ {
			if err := s.Put(keyOf(i), payload[:64], [][]byte{payload}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkPutSync puts 64 MiB and waits for the disk.
func BenchmarkPutSync(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, s *Store, payload []byte, _ int) {
		b.SetBytes(64 * mib)
		i := 0
		for b.Loop() {
			for range 64 * mib / len(payload) {
				i++
				if err := s.Put(keyOf(i), payload[:64], [][]byte{payload}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Sync(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, s *Store, payload []byte, records int) {
		for i := range records {
			if err := s.Put(keyOf(i), payload[:64], [][]byte{payload}); err != nil {
				b.Fatal(err)
			}
		}
		place := func([]byte, int64) ([][]byte, error) { return [][]byte{payload}, nil }
		i := 0
		for b.Loop() {
			if _, ok, err := s.Get(keyOf(i%records), place); !ok || err != nil {
				b.Fatal(ok, err)
			}
			i++
		}
	})
}

func BenchmarkDelete(b *testing.B) {
	benchmarkSizes(b, func(b *testing.B, s *Store, payload []byte, _ int) {
		for i := 0; b.Loop(); i++ {
			if err := s.Put(keyOf(i), payload[:64], [][]byte{payload}); err != nil {
				b.Fatal(err)
			}
			if err := s.Delete(keyOf(i)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	opt := Options{Budget: 512 * mib, Segment: 64 * mib}
	const records = 20_000
	for b.Loop() {
		s, err := Open(dir, opt)
		if err != nil {
			b.Fatal(err)
		}
		if s.Stats().Entries == 0 {
			b.StopTimer()
			for i := range records {
				if err := s.Put(keyOf(i), nil, [][]byte{make([]byte, 10_000)}); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/records, "µs/record")
}
