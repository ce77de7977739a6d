package gpu

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
	"unsafe"

	"grebe/compute/cuda"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/topk"
)

// Selections of the bench: the beams of a round, each with logits for all codes, all of them valid.
const (
	selectBeams  = 512
	selectCodes  = 8192
	selectWidth  = 512
	selectCopies = 4 // 67 MB of logits take turns, so that they come from memory
)

// selections are rounds on a GPU, and the logits of the first of them.
type selections struct {
	c        *driver.Context
	set      *topk.Set
	tree     *topk.Tree
	searches []*topk.Search
	memory   []driver.Ptr
	stream   *driver.Stream
	args     *driver.Args
	logits   []float32
	scores   []float64
}

func newSelections(c *driver.Context, copies int, seed uint64) (*selections, error) {
	s := &selections{c: c, set: topk.New(c)}
	err := s.open(copies, seed)
	if err != nil {
		err = errors.Join(fmt.Errorf("selection: %w", err), s.close())
		return nil, err
	}
	return s, nil
}

func (s *selections) open(copies int, seed uint64) (err error) {
	if s.stream, err = s.c.NewStream(); err != nil {
		return err
	}
	if s.args, err = driver.NewArgs(); err != nil {
		return err
	}
	first := topk.Level{Size: selectBeams, Starts: []uint32{0, selectBeams}, Codes: make([]uint32, selectBeams)}
	second := topk.Level{Size: selectCodes}
	for b := range selectBeams + 1 {
		second.Starts = append(second.Starts, uint32(b*selectCodes))
	}
	for i := range selectBeams * selectCodes {
		second.Codes = append(second.Codes, uint32(i%selectCodes))
	}
	if s.tree, err = topk.NewTree(s.c, []topk.Level{first, second}, nil); err != nil {
		return err
	}
	for i := range copies {
		if err := s.add(i, rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return err
		}
	}
	return nil
}

// add makes a round with random scores and logits.
func (s *selections) add(i int, r *rand.Rand) error {
	logits, scores, nodes := make([]float32, selectBeams*selectCodes), make([]float64, selectBeams),
		make([]uint32, selectBeams)
	for j := range logits {
		logits[j] = float32(3 * r.NormFloat64())
	}
	for b := range scores {
		scores[b], nodes[b] = r.NormFloat64(), uint32(b)
	}
	if i == 0 {
		s.logits, s.scores = logits, scores
	}
	p, err := s.c.Alloc(4 * len(logits))
	if err != nil {
		return err
	}
	s.memory = append(s.memory, p)
	q, err := s.set.NewSearch(s.tree, topk.Options{Widths: []int{selectBeams, selectWidth}, Requests: 1,
		Logits: []topk.Logits{{Stride: selectBeams}, {Ptr: p, Stride: selectCodes}}})
	if err != nil {
		return err
	}
	s.searches = append(s.searches, q)
	b := q.Beams(1, 0)
	return errors.Join(s.c.Upload(p, bytesOf(logits)), s.c.Upload(b.Head, bytesOf([]int32{selectBeams, 0})),
		s.c.Upload(b.Nodes, bytesOf(nodes)), s.c.Upload(b.Scores, bytesOf(scores)))
}

func bytesOf[T any](v []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(v[0])))
}

func (s *selections) close() error {
	var err error
	for _, q := range s.searches {
		err = errors.Join(err, q.Close())
	}
	if s.tree != nil {
		err = errors.Join(err, s.tree.Close())
	}
	for _, p := range s.memory {
		err = errors.Join(err, s.c.Free(p))
	}
	err = errors.Join(err, s.set.Close())
	if s.args != nil {
		s.args.Free()
	}
	if s.stream != nil {
		err = errors.Join(err, s.stream.Close())
	}
	return err
}

// rounds puts a round of each search into the stream.
func (s *selections) rounds() (err error) {
	for _, q := range s.searches {
		err = errors.Join(err, q.Round(s.stream, s.args, 1, true))
	}
	return err
}

// path is a continuation.
type path struct {
	node  uint32
	score float64
}

// all is every continuation of the first round, by its node.
func (s *selections) all() []path {
	var all []path
	for b, score := range s.scores {
		row := s.logits[b*selectCodes : (b+1)*selectCodes]
		sum, top := 0.0, float64(slices.Max(row))
		for _, v := range row {
			sum += math.Exp(float64(v) - top)
		}
		norm := top + math.Log(sum)
		for c, v := range row {
			all = append(all, path{uint32(b*selectCodes + c), score + float64(v) - norm})
		}
	}
	return all
}

// chosen is what the GPU chose in the first round.
func (s *selections) chosen() ([]path, error) {
	b := s.searches[0].Beams(2, 0)
	head := make([]int32, 2)
	if err := s.c.Download(bytesOf(head), b.Head); err != nil {
		return nil, err
	}
	if head[1] != 0 || head[0] != selectWidth {
		return nil, fmt.Errorf("selection: %d paths, want %d; a logit was no number: %v", head[0], selectWidth, head[1] != 0)
	}
	scores, nodes := make([]float64, selectWidth), make([]uint32, selectWidth)
	if err := errors.Join(s.c.Download(bytesOf(scores), b.Scores), s.c.Download(bytesOf(nodes), b.Nodes)); err != nil {
		return nil, err
	}
	out := make([]path, selectWidth)
	for i := range out {
		out[i] = path{nodes[i], scores[i]}
	}
	return out, nil
}

// normOff is how far the GPU's normalisers of about 14, sums in float32, may be off.
const normOff = 3e-5

// checkSelection compares a round with sorting.
func checkSelection(d cuda.Device, seed uint64) (out Check, err error) {
	out = Check{Name: "selection", Rows: selectBeams, Limit: normOff}
	c := d.Context()
	defer c.Leave()
	if err := c.Enter(); err != nil {
		return out, err
	}
	s, err := newSelections(c, 1, seed)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := errors.Join(s.rounds(), s.stream.Sync()); err != nil {
		return out, err
	}
	got, err := s.chosen()
	if err != nil {
		return out, err
	}
	if out.Error, err = compareChosen(got, s.all()); err != nil {
		err = fmt.Errorf("selection: %w (seed %d)", err, seed)
	}
	return out, err
}

// compareChosen: scores are those of their nodes up to the normalisers' errors, and so are the nodes those
// that sorting puts first.
func compareChosen(got, all []path) (worst float64, err error) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b path) int {
		return cmp.Or(cmp.Compare(b.score, a.score),
			cmp.Compare(a.node, b.node))
	})
	cut := sorted[len(got)-1].score
	has := map[uint32]bool{}
	for i, g := range got {
		if i > 0 && got[i-1].node >= g.node || int(g.node) >= len(all) {
			return worst, fmt.Errorf("path %d is node %d, after %d", i, g.node, got[max(0, i-1)].node)
		}
		want := all[g.node].score
		worst = max(worst, math.Abs(g.score-want))
		if !(math.Abs(g.score-want) <= normOff) || want < cut-2*normOff {
			return worst, fmt.Errorf("node %d has score %v, want %v; the last that sorting keeps has %v", g.node, g.score, want,
				cut)
		}
		has[g.node] = true
	}
	for _, w := range sorted[:len(got)] {
		if !has[w.node] && w.score > cut+2*normOff {
			return worst, fmt.Errorf("node %d with score %v is not chosen; the last that sorting keeps has %v", w.node, w.score,
				cut)
		}
	}
	return worst, nil
}

// measureSelection times a round: the top 512 of each of 512 beams, and of these the top 512.
func measureSelection(o *Options, d cuda.Device) (line Line, err error) {
	c := d.Context()
	defer c.Leave()
	if err := c.Enter(); err != nil {
		return line, err
	}
	s, err := newSelections(c, selectCopies, o.Seed)
	if err != nil {
		return line, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	took, err := graphTimes(s.c, s.stream, s.rounds, o.Repeats)
	if err != nil {
		return line, fmt.Errorf("selection: %w", err)
	}
	for i := range took {
		took[i] /= selectCopies
	}
	line = newLine("select", "selection: 512 beams × 8,192 logits → 512", "µs", took)
	line.Must, line.Aim = 120, 50
	return line, nil
}

// graphTimes captures what f puts into the stream and returns the microseconds of its replays.
func graphTimes(c *driver.Context, stream *driver.Stream, f func() error, repeats int) (out []float64, err error) {
	if err := errors.Join(f(), stream.Sync()); err != nil { // loads what is loaded lazily
		return nil, err
	}
	g, err := stream.Capture(f)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	start, err := c.NewEvent(true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, start.Close()) }()
	end, err := c.NewEvent(true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	for i := range warmups + repeats {
		if err := errors.Join(start.Record(stream), g.Launch(stream), end.Record(stream), end.Sync()); err != nil {
			return nil, err
		}
		took, err := end.Since(start)
		if err != nil {
			return nil, err
		}
		if i >= warmups {
			out = append(out, float64(took)/float64(time.Microsecond))
		}
	}
	return out, nil
}
