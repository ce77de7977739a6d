package cuda

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/drivertest"
)

// takes reports whether a call takes memory of the GPU or pinned memory.
func takes(call string) bool {
	return strings.HasPrefix(call, "cuMemAlloc") || strings.HasPrefix(call, "cuMemHostAlloc") ||
		strings.HasPrefix(call, "cuGraphInstantiate")
}

// short makes call n that takes memory fail, and those behind it until there is memory again.
func short(g *drivertest.GPU, n int, forGood bool) (failed *string) {
	calls := 0
	failed = new(string)
	g.Fail = func(call string) int32 {
		if !takes(call) {
			return 0
		}
		calls++
		if calls-1 == n || forGood && calls-1 > n {
			*failed = call
			return 2
		}
		return 0
	}
	return failed
}

// stuTask runs two layers of HSTU, with a part from a table and one from the host.
func stuTask(t *testing.T, d *device) (shape compute.Shape, run func(r compute.Runner) error, free func()) {
	s := compute.Shape{Layers: 2, Hidden: 128, Heads: 2, KVHeads: 2, HeadDim: 64, Eps: 1e-6, KV: compute.BF16,
		Pointwise: &compute.Pointwise{Alpha: 0.1, Scale: 0.01}}
	w := stuWeights(t, d, &s)
	table, err := d.Table(noise(50, s.Hidden, 1))
	if err != nil {
		t.Fatal(err)
	}
	k := newKept(t, d.Memory(), &s, 3, 4)
	return s, func(r compute.Runner) error {
		stu := r.(compute.STU)
		if err := stu.Begin(&k.batch); err != nil {
			return err
		}
		rows := []int32{1, 2, 0, 1}
		stu.Sum([]compute.SumPart{{Table: table, Rows: rows, Scale: 1},
			{Vectors: make([]float32, 3*s.Hidden), Rows: rows, Scale: 1}})
		for l := range w {
			stu.UVQK(l, &w[l])
			stu.Attend(l)
			if l == len(w)-1 {
				stu.Keep([]int32{3})
			}
			stu.Mix(&w[l])
		}
		return stu.Hidden(nil, []int32{3}, make([]float32, s.Hidden))
	}, k.free
}

// Whatever a task takes memory for, at its first run or at a later one, when there is none left it fails with
// compute.ErrNoMemory, or does without, and leaves nothing under way. Once there is memory again, the runner goes on:
// as it is, and after Trim, which leaves it with less memory than before.
func TestMemoryRunsShort(t *testing.T) {
	for _, forGood := range []bool{false, true} {
		for _, task := range append(tasks(), task{name: "layers of HSTU"}) {
			t.Run(fmt.Sprintf("%s/for good=%v", task.name, forGood), func(t *testing.T) {
				g, d := simulate(t, Options{})
				x := newTried(t, d)
				defer x.free()
				shape, run := x.m.shape, func() error { return task.run(x) }
				if task.run == nil {
					_ = x.r.Close()
					of, stu, free := stuTask(t, d)
					defer free()
					shape, run = of, func() error { return stu(x.r) }
				} else {
					_ = x.r.Close()
				}
				failures := 0
				for turn := 0; ; turn++ {
					var err error
					if x.r, err = d.Open(shape, 16); err != nil {
						t.Fatal(err)
					}
					failed := short(g, turn, forGood)
					err = errors.Join(run(), run(), run()) // by then graphs are captured
					g.Fail = nil
					if err != nil && (!errors.Is(err, compute.ErrNoMemory) || *failed == "") {
						t.Fatalf("call %d, %s, found no memory: %v", turn, *failed, err)
					}
					if pending := g.Pending(); len(pending) > 0 {
						t.Fatalf("call %d, %s, found no memory: %v are still under way", turn, *failed, pending)
					}
					if *failed != "" {
						failures++
					}
					if err := run(); err != nil {
						t.Fatalf("after call %d, %s, found no memory: %v", turn, *failed, err)
					}
					held := len(runnersHeld(g))
					x.r.(compute.Trimmer).Trim()
					if now := len(runnersHeld(g)); now >= held {
						t.Fatalf("after Trim %d things are held, before %d", now, held)
					}
					if err := x.r.Hidden(nil, []int32{0}, make([]float32, shape.Hidden)); err == nil {
						t.Fatal("a result without a batch")
					}
					if err := run(); err != nil {
						t.Fatalf("after Trim: %v", err)
					}
					if err := x.r.Close(); err != nil || len(g.Errors) > 0 {
						t.Fatalf("after call %d, %s, found no memory: %v, %v", turn, *failed, err, g.Errors)
					}
					if *failed == "" {
						break
					}
				}
				if failures == 0 {
					t.Error("the task takes no memory")
				}
			})
		}
	}
}

func runnersHeld(g *drivertest.GPU) (out []string) {
	for _, what := range g.Held() {
		if !strings.Contains(what, "module") && !strings.Contains(what, "matrix") {
			out = append(out, what)
		}
	}
	return out
}
