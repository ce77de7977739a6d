package cuda

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/drivertest"
)

// task is something a runner does, of which every call of the driver is made to fail in turn.
type task struct {
	name string
	run  func(x *tried) error
}

// tried is what tasks use.
type tried struct {
	d     *device
	r     compute.Runner
	m     *small
	near  *kept
	far   *kept // in the host's memory
	tree  compute.Tree
	heads []compute.Linear
	parts []compute.Part
}

func tasks() []task {
	at := func(n int) func(int) bool { return func(l int) bool { return l == n } }
	never := func(int) bool { return false }
	return []task{
		{"pass", func(x *tried) error { return x.m.run(x.r, &x.near.batch, launchedInPieces{"", never, never}) }},
		{"pass from the host's memory", func(x *tried) error {
			return x.m.run(x.r, &x.far.batch, launchedInPieces{"", never, never})
		}},
		{"started", func(x *tried) error { return x.m.run(x.r, &x.far.batch, launchedInPieces{"", never, at(1)}) }},
		{"received", func(x *tried) error {
			return x.m.run(x.r, &x.far.batch, launchedInPieces{"", func(int) bool { return true }, never})
		}},
		{"blend", (*tried).blend},
		{"search", (*tried).search},
		{"project", (*tried).project},
	}
}

func newTried(t *testing.T, d *device) *tried {
	t.Helper()
	m := newSmall(t, d, 4)
	x := &tried{d: d, m: m}
	x.near, x.far = newKept(t, d.Memory(), &m.shape, 3, 4), newKept(t, d.Memory().Host(), &m.shape, fewChunks+1, 4)
	levels := []compute.TreeLevel{
		{Size: 16, Starts: []uint32{0, 4}, Codes: []uint32{0, 1, 2, 3}, Tokens: make([]int32, 16)},
		{Size: 16, Starts: []uint32{0, 1, 2, 3, 4}, Codes: []uint32{0, 0, 0, 0}, Tokens: make([]int32, 16)},
		{Size: 16, Starts: []uint32{0, 1, 2, 3, 4}, Codes: []uint32{0, 0, 0, 0}, Tokens: make([]int32, 16)},
	}
	var err error
	if x.tree, err = d.Tree(levels, []uint32{0, 1, 3, 5, 6}); err != nil {
		t.Fatal(err)
	}
	x.open(t)
	x.heads = []compute.Linear{m.head, m.head, m.head}
	last := len(x.far.batch.Segments) - 1
	x.parts = []compute.Part{{Segment: last, At: 1, Tokens: 2, From: x.far.batch.Segments[0].Chunks[0], Turn: 3}}
	return x
}

// open opens a runner. The caller MUST close it.
func (x *tried) open(t *testing.T) {
	t.Helper()
	var err error
	if x.r, err = x.d.Open(x.m.shape, 16); err != nil {
		t.Fatal(err)
	}
}

func (x *tried) free() {
	x.near.free()
	x.far.free()
}

func (x *tried) blend() error {
	b, r := &x.far.batch, x.r.(compute.Blender)
	if err := r.Begin(b); err != nil {
		return err
	}
	r.Embed(x.m.embed)
	for l := range x.m.shape.Layers {
		r.QKV(l, &x.m.attention)
		r.Attend(l)
		if l == 1 {
			r.(compute.Starter).Start()
			r.Place(2, x.parts)
			if err := r.Received(make([]float32, len(b.Tokens))); err != nil {
				return err
			}
			r.Keep([]int32{0, 3})
		}
		r.Output(&x.m.attention)
		r.FFN(&x.m.ffn)
	}
	x.m.out = make([]float32, x.m.shape.Hidden)
	return r.Hidden(nil, []int32{3}, x.m.out)
}

func (x *tried) search() error {
	b, r := &x.near.batch, x.r.(compute.Searcher)
	if err := r.Begin(b); err != nil {
		return err
	}
	spec := compute.Search{Tree: x.tree, Widths: []int{2, 3, 3},
		Prompts: []compute.Prompt{{Row: 3, Position: 4, Sees: []int32{0, 3},
			Limits: compute.Limits{TopK: 1, Dead: [][]uint32{nil, {2}, nil}, Alive: []uint64{0b111111}}}}}
	if err := r.Search(&spec); err != nil {
		return err
	}
	for level, head := range x.heads {
		if level > 0 {
			r.Round()
		}
		r.Embed(x.m.embed)
		for l := range x.m.shape.Layers {
			r.QKV(l, &x.m.attention)
			r.Attend(l)
			if level == 0 && l == x.m.shape.Layers-1 {
				r.Keep([]int32{3})
			}
			r.Output(&x.m.attention)
			r.FFN(&x.m.ffn)
		}
		r.Select(x.m.norm, head)
	}
	found := make([][]compute.Leaf, 1)
	err := r.Found(found)
	x.m.out = nil
	for _, l := range found[0] {
		x.m.out = append(x.m.out, float32(l.Node), float32(l.Score))
	}
	return err
}

func (x *tried) project() error {
	if err := x.r.Begin(&x.near.batch); err != nil {
		return err
	}
	x.r.Embed(x.m.embed)
	x.r.QKV(0, &x.m.attention)
	x.r.Attend(0)
	x.r.Output(&x.m.attention)
	x.m.out = make([]float32, 2*x.m.head.Out())
	return x.r.Project(x.m.norm, x.m.head, []int32{0, 2}, x.m.out)
}

// failNth makes call n from now on fail, and returns how many calls were made and which one failed. What puts more work
// into a stream behind that is noted in after.
func failNth(g *drivertest.GPU, n int, code int32) (calls *int, failed *string, after *[]string) {
	calls, failed, after = new(int), new(string), new([]string)
	g.Fail = func(call string) int32 {
		if strings.Contains(call, "Destroy") || strings.Contains(call, "Free") || strings.Contains(call, "Unload") {
			return 0 // whose failures leave nothing to be done
		}
		*calls++
		if *calls-1 == n {
			*failed = call
			return code
		}
		if *failed != "" && slices.Contains([]string{"cuLaunchKernelEx", "cuMemcpyAsync", "cuMemsetD8Async", "cuGraphLaunch",
			"cublasLtMatmul"}, call) {
			*after = append(*after, call)
		}
		return 0
	}
	return calls, failed, after
}

// TestFailedCallLeavesNothingUnderWay: whatever call of the driver fails, at a task's first run or at a later one, the
// task returns an error or succeeds without what failed. With an error, no work follows the call that failed, and the
// GPU has nothing left to do when it is returned: the caller frees the KV. The next task succeeds.
func TestFailedCallLeavesNothingUnderWay(t *testing.T) {
	for i, name := range []string{"graphs=false", "graphs=true", "fp8"} {
		for _, task := range tasks() {
			t.Run(fmt.Sprintf("%s/%s", task.name, name), func(t *testing.T) {
				g, d := simulate(t, Options{NoGraphs: i == 0, OwnProducts: name == "fp8"})
				x := newTried(t, d)
				if name == "fp8" {
					x.m = x.m.inFP8(t, d, true, true)
				}
				defer x.free()
				defer x.r.Close()
				for _, code := range []int32{1, 2} { // invalid value, out of memory
					for turn := 0; ; turn++ {
						calls, failed, after := failNth(g, turn, code)
						err := task.run(x)
						g.Fail = nil
						if pending := g.Pending(); len(pending) > 0 {
							t.Fatalf("call %d, %s, failed with %d (%v): %v are still under way", turn, *failed, code, err, pending)
						}
						if err != nil && len(*after) > 0 {
							t.Fatalf("call %d, %s, failed with %d (%v): %v followed", turn, *failed, code, err, *after)
						}
						if *failed == "" {
							if err != nil {
								t.Fatalf("nothing failed after %d calls: %v", *calls, err)
							}
							break
						}
						if err := task.run(x); err != nil {
							t.Fatalf("after call %d, %s, failed with %d: %v", turn, *failed, code, err)
						}
						if len(g.Errors) > 0 {
							t.Fatalf("call %d, %s, failed with %d: %v", turn, *failed, code, g.Errors)
						}
					}
				}
			})
		}
	}
}

// TestFailedCallsOnTheGPU: on a GPU, whatever call of the driver fails, the task that follows yields what it does
// without failures.
func TestFailedCallsOnTheGPU(t *testing.T) {
	for _, graphs := range []bool{false, true} {
		for _, task := range tasks() {
			t.Run(fmt.Sprintf("%s/graphs=%v", task.name, graphs), func(t *testing.T) {
				d := open(t, Options{NoGraphs: !graphs, FixedSplit: true})
				defer d.Close()
				x := newTried(t, d.(*device))
				defer x.free()
				defer func() { _ = x.r.Close() }()
				for range 3 { // so that graphs are captured
					if err := task.run(x); err != nil {
						t.Fatal(err)
					}
				}
				want := x.m.out
				for turn := 0; ; turn++ {
					failed := ""
					undo := driver.SetHook(failsAt(turn, &failed), false)
					err := task.run(x)
					undo()
					if failed == "" {
						if err != nil {
							t.Fatalf("nothing failed: %v", err)
						}
						t.Logf("%d calls failed in turn", turn)
						break
					}
					if err := task.run(x); err != nil {
						t.Fatalf("after call %d, %s, failed: %v", turn, failed, err)
					}
					if !slices.Equal(x.m.out, want) {
						t.Fatalf("after call %d, %s, failed: %v, want %v", turn, failed, x.m.out, want)
					}
				}
			})
		}
	}
}

// failsAt makes call n fail, but for those that give something back. What ends a capture is called all the same.
func failsAt(n int, failed *string) driver.Hook {
	calls := 0
	return func(call string, _ []uintptr, real func() int32) int32 {
		if strings.Contains(call, "Destroy") || strings.Contains(call, "Free") || strings.Contains(call, "Unload") {
			return real()
		}
		calls++
		if calls-1 != n {
			return real()
		}
		if *failed = call; call == "cuStreamEndCapture" {
			real()
		}
		return 1
	}
}

// TestFirstRunsFail: a runner whose first task fails at any call gives all memory back when it is closed.
func TestFirstRunsFail(t *testing.T) {
	tasks := tasks()
	for i, task := range append(tasks, tasks...) {
		t.Run(task.name, func(t *testing.T) {
			eight := i >= len(tasks)
			g, d := simulate(t, Options{OwnProducts: eight})
			x := newTried(t, d)
			if eight {
				x.m = x.m.inFP8(t, d, true, true)
			}
			defer x.free()
			if err := task.run(x); err != nil { // so that the device has compiled what is kept
				t.Fatal(err)
			}
			if err := x.r.Close(); err != nil {
				t.Fatal(err)
			}
			before := runnersHold(g) // while the collector finds none of x
			for turn := 0; ; turn++ {
				x.open(t)
				_, failed, after := failNth(g, turn, 1)
				err := task.run(x)
				g.Fail = nil
				if err != nil && len(*after) > 0 {
					t.Fatalf("call %d, %s, failed (%v): %v followed", turn, *failed, err, *after)
				}
				if pending := g.Pending(); len(pending) > 0 {
					t.Fatalf("call %d, %s, failed (%v): %v are still under way", turn, *failed, err, pending)
				}
				if err := x.r.Close(); err != nil {
					t.Fatalf("close after call %d, %s, failed: %v", turn, *failed, err)
				}
				if len(g.Errors) > 0 {
					t.Fatalf("call %d, %s, failed: %v", turn, *failed, g.Errors)
				}
				if *failed == "" {
					break
				}
				held := runnersHold(g)
				for what, n := range before {
					if held[what] -= n; held[what] == 0 {
						delete(held, what)
					}
				}
				if len(held) > 0 {
					t.Fatalf("call %d, %s, failed (%v): held beyond what there was: %v", turn, *failed, err, held)
				}
			}
		})
	}
}

// runnersHold is what runners give back when they are closed.
func runnersHold(g *drivertest.GPU) map[string]int {
	out := map[string]int{}
	for _, what := range g.Held() {
		if !strings.Contains(what, "module") && !strings.Contains(what, "matrix") {
			out[what]++
		}
	}
	return out
}
