package null

import (
	"errors"
	"fmt"
	"time"

	"grebe/compute"
)

var errNoBatch = errors.New("null: no batch was begun")

// runner takes a batch's time when its first result is asked for.
type runner struct {
	device *device
	shape  compute.Shape
	batch  *compute.Batch
	ends   time.Time // when the batch's time is over
	takes  time.Duration
	steps  int // operations of the batch that took a part of its time
	err    error
}

func (r *runner) Begin(b *compute.Batch) error {
	if r.err = b.Validate(&r.shape); r.err != nil {
		r.err = fmt.Errorf("null: %w", r.err)
		return r.err
	}
	o := &r.device.opt
	r.batch, r.steps = b, 0
	r.takes = o.Fixed + time.Duration(len(b.Tokens))*o.Row
	if o.Key > 0 {
		r.takes += time.Duration(keys(b)) * o.Key
	}
	if r.takes > 0 {
		r.ends = time.Now().Add(r.takes)
	}
	return nil
}

// keys is how many keys the rows of a batch attend to, summed.
func keys(b *compute.Batch) int {
	n := 0
	for i := range b.Segments {
		s := &b.Segments[i]
		seen := s.Cached
		for _, k := range s.Sees {
			seen += b.Segments[k].Len
		}
		n += s.Rows()*seen + s.Rows()*(s.Rows()+1)/2
	}
	return n
}

// stepsOfLayer is the number of operations of a layer that take time if the batch may pause: QKV, Output and FFN.
const stepsOfLayer = 3

// step takes an operation's part of the time of a batch that may pause. Other batches take no time here, so that the
// host works while the device does.
func (r *runner) step() {
	if r.err != nil || r.batch.Pause == nil || r.takes <= 0 {
		return
	}
	part := r.takes / time.Duration(max(1, stepsOfLayer*r.shape.Layers-r.steps))
	r.steps++
	began := time.Now()
	r.device.opt.Sleep(part)
	now := time.Now()
	r.takes -= max(part, now.Sub(began))
	r.ends = now.Add(r.takes)
}

// finish waits until the batch's time is over.
func (r *runner) finish() error {
	if r.err == nil && r.takes > 0 {
		if left := time.Until(r.ends); left > 0 {
			r.device.opt.Sleep(left)
		}
		r.takes = 0
	}
	return r.err
}

func (r *runner) Logits(_ compute.Vector, head compute.Table, pairs []compute.Pair, out []float32) error {
	if err := r.finish(); err != nil {
		return err
	}
	for i, p := range pairs {
		if int(p.Row) >= len(r.batch.Tokens) || int(p.ID) >= head.Rows() || p.Row < 0 || p.ID < 0 {
			return fmt.Errorf("null: a logit of token %d at row %d", p.ID, p.Row)
		}
		out[i] = r.number(p.Row, p.ID)
	}
	return nil
}

func (r *runner) Project(_ compute.Vector, w compute.Linear, rows []int32, out []float32) error {
	return r.fill(rows, w.Out(), out)
}

func (r *runner) Hidden(_ compute.Vector, rows []int32, out []float32) error {
	return r.fill(rows, r.shape.Hidden, out)
}

func (r *runner) fill(rows []int32, width int, out []float32) error {
	if err := r.finish(); err != nil {
		return err
	}
	if len(out) < len(rows)*width {
		return fmt.Errorf("null: %d values for %d rows of %d", len(out), len(rows), width)
	}
	for i, row := range rows {
		for k := range width {
			out[i*width+k] = r.number(row, int32(k))
		}
	}
	return nil
}

func (r *runner) number(row, id int32) float32 {
	return number(r.batch.Tokens[row], r.batch.Positions[row], id)
}

func (r *runner) Received(out []float32) error {
	clear(out)
	return r.err
}

func (r *runner) Close() error { return nil }

func (r *runner) Embed(compute.Table)                {}
func (r *runner) QKV(int, *compute.AttentionWeights) { r.step() }
func (r *runner) Attend(int)                         {}
func (r *runner) Keep([]int32)                       {}
func (r *runner) Output(*compute.AttentionWeights)   { r.step() }
func (r *runner) FFN(*compute.FFNWeights)            { r.step() }
func (r *runner) Place(int, []compute.Part)          {}
func (r *runner) Sum([]compute.SumPart)              {}
func (r *runner) UVQK(int, *compute.STUWeights)      { r.step() }
func (r *runner) Mix(*compute.STUWeights)            { r.step() }
