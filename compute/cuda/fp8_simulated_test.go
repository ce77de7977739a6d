package cuda

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
	"grebe/compute/internal/fp8"
	"grebe/internal/offheap"
)

// quantiseOn does what quantise.cu does, by the definition of compute.Quantiser.
func quantiseOn(t *testing.T, g *drivertest.GPU) func(*drivertest.Launch) {
	return func(l *drivertest.Launch) {
		cols, err := strconv.Atoi(l.Defines["COLS"])
		if err != nil {
			t.Fatal(err)
		}
		dt := compute.F32
		if l.Defines["IN"] == "1" {
			dt = compute.BF16
		}
		for row := range l.Grid[0] {
			out, in := g.Bytes(l.Args[0]+uint64(row*cols), cols), g.Bytes(l.Args[2]+uint64(row*cols*dt.Size()), cols*dt.Size())
			values := make([]float32, cols)
			for i := range values {
				values[i] = number(dt, in[i*dt.Size():])
			}
			scale, codes := rounded(values)
			copy(out, codes)
			offheap.Slice[float32](g.Bytes(l.Args[1]+uint64(4*row), 4), 1)[0] = scale
		}
	}
}

// rounded is a row in FP8.
func rounded(values []float32) (scale float32, codes []byte) {
	largest := float32(0)
	for _, v := range values {
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	codes = make([]byte, len(values))
	if largest == 0 {
		return 0, codes
	}
	for i, v := range values {
		codes[i] = fp8.Encode(v * (fp8.Largest / largest))
	}
	return largest / fp8.Largest, codes
}

// TestPackFP8: rows that are stored in FP8 keep their codes and scales, others are rounded, and what is beyond the
// matrix is zero.
func TestPackFP8(t *testing.T) {
	g, d := simulate(t, Options{OwnProducts: true})
	g.Kernels["quantise"] = quantiseOn(t, g)
	const cols = 20
	stored := compute.Tensor{DType: compute.FP8, Rows: 3, Cols: cols, Data: codes(3*cols, 5), Scales: []float32{0.5, 2, 3}}
	other := noise(3, cols, 2)
	wide := compute.Tensor{DType: compute.F32, Rows: 3, Cols: cols, Data: bytesOf(make([]float32, 3*cols))}
	offheap.Slice[float32](wide.Data, 3*cols)[7] = -1.25
	row := func(p *compute.Tensor, i int) (float32, []byte) {
		if p.DType == compute.FP8 {
			return p.Scales[i], p.Data[i*cols : (i+1)*cols]
		}
		values := make([]float32, cols)
		for k := range values {
			values[k] = number(p.DType, p.Data[(i*cols+k)*p.DType.Size():])
		}
		return rounded(values)
	}
	for name, parts := range map[string][]compute.Tensor{
		"stored": {stored}, "bf16": {other}, "mixed": {other, stored, wide}} {
		l, err := d.Linear(compute.FP8, parts...)
		if err != nil {
			t.Fatal(name, err)
		}
		at := 0
		for p := range parts {
			for i := range parts[p].Rows {
				scale, codes := row(&parts[p], i)
				checkRow(t, g, l.(*linear), name, at, scale, codes)
				at++
			}
		}
		for ; at < padded(at); at++ {
			checkRow(t, g, l.(*linear), name, at, 0, nil)
		}
		if got, want := l.Bytes(), int64(16*32+4*16); len(parts) == 1 && got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
	}
	l, err := d.GateUp(compute.FP8, stored, other)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		scale, codes := row(&stored, i)
		checkRow(t, g, l.(*linear), "gate", 2*i, scale, codes)
		scale, codes = row(&other, i)
		checkRow(t, g, l.(*linear), "up", 2*i+1, scale, codes)
	}
}

func checkRow(t *testing.T, g *drivertest.GPU, l *linear, name string, i int, scale float32, codes []byte) {
	t.Helper()
	want := append(slices.Clone(codes), make([]byte, l.cols-len(codes))...)
	if got := g.Bytes(uint64(l.data.At(i*l.cols)), l.cols); !slices.Equal(got, want) {
		t.Errorf("%s: row %d is %v, want %v", name, i, got, want)
	}
	if got := number(compute.F32, g.Bytes(uint64(l.scales.At(4*i)), 4)); got != scale {
		t.Errorf("%s: row %d has scale %v, want %v", name, i, got, scale)
	}
}

// TestFP8IsForAda: a GPU whose matrix library has no products of e4m3 says so.
func TestFP8IsForAda(t *testing.T) {
	_, d := simulate(t, Options{}) // of Ampere
	if d.Quantises(compute.FP8) || d.Quantises(compute.INT8) {
		t.Error("it quantises")
	}
	if _, err := d.Linear(compute.FP8, noise(16, 16, 1)); err == nil {
		t.Error("no error")
	}
}

// TestFP8Steps: which kernels a pass in FP8 is made of. A product that x lacks is added by the next norm, or at the
// end.
func TestFP8Steps(t *testing.T) {
	g, d := simulate(t, Options{OwnProducts: true, NoGraphs: true, Direct: true})
	m := newSmall(t, d, 2)
	whole := m.inFP8(t, d, true, true)
	layer := []string{"rms_norm", "plain_product", "rope", "attend_direct"}
	out8, out16 := []string{"quantise", "plain_product"}, []string{"plain_product"}
	ffn := func(silu string) []string { return []string{"rms_norm", "plain_product", silu, "plain_product"} }
	for name, c := range map[string]struct {
		m    *small
		want []string
	}{
		"all": {whole, slices.Concat(layer, out8, ffn("silu_fp8"), layer, []string{"gather", "gather"}, out8,
			ffn("silu_fp8"), []string{"added"})},
		"without down": {m.inFP8(t, d, true, false), slices.Concat(layer, out8, ffn("silu_fp8"), layer,
			[]string{"gather", "gather"}, out8, ffn("silu_fp8"))},
		"down only": {m.inFP8(t, d, false, true), slices.Concat(layer, out16, ffn("silu_fp8"), layer,
			[]string{"gather", "gather"}, out16, ffn("silu_fp8"),
			[]string{"added"})},
	} {
		k := newKept(t, d.Memory(), &m.shape, 1, 4)
		r, err := d.Open(m.shape, 16)
		if err != nil {
			t.Fatal(err)
		}
		g.Launched = nil
		if err := c.m.runSome(r, &k.batch, 2, 1); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range g.Launched {
			if slices.Contains([]string{"rms_norm", "plain_product", "rope", "attend_direct", "quantise", "silu_fp8", "gather",
				"added"}, l) {
				got = append(got, l)
			}
		}
		if want := append(c.want, "rms_norm"); !slices.Equal(got, want) { // the last one is the result's
			t.Errorf("%s:\n%v, want\n%v", name, got, want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		k.free()
	}
}

// inFP8 is the model with some weights of FP8.
func (m *small) inFP8(t *testing.T, d compute.Device, most, down bool) *small {
	t.Helper()
	c, s := *m, &m.shape
	c.of = m
	linear := func(rows, cols int, eight bool) compute.Linear {
		dt := compute.BF16
		if eight {
			dt = compute.FP8
		}
		l, err := d.Linear(dt, noise(rows, cols, 1))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if most {
		c.attention.QKV = linear((s.Heads+2*s.KVHeads)*s.HeadDim, s.Hidden, true)
		c.attention.Out = linear(s.Hidden, s.Heads*s.HeadDim, true)
		var err error
		if c.ffn.GateUp, err = d.GateUp(compute.FP8, noise(s.Inter, s.Hidden, 1), noise(s.Inter, s.Hidden, 1)); err != nil {
			t.Fatal(err)
		}
	}
	c.ffn.Down = linear(s.Hidden, s.Inter, down)
	return &c
}
