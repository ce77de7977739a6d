package cuda

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"grebe/compute/cuda/driver"
)

// TestUploads: matrices that take several halves of a stage arrive whole, side by side, with and without pinned memory.
func TestUploads(t *testing.T) {
	for name, fails := range map[string]string{"pinned": "no such call", "no pinned memory": "cuMemHostAlloc"} {
		t.Run(name, func(t *testing.T) {
			g, d := simulate(t, Options{})
			g.Fail = func(call string) int32 {
				if strings.HasPrefix(call, fails) {
					return 2 // out of memory
				}
				return 0
			}
			const rows, width = 5000, 8 << 10
			want := func(seed, i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(seed), 1}, width/8) }
			var wg sync.WaitGroup
			var at [2]driver.Ptr
			for seed := range at {
				wg.Go(func() {
					var err error
					at[seed], err = d.upload(rows, width, func(i int, to []byte) { copy(to, want(seed, i)) }) // the rest is zero
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for seed, p := range at {
				for i := range rows {
					got := g.Bytes(uint64(p)+uint64(i*width), width)
					if !bytes.Equal(got[:width/2], want(seed, i)) || bytes.Trim(got[width/2:], "\x00") != nil {
						t.Fatalf("matrix %d row %d is not what was uploaded", seed, i)
					}
				}
				d.free(p)
			}
			if n := len(d.stages); name == "pinned" && (n < 1 || n > 2) || name != "pinned" && n > 0 {
				t.Errorf("%d stages are kept", n)
			}
		})
	}
}
