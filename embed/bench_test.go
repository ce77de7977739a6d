package embed

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"grebe/pool"
)

// BenchmarkGather gathers 512-byte rows that are all cached, from 768 MiB.
func BenchmarkGather(b *testing.B) {
	const rows, bytes, batch = 1 << 21, 512, 4096
	p, err := pool.New(rows*bytes, 4096)
	if err != nil {
		b.Fatal(err)
	}
	c, err := NewCache(p, Config{Rows: rows, RowBytes: bytes, Policy: "lru"})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r, out, keys := rand.New(rand.NewPCG(1, 1)), make([]byte, batch*bytes), make([]uint64, batch)
	for k := range uint64(rows * 3 / 4) {
		c.Put(k, out, c.Epoch(k))
	}
	var s scratch
	b.SetBytes(batch * bytes)
	for b.Loop() {
		b.StopTimer()
		for i := range keys {
			keys[i] = r.Uint64N(rows * 3 / 4)
		}
		b.StartTimer()
		s.reset()
		c.gather(keys, out, &s)
	}
}

// BenchmarkFolderPut writes rows one by one, each on the disk when its Put returns, by one caller and by many at once.
func BenchmarkFolderPut(b *testing.B) {
	for _, callers := range []int{1, 32} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			f, err := OpenFolder(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			p, err := f.Table("items", 512)
			if err != nil {
				b.Fatal(err)
			}
			var next atomic.Uint64
			b.SetParallelism(callers)
			b.RunParallel(func(pb *testing.PB) {
				row := make([]byte, 512)
				for pb.Next() {
					if err := p.Put(b.Context(), []uint64{next.Add(1)}, row); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
