package rows

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"grebe/compute/cuda/driver"
)

// TestFetchTimes prints how long rows take from pinned memory, by their size, by how far they are apart, and by the
// number of blocks that read them.
func TestFetchTimes(t *testing.T) {
	if os.Getenv("GREBE_ROWS_TIMES") == "" {
		t.Skip("GREBE_ROWS_TIMES is not set")
	}
	const largest = 1 << 30
	c, err := driver.New(0)
	must(t, err)
	defer c.Close()
	must(t, c.Enter())
	defer c.Leave()
	from, err := c.AllocHost(largest)
	must(t, err)
	defer c.FreeHost(from)
	for _, size := range []int{128, 256, 512} {
		timeFetch(t, c, from.Ptr, size, largest)
	}
}

func timeFetch(t *testing.T, c *driver.Context, from driver.Ptr, size, largest int) {
	const n = 16384
	r, err := New(c, []Spec{{Rows: largest / size, RowBytes: size, Pages: 1, PageRows: 1 << 12, Stage: n}}, BF16{})
	must(t, err)
	defer r.Close()
	s, err := c.NewStream()
	must(t, err)
	defer s.Close()
	filler, err := c.Alloc(256 << 20)
	must(t, err)
	defer c.Free(filler)
	line := fmt.Sprintf("%d bytes:", size)
	for _, span := range []int{16 << 20, 128 << 20, largest} {
		random := rand.New(rand.NewPCG(1, uint64(span)))
		ids := make([]uint32, n)
		for i := range ids {
			ids[i] = random.Uint32N(uint32(span / size))
		}
		for _, order := range []string{"random", "sorted", "in a row"} {
			if order == "sorted" {
				slices.Sort(ids)
			}
			must(t, c.Upload(r.tables[0].list, bytesOf(ids)))
			whole := 1
			if order == "in a row" {
				whole = 0
			}
			for _, blocks := range []int{32, 64, 132, 264} {
				if order == "in a row" && (blocks != 64 || span != largest) || order == "sorted" && blocks != 64 {
					continue
				}
				var times []float64
				for range 7 {
					begin, err := c.NewEvent(true)
					must(t, err)
					end, err := c.NewEvent(true)
					must(t, err)
					must(t, s.Fill(filler, 0, 256<<20))
					must(t, begin.Record(s))
					r.args.Reset().Ptr(r.specs).Ptr(r.stages).Int(0).Ptr(from).Int(size).Int(whole).Int(n)
					must(t, r.launch(s, r.fetch, blocks, 1))
					must(t, end.Record(s))
					must(t, s.Sync())
					took, err := end.Since(begin)
					must(t, err)
					times = append(times, took.Seconds()*1e6)
					must(t, begin.Close())
					must(t, end.Close())
				}
				slices.Sort(times)
				line += fmt.Sprintf(" %dM %s/%d %.0f", span>>20, order, blocks, times[len(times)/2])
			}
		}
	}
	t.Log(line)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
