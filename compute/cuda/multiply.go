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

// multiplier is what Multiply needs, one call at a time.
type multiplier struct {
	mu     sync.Mutex
	stream *driver.Stream
	done   *driver.Event
	args   *driver.Args
	host   *driver.Host // rows, and results behind them
	dev    driver.Ptr
	bytes  int
}

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
	d.multiplier.mu.Lock()
	defer d.multiplier.mu.Unlock()
	defer d.c.Leave()
	err := d.c.Enter()
	if err == nil {
		err = d.multiplier.run(d, m, rows, in, out)
	}
	runtime.KeepAlive(m) // whose collection frees the weights
	if err != nil {
		return fmt.Errorf("cuda: multiply: %w", err)
	}
	return nil
}

const (
	multiplyColumns = 8 // of a block
	multiplyRows    = 4
	maxGridY        = 1<<16 - 1 // blocks of a grid along its second axis
)

func (x *multiplier) run(d *device, m *linear, rows int, in, out []float32) error {
	if err := x.ready(d, 4*(len(in)+len(out))); err != nil {
		return err
	}
	f, err := d.kernel("multiply.cu", "multiply", fmt.Sprintf("W=%d", m.dt))
	if err != nil {
		return err
	}
	copy(offheap.Slice[float32](x.host.Bytes, len(in)), in)
	results := 4 * len(in)
	grid := [3]int{(m.out + multiplyColumns - 1) / multiplyColumns, min((rows+multiplyRows-1)/multiplyRows, maxGridY)}
	l := driver.Launch{Grid: grid, Block: [3]int{256}}
	a := x.args.Reset().Ptr(x.dev.At(results)).Ptr(x.dev).Ptr(m.data).Int(rows).Int(m.in).Int(m.out).Int(m.cols)
	err = x.stream.Copy(x.dev, x.host.Ptr, results)
	if err == nil {
		err = f.Launch(x.stream, l, a)
	}
	if err == nil {
		err = x.stream.Copy(x.host.Ptr.At(results), x.dev.At(results), 4*len(out))
	}
	if failed := x.settle(); err == nil { // also after a failure: the memory may be freed next
		err = failed
	}
	if err != nil {
		return err
	}
	copy(out, offheap.Slice[float32](x.host.Bytes[results:], len(out)))
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
		if x.stream, err = d.c.NewStream(); err != nil {
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
	d.free(x.dev)
	err = d.c.FreeHost(x.host)
	x.dev, x.host, x.bytes = 0, nil, 0
	if err != nil {
		return err
	}
	if x.host, err = d.c.AllocHost(n); err != nil {
		return err
	}
	if x.dev, err = d.alloc(n); err != nil {
		return err
	}
	x.bytes = n
	return nil
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
