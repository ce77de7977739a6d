package driver

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// gpu opens the first GPU or skips the test.
func gpu(t *testing.T) *Context {
	t.Helper()
	c, err := New(0)
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	if err := c.Enter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Leave()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestMissingLibrarySaysWhatToDo(t *testing.T) {
	l := &library{what: "frobnicator (libfrob)", names: []string{"libfrob-does-not-exist.so.1"}, remedy: "install frob"}
	err := l.open()
	var missing *MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("got %v, want a MissingError", err)
	}
	for _, part := range []string{"frobnicator", "libfrob-does-not-exist.so.1", "install frob"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestSymbolsAreNamed(t *testing.T) {
	for _, table := range []any{&cu, &rtc, &lt} {
		seen := map[string]bool{}
		for i, s := range all(table) {
			if s.name == "" || seen[s.name] {
				t.Errorf("symbol %d of %T is called %q, which is empty or taken", i, table, s.name)
			}
			seen[s.name] = true
		}
	}
}

// TestArgsLayout checks what the driver will read.
func TestArgsLayout(t *testing.T) {
	a, err := NewArgs()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	m := &TensorMap{}
	m.words[15] = 99
	for range 2 { // Reset forgets all
		a.Reset().Int(-3).Map(m).Float(1.5).Ptr(0x1234)
	}
	at := func(i int) unsafe.Pointer { return pointer(uintptr(a.slots[i])) }
	if a.count != 4 {
		t.Errorf("%d parameters, want 4", a.count)
	}
	if v := *(*int32)(at(0)); v != -3 {
		t.Errorf("int: got %d", v)
	}
	if v := (*TensorMap)(at(1)); a.slots[1]%64 != 0 || v.words[15] != 99 {
		t.Errorf("tensor map at %#x: %v", a.slots[1], v.words)
	}
	if v := *(*float32)(at(2)); v != 1.5 || math.IsNaN(float64(v)) {
		t.Errorf("float: got %v", v)
	}
	if v := *(*uint64)(at(3)); v != 0x1234 {
		t.Errorf("pointer: got %#x", v)
	}
}

func TestArgsOverflowPanics(t *testing.T) {
	a, err := NewArgs()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	defer func() {
		if recover() == nil {
			t.Error("33 parameters were accepted")
		}
	}()
	for range maxArgs + 1 {
		a.Int(1)
	}
}

const scale = `extern "C" __global__ void scale(float* x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}`

// TestLaunchAndGraph runs a kernel by itself and three times in a graph.
func TestLaunchAndGraph(t *testing.T) {
	c := gpu(t)
	arch := "sm_80"
	if c.Info().Arch >= 90 {
		arch = "sm_90"
	}
	code, err := Compile("scale.cu", scale, []string{"--gpu-architecture=" + arch})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := c.Load("scale.cu", code)
	must(err)
	f, err := m.Function("scale")
	must(err)
	s, err := c.NewStream()
	must(err)
	const n = 1000
	host, err := c.AllocHost(4 * n)
	must(err)
	x := unsafe.Slice((*float32)(unsafe.Pointer(&host.Bytes[0])), n)
	for i := range x {
		x[i] = float32(i)
	}
	dev, err := c.Alloc(4 * n)
	must(err)
	a, err := NewArgs()
	must(err)
	launch := func() error {
		return f.Launch(s, Launch{Grid: [3]int{4}, Block: [3]int{256}}, a.Reset().Ptr(dev).Float(2).Int(n))
	}
	must(s.Copy(dev, host.Ptr, 4*n))
	must(launch())
	g, err := s.Capture(func() error { return errors.Join(launch(), launch(), launch()) })
	must(err)
	must(g.Launch(s))
	must(s.Copy(host.Ptr, dev, 4*n))
	must(s.Sync())
	for i := range x {
		if x[i] != 16*float32(i) {
			t.Fatalf("value %d: got %v, want %v", i, x[i], 16*float32(i))
		}
	}
	if r, err := f.Resources(); err != nil || r.Registers == 0 {
		t.Errorf("resources %+v, %v", r, err)
	}
	if got := testing.AllocsPerRun(50, func() { must(launch()) }); got > 0 {
		t.Errorf("a launch allocates %v times", got)
	}
	must(errors.Join(g.Close(), s.Close(), c.Free(dev), c.FreeHost(host), m.Close()))
	a.Free()
}

// TestCapturesBesideWaits: some capture while others wait for the GPU, allocate and free, as models that share a GPU
// do.
func TestCapturesBesideWaits(t *testing.T) {
	gpu(t)
	const rounds = 300
	var wg sync.WaitGroup
	each := func(f func(*Context) error) {
		wg.Go(func() {
			c, err := New(0)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			defer c.Leave()
			if err := errors.Join(c.Enter(), f(c)); err != nil {
				t.Error(err)
			}
		})
	}
	for range 3 {
		each(func(c *Context) error {
			s, err := c.NewStream()
			if err != nil {
				return err
			}
			defer s.Close()
			p, err := c.Alloc(1 << 20)
			if err != nil {
				return err
			}
			defer c.Free(p)
			for range rounds {
				g, err := s.Capture(func() error {
					for range 20 {
						if err := s.Fill(p, 1, 1<<20); err != nil {
							return err
						}
					}
					return nil
				})
				if err == nil {
					err = errors.Join(g.Launch(s), s.Sync(), g.Close())
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		each(func(c *Context) error {
			for range rounds {
				p, err := c.Alloc(1 << 20)
				if err := errors.Join(err, c.Sync(), c.Free(p)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	wg.Wait()
}

// TestFailuresAreNamed: an allocation that cannot be served says so and does no harm.
func TestFailuresAreNamed(t *testing.T) {
	c := gpu(t)
	_, err := c.Alloc(1 << 60)
	if !OutOfMemory(err) || !strings.Contains(err.Error(), "cuMemAlloc_v2(") {
		t.Errorf("allocation of 2⁶⁰ bytes: %v", err)
	}
	if err := c.Lost(); err != nil {
		t.Errorf("the context is lost: %v", err)
	}
	p, err := c.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Free(p); err != nil {
		t.Error(err)
	}
}
