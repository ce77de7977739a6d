package product

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"grebe/compute/cuda/driver"
	"grebe/compute/internal/fp8"
)

// hopper is the GPU that the pure tests reckon with.
var hopper = driver.Info{Arch: 90, Processors: 132, SharedMemory: 232448}

func TestPackAlternates(t *testing.T) {
	got, err := PackGateUp([]byte("aabbcc"), []byte("AABBCC"), 2)
	if err != nil || !bytes.Equal(got, []byte("aaAAbbBBccCC")) {
		t.Errorf("got %q, %v", got, err)
	}
	bias, err := PackBias([]float32{1, 2}, []float32{3, 4})
	if err != nil || !slices.Equal(bias, []float32{1, 3, 2, 4}) {
		t.Errorf("got %v, %v", bias, err)
	}
	if _, err := PackGateUp(make([]byte, 4), make([]byte, 6), 2); err == nil {
		t.Error("matrices of different sizes were packed")
	}
	if _, err := PackBias(make([]float32, 1), nil); err == nil {
		t.Error("biases of different sizes were packed")
	}
}

func TestTilesAreValidAndCheapestFirst(t *testing.T) {
	for _, n := range []int{64, 1536, 8960, 12288, 17920} {
		for _, rows := range []int{1, 128, 256, 512, 1000, 4096, 8192} {
			tiles := Tiles(hopper, rows, n, 2048)
			if len(tiles) < 4 {
				t.Errorf("%d rows, N %d: %d tiles", rows, n, len(tiles))
			}
			last := 0.0
			for _, tile := range tiles {
				if err := tile.validate(hopper); err != nil {
					t.Error(err)
				}
				if c := tile.cost(hopper, rows, n, 2048); c < last {
					t.Errorf("%d rows, N %d: %v after a costlier one", rows, n, tile)
				} else {
					last = c
				}
			}
		}
	}
	for _, bad := range []Tile{{}, {Rows: 64, Cols: 128, Stages: 4}, {Rows: 128, Cols: 264, Stages: 3},
		{Rows: 256, Cols: 200, Stages: 3},
		{Rows: 128, Cols: 136, Stages: 4, Share: ShareW}, {Rows: 128, Cols: 256, Stages: 5},
		{Rows: 128, Cols: 128, Stages: 1},
		{Rows: 128, Cols: 200, Stages: 3, Turns: true}, {Rows: 256, Cols: 128, Stages: 3, Turns: true}} {
		if bad.validate(hopper) == nil {
			t.Errorf("tile %+v is valid", bad)
		}
	}
}

// TestTilesOfFP8: two columns take the time of one of bf16, and the kernel is another one.
func TestTilesOfFP8(t *testing.T) {
	op := Op{FP8: true, Most: 1000, N: 17920, K: 1536}
	tiles := op.Tiles(hopper)
	if want := Tiles(hopper, 1000, 17920, 768); !slices.Equal(tiles, want) {
		t.Errorf("tiles %v, want those of half the depth in bf16, %v", tiles, want)
	}
	eight := op.key(tiles[0])
	op.FP8 = false
	if half := op.key(tiles[0]); eight == half || eight.defines()[0] != "IN=3" || half.defines()[0] != "IN=1" {
		t.Errorf("kernels %v and %v", eight.defines(), half.defines())
	}
}

// TestEveryTileIsTakenOnce: whatever the number of tiles, and in whichever order clusters take them.
func TestEveryTileIsTakenOnce(t *testing.T) {
	for _, o := range []order{{1, 7, 16, 66}, {3, 64, 16, 66}, {4, 64, 16, 66}, {5, 13, 32, 66}, {7, 80, 16, 132},
		{40, 9, 16, 66}, {33, 50, 32, 132}, {17, 1, 16, 5}} {
		taken := map[[2]int]bool{}
		for i := range o.down * o.across {
			m, n := o.take(i)
			if m < 0 || m >= o.down || n < 0 || n >= o.across || taken[[2]int{m, n}] {
				t.Fatalf("%+v: tile %d is row %d, column %d, beyond the last or taken before", o, i, m, n)
			}
			taken[[2]int{m, n}] = true
		}
	}
	o := order{3, 64, 16, 66} // 640 rows of 256 by 24,576 columns of 2 · 192: the last row of tiles is half a one
	if got := o.longest(2, 1); got != 5 {
		t.Errorf("the longest of 66 clusters has %v to do, of tiles that cost 2, 2 and 1; want 5", got)
	}
}

// machine is a GPU with what tests need on it.
type machine struct {
	tb     testing.TB
	c      *driver.Context
	stream *driver.Stream
	args   *driver.Args
	set    *Set
	rng    *rand.Rand
}

func gpu(tb testing.TB) *machine {
	tb.Helper()
	c, err := driver.New(0)
	if err != nil {
		tb.Skipf("no GPU: %v", err)
	}
	m := &machine{tb: tb, c: c, rng: rand.New(rand.NewPCG(1, 2))}
	m.must(c.Enter())
	tb.Cleanup(func() { c.Leave(); _ = c.Close() })
	if m.set, err = New(c); err != nil {
		tb.Skip(err)
	}
	tb.Cleanup(func() { _ = m.set.Close() })
	m.stream, err = c.NewStream()
	m.must(err)
	m.args, err = driver.NewArgs()
	m.must(err)
	return m
}

// in returns the machine for a subtest, which is a goroutine of its own.
func (m *machine) in(t *testing.T) *machine {
	t.Helper()
	n := *m
	n.tb = t
	n.must(n.c.Enter())
	t.Cleanup(n.c.Leave)
	return &n
}

func (m *machine) must(err error) {
	m.tb.Helper()
	if err != nil {
		m.tb.Fatal(err)
	}
}

func (m *machine) upload(b []byte) driver.Ptr {
	m.tb.Helper()
	p, err := m.c.Alloc(len(b))
	m.must(err)
	m.tb.Cleanup(func() { _ = m.c.Free(p) })
	m.must(m.c.Upload(p, b))
	return p
}

func (m *machine) download(p driver.Ptr, n int) []byte {
	m.tb.Helper()
	b := make([]byte, n)
	m.must(m.c.Sync())
	m.must(m.c.Download(b, p))
	return b
}

// random returns n values of bf16 of about the given size; many repeat after a million.
func (m *machine) random(n int, scale float32) []byte {
	const period = 1000003
	b := make([]byte, 2*n)
	for i := range min(n, period) {
		v := (m.rng.Float32()*2 - 1) * scale
		binary.LittleEndian.PutUint16(b[2*i:], bf16(v))
	}
	for i := 2 * period; i < len(b); {
		i += copy(b[i:], b[:i])
	}
	return b
}

func bf16(v float32) uint16 {
	u := math.Float32bits(v)
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func value(b []byte, i int) float64 {
	return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func bytesOf[T any](v []T) []byte {
	var one T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(one)))
}

// example is a product with its operands on both sides.
type example struct {
	op   Op
	x, w []byte
	bias []float32
	out  []byte // as it was before
	rows int

	xScale, wScale []float32 // of e4m3
}

func (m *machine) example(form Form, rows, most, n, k int, bias bool) *example {
	e := &example{rows: rows, x: m.random(most*k, 1), w: m.random(n*k, float32(math.Sqrt(3/float64(k))))}
	e.op = Op{Form: form, X: m.upload(e.x), W: m.upload(e.w), Rows: m.upload(bytesOf([]int32{int32(rows)})), Most: most,
		N: n, K: k}
	if bias {
		e.bias = make([]float32, n)
		for i := range e.bias {
			e.bias[i] = m.rng.Float32() - 0.5
		}
		e.op.Bias = m.upload(bytesOf(e.bias))
	}
	e.op.Stride = (e.op.columns()+7)/8*8 + 8
	e.out = m.random(2*(most+1)*e.op.Stride, 1) // a row more than there is, and old values
	e.op.Out = m.upload(e.out)
	return e
}

// inFP8 is example with operands of e4m3, whose scales make them as large as those of bf16.
func (m *machine) inFP8(form Form, rows, most, n, k int, bias bool) *example {
	e := m.example(form, rows, most, n, k, bias)
	codes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = fp8.Encode((m.rng.Float32()*2 - 1) * fp8.Largest)
		}
		return b
	}
	scales := func(n int, largest float64) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = (0.5 + m.rng.Float32()/2) * float32(largest) / fp8.Largest
		}
		return s
	}
	e.x, e.w = codes(most*k), codes(n*k)
	e.xScale, e.wScale = scales(most, 1), scales(n, math.Sqrt(3/float64(k)))
	e.op.FP8, e.op.X, e.op.W = true, m.upload(e.x), m.upload(e.w)
	e.op.RowScale, e.op.ColScale = m.upload(bytesOf(e.xScale)), m.upload(bytesOf(e.wScale))
	return e
}

// want returns value (r, c) of the result in float64.
func (e *example) want(r, c int) float64 {
	dot := func(n int) float64 {
		sum := 0.0
		for i := range e.op.K {
			if e.op.FP8 {
				sum += float64(fp8.Decode(e.x[r*e.op.K+i])) * float64(fp8.Decode(e.w[n*e.op.K+i]))
			} else {
				sum += value(e.x, r*e.op.K+i) * value(e.w, n*e.op.K+i)
			}
		}
		if e.op.FP8 {
			sum *= float64(e.xScale[r]) * float64(e.wScale[n])
		}
		if e.bias != nil {
			sum += float64(e.bias[n])
		}
		return sum
	}
	switch e.op.Form {
	case GateUp:
		g := dot(2 * c)
		return g / (1 + math.Exp(-g)) * dot(2*c+1)
	case Add:
		return dot(c) + float64(floats(e.out)[r*e.op.Stride+c])
	}
	return dot(c)
}

// check compares the rows given with want, and everything outside the result with what it was.
func (e *example) check(m *machine, rows []int) error {
	size := 2
	if e.op.Form == Add {
		size = 4
	}
	got := m.download(e.op.Out, len(e.out))
	cols, stride := e.op.columns(), e.op.Stride
	wrong, total, errSum, sum := 0, 0, 0.0, 0.0
	relative, absolute, whole := 0.004, 0.002, 1e-5
	if e.op.FP8 { // whose sums have fewer bits than float32
		relative, absolute, whole = 0.01, 0.02, 1e-4
	}
	var first string
	for _, r := range rows {
		for c := range cols {
			var g float64
			if e.op.Form == Add {
				g = float64(floats(got)[r*stride+c])
			} else {
				g = value(got, r*stride+c)
			}
			w := e.want(r, c)
			d := math.Abs(g - w)
			total++
			errSum += d * d
			sum += w * w
			if !(d <= relative*math.Abs(w)+absolute) {
				if wrong < 6 {
					first += fmt.Sprintf(" (%d,%d) is %g, want %g;", r, c, g, w)
				}
				wrong++
			}
		}
	}
	for r := range len(e.out) / size / stride {
		from := cols
		if r >= e.rows {
			from = 0
		}
		a, b := got[(r*stride+from)*size:(r+1)*stride*size], e.out[(r*stride+from)*size:(r+1)*stride*size]
		if !bytes.Equal(a, b) {
			return fmt.Errorf("row %d was written from column %d on", r, from)
		}
	}
	if wrong > 0 || !(errSum <= whole*sum) {
		return fmt.Errorf("%d of %d values are wrong, error² %g of %g:%s", wrong, total, errSum, sum, first)
	}
	return nil
}

var testTiles = []Tile{
	{Rows: 128, Cols: 256, Stages: 4}, {Rows: 128, Cols: 256, Stages: 4, Share: ShareW},
	{Rows: 128, Cols: 136, Stages: 6, Share: ShareX}, {Rows: 256, Cols: 136, Stages: 4, Share: ShareX},
	{Rows: 256, Cols: 192, Stages: 4, Share: ShareX}, {Rows: 256, Cols: 184, Stages: 4, Share: ShareX},
	{Rows: 256, Cols: 128, Stages: 4, Share: ShareX}, {Rows: 256, Cols: 112, Stages: 4, Share: ShareW},
	{Rows: 256, Cols: 72, Stages: 3},
}

// TestProducts holds products of all forms and kinds of tiles against float64, with row counts and
// columns that tiles do not divide.
func TestProducts(t *testing.T) {
	m := gpu(t)
	for _, form := range []Form{GateUp, Plain, Add} {
		for i, tile := range testTiles {
			rows, k := []int{300, 77, 513}[i%3], []int{128, 320, 1536}[i%3]
			name := fmt.Sprintf("%v/%v/%d", form, tile, rows)
			t.Run(name, func(t *testing.T) {
				m.in(t).checkProduct(form, tile, rows, 1104, k, i%2 == 0)
			})
		}
	}
}

// TestScaledProducts does the same for operands of e4m3, within 1 % of a row's norm.
func TestScaledProducts(t *testing.T) {
	m := gpu(t)
	turns := []Tile{{Rows: 128, Cols: 72, Stages: 3, Turns: true},
		{Rows: 128, Cols: 192, Stages: 5, Share: ShareW, Turns: true}}
	for _, form := range []Form{GateUp, Plain, Add} {
		for i, tile := range slices.Concat(testTiles, turns) {
			rows, n, k := []int{300, 77, 513}[i%3], 1104, []int{128, 384, 1536}[i%3]
			if tile.Turns {
				n = 12000 // so that blocks have several tiles
			}
			t.Run(fmt.Sprintf("%v/%v/%d", form, tile, rows), func(t *testing.T) {
				m := m.in(t)
				e := m.inFP8(form, rows, 640, n, k, i%2 == 0)
				c, err := m.set.Prepare(e.op, tile)
				m.must(err)
				m.must(c.Launch(m.stream, m.args, false))
				res, _ := c.Resources()
				t.Logf("%d registers, %d bytes of local memory", res.Registers, res.Local)
				if err := e.check(m, []int{0, 8, 63, 64, rows - 1, rows / 2}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestTurns does the same for tiles that consumers take in turns, so many that blocks have several.
func TestTurns(t *testing.T) {
	m := gpu(t)
	for _, form := range []Form{GateUp, Plain, Add} {
		for i, tile := range []Tile{{Rows: 128, Cols: 96, Stages: 6, Share: ShareW, Turns: true},
			{Rows: 128, Cols: 72, Stages: 3, Turns: true},
			{Rows: 128, Cols: 136, Stages: 4, Share: ShareX, Turns: true},
			{Rows: 128, Cols: 192, Stages: 5, Share: ShareW, Turns: true}} {
			rows, k := []int{640, 300, 513, 639}[i], []int{64, 128, 320, 1536}[i]
			t.Run(fmt.Sprintf("%v/%v/%d", form, tile, rows), func(t *testing.T) {
				m.in(t).checkProduct(form, tile, rows, 12000, k, i%2 == 0)
			})
		}
	}
}

func (m *machine) checkProduct(form Form, tile Tile, rows, n, k int, bias bool) {
	if form != GateUp {
		n -= 8 // no multiple of 16
	}
	e := m.example(form, rows, 640, n, k, bias)
	c, err := m.set.Prepare(e.op, tile)
	m.must(err)
	m.must(c.Launch(m.stream, m.args, false))
	res, _ := c.Resources()
	m.tb.Logf("%d registers, %d bytes of local memory", res.Registers, res.Local)
	if err := e.check(m, []int{0, 1, 8, 63, 64, 70, rows - 1, rows / 2, rows * 9 / 10}); err != nil {
		m.tb.Error(err)
	}
}

// TestOverlappedProducts chains two products whose second one starts before the first has finished, and
// must read the first's result all the same.
func TestOverlappedProducts(t *testing.T) {
	m := gpu(t)
	const rows = 640
	first := m.example(GateUp, rows, rows, 1024, 256, false)
	first.op.Stride = first.op.columns()
	second := m.example(Add, rows, rows, 256, first.op.columns(), false)
	second.op.X = first.op.Out
	tile := Tile{Rows: 128, Cols: 128, Stages: 6, Share: ShareX}
	a, err := m.set.Prepare(first.op, tile)
	m.must(err)
	b, err := m.set.Prepare(second.op, tile)
	m.must(err)
	for try := range 10 {
		m.must(m.stream.Fill32(first.op.Out, 0x7fc07fc0, rows*first.op.Stride/2)) // NaN
		m.must(m.stream.Sync())
		m.must(m.c.Upload(second.op.Out, second.out))
		m.must(a.Launch(m.stream, m.args, false))
		m.must(b.Launch(m.stream, m.args, true))
		m.must(m.stream.Sync())
		second.x = m.download(first.op.Out, 2*rows*first.op.Stride)
		if err := second.check(m, []int{0, 100, rows - 1}); err != nil {
			t.Fatalf("try %d: %v", try, err)
		}
	}
}

// TestGateUpOfRealShapes checks a few rows of the shapes that models have, more tiles than processors.
func TestGateUpOfRealShapes(t *testing.T) {
	m := gpu(t)
	for _, s := range []struct{ rows, n, k int }{{256, 17920, 1536}, {1000, 12288, 2048}, {620, 24576, 256},
		{850, 24576, 256}} {
		e := m.example(GateUp, s.rows, s.rows, s.n, s.k, false)
		for _, tile := range Tiles(m.c.Info(), s.rows, s.n, s.k) {
			m.must(m.c.Upload(e.op.Out, e.out))
			c, err := m.set.Prepare(e.op, tile)
			m.must(err)
			m.must(c.Launch(m.stream, m.args, false))
			rows := []int{s.rows - 1}
			if s.k < 1000 {
				rows = append(rows, 0, 127, 130, 300, 511, 512, 600)
			}
			if err := e.check(m, rows); err != nil {
				t.Errorf("%v: %v", tile, err)
			}
		}
	}
}

func TestOpIsChecked(t *testing.T) {
	good := Op{X: 16, W: 16, Out: 16, Most: 1, N: 16, K: 128, Stride: 8}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for i, change := range []func(*Op){func(o *Op) { o.N = 8 }, func(o *Op) { o.N = 12 }, func(o *Op) { o.K = 100 },
		func(o *Op) { o.K = 0 }, func(o *Op) { o.Most = 0 },
		func(o *Op) { o.Stride = 4 }, func(o *Op) { o.X = 8 }, func(o *Op) { o.Form = Plain; o.N = 16 },
		func(o *Op) { o.FP8 = true }, func(o *Op) { o.FP8, o.K, o.RowScale, o.ColScale = true, 192, 16, 16 }} {
		bad := good
		change(&bad)
		if bad.validate() == nil {
			t.Errorf("change %d was accepted: %+v", i, bad)
		}
	}
}
