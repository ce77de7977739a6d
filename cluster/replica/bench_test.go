package replica

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"grebe/catalog"
	"grebe/cluster/coord/coordtest"
)

// BenchmarkWrite puts one item after the other, and from 64 goroutines: into a catalog without a cluster, and at the
// leader and a follower of three nodes with sockets. The files lie in memory, so the numbers are what replication adds
// to a disk's.
func BenchmarkWrite(b *testing.B) {
	b.Run("single", func(b *testing.B) {
		c, err := catalog.Open(filepath.Join(coordtest.Dir(b), "single"), catalog.Options{})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		puts(b, c)
	})
	for _, at := range []string{"leader", "follower"} {
		b.Run(at, func(b *testing.B) {
			w, s := virtual(b)
			w.tcp = true
			defer s.Close()
			defer w.close()
			three(w)
			p := w.leader()
			if at == "follower" {
				p = w.others(p)[0]
			}
			puts(b, p.catalog)
		})
	}
}

func puts(b *testing.B, c *catalog.Catalog) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			var wait sync.WaitGroup
			n := 0
			next := make(chan int, writers)
			for range writers {
				wait.Go(func() {
					for i := range next {
						if err := put(c, fmt.Sprint(writers, "-", i), "the text of an item"); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for b.Loop() {
				next <- n
				n++
			}
			close(next)
			wait.Wait()
		})
	}
}
