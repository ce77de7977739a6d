package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// multiplier is what Multiply needs. Products by the same matrix that wait for it run as one, so that the requests of a
// batch, whose heads come all at once, do not wait for the GPU one after the other.
type multiplier struct {
	mu     sync.Mutex // held while products run
	stream *driver.Stream
	done   *driver.Event
	args   *driver.Args
	host   *driver.Host // rows, and results behind them
	dev    driver.Ptr
	bytes  int

	queue   sync.Mutex
	waiting []*multiplication
}

// multiplication is a call of Multiply.
type multiplication struct {
	m       *linear
	in, out []float32
	done    bool // by the call of another one; guarded by multiplier.mu
	err     error
}

// multipliedAtOnce bounds the bytes of rows and results of products that run as one.
const multipliedAtOnce = 32 << 20

// Multiply makes the device a compute.Multiplier. Operands are float32, whatever the weights' format.
func (d *device) Multiply(w compute.Linear, in, out []float32) error {
	m, ok := w.(*linear)
	if !ok || m.gated {
		return fmt.Errorf("cuda: multiply: %T is no matrix of this device", w)
	}
	if m.dt == compute.FP8 {
		return errors.New("cuda: multiply: a matrix of fp8 is for layers")
	}
	rows := len(in) / m.in
	if len(in) != rows*m.in || len(out) != rows*m.out {
		return fmt.Errorf("cuda: multiply: %d values by a matrix of %d×%d into %d", len(in), m.out, m.in, len(out))
	}
	if rows == 0 {
		return nil
	}
	x := &d.multiplier
	own := &multiplication{m: m, in: in, out: out}
	x.enqueue(own)
	x.mu.Lock()
	defer x.mu.Unlock()
	if !own.done {
		x.runWith(d, own)
	}
	runtime.KeepAlive(m) // whose collection frees the weights
	if own.err != nil {
		return fmt.Errorf("cuda: multiply: %w", own.err)
	}
	return nil
}

func (x *multiplier) enqueue(own *multiplication) {
	x.queue.Lock()
	defer x.queue.Unlock()
	x.waiting = append(x.waiting, own)
}

// take removes a product, and others by the same matrix as far as they fit, from those that wait.
func (x *multiplier) take(own *multiplication) []*multiplication {
	x.queue.Lock()
	defer x.queue.Unlock()
	group, rest, room := []*multiplication{own}, x.waiting[:0], multipliedAtOnce-own.bytes()
	for _, o := range x.waiting {
		switch {
		case o == own:
		case o.m == own.m && o.bytes() <= room:
			group, room = append(group, o), room-o.bytes()
		default:
			rest = append(rest, o)
		}
	}
	clear(x.waiting[len(rest):])
	x.waiting = rest
	return group
}

func (o *multiplication) bytes() int { return 4 * (len(o.in) + len(o.out)) }

// runWith runs a product and those that wait for the same matrix. If there is no memory for all, each runs by itself.
func (x *multiplier) runWith(d *device, own *multiplication) {
	group := x.take(own)
	defer d.c.Leave()
	err := d.c.Enter()
	if err == nil {
		err = x.run(d, group)
	}
	for i, o := range group {
		if o.done, o.err = true, err; len(group) > 1 && driver.OutOfMemory(err) {
			o.err = x.run(d, group[i:i+1])
		}
	}
}

const (
	multiplyColumns = 8 // of a block
	multiplyRows    = 4
	maxGridY        = 1<<16 - 1 // blocks of a grid along its second axis
)

// run runs products by one matrix.
func (x *multiplier) run(d *device, group []*multiplication) error {
	m, ins, bytes := group[0].m, 0, 0
	for _, o := range group {
		ins, bytes = ins+len(o.in), bytes+o.bytes()
	}
	if err := x.ready(d, bytes); err != nil {
		return err
	}
	f, err := d.kernel("multiply.cu", "multiply", fmt.Sprintf("W=%d", m.dt))
	if err != nil {
		return err
	}
	at, rows, results := 0, ins/m.in, 4*ins
	for _, o := range group {
		at += copy(offheap.Slice[float32](x.host.Bytes[4*at:], len(o.in)), o.in)
	}
	grid := [3]int{(m.out + multiplyColumns - 1) / multiplyColumns, min((rows+multiplyRows-1)/multiplyRows, maxGridY)}
	l := driver.Launch{Grid: grid, Block: [3]int{256}}
	a := x.args.Reset().Ptr(x.dev.At(results)).Ptr(x.dev).Ptr(m.data).Int(rows).Int(m.in).Int(m.out).Int(m.cols)
	err = x.stream.Copy(x.dev, x.host.Ptr, results)
	if err == nil {
		err = f.Launch(x.stream, l, a)
	}
	if err == nil {
		err = x.stream.Copy(x.host.Ptr.At(results), x.dev.At(results), bytes-results)
	}
	if failed := x.settle(); err == nil { // also after a failure: the memory may be freed next
		err = failed
	}
	if err != nil {
		return err
	}
	for _, o := range group {
		copy(o.out, offheap.Slice[float32](x.host.Bytes[results:], len(o.out)))
		results += 4 * len(o.out)
	}
	return nil
}

// settle waits for the stream's work. It polls first: most products take less time than a thread takes to wake up, and
// other requests wait for the multiplier meanwhile.
func (x *multiplier) settle() error {
	if x.done.Record(x.stream) == nil {
		for begin := time.Now(); time.Since(begin) < polls; {
			done, err := x.done.Done()
			if err != nil {
				break
			}
			if done {
				return nil
			}
		}
	}
	return x.stream.Sync()
}

// ready makes room for n bytes.
func (x *multiplier) ready(d *device, n int) (err error) {
	if x.stream == nil {
		if x.args, err = driver.NewArgs(); err != nil {
			return err
		}
		// Urgent, as what it multiplies is the end of a request: it would wait for all layers of the batch under way.
		if x.stream, err = d.c.NewUrgentStream(); err != nil {
			return err
		}
	}
	if x.done == nil {
		if x.done, err = d.c.NewEvent(false); err != nil {
			return err
		}
	}
	if n <= x.bytes {
		return nil
	}
	n += n / 4
	host, err := d.c.AllocHost(n)
	if err != nil {
		return err
	}
	dev, err := d.alloc(n)
	if err != nil { // what there is remains, for smaller products
		return errors.Join(err, d.c.FreeHost(host))
	}
	d.free(x.dev)
	err = d.c.FreeHost(x.host)
	x.dev, x.host, x.bytes = dev, host, n
	return err
}

// close gives back what is not the device's memory.
func (x *multiplier) close(d *device) error {
	if x.stream == nil {
		return nil
	}
	x.args.Free()
	var err error
	if x.done != nil {
		err = x.done.Close()
	}
	return errors.Join(err, x.stream.Close(), d.c.FreeHost(x.host))
}

var _ compute.Multiplier = (*device)(nil)
