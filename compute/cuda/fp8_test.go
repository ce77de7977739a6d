package cuda

import (
	"fmt"
	"math"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/internal/fp8"
)

// codes are e4m3 of about normal values, whose largest magnitudes are near the format's.
func codes(n int, seed uint32) []byte {
	out := make([]byte, n)
	for i := range out {
		sum := float32(0)
		for range 4 {
			seed = seed*1664525 + 1013904223
			sum += float32(seed>>8)/(1<<23) - 1
		}
		out[i] = fp8.Encode(sum * 97)
	}
	return out
}

// openFP8 is open on a GPU that multiplies e4m3.
func openFP8(t *testing.T, opt Options) *device {
	t.Helper()
	d := open(t, opt).(*device)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if !d.Quantises(compute.FP8) {
		t.Skipf("%s does not multiply FP8", d.Name())
	}
	return d
}

// TestFP8Sums holds products of e4m3 against float64 on the same numbers, by the algorithm that is the fastest for the
// shape: by the norm of a row, they are off by at most 1 % with fast sums and by 0.2 % without.
func TestFP8Sums(t *testing.T) {
	if ownProducts {
		t.Skip("another product stands in")
	}
	d := openFP8(t, Options{})
	for _, p := range []driver.Product{
		{M: 128, N: 2048, K: 1536}, {M: 1024, N: 17920, K: 1536}, {M: 1024, N: 1536, K: 8960}, {M: 256, N: 2048, K: 6144},
		{M: 2048, N: 4096, K: 4096}, {M: 2048, N: 4096, K: 12288}, {M: 8, N: 32, K: 48},
	} {
		for _, fast := range []bool{true, false} {
			p.In, p.Out, p.Fast = driver.NumberE4M3, driver.NumberF32, fast
			limit := 2e-3
			if fast {
				limit = 1e-2
			}
			t.Run(fmt.Sprintf("%dx%dx%d fast=%v", p.M, p.N, p.K, fast), func(t *testing.T) {
				worst, us := sumsOff(t, d, p)
				t.Logf("off by %.2g of a row's norm, limit %v; %.1f µs", worst, limit, us)
				if !(worst <= limit) {
					t.Errorf("off by %.3g of a row's norm, limit %v", worst, limit)
				}
			})
		}
	}
}

// TestFusedFP8: for shapes of models, the fused product of gate and up and the kernel that rounds its result agree with
// the library's product and the SwiGLU that rounds, within 3 % of the result's norm. They round to bf16 at different
// places, which moves some values by a step of e4m3: a row with one large value may be off by 6 %. TestScaledProducts
// compares with float64. It logs how long each takes.
func TestFusedFP8(t *testing.T) {
	if ownProducts {
		t.Skip("another product stands in")
	}
	d := openFP8(t, Options{})
	if !d.fuses {
		t.Skip("this GPU has no fused products")
	}
	for _, s := range []struct {
		model     string
		inter, in int
		rows      []int
	}{{"qwen2-1.5b", 8960, 1536, []int{128, 256, 512, 1024, 2048, 4096}}, {"qwen3-8b", 12288, 4096, []int{2048}},
		{"qwen3-0.6b", 3072, 1024, []int{256, 1024, 2048}}, {"qwen3-1.7b", 6144, 2048, []int{256, 1024}}} {
		for _, rows := range s.rows {
			t.Run(fmt.Sprintf("%s/%d", s.model, rows), func(t *testing.T) {
				defer d.c.Leave()
				if err := d.c.Enter(); err != nil {
					t.Fatal(err)
				}
				fusedAgrees(t, d, driver.Product{M: rows, N: 2 * s.inter, K: s.in, In: driver.NumberE4M3,
					Out: driver.NumberBF16})
			})
		}
	}
}

func fusedAgrees(t *testing.T, d *device, p driver.Product) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	best, err := d.fastest(p)
	check(err)
	r, err := newRace(d, p)
	check(err)
	defer r.close()
	r.pl.Use(best)
	e, err := r.newEnds(true)
	check(err)
	defer e.close()
	columns := p.N / 2
	result := func(launch func(w driver.Ptr) error, at driver.Ptr) (codes []byte, scales []byte) {
		t.Helper()
		codes, scales = make([]byte, p.M*columns), make([]byte, 4*p.M)
		check(launch(r.w))
		check(r.stream.Sync())
		check(d.c.Download(codes, at))
		check(d.c.Download(scales, e.outScale))
		return codes, scales
	}
	want, wantScales := result(e.two, e.gated)
	us, err := r.timeOf(e.two)
	check(err)
	op := e.op()
	for _, tile := range op.Tiles(d.c.Info()) {
		one, err := e.one(tile)
		check(err)
		got, gotScales := result(one, r.out)
		off, all := 0.0, 0.0
		for row := range p.M {
			a, b := number(compute.F32, wantScales[4*row:]), number(compute.F32, gotScales[4*row:])
			for i := row * columns; i < (row+1)*columns; i++ {
				w := float64(fp8.Decode(want[i])) * float64(a)
				diff := float64(fp8.Decode(got[i]))*float64(b) - w
				off, all = off+diff*diff, all+w*w
			}
		}
		norm := math.Sqrt(off / all)
		took, err := r.timeOf(one)
		check(err)
		t.Logf("%v: %.1f µs, two kernels %.1f µs, ratio %.2f; off by %.2g of the norm", tile, took, us, us/took, norm)
		if !(norm <= 0.03) {
			t.Errorf("%v: off by %.3g of the norm, limit 0.03", tile, norm)
		}
	}
}

// sumsOff returns how far some rows of a product are off, and the microseconds that it takes.
func sumsOff(t *testing.T, d *device, p driver.Product) (worst, us float64) {
	t.Helper()
	defer d.c.Leave()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(d.c.Enter())
	x, w := codes(p.M*p.K, 1), codes(p.N*p.K, 2)
	upload := func(data []byte) driver.Ptr {
		q, err := d.c.Alloc(len(data))
		check(err)
		check(d.c.Upload(q, data))
		return q
	}
	dx, dw := upload(x), upload(w)
	out := make([]byte, 4*p.M*p.N)
	dout := upload(out)
	space, err := d.c.Alloc(workspace)
	check(err)
	defer func() {
		for _, q := range []driver.Ptr{dx, dw, dout, space} {
			check(d.c.Free(q))
		}
	}()
	r, err := newRace(d, p)
	check(err)
	defer r.close()
	best, err := r.run()
	check(err)
	r.pl.Use(driver.Algorithm(best.Algorithm))
	check(r.pl.Run(r.stream, dout, dx, dw, space, workspace))
	check(r.stream.Sync())
	check(d.c.Download(out, dout))
	columns := min(p.N, 256)
	for _, row := range []int{0, p.M / 2, p.M - 1} {
		off, all := 0.0, 0.0
		for i := range columns {
			col := i * (p.N / columns)
			want := 0.0
			for k := range p.K {
				want += float64(fp8.Decode(x[row*p.K+k])) * float64(fp8.Decode(w[col*p.K+k]))
			}
			diff := float64(number(compute.F32, out[4*(row*p.N+col):])) - want
			off, all = off+diff*diff, all+want*want
		}
		worst = max(worst, math.Sqrt(off/all))
	}
	return worst, best.Microseconds
}
