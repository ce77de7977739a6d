package gemm

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"
)

// Every cut covers the product with blocks and groups that fit a worker's memory, and workers that
// claim at the same time take each task once.
func TestCutAndClaim(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 17))
	for _, level := range levels() {
		for _, dt := range allFormats {
			k := kernelsFor(level, dt)
			for range 200 {
				m, pairs, steps, threads := 1+r.IntN(1500), 1+r.IntN(40), 1+r.IntN(150), 1+r.IntN(4)
				p := product{k: k, a: &Rows{m: m}, w: &Weights{panels: 2 * pairs, steps: steps}}
				p.cut = p.cutFor(threads)
				c := p.cut
				big := c.blockRows > maxBlockRows || c.inner > c.outer || c.outer < steps && c.group > sumPairs
				if k.pack != nil {
					big = big || c.blockRows > maxPackedRows || c.outer > maxPackedSteps
				}
				if big {
					t.Fatalf("%v %v: %d rows, %d pairs, %d steps on %d threads: cut %+v does not fit", level, dt, m, pairs, steps,
						threads, c)
				}
				if (c.blocks-1)*c.blockRows >= m || c.blocks*c.blockRows < m || (c.groups-1)*c.group >= pairs ||
					c.groups*c.group < pairs {
					t.Fatalf("%v %v: %d rows, %d pairs, %d steps on %d threads: cut %+v does not cover", level, dt, m, pairs, steps,
						threads, c)
				}
				claimAll(t, &p)
			}
		}
	}
}

func claimAll(t *testing.T, p *product) {
	p.taken = make([]atomic.Int32, p.blocks)
	times := make([]atomic.Int32, p.blocks*p.groups)
	var wg sync.WaitGroup
	for w := range p.threads {
		wg.Go(func() {
			block, group := p.claim(w * p.blocks / p.threads)
			for ; group >= 0; block, group = p.claim(block) {
				times[block*p.groups+group].Add(1)
			}
		})
	}
	wg.Wait()
	for i := range times {
		if n := times[i].Load(); n != 1 {
			t.Fatalf("task %d of cut %+v was claimed %d times", i, p.cut, n)
		}
	}
}

func TestPackedRows(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 19))
	for _, level := range levels() {
		for _, dt := range formats {
			k := kernelsFor(level, dt)
			if k.pack == nil {
				continue
			}
			a := NewRows(level, dt)
			t.Cleanup(a.Free)
			m := random(r, 20, (maxPackedSteps+9)*stepDepth, 1)
			if err := a.Reset(m.rows, m.cols); err != nil {
				t.Fatal(err)
			}
			for i := range m.rows {
				a.Set(i, 0, m.row(i))
			}
			memory := make([]float32, packedBytes/4)
			for _, rows := range []int{1, 13, 14, 15} {
				p := &packed{base: unsafe.Pointer(&memory[0])}
				for _, step := range []int{0, 1, 7, maxPackedSteps - 1, maxPackedSteps, a.steps - 1} {
					p.hold(k.pack, a, 3, rows, step, 5)
					checkPacked(t, p, m, step)
				}
			}
		}
	}
}

// checkPacked compares a step of all rows with m.
func checkPacked(t *testing.T, p *packed, m matrix, step int) {
	panels := packedPanels(p.rows)
	for q := range panels {
		start, end := packedRow(p.rows, panels, q), packedRow(p.rows, panels, q+1)
		if end-start < 1 || end-start > packedHeight {
			t.Fatalf("%d rows: panel %d has %d", p.rows, q, end-start)
		}
		values := unsafe.Slice((*[16]float32)(p.at(q, step)), stepDepth)
		for i := start; i < end; i++ {
			for j := range values {
				if want := m.row(p.row + i)[step*stepDepth+j]; values[j][i-start] != want {
					t.Fatalf("%d rows: row %d, step %d, value %d: %v, want %v", p.rows, i, step, j, values[j][i-start], want)
				}
			}
		}
	}
}
