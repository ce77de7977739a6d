package cuda

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// stuCost is what layers of HSTU and copies from the host's memory cost on a GPU.
type stuCost struct {
	GPU    string
	Shape  string
	Times  []stuTime
	Fit    map[string]float64 // ms of a layer for n new rows over m cached ones: sum of coefficient × term
	Copies []copyTime
}

type stuTime struct {
	New, Cached int
	LayerMs     float64 // median
	FitMs       float64
}

type copyTime struct {
	What     string
	Bytes    int
	Millis   float64 // median
	GBPerSec float64
}

// stuTerms are what the cost of a layer is fitted to.
func stuTerms(n, m float64) [4]float64 { return [4]float64{1, n, m, n*m + n*n/2} }

var stuTermNames = [4]string{"1", "n", "m", "n*m + n*n/2"}

// TestSTUTimes prints what layers of HSTU of the sizes of HLEM's models cost (width 512, 4 heads of 128), as
// JSON, to GREBE_STU_TIMES.
func TestSTUTimes(t *testing.T) {
	path := os.Getenv("GREBE_STU_TIMES")
	if path == "" {
		t.Skip("GREBE_STU_TIMES is not set")
	}
	d := open(t, Options{})
	defer d.Close()
	s := compute.Shape{Layers: 6, Hidden: 512, Heads: 4, KVHeads: 4, HeadDim: 128, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: float32(1 / math.Sqrt(128)), Scale: 1.0 / 16384}}
	cost := stuCost{GPU: d.Name(), Shape: "6 layers, width 512, 4 heads of 128, bf16; times are of one layer, a sixth " +
		"of a pass with all copies of tables and one result",
		Fit: map[string]float64{}}
	w := stuWeights(t, d, &s)
	table, err := d.Table(noise(5000, s.Hidden, 1))
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Open(s, 15000)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	kv, err := d.Memory().Alloc(s.ChunkBytes(64, false) * (16384 / 64))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Memory().Free(kv)
	for _, c := range [][2]int{{15000, 0}, {10000, 0}, {5000, 0}, {2000, 0}, {500, 0}, {16, 5000}, {16, 15000},
		{128, 5000}, {128, 10000}, {128, 15000},
		{512, 5000}, {512, 14000}, {1024, 10000}, {2000, 8000}, {4000, 11000}} {
		ms := timeSTU(t, r.(compute.STU), &s, w, table, kv, c[0], c[1])
		cost.Times = append(cost.Times, stuTime{New: c[0], Cached: c[1], LayerMs: ms})
	}
	fit := fitSTU(cost.Times)
	for i, name := range stuTermNames {
		cost.Fit[name] = fit[i]
	}
	for i := range cost.Times {
		c := &cost.Times[i]
		for j, v := range stuTerms(float64(c.New), float64(c.Cached)) {
			c.FitMs += fit[j] * v
		}
		t.Logf("%d new over %d cached: %.4f ms a layer, fitted %.4f", c.New, c.Cached, c.LayerMs, c.FitMs)
	}
	cost.Copies = timeCopies(t, d)
	for _, c := range cost.Copies {
		t.Logf("%s: %.1f GB/s", c.What, c.GBPerSec)
	}
	data, err := json.MarshalIndent(&cost, "", " ")
	if err == nil {
		err = os.WriteFile(filepath.Clean(path), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func stuWeights(t testing.TB, d compute.Device, s *compute.Shape) []compute.STUWeights {
	t.Helper()
	n := s.Heads * s.HeadDim
	var out []compute.STUWeights
	for range s.Layers {
		uvqk, err1 := d.Linear(compute.BF16, noise(4*n, s.Hidden, 0.07))
		last, err2 := d.Linear(compute.BF16, noise(s.Hidden, 3*n, 0.04))
		norm, err3 := d.Vector(noise(1, s.Hidden, 1))
		bias, err4 := d.Vector(noise(1, 4*n, 0.1))
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			t.Fatal(err)
		}
		out = append(out, compute.STUWeights{Norm: norm, NormBias: norm, UVQK: uvqk, UVQKBias: bias, OutNorm: norm,
			OutNormBias: norm, Out: last})
	}
	return out
}

// timeSTU returns the time of one layer for n new rows over m cached ones.
func timeSTU(t *testing.T, r compute.STU, s *compute.Shape, w []compute.STUWeights, table compute.Table,
	kv compute.Block, n, m int) float64 {
	t.Helper()
	rows := make([]int32, n)
	out := make([]float32, s.Hidden)
	b := &compute.Batch{Tokens: make([]int32, n), Positions: make([]int32, n),
		Segments: []compute.Segment{{Len: n + m, Cached: m}}}
	for i := range rows {
		rows[i], b.Positions[i] = int32(i%5000), int32(m+i)
	}
	for at, size := 0, s.ChunkBytes(64, false); at*64 < n+m; at++ {
		b.Segments[0].Chunks = append(b.Segments[0].Chunks, kv.Slice(at*size, size).Chunk(64, false))
	}
	pass := func() {
		if err := r.Begin(b); err != nil {
			t.Fatal(err)
		}
		r.Sum([]compute.SumPart{{Table: table, Rows: rows, Scale: 1}})
		for l := range w {
			r.UVQK(l, &w[l])
			r.Attend(l)
			if l == len(w)-1 {
				r.Keep([]int32{int32(n - 1)})
			}
			r.Mix(&w[l])
		}
		if err := r.Hidden(nil, []int32{int32(n - 1)}, out); err != nil {
			t.Fatal(err)
		}
	}
	var times []float64
	for i := range 26 {
		begin := time.Now()
		pass()
		if i >= 6 {
			times = append(times, float64(time.Since(begin).Nanoseconds())/1e6/float64(s.Layers))
		}
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// fitSTU fits the terms to the times, all times counting the same relative to their size.
func fitSTU(times []stuTime) [4]float64 {
	var a [4][5]float64 // the normal equations
	for _, c := range times {
		x := stuTerms(float64(c.New), float64(c.Cached))
		weight := 1 / (c.LayerMs * c.LayerMs)
		for i := range x {
			for j := range x {
				a[i][j] += weight * x[i] * x[j]
			}
			a[i][4] += weight * x[i] * c.LayerMs
		}
	}
	for i := range a { // positive definite: no pivoting
		for k := range a {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for j := range a[k] {
				a[k][j] -= f * a[i][j]
			}
		}
	}
	var out [4]float64
	for i := range out {
		out[i] = a[i][4] / a[i][i]
	}
	return out
}

// timeCopies times copies between pinned memory of the host and the GPU.
func timeCopies(t *testing.T, d Device) []copyTime {
	t.Helper()
	const most = 256 << 20
	m := d.Memory()
	near, err1 := m.Alloc(most)
	host, err2 := m.Host().Alloc(most)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer m.Free(near)
	defer m.Host().Free(host)
	var out []copyTime
	measure := func(what string, bytes int, moves []compute.Move) {
		var times []float64
		for i := range 13 {
			begin := time.Now()
			if err := m.Copy(moves...); err != nil {
				t.Fatal(err)
			}
			if i >= 3 {
				times = append(times, float64(time.Since(begin).Nanoseconds())/1e6)
			}
		}
		slices.Sort(times)
		ms := times[len(times)/2]
		out = append(out, copyTime{what, bytes, ms, float64(bytes) / ms / 1e6})
	}
	for _, n := range []int{64 << 10, 1 << 20, 16 << 20, most} {
		measure("host to device, one piece", n, []compute.Move{compute.MoveAll(near.Slice(0, n), host.Slice(0, n))})
		measure("device to host, one piece", n, []compute.Move{compute.MoveAll(host.Slice(0, n), near.Slice(0, n))})
	}
	random := rand.New(rand.NewPCG(1, 1))
	for _, rows := range []int{1000, 15000, 100000} {
		var moves []compute.Move
		for i := range rows {
			moves = append(moves, compute.MoveAll(near.Slice(512*i, 512), host.Slice(512*random.IntN(most/512), 512)))
		}
		measure("host to device, rows of 512 bytes from anywhere", 512*rows, moves)
	}
	chunk := 64 * 6 * 2 * 4 * 128 * 2 // 64 tokens of the timed shape
	var moves []compute.Move
	for i := range most / chunk {
		moves = append(moves, compute.MoveAll(near.Slice(chunk*i, chunk), host.Slice(chunk*((i*17)%(most/chunk)), chunk)))
	}
	measure("host to device, KV in chunks of 64 tokens (786,432 bytes)", chunk*len(moves), moves)
	for _, rows := range []int{1000, 15000, 100000} {
		ms := timeRows(t, d.(*device), near, host, rows)
		out = append(out, copyTime{"host to device, rows of 512 bytes from anywhere, by one kernel", 512 * rows, ms,
			float64(512*rows) / ms / 1e6})
	}
	return out
}

// timeRows times a kernel that reads rows of 128 floats from anywhere in pinned memory.
func timeRows(t *testing.T, d *device, near, host compute.Block, rows int) float64 {
	t.Helper()
	defer d.c.Leave()
	err := d.c.Enter()
	check := func(e error) {
		if e != nil {
			t.Fatal(e)
		}
	}
	check(err)
	f, err := d.kernel("sum.cu", "sum", "TABLE=0")
	check(err)
	stream, err := d.c.NewStream()
	check(err)
	defer stream.Close()
	args, err := driver.NewArgs()
	check(err)
	defer args.Free()
	index, err := d.c.AllocHost(4 * (rows + 1))
	check(err)
	defer d.c.FreeHost(index)
	random, list := rand.New(rand.NewPCG(2, 1)), offheap.Slice[int32](index.Bytes, rows+1)
	list[0] = int32(rows)
	for i := range rows {
		list[1+i] = int32(random.IntN(host.Size / 512))
	}
	at, err := d.c.Alloc(4 * (rows + 1))
	check(err)
	defer d.c.Free(at)
	check(stream.Copy(at, index.Ptr, 4*(rows+1)))
	var times []float64
	for i := range 13 {
		check(stream.Sync())
		begin := time.Now()
		check(f.Launch(stream, driver.Launch{Grid: [3]int{rows}, Block: [3]int{32}},
			args.Reset().Ptr(driver.Ptr(near.Addr)).Ptr(driver.Ptr(host.Addr)).Ptr(at.At(4)).Ptr(at).Int(128).Float(1).Int(0)))
		check(stream.Sync())
		if i >= 3 {
			times = append(times, float64(time.Since(begin).Nanoseconds())/1e6)
		}
	}
	slices.Sort(times)
	return times[len(times)/2]
}
