package safetensors

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"runtime"
	"sync"
)

// Digest returns a digest of all tensors: names, formats, shapes and values, wherever they are
// stored. It reads the whole checkpoint, at the speed of memory where that is cached, and gives its
// pages back. Values enter by their CRC-32C: enough to tell checkpoints apart, not against forgery.
func (s *Set) Digest() [32]byte {
	d, err := s.DigestWithin(context.Background())
	if err != nil {
		panic(err) // only a context that ends is a reason
	}
	return d
}

// DigestWithin is Digest, or fails when ctx ends before.
func (s *Set) DigestWithin(ctx context.Context) ([32]byte, error) {
	names := s.Names()
	sums := make([]uint32, len(names))
	table := crc32.MakeTable(crc32.Castagnoli)
	next := make(chan int, len(names))
	for i := range names {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				e := s.tensors[names[i]]
				for at := e.begin; at < e.end && ctx.Err() == nil; at += digestPiece {
					sums[i] = crc32.Update(sums[i], table, e.shard.data[at:min(at+digestPiece, e.end)])
				}
				s.Release(names[i])
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return [32]byte{}, fmt.Errorf("safetensors: digest of %d tensors: %w", len(names), err)
	}
	h := sha256.New()
	for i, name := range names {
		t := s.tensors[name]
		fmt.Fprintf(h, "%q %s %v %08x\n", name, t.DType, t.Shape, sums[i])
	}
	var d [32]byte
	h.Sum(d[:0])
	return d, nil
}

// digestPiece is how many bytes are read between looks at the context.
const digestPiece = 16 << 20
