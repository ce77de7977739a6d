package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// Quantises makes the device a compute.Quantiser: of FP8, where the matrix library multiplies e4m3.
func (d *device) Quantises(dt compute.DType) bool {
	return dt == compute.FP8 && (d.c.Info().Arch >= firstFP8 || d.opt.OwnProducts)
}

// firstFP8 is the compute capability of Ada, the first one with products of e4m3.
const firstFP8 = 89

// packFP8 is pack for products in FP8. Rows that are not in that format are rounded on the GPU.
func (d *device) packFP8(l *linear, source func(i int) (*compute.Tensor, int)) (_ compute.Linear, err error) {
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		return nil, err
	}
	if l.data, err = d.alloc(l.rows * l.cols); err == nil {
		l.scales, err = d.alloc(4 * l.rows)
	}
	if err == nil {
		err = d.fillFP8(l, source)
	}
	if err != nil {
		d.free(l.data)
		d.free(l.scales)
		return nil, fmt.Errorf("cuda: weights of %d×%d in fp8: %w", l.out, l.in, err)
	}
	freeWith(d, l, l.data)
	freeWith(d, l, l.scales)
	return l, nil
}

func (d *device) fillFP8(l *linear, source func(i int) (*compute.Tensor, int)) error {
	from, ready := compute.BF16, true // the format on the way, and whether all rows are rounded already
	for i := range l.out {
		switch t, _ := source(i); t.DType {
		case compute.FP8:
		case compute.BF16:
			ready = false
		default:
			from, ready = compute.F32, false
		}
	}
	if !ready {
		if err := d.roundRows(l, from, source); err != nil {
			return err
		}
	}
	return d.takeRows(l, ready, source)
}

// roundRows rounds the rows that are not FP8; the others become zeros.
func (d *device) roundRows(l *linear, from compute.DType, source func(i int) (*compute.Tensor, int)) error {
	q, err := d.newRounder(from, l)
	if err != nil {
		return err
	}
	err = inSteps(l.rows, l.cols*from.Size(), func(i int, to []byte) {
		if t, row := source(i); t != nil && t.DType != compute.FP8 {
			convertRow(to, from, t, row)
		}
	}, q.put)
	return errors.Join(err, q.close())
}

// takeRows copies the rows that are FP8: all at once, or one by one where others lie between them.
func (d *device) takeRows(l *linear, all bool, source func(i int) (*compute.Tensor, int)) error {
	scales := make([]float32, l.rows)
	for i := range l.out {
		t, row := source(i)
		if t.DType != compute.FP8 {
			continue
		}
		scales[i] = t.Scales[row]
		if all {
			continue
		}
		if err := d.c.Upload(l.data.At(i*l.cols), t.Data[row*t.Cols:(row+1)*t.Cols]); err != nil {
			return err
		}
		if err := d.c.Upload(l.scales.At(4*i), bytesOf(scales[i:i+1])); err != nil {
			return err
		}
	}
	if !all {
		return nil
	}
	err := inSteps(l.rows, l.cols, func(i int, to []byte) {
		if t, row := source(i); t != nil {
			copy(to, t.Data[row*t.Cols:(row+1)*t.Cols])
		}
	}, func(from int, bytes []byte) error { return d.c.Upload(l.data.At(from*l.cols), bytes) })
	if err != nil {
		return err
	}
	return d.c.Upload(l.scales, bytesOf(scales))
}

func bytesOf(v []float32) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)) }

// rounder rounds rows of a matrix on the GPU.
type rounder struct {
	d      *device
	l      *linear
	f      *driver.Function
	stream *driver.Stream
	args   *driver.Args
	stage  driver.Ptr
	width  int // bytes of a staged row

	threads int
}

// quantiser returns quantise.cu for rows of so many columns, and its threads: few of them, since small blocks hide each
// other's waits, but not so few that a row does not fit their registers.
func (d *device) quantiser(from compute.DType, cols int) (*driver.Function, int, error) {
	threads := min(512, (cols/32+31)&^31)
	f, err := d.kernel("quantise.cu", "quantise", fmt.Sprintf("IN=%d", from), fmt.Sprintf("COLS=%d", cols),
		fmt.Sprintf("THREADS=%d", threads))
	return f, threads, err
}

func (d *device) newRounder(from compute.DType, l *linear) (*rounder, error) {
	q := &rounder{d: d, l: l, width: l.cols * from.Size()}
	var err error
	if q.f, q.threads, err = d.quantiser(from, l.cols); err != nil {
		return nil, err
	}
	if q.args, err = driver.NewArgs(); err == nil {
		q.stream, err = d.c.NewStream()
	}
	if err == nil {
		q.stage, err = d.c.Alloc(rowsOf(l.rows, q.width) * q.width)
	}
	if err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

// put rounds rows of l from row from on.
func (q *rounder) put(from int, bytes []byte) error {
	if err := q.d.c.Upload(q.stage, bytes); err != nil {
		return err
	}
	a := q.args.Reset().Ptr(q.l.data.At(from * q.l.cols)).Ptr(q.l.scales.At(4 * from)).Ptr(q.stage).Ptr(0)
	rows := len(bytes) / q.width
	if err := q.f.Launch(q.stream, driver.Launch{Grid: [3]int{rows}, Block: [3]int{q.threads}}, a); err != nil {
		return err
	}
	return q.stream.Sync()
}

func (q *rounder) close() error {
	if q.args != nil {
		q.args.Free()
	}
	var err error
	if q.stream != nil {
		err = errors.Join(q.stream.Sync(), q.stream.Close())
	}
	if q.stage != 0 {
		err = errors.Join(err, q.d.c.Free(q.stage))
	}
	return err
}

var _ compute.Quantiser = (*device)(nil)
