package cuda

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
	"grebe/internal/offheap"
)

// multiplyOn is multiply.cu for matrices of float32.
func multiplyOn(g *drivertest.GPU) func(*drivertest.Launch) {
	return func(l *drivertest.Launch) {
		rows, in, out, stride := int(int32(l.Args[3])), int(int32(l.Args[4])), int(int32(l.Args[5])), int(int32(l.Args[6]))
		to := offheap.Slice[float32](g.Bytes(l.Args[0], 4*rows*out), rows*out)
		from := offheap.Slice[float32](g.Bytes(l.Args[1], 4*rows*in), rows*in)
		w := offheap.Slice[float32](g.Bytes(l.Args[2], 4*out*stride), out*stride)
		for i := range rows {
			for j := range out {
				sum := float32(0)
				for k := range in {
					sum += from[i*in+k] * w[j*stride+k]
				}
				to[i*out+j] = sum
			}
		}
	}
}

// Products by one matrix that wait run as one, with the results that each has by itself, and what does not fit or is by
// another matrix follows. Without memory for all of them, each runs by itself.
func TestProductsThatWaitRunAsOne(t *testing.T) {
	g, d := simulate(t, Options{})
	g.Kernels = map[string]func(*drivertest.Launch){"multiply": multiplyOn(g)}
	const in, out = 24, 5
	one, err := d.Linear(compute.F32, noise(out, in, 1))
	if err != nil {
		t.Fatal(err)
	}
	two, err := d.Linear(compute.F32, noise(out, in, 2))
	if err != nil {
		t.Fatal(err)
	}
	rows := func(n int) []float32 {
		x := make([]float32, n*in)
		for i := range x {
			x[i] = float32(math.Sin(float64(i * (n + 1))))
		}
		return x
	}
	product := func(w compute.Linear, n int) []float32 {
		to := make([]float32, n*out)
		if err := d.Multiply(w, rows(n), to); err != nil {
			t.Error(err)
		}
		return to
	}
	launches := func() (n int) {
		for _, name := range g.Launched {
			if strings.Contains(name, "multiply") {
				n++
			}
		}
		g.Launched = nil
		return n
	}
	const calls = 9
	want := make([][]float32, calls)
	for i := range want {
		want[i] = product([]compute.Linear{one, two}[i%3/2], 1+i)
	}
	together := func() [][]float32 {
		t.Helper()
		got := make([][]float32, calls)
		x := &d.multiplier
		x.mu.Lock()
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i] = product([]compute.Linear{one, two}[i%3/2], 1+i) })
		}
		for {
			x.queue.Lock()
			n := len(x.waiting)
			x.queue.Unlock()
			if n == calls {
				break
			}
		}
		launches()
		x.mu.Unlock()
		wg.Wait()
		return got
	}
	for _, v := range []struct {
		name           string
		full           bool
		fewest, mostOf int
	}{{"no memory for all", true, calls, calls}, {"room for all", false, 2, 2}} {
		t.Run(v.name, func(t *testing.T) {
			if v.full { // but for the room of single ones
				g.Fail = func(call string) int32 {
					if strings.HasPrefix(call, "cuMemAlloc") || strings.HasPrefix(call, "cuMemHostAlloc") {
						return 2
					}
					return 0
				}
			}
			got := together()
			g.Fail = nil
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("product %d is %v, want %v", i, got[i], want[i])
				}
			}
			if n := launches(); n < v.fewest || n > v.mostOf {
				t.Errorf("%d launches for %d products by two matrices, want %d", n, calls, v.fewest)
			}
		})
	}
}

// movesOn is moves.cu.
func movesOn(g *drivertest.GPU) func(*drivertest.Launch) {
	return func(l *drivertest.Launch) {
		n := int(int32(l.Args[1]))
		for _, v := range offheap.Slice[move](g.Bytes(l.Args[0], n*moveBytes), n) {
			for row := range v.rows {
				copy(g.Bytes(v.dst+row*v.dstStride, int(v.width)), g.Bytes(v.src+row*v.srcStride, int(v.width)))
			}
		}
	}
}

// The copies for the requests of a batch do not wait for each other: they are under way together, until the list of
// them is full, and none is lost then.
func TestCopiesDoNotWaitForThoseBefore(t *testing.T) {
	g, d := simulate(t, Options{})
	g.Kernels = map[string]func(*drivertest.Launch){"moves": movesOn(g)}
	m := d.Memory()
	const width, rows, pieces = 16, 4, 1000
	from, err := m.Alloc(2 * width * rows * pieces)
	if err != nil {
		t.Fatal(err)
	}
	to, err := m.Alloc(width * rows * pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { m.Free(from); m.Free(to) }()
	data := make([]byte, from.Size)
	for i := range data {
		data[i] = byte(i*7 + i/251)
	}
	if err := m.Write(from, data); err != nil {
		t.Fatal(err)
	}
	waits := 0
	g.Fail = func(call string) int32 {
		if strings.HasSuffix(call, "Synchronize") {
			waits++
		}
		return 0
	}
	const times = 3 * movesListed / pieces
	for round := range times {
		var moves []compute.Move
		for i := range pieces {
			k := (i + round) % pieces
			moves = append(moves, compute.Move{Dst: to.Slice(k*width*rows, width*rows),
				Src: from.Slice(2*k*width*rows, 2*width*rows), Width: width, Rows: rows, DstStride: width, SrcStride: 2 * width})
		}
		if err := m.Copy(moves...); err != nil {
			t.Fatal(err)
		}
	}
	if waits > 3 {
		t.Errorf("%d copies waited %d times, want 3 at most", times, waits)
	}
	got := make([]byte, to.Size)
	if err := m.Read(got, to); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if want := data[i/width*2*width+i%width]; got[i] != want {
			t.Fatalf("byte %d is %d, want %d: a list was written over that was still read", i, got[i], want)
		}
	}
}
