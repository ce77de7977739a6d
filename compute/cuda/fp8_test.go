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
