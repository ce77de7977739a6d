package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
)

// integer reads a quantised value back.
func integer(r *Rows, row, k int) int {
	p := r.at(row, k/int8Depth)
	if r.form == formWords {
		return int((*[int8Depth]int16)(p)[k%int8Depth])
	}
	return int((*[int8Depth]int8)(p)[k%int8Depth])
}

// quantised is the definition: one scale for the values, and their integers.
func quantised(values []float32) (scale float32, q []int) {
	largest := float32(0)
	for _, v := range values {
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	q = make([]int, len(values))
	switch {
	case math.IsNaN(float64(largest)) || math.IsInf(float64(largest), 0):
		return float32(math.NaN()), q
	case largest < 0x1p-100:
		return 0, q
	}
	inverse := 127 / largest
	for i, v := range values {
		q[i] = int(math.RoundToEven(float64(float32(v * inverse))))
	}
	return largest / 127, q
}

// product8 is A·Wᵀ of quantised rows and weights, as the contract has it.
func product8(a, w matrix) []float32 {
	out := make([]float32, a.rows*w.rows)
	scales, weights := make([]float32, w.rows), make([][]int, w.rows)
	for j := range w.rows {
		scales[j], weights[j] = quantised(w.row(j))
	}
	for i := range a.rows {
		s, q := quantised(a.row(i))
		for j := range w.rows {
			sum := int64(0)
			for k, x := range q {
				sum += int64(x) * int64(weights[j][k])
			}
			out[i*w.rows+j] = float32(float32(float32(sum)*scales[j]) * s)
		}
	}
	return out
}

// Integer sums are exact: every level has the bits of the definition, whatever the rows, the cut and the threads.
func TestInt8AgainstIntegers(t *testing.T) {
	wanted := map[*problem][3][]float32{}
	for _, p := range problems() {
		wanted[p] = [3][]float32{product8(p.a, p.w), product8(p.a, p.gate), product8(p.a, p.up)}
	}
	eachLevelOf(t, []compute.DType{compute.INT8}, func(t *testing.T, level feature.Level, dt compute.DType) {
		for threads := 1; threads <= 3; threads++ {
			e := newEnv(t, level, dt, threads)
			for i, p := range problems() {
				if i%3 != threads-1 && threads != 2 {
					continue
				}
				testInt8Linear(e, p, wanted[p][0])
				testInt8Gated(e, p, wanted[p][1], wanted[p][2])
			}
		}
	})
}

func testInt8Linear(e *env, p *problem, want []float32) {
	m, n := p.m, p.n
	rows, packed := e.rows(p.a), e.pack(p.w.tensor(compute.F32))
	x := random(rand.New(rand.NewPCG(2, 2)), m, n, 1)
	bias := p.bias.v[:n]
	stored, sum := make([]float32, m*n), append([]float32(nil), x.v...)
	e.mul.Store(stored, n, rows, packed, nil)
	e.mul.Add(sum, n, rows, packed, bias)
	for i := range m {
		sameRow(e.t, fmt.Sprintf("%d×%d×%d: store", m, n, p.k), stored[i*n:][:n], want[i*n:][:n], m, i)
		for j := range n {
			at := i*n + j
			if v := float32(want[at]+bias[j]) + x.v[at]; sum[at] != v {
				e.t.Fatalf("%d×%d×%d: add (%d,%d) = %v, want %v", m, n, p.k, i, j, sum[at], v)
			}
		}
	}
}

func testInt8Gated(e *env, p *problem, gate, up []float32) {
	m, n := p.m, p.n
	rows, packed := e.rows(p.a), e.packGated(p.gate.tensor(compute.F32), p.up.tensor(compute.F32))
	dst := e.rows(matrix{m, n, make([]float32, m*n)})
	e.mul.Gated(dst, rows, packed, p.bias.v)
	exact := matrix{m, n, make([]float32, m*n)}
	for i := range exact.v {
		x, y := float64(gate[i]+p.bias.v[i%n]), float64(up[i]+p.bias.v[n+i%n])
		exact.v[i] = float32(x / (1 + math.Exp(-x)) * y)
	}
	for i := range m {
		scale, q := quantised(exact.row(i))
		if s := dst.scales[i].scale; math.Abs(float64(s-scale)) > 3e-6*float64(scale) {
			e.t.Fatalf("%d×%d×%d: row %d has the scale %v, want %v", m, n, p.k, i, s, scale)
		}
		for j := range q { // a level's silu may fall on the other side of a boundary
			if got := integer(dst, i, j); got < q[j]-1 || got > q[j]+1 {
				e.t.Fatalf("%d×%d×%d: gated (%d,%d) = %d, want %d", m, n, p.k, i, j, got, q[j])
			}
		}
	}
	checkTails(e, dst)
}

// Rows become the integers of the definition, to the bit, at every length, and padding stays zero.
func TestInt8Rows(t *testing.T) {
	eachLevelOf(t, []compute.DType{compute.INT8}, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 1)
		r := rand.New(rand.NewPCG(21, 21))
		for _, k := range []int{1, 5, 15, 16, 17, 63, 64, 65, 128, 200, 1000} {
			m := random(r, 40, k, 3)
			for i := range m.rows { // all sizes of numbers, and ties
				for j := range k {
					m.row(i)[j] *= float32(math.Ldexp(1, i-20))
				}
				m.row(i)[r.IntN(k)] = float32(math.Ldexp(127, i-20))
				m.row(i)[r.IntN(k)] = float32(math.Ldexp(float64(r.IntN(127))+0.5, i-20))
			}
			m.row(1)[k/2] = float32(math.NaN())
			m.row(2)[k/2] = float32(math.Inf(-1))
			clear(m.row(3))
			m.row(4)[0] = -0x1p-101
			clear(m.row(4)[1:])
			rows := e.rows(random(r, 50, k+70, 9)) // old contents
			if err := rows.Reset(m.rows, k); err != nil {
				t.Fatal(err)
			}
			for i := range m.rows {
				rows.Set(i, 0, m.row(i))
				scale, q := quantised(m.row(i))
				if math.Float32bits(rows.scales[i].scale) != math.Float32bits(scale) && scale == scale {
					t.Fatalf("%d values: row %d has the scale %v, want %v", k, i, rows.scales[i].scale, scale)
				}
				sum := 0
				for j := range q {
					sum += q[j]
					if got := integer(rows, i, j); got != q[j] {
						t.Fatalf("%d values: value %d of row %d (%v) is %d, want %d", k, j, i, m.row(i)[j], got, q[j])
					}
				}
				if rows.kernels.unsigned && rows.scales[i].offset != int32(128*sum) {
					t.Fatalf("%d values: row %d has the offset %d, want %d", k, i, rows.scales[i].offset, 128*sum)
				}
			}
			checkTails(e, rows)
		}
	})
}

// The largest integers at a depth near the limit neither overflow nor saturate, on any level.
func TestInt8Extremes(t *testing.T) {
	eachLevelOf(t, []compute.DType{compute.INT8}, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		const k, n = maxInt8Depth, 3
		a, w := matrix{2, k, make([]float32, 2*k)}, compute.Tensor{DType: compute.INT8, Rows: n, Cols: k,
			Scales: []float32{1, 0.5, 2}}
		for i := range k {
			a.row(0)[i], a.row(1)[i] = 1, -1
		}
		for j := range n {
			for i := range k {
				w.Data = append(w.Data, byte([]int8{127, -128, int8(-127 + 254*(i%2))}[j]))
			}
		}
		got := make([]float32, 2*n)
		e.mul.Store(got, n, e.rows(a), e.pack(w), nil)
		odd := int64(-127 * 127 * (k % 2))
		for i, sign := range []int64{1, -1} {
			for j, sum := range []int64{127 * 127 * k, -128 * 127 * k, odd} {
				want := float32(float32(float32(sign*sum)*w.Scales[j]) * float32(float32(1)/127))
				if got[i*n+j] != want {
					t.Errorf("row %d column %d = %v, want %v", i, j, got[i*n+j], want)
				}
			}
		}
	})
}

// A row that is no number is NaN in all columns and touches no other row.
func TestInt8ContainsNaN(t *testing.T) {
	eachLevelOf(t, []compute.DType{compute.INT8}, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		r := rand.New(rand.NewPCG(23, 23))
		const m, n, k = 35, 40, 130
		a, w := random(r, m, k, 1), e.pack(random(r, n, k, 1).tensor(compute.F32))
		want, got := make([]float32, m*n), make([]float32, m*n)
		e.mul.Store(want, n, e.rows(a), w, nil)
		a.row(7)[100], a.row(20)[129] = float32(math.Inf(1)), float32(math.NaN())
		e.mul.Store(got, n, e.rows(a), w, nil)
		for i := range got {
			if bad := i/n == 7 || i/n == 20; bad != (got[i] != got[i]) || !bad && got[i] != want[i] {
				t.Fatalf("row %d column %d = %v, without NaN elsewhere %v", i/n, i%n, got[i], want[i])
			}
		}
	})
}

// Weights that come as integers with scales are taken as they are, beside others.
func TestInt8PackSources(t *testing.T) {
	eachLevelOf(t, []compute.DType{compute.INT8}, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		r := rand.New(rand.NewPCG(25, 25))
		const k = 150
		given := compute.Tensor{DType: compute.INT8, Rows: 33, Cols: k}
		all := matrix{0, k, nil}
		for range given.Rows {
			given.Scales = append(given.Scales, r.Float32())
			row := make([]float32, k)
			for i := range row {
				q := int8(r.IntN(255) - 127)
				given.Data = append(given.Data, byte(q))
				row[i] = float32(q)
			}
			row[0], given.Data[len(given.Data)-k] = 127, 127 // so that the definition takes them as they are
			all.v = append(all.v, row...)
		}
		other := random(r, 20, k, 1)
		all.v = append(all.v, other.as(compute.BF16).v...)
		all.rows = 53
		a := random(r, 5, k, 1)
		want, got := product8(a, all), make([]float32, 5*53)
		e.mul.Store(got, 53, e.rows(a), e.pack(given, other.tensor(compute.BF16)), nil)
		for i := range got {
			w := want[i]
			if j := i % 53; j < 33 { // the definition's scale is 127/127
				rowScale, _ := quantised(a.row(i / 53))
				w = float32(float32(float32(math.Round(float64(w/rowScale)))*given.Scales[j]) * rowScale)
			}
			if got[i] != w {
				t.Fatalf("row %d column %d = %v, want %v", i/53, i%53, got[i], w)
			}
		}
	})
}

func TestInt8PackErrors(t *testing.T) {
	tm := team.New(1)
	defer tm.Close()
	good := compute.Tensor{DType: compute.INT8, Rows: 2, Cols: 3, Data: make([]byte, 6), Scales: []float32{1, 1}}
	bare := good
	bare.Scales = nil
	for _, c := range []struct {
		dt   compute.DType
		t    compute.Tensor
		want string
	}{
		{compute.INT8, bare, "0 scales for 2 rows"},
		{compute.BF16, good, "packed as bf16"},
		{compute.INT8, compute.Tensor{DType: compute.INT8, Rows: 1, Cols: maxInt8Depth + 1, Data: make([]byte,
			maxInt8Depth+1), Scales: []float32{1}}, "depth"},
	} {
		if _, err := Pack(tm, feature.Plain, c.dt, c.t); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// Weights take half the memory of bf16 and one scale per column.
func TestInt8Memory(t *testing.T) {
	tm := team.New(1)
	defer tm.Close()
	w := random(rand.New(rand.NewPCG(1, 1)), 4096, 896, 1).tensor(compute.F32)
	size := map[compute.DType]int64{}
	for _, dt := range []compute.DType{compute.BF16, compute.INT8} {
		p, err := Pack(tm, Best(), dt, w)
		if err != nil {
			t.Fatal(err)
		}
		size[dt] = p.Bytes()
		p.Free()
	}
	if share := float64(size[compute.INT8]) / float64(size[compute.BF16]); share > 0.56 {
		t.Errorf("int8 takes %.3f of bf16's memory", share)
	}
}
