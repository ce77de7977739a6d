package cuda

import (
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// attention computes what Attend asks for: from the runner's queries to its attention.
type attention interface {
	// direct reports whether it needs the tables of what rows see.
	direct() bool
	// plan looks at a batch, on the host.
	plan(b *compute.Batch) error
	// upload puts the copy of the plan to the GPU into the stream.
	upload(s *driver.Stream) error
	// launch puts a layer's attention into the stream. Captured, it serves every plan of the same shape.
	launch(layer int) error
	// shape tells apart plans whose launches differ.
	shape() int
	close()
}

// newAttention chooses how the runner computes attention.
func newAttention(r *runner) (attention, error) { return newDirect(r) }

// direct is attend_direct.cu.
type direct struct {
	r *runner
	f *driver.Function
}

func newDirect(r *runner) (*direct, error) {
	s := &r.shape
	f, err := r.dev.kernel("attend_direct.cu", "attend_direct", fmt.Sprintf("Q=%d", r.bufs.queryFormat()), fmt.Sprintf("KV=%d", s.KV),
		fmt.Sprintf("OUT=%d", r.bufs.dt), fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("KV_HEADS=%d", s.KVHeads), fmt.Sprintf("DIM=%d", s.HeadDim))
	return &direct{r, f}, err
}

func (a *direct) direct() bool                { return true }
func (a *direct) plan(*compute.Batch) error   { return nil }
func (a *direct) upload(*driver.Stream) error { return nil }
func (a *direct) shape() int                  { return 0 }
func (a *direct) close()                      {}

func (a *direct) launch(layer int) error {
	r, s := a.r, &a.r.shape
	args := r.args.Reset().Ptr(r.bufs.att[0]).Ptr(r.bufs.q).Ptr(r.tables.sights()).Ptr(r.tables.spanTable()).Ptr(r.tables.trueRows())
	return a.f.Launch(r.stream, driver.Launch{Grid: [3]int{r.tables.rows, (s.Heads + 3) / 4}, Block: [3]int{128}},
		args.Int(r.bufs.attCols).Int(r.bufs.attCols).Int(layer).Float(float32(1/math.Sqrt(float64(s.HeadDim)))))
}
