package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/compute/cpu/internal/team"
)

// levels returns every level that this machine can run.
func levels() (l []feature.Level) {
	for i := feature.Plain; i <= feature.Best(); i++ {
		l = append(l, i)
	}
	return l
}

var (
	formats    = []compute.DType{compute.F32, compute.BF16}
	allFormats = []compute.DType{compute.F32, compute.BF16, compute.INT8}
)

// matrix is a test matrix as float32 values, which tensor stores.
type matrix struct {
	rows, cols int
	v          []float32
}

func random(r *rand.Rand, rows, cols int, scale float32) matrix {
	m := matrix{rows, cols, make([]float32, rows*cols)}
	for i := range m.v {
		m.v[i] = (r.Float32()*2 - 1) * scale
	}
	return m
}

func (m matrix) row(i int) []float32 { return m.v[i*m.cols : (i+1)*m.cols] }

// slice returns rows [i, j).
func (m matrix) slice(i, j int) matrix { return matrix{j - i, m.cols, m.v[i*m.cols : j*m.cols]} }

// as rounds the matrix to what dt can hold.
func (m matrix) as(dt compute.DType) matrix {
	o := matrix{m.rows, m.cols, make([]float32, len(m.v))}
	for i, v := range m.v {
		switch dt {
		case compute.BF16:
			o.v[i] = math.Float32frombits(uint32(toBF16(v)) << 16)
		case compute.F16:
			o.v[i] = fromF16(toF16(v))
		default:
			o.v[i] = v
		}
	}
	return o
}

func (m matrix) tensor(dt compute.DType) compute.Tensor {
	t := compute.Tensor{DType: dt, Rows: m.rows, Cols: m.cols}
	for _, v := range m.v {
		switch dt {
		case compute.F32:
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
		case compute.BF16:
			t.Data = binary.LittleEndian.AppendUint16(t.Data, toBF16(v))
		case compute.F16:
			t.Data = binary.LittleEndian.AppendUint16(t.Data, toF16(v))
		}
	}
	return t
}

// toF16 truncates normal values below 1 to halves: enough for test data.
func toF16(f float32) uint16 {
	u := math.Float32bits(f)
	e := int(u>>23&0xff) - 127 + 15
	if e <= 0 {
		return uint16(u >> 16 & 0x8000)
	}
	return uint16(u>>16&0x8000) | uint16(e)<<10 | uint16(u>>13&0x3ff)
}

// env is what a product needs.
type env struct {
	t     testing.TB
	level feature.Level
	dt    compute.DType
	team  *team.Team
	mul   *Multiplier
}

func newEnv(t testing.TB, level feature.Level, dt compute.DType, threads int) *env {
	e := &env{t: t, level: level, dt: dt, team: team.New(threads)}
	t.Cleanup(e.team.Close)
	m, err := New(e.team)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Free)
	e.mul = m
	return e
}

func (e *env) pack(parts ...compute.Tensor) *Weights {
	w, err := Pack(e.team, e.level, e.dt, parts...)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(w.Free)
	return w
}

func (e *env) packGated(gate, up compute.Tensor) *Weights {
	w, err := PackGated(e.team, e.level, e.dt, gate, up)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(w.Free)
	return w
}

func (e *env) rows(m matrix) *Rows {
	r := NewRows(e.level, e.dt)
	e.t.Cleanup(r.Free)
	if err := r.ResetResults(m.rows, m.cols); err != nil {
		e.t.Fatal(err)
	}
	e.mul.Fill(r, m.v, m.cols)
	return r
}

// seen returns what the level's kernels see of activations.
func (e *env) seen(m matrix) matrix {
	if NewRows(e.level, e.dt).form == formTiles {
		return m.as(compute.BF16)
	}
	return m
}

// reference is A·Wᵀ in float64.
func reference(a, w matrix) []float64 {
	out := make([]float64, a.rows*w.rows)
	for i := range a.rows {
		for j := range w.rows {
			s, b := 0.0, w.row(j)
			for k, x := range a.row(i) {
				s += float64(x) * float64(b[k])
			}
			out[i*w.rows+j] = s
		}
	}
	return out
}

// unpack reads rows back.
func unpack(r *Rows) matrix {
	m := matrix{r.m, r.k, make([]float32, r.m*r.k)}
	for i := range r.m {
		for k := range r.k {
			switch {
			case r.form.quantised():
				m.v[i*r.k+k] = float32(integer(r, i, k)) * r.scales[i].scale
			case r.form == formTiles:
				u := (*[stepDepth]uint16)(r.at(i, k/stepDepth))[k%stepDepth]
				m.v[i*r.k+k] = math.Float32frombits(uint32(u) << 16)
			default:
				m.v[i*r.k+k] = (*[stepDepth]float32)(r.at(i, k/stepDepth))[k%stepDepth]
			}
		}
	}
	return m
}

func near(got float32, want, tol float64) bool {
	d := math.Abs(float64(got) - want)
	return d <= tol
}

func eachLevel(t *testing.T, f func(t *testing.T, level feature.Level, dt compute.DType)) {
	eachLevelOf(t, formats, f)
}

func eachLevelOf(t *testing.T, formats []compute.DType, f func(t *testing.T, level feature.Level, dt compute.DType)) {
	for _, level := range levels() {
		for _, dt := range formats {
			t.Run(fmt.Sprintf("%v/%v", level, dt), func(t *testing.T) { f(t, level, dt) })
		}
	}
}

// problem is the operands of a product, and its results in float64 by what a level sees of them.
type problem struct {
	m, n, k        int
	a, w, gate, up matrix
	bias           matrix // for gate and up; the first n for w
	results        map[string][]float64
}

// problems mixes rows, columns and depths on and off the edges of panels, tiles, steps and blocks.
var problems = sync.OnceValue(func() (all []*problem) {
	ms := []int{1, 2, 15, 16, 17, 31, 33, 257}
	ns := []int{1, 7, 32, 33, 100}
	ks := []int{1, 2, 31, 32, 33, 101}
	var shapes [][3]int
	for i, m := range ms {
		for j, n := range ns {
			shapes = append(shapes, [3]int{m, n, ks[(i+j)%len(ks)]})
		}
	}
	shapes = append(shapes, [3]int{3, 40, 2200}, [3]int{19, 290, 2100}, [3]int{530, 70, 65})
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range shapes {
		m, n, k := s[0], s[1], s[2]
		all = append(all, &problem{m: m, n: n, k: k, results: map[string][]float64{},
			a: random(r, m, k, 1), w: random(r, n, k, 0.5), gate: random(r, n, k, 0.5), up: random(r, n, k, 0.5),
			bias: random(r, 1, 2*n, 1)})
	}
	return all
})

// result is the product with one of the weights, as e's level sees the operands.
func (p *problem) result(e *env, name string, w matrix) []float64 {
	key := fmt.Sprint(name, e.dt, NewRows(e.level, e.dt).form)
	if p.results[key] == nil {
		p.results[key] = reference(e.seen(p.a), w.as(e.dt))
	}
	return p.results[key]
}

// tolerance allows for one chain of k roundings.
func (p *problem) tolerance() float64 { return 5e-8*float64(p.k) + 5e-6 }

func TestAgainstFloat64(t *testing.T) {
	eachLevel(t, func(t *testing.T, level feature.Level, dt compute.DType) {
		for threads := 1; threads <= 3; threads++ {
			e := newEnv(t, level, dt, threads)
			for i, p := range problems() {
				if i%3 != threads-1 && threads != 2 { // all with two threads, some with others
					continue
				}
				testLinear(e, p)
				testGated(e, p)
			}
		}
	})
}

func testLinear(e *env, p *problem) {
	m, n := p.m, p.n
	stride := n + 3
	want, tol := p.result(e, "w", p.w), p.tolerance()
	rows, packed := e.rows(p.a), e.pack(p.w.tensor(compute.F32))
	x := random(rand.New(rand.NewPCG(2, 2)), m, stride, 1)
	for _, b := range [][]float32{nil, p.bias.v[:n]} {
		stored, sum := append([]float32(nil), x.v...), append([]float32(nil), x.v...)
		e.mul.Store(stored, stride, rows, packed, b)
		e.mul.Add(sum, stride, rows, packed, b)
		for i := range m {
			for j := range stride {
				at := i*stride + j
				before := x.v[at]
				if j >= n {
					if stored[at] != before || sum[at] != before {
						e.t.Fatalf("%d×%d×%d: wrote beyond column %d of row %d", m, n, p.k, n, i)
					}
					continue
				}
				v := want[i*n+j]
				if b != nil {
					v += float64(b[j])
				}
				if !near(stored[at], v, tol) {
					e.t.Fatalf("%d×%d×%d: store (%d,%d) = %v, want %v", m, n, p.k, i, j, stored[at], v)
				}
				if v += float64(before); !near(sum[at], v, tol) {
					e.t.Fatalf("%d×%d×%d: add (%d,%d) = %v, want %v", m, n, p.k, i, j, sum[at], v)
				}
			}
		}
	}
}

func testGated(e *env, p *problem) {
	m, n := p.m, p.n
	g, u := p.result(e, "gate", p.gate), p.result(e, "up", p.up)
	rows, packed := e.rows(p.a), e.packGated(p.gate.tensor(compute.F32), p.up.tensor(compute.F32))
	dst := NewRows(e.level, e.dt)
	e.t.Cleanup(dst.Free)
	if err := dst.Reset(m, n); err != nil {
		e.t.Fatal(err)
	}
	tol, rel := p.tolerance(), 2e-6
	if dst.form == formTiles {
		rel = 1.0 / 256
	}
	for _, b := range [][]float32{nil, p.bias.v} {
		e.mul.Gated(dst, rows, packed, b)
		got := unpack(dst)
		for i := range m {
			for j := range n {
				x, y := g[i*n+j], u[i*n+j]
				if b != nil {
					x, y = x+float64(b[j]), y+float64(b[n+j])
				}
				want := x / (1 + math.Exp(-x)) * y
				if !near(got.v[i*n+j], want, tol*(1+math.Abs(x)+math.Abs(y))+rel*math.Abs(want)) {
					e.t.Fatalf("%d×%d×%d: gated (%d,%d) = %v, want %v", m, n, p.k, i, j, got.v[i*n+j], want)
				}
			}
		}
		checkTails(e, dst)
	}
}

// checkTails fails unless the padding of the rows' depth is zero.
func checkTails(e *env, r *Rows) {
	wide := *r
	wide.k = r.steps * r.form.depth()
	if r.form.quantised() { // the integers
		wide.scales = make([]rowScale, r.m)
		for i := range wide.scales {
			wide.scales[i].scale = 1
		}
	}
	all := unpack(&wide)
	for i := range r.m {
		for k, v := range all.row(i)[r.k:] {
			if v != 0 {
				e.t.Fatalf("row %d has %v in its padding at %d", i, v, r.k+k)
			}
		}
	}
}

// A row's result must not depend on the other rows, its place, or the threads.
func TestSameBits(t *testing.T) {
	eachLevelOf(t, allFormats, func(t *testing.T, level feature.Level, dt compute.DType) {
		r := rand.New(rand.NewPCG(7, 7))
		const n, k, most = 75, 2101, 24 // k is cut on every level
		a, w := random(r, most, k, 1), random(r, n, k, 0.1)
		gate, up := random(r, n, k, 0.1), random(r, n, k, 0.1)
		alone := newEnv(t, level, dt, 1)
		want := matrix{most, n, make([]float32, most*n)}
		packed := alone.pack(w.tensor(compute.BF16))
		gated := alone.packGated(gate.tensor(compute.BF16), up.tensor(compute.BF16))
		one, act := alone.rows(a.slice(0, 1)), alone.rows(matrix{1, n, make([]float32, n)})
		wantGated := matrix{most, n, nil}
		for i := range most {
			one.Set(0, 0, a.row(i))
			alone.mul.Store(want.row(i), n, one, packed, nil)
			alone.mul.Gated(act, one, gated, nil)
			wantGated.v = append(wantGated.v, unpack(act).v...)
		}
		for round, m := range []int{1 + r.IntN(16), 270, 17 + r.IntN(100), 33, 1 + r.IntN(32)} {
			e := newEnv(t, level, dt, 1+round%3)
			order := make([]int, m)
			in := matrix{m, k, nil}
			for p := range order {
				order[p] = r.IntN(most)
				in.v = append(in.v, a.row(order[p])...)
			}
			rows := e.rows(in)
			got, dst := matrix{m, n, make([]float32, m*n)}, e.rows(matrix{m, n, make([]float32, m*n)})
			e.mul.Store(got.v, n, rows, packed, nil)
			e.mul.Gated(dst, rows, gated, nil)
			activated := unpack(dst)
			for p, i := range order {
				sameRow(t, "store", got.row(p), want.row(i), m, p)
				sameRow(t, "gated", activated.row(p), wantGated.row(i), m, p)
			}
		}
	})
}

// A column has the same bits in a whole pair of panels, which kernels may write themselves, and in a
// ragged one, which an epilogue writes.
func TestSameBitsInRaggedPanels(t *testing.T) {
	eachLevelOf(t, allFormats, func(t *testing.T, level feature.Level, dt compute.DType) {
		r := rand.New(rand.NewPCG(17, 17))
		const whole, ragged = 2 * panelCols, panelCols + 9
		for _, size := range [][2]int{{13, 70}, {9, 2101}} { // k whole and cut
			m, k := size[0], size[1]
			e := newEnv(t, level, dt, 2)
			w, bias, x := random(r, whole, k, 0.1), random(r, 1, whole, 1), random(r, m, whole, 1)
			rows := e.rows(random(r, m, k, 1))
			for _, b := range [][]float32{nil, bias.v} {
				got, sum := matrix{m, whole, make([]float32, m*whole)}, matrix{m, whole, append([]float32(nil), x.v...)}
				want, wantSum := matrix{m, whole, make([]float32, m*whole)}, matrix{m, whole, append([]float32(nil), x.v...)}
				packed, part := e.pack(w.tensor(compute.F32)), e.pack(w.slice(0, ragged).tensor(compute.F32))
				e.mul.Store(got.v, whole, rows, packed, b)
				e.mul.Add(sum.v, whole, rows, packed, b)
				e.mul.Store(want.v, whole, rows, part, b[:min(len(b), ragged)])
				e.mul.Add(wantSum.v, whole, rows, part, b[:min(len(b), ragged)])
				for i := range m {
					sameRow(t, "store", got.row(i)[:ragged], want.row(i)[:ragged], m, i)
					sameRow(t, "add", sum.row(i)[:ragged], wantSum.row(i)[:ragged], m, i)
				}
			}
		}
	})
}

func sameRow(t testing.TB, what string, got, want []float32, m, place int) {
	t.Helper()
	for j := range want {
		if math.Float32bits(got[j]) != math.Float32bits(want[j]) {
			t.Fatalf("%s: row at place %d of %d, column %d: %v, alone %v", what, place, m, j, got[j], want[j])
		}
	}
}

func TestPackSources(t *testing.T) {
	eachLevel(t, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		r := rand.New(rand.NewPCG(3, 3))
		const k = 70
		a := random(r, 5, k, 1)
		parts := []matrix{random(r, 19, k, 0.5), random(r, 1, k, 0.5), random(r, 45, k, 0.5)}
		kinds := []compute.DType{compute.F16, compute.F32, compute.BF16}
		all := matrix{0, k, nil}
		var tensors []compute.Tensor
		for i, p := range parts {
			all.rows += p.rows
			all.v = append(all.v, p.as(kinds[i]).v...)
			tensors = append(tensors, p.tensor(kinds[i]))
		}
		w := e.pack(tensors...)
		if w.Out() != all.rows || w.In() != k {
			t.Fatalf("packed %d×%d, want %d×%d", w.Out(), w.In(), all.rows, k)
		}
		want := reference(e.seen(a), all.as(dt))
		got := make([]float32, len(want))
		e.mul.Store(got, all.rows, e.rows(a), w, nil)
		for i := range got {
			if !near(got[i], want[i], 1e-5) {
				t.Fatalf("value %d = %v, want %v", i, got[i], want[i])
			}
		}
	})
}

func TestPackErrors(t *testing.T) {
	tm := team.New(1)
	defer tm.Close()
	good := matrix{2, 3, make([]float32, 6)}.tensor(compute.F32)
	wide := matrix{2, 4, make([]float32, 8)}.tensor(compute.F32)
	short := good
	short.Data = short.Data[:20]
	if _, err := Pack(tm, feature.Plain, compute.F32, good, wide); err == nil {
		t.Error("parts of different depths were packed")
	}
	if _, err := Pack(tm, feature.Plain, compute.F32, short); err == nil {
		t.Error("a tensor that lacks data was packed")
	}
	if _, err := Pack(tm, feature.Plain, compute.F32); err == nil {
		t.Error("nothing was packed")
	}
	if _, err := Pack(tm, feature.Plain, compute.F16, good); err == nil {
		t.Error("weights were packed as f16")
	}
	if _, err := PackGated(tm, feature.Plain, compute.F32, good,
		matrix{1, 3, make([]float32, 3)}.tensor(compute.F32)); err == nil {
		t.Error("gate and up of different heights were packed")
	}
}

func TestSetRuns(t *testing.T) {
	eachLevel(t, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 1)
		r := rand.New(rand.NewPCG(5, 5))
		m := random(r, 40, 203, 3)
		rows := e.rows(random(r, 64, 300, 1)) // old contents
		if err := rows.Reset(m.rows, m.cols); err != nil {
			t.Fatal(err)
		}
		for i := range m.rows {
			for k := 0; k < m.cols; {
				n := min(1+r.IntN(100), m.cols-k)
				rows.Set(i, k, m.row(i)[k:k+n])
				k += n
			}
		}
		want, got := e.seen(m), unpack(rows)
		for i := range m.rows {
			sameRow(t, "set", got.row(i), want.row(i), m.rows, i)
		}
		checkTails(e, rows)
	})
}

// Float32 weights may feed a product with bf16 weights: the kernels of one form write rows of the other.
func TestGatedAcrossForms(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 13))
	const m, n, k = 75, 50, 64
	a, gate, up := random(r, m, k, 1), random(r, n, k, 0.5), random(r, n, k, 0.5)
	e := newEnv(t, Best(), compute.F32, 2)
	rows, packed := e.rows(a), e.packGated(gate.tensor(compute.F32), up.tensor(compute.F32))
	same, other := NewRows(Best(), compute.F32), NewRows(Best(), compute.BF16)
	for _, dst := range []*Rows{same, other} {
		t.Cleanup(dst.Free)
		if err := dst.Reset(m, n); err != nil {
			t.Fatal(err)
		}
		e.mul.Gated(dst, rows, packed, nil)
		checkTails(e, dst)
	}
	want, got := unpack(same), unpack(other)
	for i := range want.v {
		if !near(got.v[i], float64(want.v[i]), math.Abs(float64(want.v[i]))/128+1e-6) {
			t.Fatalf("row %d column %d: %v, in float32 %v", i/n, i%n, got.v[i], want.v[i])
		}
	}
}

func TestBorrow(t *testing.T) {
	eachLevel(t, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		r := rand.New(rand.NewPCG(11, 11))
		const m, n, k, stride = 21, 40, 96, 100
		wide := random(r, m, stride, 1)
		a := matrix{m, k, nil}
		for i := range m {
			a.v = append(a.v, wide.row(i)[:k]...)
		}
		w, rows := e.pack(random(r, n, k, 1).tensor(compute.F32)), e.rows(a)
		want, got := make([]float32, m*n), make([]float32, m*n)
		e.mul.Store(want, n, rows, w, nil)
		if rows.Borrow(wide.v, stride, m, k-1) {
			t.Error("borrowed rows that need padding")
		}
		if !rows.Borrow(wide.v, stride, m, k) {
			if rows.form == formFloats {
				t.Error("float32 rows could not be borrowed")
			}
			return
		}
		e.mul.Store(got, n, rows, w, nil)
		sameRow(t, "borrowed", got, want, m, 0)
	})
}

func TestNoAllocations(t *testing.T) {
	eachLevelOf(t, allFormats, func(t *testing.T, level feature.Level, dt compute.DType) {
		e := newEnv(t, level, dt, 2)
		r := rand.New(rand.NewPCG(9, 9))
		const m, n, k = 20, 70, 100
		a, w := random(r, m, k, 1), random(r, n, k, 1)
		rows, packed := e.rows(a), e.pack(w.tensor(compute.F32))
		gated := e.packGated(w.tensor(compute.F32), w.tensor(compute.F32))
		dst, out := e.rows(random(r, m, n, 1)), make([]float32, m*n)
		bias := make([]float32, 2*n)
		allocs := testing.AllocsPerRun(20, func() {
			if err := rows.Reset(m, k); err != nil {
				t.Fatal(err)
			}
			e.mul.Fill(rows, a.v, k)
			e.mul.Store(out, n, rows, packed, bias[:n])
			e.mul.Add(out, n, rows, packed, nil)
			e.mul.Gated(dst, rows, gated, bias)
		})
		if allocs != 0 {
			t.Errorf("products allocate %v times", allocs)
		}
	})
}

func TestSilu(t *testing.T) {
	for _, level := range levels() {
		k := kernelsFor(level, compute.F32)
		var gate, up, dst [panelCols]float32
		var bias [2 * panelCols]float32
		for i := range up {
			up[i] = 1
		}
		run := func(x float32) float32 {
			gate[0] = x
			k.gated(1, unsafe.Pointer(&gate), unsafe.Pointer(&up), unsafe.Pointer(&bias), unsafe.Pointer(&dst), 0)
			return dst[0]
		}
		xs := []float32{0, 1e-30, -1e-30, 1e4, -1e4, 1e30, -1e30, math.MaxFloat32, -math.MaxFloat32}
		for x := float32(-120); x < 120; x += 0.037 {
			xs = append(xs, x)
		}
		for _, x := range xs {
			want := float64(x) / (1 + math.Exp(-float64(x)))
			if got := float64(run(x)); math.Abs(got-want) > 1e-6*math.Abs(want)+1e-35 {
				t.Fatalf("%v: silu(%v) = %v, want %v", level, x, got, want)
			}
		}
		if got := run(float32(math.NaN())); got == got {
			t.Errorf("%v: silu(NaN) = %v", level, got)
		}
	}
}
