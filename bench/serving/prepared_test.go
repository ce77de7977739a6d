package serving

import (
	"sync"
	"testing"
	"time"

	"grebe/compute/cuda/drivertest"
	"grebe/internal/config"
	"grebe/model/modeltest"
)

// TestFirstsArePrepared: on a GPU that has been warmed up, here a simulated one, no first request of any kind and size
// compiles, allocates, times or captures anything.
func TestFirstsArePrepared(t *testing.T) {
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	g := drivertest.New()
	t.Cleanup(g.Close)
	g.Kernels = nil
	shapes["two-layers"] = modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 128, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: 64, Inter: 256}
	t.Cleanup(func() { delete(shapes, "two-layers") })
	dir := t.TempDir()
	f := Files{Shape: "two-layers", Items: 20_000, Codes: 512, Users: 20, Memory: "256MiB"}
	if _, err := Make(dir, f); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	calls := map[string]int{}
	g.Fail = func(call string) int32 {
		mu.Lock()
		defer mu.Unlock()
		calls[call]++
		return 0
	}
	count := func(names ...string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range names {
			n += calls[name]
		}
		return n
	}
	url := serve(t, dir, config.Setting{Path: "device", Value: "cuda"})
	prepared := func() int {
		return count("nvrtcCompileProgram", "cuModuleLoadData", "cuGraphInstantiateWithFlags", "cuMemAlloc_v2",
			"cublasLtMatmulAlgoGetHeuristic")
	}
	before := prepared()
	for quiet := 0; quiet < 5; quiet++ { // what the start leaves to idle time
		time.Sleep(100 * time.Millisecond)
		if n := prepared(); n != before {
			before, quiet = n, 0
		}
	}
	graphs := count("cuGraphLaunch")
	all, err := Firsts(t.Context(), FirstOptions{URL: url, Later: 1})
	if err != nil {
		t.Fatal(err)
	}
	if n := prepared() - before; n > 0 {
		t.Errorf("%d times something was compiled, loaded, captured, allocated or timed: %v", n, calls)
	}
	if n := count("cuGraphLaunch") - graphs; n < 2*len(all) {
		t.Errorf("%d graphs for %d requests", n, 2*len(all))
	}
}
