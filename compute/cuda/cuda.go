// Package cuda runs models on NVIDIA's GPUs: Hopper first, anything from Ampere on. It needs the
// driver, the run-time compiler and the matrix library of CUDA at run time, and nothing to build.
//
// Products run on cuBLASLt, by algorithms that are timed for each shape when it is first used; the
// other operations are kernels of package kernels, compiled for the model's shape. x is float32 on
// the GPU; inputs of products, queries and attention are in the weights' format. All matrices have
// rows of a multiple of 16 values, the rest of which are zeros.
//
// A Runner records the operations of a batch and runs them when a result is asked for: as a captured graph when it has
// run the same operations on a batch of about that size before, else one by one. Kernels read true sizes and the
// places of K and V from tables in the GPU's memory. Every batch fills the tables anew, so that a graph serves all
// batches of its size.
//
// A GPU that is lost (a fault of a kernel, of its memory or of the driver) fails all further work with the
// first error. The libraries hold on to the broken context: only another process can use the GPU again.
//
// Lock order: memory.across.mu, then memory.mu, multiplier.mu or retrieval.mu, then device.mu, which is a leaf;
// tuned.mu is held while products are timed, splits.mu while attention is. A runner has no lock.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/compute/cuda/product"
)

// Options choose how a device runs. Zero means the default.
type Options struct {
	GPU      int  // number of the GPU
	Plain    bool // keep to Ampere's instructions, for tests
	NoGraphs bool // run operations one by one, for tests
	// NoOverlap starts a kernel only when the one before it has ended, for measurements.
	NoOverlap bool
	// Direct computes attention by the kernel that is written to be obviously right, for tests.
	Direct bool
	// Fused has products by kernels of our own wherever these can, however small they are, for tests.
	Fused bool
	// OwnProducts computes products by such a kernel, not by the matrix library, for tools that cannot follow that one.
	// Attention then waits in a way that they can follow.
	OwnProducts bool
	// Scratch bounds the memory of attention's keys and values in bytes, for tests: by default it has room for all layers
	// of a batch, if that is little of the GPU's.
	Scratch int
	// FixedSplit cuts attention's work by fixed costs, not as measurements on the GPU say.
	FixedSplit bool
}

// workspace is what products may use beside their operands.
const workspace = 32 << 20

type device struct {
	opt    Options
	c      *driver.Context
	blas   *driver.Blas
	memory *memory

	mu      sync.Mutex
	held    map[driver.Ptr]int // memory that is not freed yet, with its size
	modules map[string]*driver.Module
	kernels map[string]*driver.Function
	plans   map[driver.Product]*driver.Plan
	tuned   *tuned
	set     *product.Set // used under tuned.mu
	fuses   bool         // there is a set
	inPlace atomic.Bool  // as UseInPlace
	splits  splits
	busy    busyTime
	stages  []*stage // that nobody uses
	closed  bool

	multiplier multiplier
	retrieval  retrieval
}

// Device is a GPU as a compute.Device.
type Device interface {
	compute.Device
	// Context is the GPU itself, for measurements.
	Context() *driver.Context
	// Busy returns how long the GPU had work of at least one runner since it was opened.
	Busy() time.Duration
	// Lost returns the error after which the GPU does no more work, nil while it does.
	Lost() error
	// UseInPlace has batches begun from now on use cached KV in the host's memory where it is, or again
	// fetch it beside what they compute, for measurements.
	UseInPlace(bool)
}

// Count returns the number of GPUs.
func Count() (int, error) { return driver.Count() }

// New opens a GPU. Its error says what is missing and how to get it. The caller MUST Close the device.
func New(opt Options) (Device, error) {
	c, err := driver.New(opt.GPU)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	if arch := c.Info().Arch; arch < 80 {
		return nil, errors.Join(fmt.Errorf("cuda: %s has compute capability %d.%d, at least 8.0 (Ampere) is needed",
			c.Info().Name, arch/10, arch%10), c.Close())
	}
	d := &device{opt: opt, c: c, held: map[driver.Ptr]int{}, modules: map[string]*driver.Module{},
		kernels: map[string]*driver.Function{}, plans: map[driver.Product]*driver.Plan{}}
	if err := d.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: %w", err), d.Close())
	}
	return d, nil
}

func (d *device) start() (err error) {
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		return err
	}
	if d.blas, err = d.c.NewBlas(); err != nil {
		return err
	}
	if d.tuned, err = loadTuned(d.c.Info()); err != nil {
		return err
	}
	if !d.opt.Plain {
		d.set, err = product.New(d.c)
		if d.fuses = err == nil; err != nil && !errors.Is(err, product.ErrUnsupported) {
			return err
		}
	}
	if d.memory, err = newMemory(d); err != nil {
		return err
	}
	_, err = d.kernel("moves.cu", "moves") // no request waits for it to be compiled
	return err
}

// overlaps reports whether a kernel may start before the one ahead of it has ended.
func (d *device) overlaps() bool {
	return !d.opt.NoOverlap && !d.opt.Plain && d.c.Info().Arch == 90
}

func (d *device) Name() string {
	i := d.c.Info()
	path := ""
	if d.opt.Plain {
		path = ", plain kernels"
	}
	return fmt.Sprintf("cuda (%s, %d multiprocessors, %d GiB%s)", i.Name, i.Processors, i.Memory>>30, path)
}

func (d *device) Context() *driver.Context { return d.c }
func (d *device) Lost() error              { return d.c.Lost() }
func (d *device) UseInPlace(yes bool)      { d.inPlace.Store(yes) }
func (d *device) Memory() compute.Memory   { return d.memory }

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	defer d.c.Leave()
	err := d.c.Enter()
	if d.c.Lost() != nil {
		return d.c.Close() // which frees all there was
	}
	for p := range d.held {
		err = errors.Join(err, d.c.Free(p))
	}
	for _, p := range d.plans {
		err = errors.Join(err, p.Close())
	}
	for _, m := range d.modules {
		err = errors.Join(err, m.Close())
	}
	if d.fuses {
		err = errors.Join(err, d.set.Close())
	}
	err = errors.Join(err, d.multiplier.close(d), d.retrieval.close(d))
	for _, s := range d.stages {
		err = errors.Join(err, s.close(d.c))
	}
	if d.memory != nil {
		err = errors.Join(err, d.memory.close())
	}
	if d.blas != nil {
		err = errors.Join(err, d.blas.Close())
	}
	return errors.Join(err, d.c.Close())
}

// alloc takes memory that is given back with the device at the latest. The caller is inside the
// context.
func (d *device) alloc(n int) (driver.Ptr, error) {
	p, err := d.c.Alloc(n)
	if err == nil && p != 0 {
		d.mu.Lock()
		d.held[p] = n
		d.mu.Unlock()
	}
	return p, err
}

// free gives memory back unless the device is closed. It may be called anywhere.
func (d *device) free(p driver.Ptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.held[p]; !ok || d.closed {
		return
	}
	delete(d.held, p)
	defer d.c.Leave()
	if d.c.Enter() == nil {
		_ = d.c.Free(p) // fails with a lost GPU only, whose memory is gone
	}
}

// freeWith gives p back when owner is collected.
func freeWith[T any](d *device, owner *T, p driver.Ptr) {
	runtime.AddCleanup(owner, d.free, p)
}

// kernel returns a kernel, compiled with the given defines. The caller is inside the context.
func (d *device) kernel(file, name string, defines ...string) (*driver.Function, error) {
	if d.opt.Plain {
		defines = append(defines, kernels.Plain)
	}
	key := fmt.Sprint(file, defines)
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.kernels[key+name]; f != nil {
		return f, nil
	}
	m := d.modules[key]
	if m == nil {
		var err error
		if m, err = kernels.Load(d.c, file, defines...); err != nil {
			return nil, err
		}
		d.modules[key] = m
	}
	f, err := m.Function(name)
	if err == nil {
		d.kernels[key+name] = f
	}
	return f, err
}
