package attend

import (
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
	"grebe/internal/offheap"
)

// BenchmarkAttend reports GFLOP/s of one thread by processor time and in its best run, counting 4·dim per query and
// key it sees.
func BenchmarkAttend(b *testing.B) {
	small, large := [3]int{14, 2, 64}, [3]int{12, 2, 128}
	items := append(segments(100, 10), testSegment{len: 1500, sees: upTo(0, 100)})
	for i := range 100 {
		items[i].len, items[i].cached = 10, 10
	}
	cases := []struct {
		name  string
		shape [3]int
		plan  []testSegment
	}{
		{"causal1000", small, []testSegment{{len: 1000}}},
		{"causal4000", small, []testSegment{{len: 4000}}},
		{"causal1000", large, []testSegment{{len: 1000}}},
		{"causal4000", large, []testSegment{{len: 4000}}},
		{"items1000user1500", small, items},
		{"pointwise1000", small, withCached(pointwise(1000, 100, 10, 4), func(i, n int) int {
			if i <= 100 {
				return n
			}
			return 0
		})},
		{"lastToken1000", small, []testSegment{{len: 1000, cached: 999}}},
	}
	for _, kv := range []compute.DType{compute.BF16, compute.F32} {
		for _, c := range cases {
			s := shape(kv, c.shape[0], c.shape[1], c.shape[2])
			batch := newBatch(b, s, 1, layout{chunk: 64}, []int{1}, c.plan)
			for level := feature.Best(); level > feature.Plain; level-- {
				if level == feature.AMX && kv == compute.F32 {
					continue
				}
				b.Run(fmt.Sprintf("%v/%s/%dx%d/%v", kv, c.name, c.shape[0], c.shape[2], level), func(b *testing.B) {
					benchmark(b, s, level, batch)
				})
			}
		}
	}
}

// cpuTime returns the processor time of the process in nanoseconds: on a shared machine it says more
// than the clock.
func cpuTime() int64 {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return r.Utime.Nano() + r.Stime.Nano()
}

func benchmark(b *testing.B, s *compute.Shape, level feature.Level, batch *testBatch) {
	tm := team.New(1)
	defer tm.Close()
	a, err := New(*s, level, tm)
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	if err := a.Plan(&batch.Batch); err != nil {
		b.Fatal(err)
	}
	pairs := 0
	for i := range batch.Segments {
		g := &batch.Segments[i]
		seen := 0
		for _, j := range g.Sees {
			seen += batch.Segments[j].Len
		}
		for t := g.Cached; t < g.Len; t++ {
			pairs += seen + t + 1
		}
	}
	out := make([]float32, len(batch.q))
	a.Run(1, batch.q, out)
	start, best := cpuTime(), time.Hour
	for b.Loop() {
		t := time.Now()
		a.Run(1, batch.q, out)
		best = min(best, time.Since(t))
	}
	flops := 4 * float64(pairs) * float64(s.Heads*s.HeadDim)
	b.ReportMetric(flops*float64(b.N)/float64(cpuTime()-start), "GFLOP/s")
	b.ReportMetric(flops/float64(best), "best-GFLOP/s")
}

// BenchmarkWalk times 32 queries through 512 keys that lie in cache.
func BenchmarkWalk(b *testing.B) {
	const dims, keys = 64, 512
	for _, kv := range []compute.DType{compute.BF16, compute.F32} {
		for level := feature.Best(); level > feature.Plain; level-- {
			w, err := newWorker(dims, dims)
			if err != nil {
				b.Fatal(err)
			}
			m, err := offheap.Alloc(2 * keys * dims * 4)
			if err != nil {
				b.Fatal(err)
			}
			k := kernelsFor(level, kv, dims)
			b.Run(fmt.Sprintf("%v/%v", kv, level), func(b *testing.B) {
				start := cpuTime()
				for b.Loop() {
					x := &w.tiles[0].walk
					x.start(2, 0.1)
					x.k, x.v = unsafe.Pointer(&m.Bytes[0]), unsafe.Pointer(&m.Bytes[keys*dims*4])
					x.keys, x.first, x.open, x.room = keys, 0, keys, keys
					k.walk(x)
				}
				b.ReportMetric(4*dims*keys*lanes*float64(b.N)/float64(cpuTime()-start), "GFLOP/s")
			})
			m.Free()
			w.memory.Free()
		}
	}
}

// BenchmarkReceived reports how long weighing the keys takes, in parts of the attention that it follows: of one
// thread's processor time, in turns.
func BenchmarkReceived(b *testing.B) {
	for _, kv := range []compute.DType{compute.BF16, compute.F32} {
		s := shape(kv, 16, 8, 128)
		batch := newBatch(b, s, 1, layout{chunk: 64}, []int{1},
			[]testSegment{{len: 207, cached: 207}, {len: 473, sees: []int{0}},
				{len: 1860, sees: []int{0, 1}}, {len: 60, sees: []int{0, 1, 2}}})
		for level := feature.Best(); level > feature.Plain; level-- {
			if level == feature.AMX && kv == compute.F32 {
				continue
			}
			b.Run(fmt.Sprintf("%v/%v", kv, level), func(b *testing.B) {
				tm := team.New(1)
				defer tm.Close()
				a, err := New(*s, level, tm)
				if err != nil {
					b.Fatal(err)
				}
				defer a.Close()
				if err := a.Plan(&batch.Batch); err != nil {
					b.Fatal(err)
				}
				out, received := make([]float32, len(batch.q)), make([]float32, len(batch.Tokens))
				var attend, weigh int64
				for b.Loop() {
					start := cpuTime()
					a.Run(1, batch.q, out)
					between := cpuTime()
					a.Received(batch.q, received)
					attend, weigh = attend+between-start, weigh+cpuTime()-between
				}
				b.ReportMetric(float64(weigh)/float64(attend), "of-attention")
				b.ReportMetric(float64(attend)/float64(b.N)/1e6, "attention-cpu-ms")
			})
		}
	}
}
