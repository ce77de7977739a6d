package attend

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/compute/cuda/split"
)

const (
	sweepLayers = 8 // that are timed together, each with its own data: a layer's does not stay in the cache
	tuneTurns   = 5
	sweepRows   = 2048
	sweepSlots  = 10240
)

// Tune returns the model that chooses how tiles of the configuration's shape are cut on this GPU: the one
// that was kept, unless it is to be made again, or one that is fitted to measurements, which take a few
// seconds and some hundred megabytes of the GPU's memory. The caller is inside the context, and nothing
// else should run on the GPU.
func Tune(c *driver.Context, cfg Config, again bool) (*split.Model, error) {
	file, err := kernels.Kept(c, "split", "attend.cu", defines(&cfg)...)
	if err != nil {
		return nil, fmt.Errorf("attend: %w", err)
	}
	if data, ok := kernels.ReadKept(file); ok && !again {
		if m, err := split.Decode(data); err == nil {
			return m, nil
		}
	}
	measured, err := Sweep(c, cfg, lessons(), tuneTurns)
	if err != nil {
		return nil, err
	}
	m, err := split.Train(measured)
	if err != nil {
		return nil, fmt.Errorf("attend: %w", err)
	}
	data, err := m.Encode()
	if err != nil {
		return nil, fmt.Errorf("attend: %w", err)
	}
	kernels.WriteKept(file, data)
	return m, nil
}

// lessons are the batches that a model is fitted to: rows behind cached keys, and beams behind a prompt.
// Every fourth of them is a fair sample.
func lessons() []*compute.Batch {
	var out []*compute.Batch
	for _, rows := range []int{16, 64, 200, 500, 900, 1600} {
		for _, cached := range []int{0, 300, 700, 1500, 3000, 6000, 8000} {
			out = append(out, Behind(cached, rows))
		}
	}
	for _, width := range []int{32, 100, 200, 400, 700} {
		for _, prompt := range []int{200, 600, 1300, 2600, 5200} {
			out = append(out, Beams(prompt, width, 2))
		}
	}
	return out
}

// Behind is a batch of rows rows of one segment of which cached tokens are cached. Its chunks have no memory.
func Behind(cached, rows int) *compute.Batch {
	b := &compute.Batch{}
	extend(b, cached+rows, cached)
	return b
}

// Beams is a round of width beams that have length tokens each behind a cached prompt. Its chunks have no
// memory.
func Beams(prompt, width, length int) *compute.Batch {
	b := &compute.Batch{}
	extend(b, prompt, prompt)
	for range width {
		extend(b, length, length-1, 0)
	}
	return b
}

func extend(b *compute.Batch, length, cached int, sees ...int32) {
	b.Segments = append(b.Segments, compute.Segment{First: len(b.Tokens), Len: length, Cached: cached, Sees: sees,
		Chunks: []compute.Chunk{{Tokens: length}}})
	for i := cached; i < length; i++ {
		b.Tokens, b.Positions = append(b.Tokens, 0), append(b.Positions, int32(i))
	}
}

// Sweep times a layer's attention of each batch by every way to cut it that is possible, in turns, on random
// numbers; times are medians of turns turns. Batches have at most 2,048 rows and 10,240 tokens; what is
// cached need not have memory. The caller is inside the context, and nothing else should run on the GPU.
func Sweep(c *driver.Context, cfg Config, batches []*compute.Batch, turns int) (out []split.Measured, err error) {
	cfg.Rows, cfg.Slots, cfg.Buffers, cfg.Split = sweepRows, sweepSlots, sweepLayers, nil
	s := &sweep{c: c}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(cfg); err != nil {
		return nil, fmt.Errorf("attend: measure: %w", err)
	}
	for _, b := range batches {
		m, err := s.measure(b, turns)
		if err != nil {
			return nil, fmt.Errorf("attend: measure a batch of %d rows: %w", len(b.Tokens), err)
		}
		out = append(out, m)
	}
	return out, nil
}

// sweep is an Attention with data, and a graph of some layers that serves all batches.
type sweep struct {
	c          *driver.Context
	a          *Attention
	stream     *driver.Stream
	start, end *driver.Event
	graph      *driver.Graph
	epoch      int          // of the graph
	memory     []driver.Ptr // queries and results of each layer
}

func (s *sweep) open(cfg Config) (err error) {
	if s.a, err = New(s.c, cfg); err != nil {
		return err
	}
	if s.stream, err = s.c.NewStream(); err != nil {
		return err
	}
	if s.start, err = s.c.NewEvent(true); err != nil {
		return err
	}
	if s.end, err = s.c.NewEvent(true); err != nil {
		return err
	}
	width := cfg.Shape.Heads * cfg.Shape.HeadDim
	for range 2 * sweepLayers {
		p, err := s.c.Alloc(2 * cfg.Rows * width)
		if err != nil {
			return err
		}
		s.memory = append(s.memory, p)
		if err := s.noise(p, cfg.Rows*width); err != nil {
			return err
		}
	}
	scratch := 2 * cfg.Shape.KVHeads * cfg.Buffers * s.a.cfg.Slots * s.a.rowBytes()
	if err := s.noise(s.a.scratch, scratch/2); err != nil {
		return err
	}
	if err := s.a.Begin(s.stream, Behind(0, tileRows)); err != nil {
		return err
	}
	run := func() error {
		for l := range sweepLayers {
			if err := s.a.Run(s.stream, l, s.memory[2*l], width, s.memory[2*l+1], width); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(); err != nil {
		return err
	}
	if err := s.stream.Sync(); err != nil {
		return err
	}
	s.epoch = s.a.Epoch()
	s.graph, err = s.stream.Capture(run)
	return err
}

// noise fills memory with n random numbers in bf16.
func (s *sweep) noise(p driver.Ptr, n int) error {
	m, err := kernels.Load(s.c, "noise.cu", "FORMAT=1")
	if err != nil {
		return err
	}
	f, err := m.Function("noise")
	if err == nil {
		err = f.Launch(s.stream, driver.Launch{Grid: [3]int{4 * s.c.Info().Processors}, Block: [3]int{256}},
			s.a.args.Reset().Ptr(p).Int64(int64(n)).Int(int(uint32(p>>8))).Float(0).Float(1))
	}
	return errors.Join(err, s.stream.Sync(), m.Close())
}

// measure times a batch.
func (s *sweep) measure(b *compute.Batch, turns int) (split.Measured, error) {
	p := &s.a.plan
	p.forced = nil
	if err := s.a.Begin(s.stream, b); err != nil {
		return split.Measured{}, err
	}
	if s.a.Epoch() != s.epoch {
		return split.Measured{}, fmt.Errorf("%d tokens are too many", p.slots)
	}
	m := split.Measured{Work: p.work}
	m.Work.Counts = slices.Clone(p.work.Counts)
	var ways []split.Split
	for _, way := range split.Candidates() {
		if _, ok := m.Work.Load(way); ok {
			ways = append(ways, way)
		}
	}
	times := make([][]time.Duration, len(ways))
	for turn := range turns + 1 { // the first is not counted
		for i := range ways {
			p.forced = &ways[i]
			took, err := s.time(b)
			if err != nil {
				return m, err
			}
			if turn > 0 {
				times[i] = append(times[i], took)
			}
		}
	}
	for i, t := range times {
		slices.Sort(t)
		m.Times = append(m.Times, split.Timed{Split: ways[i], US: float64(t[len(t)/2].Nanoseconds()) / 1e3 / sweepLayers})
	}
	return m, nil
}

// time runs the layers once, by the plan of the batch.
func (s *sweep) time(b *compute.Batch) (time.Duration, error) {
	if err := s.a.Begin(s.stream, b); err != nil {
		return 0, err
	}
	if err := s.start.Record(s.stream); err != nil {
		return 0, err
	}
	if err := s.graph.Launch(s.stream); err != nil {
		return 0, err
	}
	if err := s.end.Record(s.stream); err != nil {
		return 0, err
	}
	if err := s.end.Sync(); err != nil {
		return 0, err
	}
	return s.end.Since(s.start)
}

func (s *sweep) close() error {
	var err error
	if s.graph != nil {
		err = s.graph.Close()
	}
	for _, e := range []*driver.Event{s.start, s.end} {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}
	for _, p := range s.memory {
		err = errors.Join(err, s.c.Free(p))
	}
	if s.stream != nil {
		err = errors.Join(err, s.stream.Close())
	}
	if s.a != nil {
		err = errors.Join(err, s.a.Close())
	}
	return err
}
