package cuda

import (
	"fmt"
	"os"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// TestRetrieveTimes prints how long each kernel of a retrieval takes, and what the host does behind them.
func TestRetrieveTimes(t *testing.T) {
	if os.Getenv("GREBE_RETRIEVE_TIMES") == "" {
		t.Skip("GREBE_RETRIEVE_TIMES is not set")
	}
	d := open(t, Options{}).(*device)
	defer d.Close()
	const items, width = 5_000_000, 512
	random := noise(1, 1<<20+width, 1)
	values := make([]float32, 1<<20+width)
	for i := range values {
		values[i] = fromBF16(uint16(random.Data[2*i]) | uint16(random.Data[2*i+1])<<8)
	}
	v, err := d.Vectors(items, width, func(first int, to []float32) error {
		for i := range len(to) / width {
			copy(to[i*width:][:width], values[uint64(first+i)*0x9e3779b97f4a7c15>>44:])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 64} {
		for _, k := range []int{100, 1000} {
			queries := make([]compute.Query, n)
			for i := range queries {
				queries[i] = compute.Query{Vector: values[i*7777:][:width], K: k}
			}
			var line string
			for range 4 { // the last counts
				line = timeParts(t, v.(*vectors), queries)
			}
			begin := time.Now()
			if err := v.Best(queries); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d queries, best %d: %s; in all %.0f µs", n, k, line, time.Since(begin).Seconds()*1e6)
		}
	}
}

// timeParts returns the microseconds of a search's kernels.
func timeParts(t *testing.T, v *vectors, queries []compute.Query) string {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r, c := &v.d.retrieval, v.d.c
	r.mu.Lock()
	defer r.mu.Unlock()
	defer c.Leave()
	check(c.Enter())
	s := &retrieveScan{v: v, r: r, queries: queries}
	check(s.prepare())
	began := time.Now()
	check(s.upload())
	ahead := time.Since(began)
	var marks []*driver.Event
	mark := func() {
		e, err := c.NewEvent(true)
		check(err)
		check(e.Record(r.stream))
		marks = append(marks, e)
	}
	mark()
	begins, share := retrievePlan(s.groups*retrieveGroup, s.k, retrieveShare)
	for i, from := range begins[:len(begins)-1] {
		size := 0
		if i == 0 {
			size = begins[1] * retrieveTile
		}
		blocks, err := s.read(i, from, begins[i+1], size)
		check(err)
		mark()
		check(s.choose(i+1, i, size, blocks, share, i == len(begins)-2))
		mark()
	}
	check(s.wait())
	begin := time.Now()
	s.take()
	host := time.Since(begin)
	line := ""
	for i, from := range begins[:len(begins)-1] {
		scan, err := marks[2*i+1].Since(marks[2*i])
		check(err)
		best, err := marks[2*i+2].Since(marks[2*i+1])
		check(err)
		ideal := float64((begins[i+1]-from)*retrieveTile*v.width*2) / 4.5e6
		line += fmt.Sprintf("%.0f (reading %.0f)+%.0f ", scan.Seconds()*1e6, ideal, best.Seconds()*1e6)
	}
	for _, e := range marks {
		check(e.Close())
	}
	state := &s.results().state
	return fmt.Sprintf("%s, %d failed, %d unsure, host %.0f ahead, %.0f behind", line, state.failed, state.unsure,
		ahead.Seconds()*1e6, host.Seconds()*1e6)
}
