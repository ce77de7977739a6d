package blend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"grebe/bench/report"
	"grebe/blend"
	"grebe/compute"
	"grebe/dispatch"
	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/pool"
)

// DiskOptions say what MeasureDisk measures. Zero values stand for defaults.
type DiskOptions struct {
	Device  compute.Device // taken over
	Dir     string         // where blocks are written; it is the caller's
	Shape   string         // of Shapes; qwen3-0.6b
	Prompts []Prompt
	Only    int     // of the prompts: the first is 1; 0: all
	Budget  float64 // for items and history alike; 0.3
	Repeats int     // 7
	Rate    float64 // bytes per second at which the disk reads at most; 0: as it does, nothing of it in the system's cache
	Layers  int     // that compute all tokens; blend.WholeLayers
	Seed    uint64
}

// Disk is how soon blended prompts answer whose blocks are on a disk.
type Disk struct {
	Date   string     `json:"date"`
	Device string     `json:"device"`
	Shape  string     `json:"shape"`
	Budget float64    `json:"budget"`
	Rate   float64    `json:"rate"`
	Lines  []DiskLine `json:"lines"`
}

// DiskLine is one prompt, alone, through the queue: medians in milliseconds of runs in turns.
type DiskLine struct {
	Prompt Prompt  `json:"prompt"`
	Tokens int     `json:"tokens"`
	Bytes  int64   `json:"bytes"`     // of the blocks
	Memory float64 `json:"memory_ms"` // with the blocks in memory
	First  float64 `json:"first_ms"`  // of that, predicted: the layers before rows are chosen
	Read   float64 `json:"read_ms"`   // the blocks, while nothing is computed
	Ahead  float64 `json:"ahead_ms"`  // the blocks are read, and then the prompt is computed
	Beside float64 `json:"beside_ms"` // the blocks are read beside the first layers
	Saved  float64 `json:"saved_ms"`  // median of the repeats' own
	Late   int     `json:"late"`      // tokens that did not come in time and were computed, in all runs
	// most by which a score differs from that with the blocks in memory, where none was late
	Off float64 `json:"off"`
}

// slowed is a disk that reads no faster than so many bytes per second, and deletes nothing: blocks are deleted to have
// them leave memory.
type slowed struct {
	*disk.Store
	rate float64
}

func (s *slowed) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	start, size := time.Now(), int64(0)
	meta, ok, err := s.Store.Get(key, func(meta []byte, n int64) ([][]byte, error) { size = n; return place(meta, n) })
	if s.rate > 0 {
		time.Sleep(time.Duration(float64(size)/s.rate*float64(time.Second)) - time.Since(start))
	}
	return meta, ok, err
}

func (s *slowed) Delete(...plan.Key) error { return nil }

// shelf is a system whose blocks are on a disk.
type shelf struct {
	*system
	disk   *disk.Store
	host   *pool.Pool // nil: the device computes in the host's memory
	dir    string
	cold   bool // nothing of the disk may be in the system's cache
	queues [2]*dispatch.Dispatcher
	paces  [2]loading.Pace
}

// Ways of taking blocks from a disk.
const (
	ahead  = iota // all is read before a job takes its place
	beside        // it is read while its first layers compute
)

// MeasureDisk times prompts alone whose blocks are on a disk: read before they are computed, and beside their first
// layers.
func MeasureDisk(ctx context.Context, o DiskOptions) (*Disk, error) {
	o.Shape, o.Budget, o.Repeats = cmp.Or(o.Shape, "qwen3-0.6b"), cmp.Or(o.Budget, 0.3), cmp.Or(o.Repeats, 7)
	if len(o.Prompts) == 0 {
		o.Prompts = prompts
	}
	if o.Only > 0 {
		o.Prompts = o.Prompts[o.Only-1 : o.Only]
	}
	s, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	out := &Disk{Date: time.Now().UTC().Format(time.DateOnly), Device: o.Device.Name(), Shape: o.Shape, Budget: o.Budget,
		Rate: o.Rate}
	for _, p := range o.Prompts {
		line, err := s.measure(ctx, &o, p)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("bench blend disk: %w", err), s.close())
		}
		out.Lines = append(out.Lines, line)
	}
	return out, s.close()
}

func (o *DiskOptions) open(ctx context.Context) (*shelf, error) {
	d, err := disk.Open(o.Dir, disk.Options{Budget: 64 << 30})
	if err != nil {
		return nil, err
	}
	sys, err := newRandom(o.Device, o.Shape, o.Seed, o.Prompts, 1, engine.Options{MaxTokens: 8192})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	s := &shelf{system: sys, disk: d, dir: o.Dir, cold: o.Rate <= 0}
	if m := o.Device.Memory(); m.Host() != m { // what is read goes there, as served
		if s.host, err = pool.Over(m.Host(), roomFor(o.Prompts, 1, s.model.Shape()), 64<<10); err == nil {
			err = s.store.SetHost(s.host)
		}
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	s.store.SetDisk(&slowed{d, o.Rate})
	// Sizes that no prompt here has are not prepared for.
	times, err := dispatch.Profile(ctx, struct{ dispatch.Engine }{s.engine}, s.model.MaxPositions())
	for i := range s.queues {
		if err == nil {
			s.queues[i], err = dispatch.New([]dispatch.Engine{s.engine},
				dispatch.Options{Model: times, SLO: time.Hour, ReadAhead: i == ahead})
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *shelf) close() error {
	var errs []error
	for _, q := range s.queues {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	for _, e := range s.blocks {
		e.Release()
	}
	s.blocks = nil
	errs = append(errs, s.engine.Close())
	s.store.Close()
	if s.host != nil {
		errs = append(errs, s.host.Close())
	}
	return errors.Join(append(errs, s.pool.Close(), s.model.Close(), s.device.Close(), s.disk.Close())...)
}

// measure times a prompt in all ways, in turns.
func (s *shelf) measure(ctx context.Context, o *DiskOptions, p Prompt) (line DiskLine, err error) {
	q, err := s.question(ctx, o.Seed, p)
	if err != nil {
		return line, err
	}
	defer q.release()
	line = DiskLine{Prompt: p, Tokens: q.laid.layout.Plan.Tokens()}
	keys := s.shelve(q)
	job := q.job(&blend.Budget{Items: o.Budget, History: o.Budget}, o.Layers)
	var memory, read, saved []float64
	var times [2][]float64
	var logits []float32
	for round := range o.Repeats + 1 { // the first prepares
		took, r, err := s.fromMemory(ctx, job, keys)
		if err != nil {
			return line, err
		}
		logits = r.Logits[0]
		memory = append(memory, took)
		for i := range times {
			way := (i + round) % 2
			l, err := s.fromDisk(ctx, way, job, keys)
			if err != nil {
				return line, err
			}
			if l.late == 0 {
				line.Off = max(line.Off, apart(l.logits, logits))
			}
			times[way] = append(times[way], l.took)
			if way == ahead {
				read = append(read, l.read)
			}
			if line.Bytes = l.bytes; round > 0 {
				line.Late += l.late
			}
		}
		saved = append(saved, times[ahead][round]-times[beside][round])
	}
	line.Memory, line.Read, line.Saved = report.Median(memory[1:]), report.Median(read[1:]), report.Median(saved[1:])
	line.Ahead, line.Beside = report.Median(times[ahead][1:]), report.Median(times[beside][1:])
	line.First, err = s.first(job)
	return line, err
}

// apart returns the largest difference of two answers.
func apart(a, b []float32) (most float64) {
	for i := range a {
		most = max(most, math.Abs(float64(a[i]-b[i])))
	}
	return most
}

// first predicts how long a job's layers before the choice take.
func (s *shelf) first(j *engine.Job) (float64, error) {
	cost, err := s.engine.Check(j)
	m := s.queues[beside].Model()
	return m.Predict(cost.Rows, cost.Keys, 1) * cost.First, err
}

// shelve puts the blocks of a prompt on the disk, and has the store own them.
func (s *shelf) shelve(q *question) []plan.Key {
	keys := make([]plan.Key, len(q.parts))
	for i := range q.parts {
		if part := &q.parts[i]; part.Source == plan.Block {
			keys[i] = kv.KeyOf(plan.Key{}, nil, fmt.Sprint(q.laid.items, i))
			s.store.Publish(plan.Item, keys[i], nil, part.Entry)
		}
	}
	for name, e := range s.blocks {
		e.Release()
		delete(s.blocks, name)
	}
	s.store.Flush()
	return keys
}

// diskRun is one answer.
type diskRun struct {
	took, read float64 // milliseconds
	bytes      int64
	late       int
	logits     []float32
}

// fromMemory answers with blocks that are brought to memory before.
func (s *shelf) fromMemory(ctx context.Context, job *engine.Job,
	keys []plan.Key) (ms float64, r *engine.Result, err error) {
	j, l := s.start(beside, job, keys)
	defer l.release()
	if err := l.Wait(ctx); err != nil {
		return 0, nil, err
	}
	start := time.Now()
	r, err = s.queues[beside].Do(ctx, j)
	return milliseconds(start), r, err
}

// fromDisk answers with blocks that are on the disk alone.
func (s *shelf) fromDisk(ctx context.Context, way int, job *engine.Job, keys []plan.Key) (out diskRun, err error) {
	if err := s.lower(keys); err != nil {
		return out, err
	}
	start := time.Now()
	j, l := s.start(way, job, keys)
	defer l.release()
	r, err := s.queues[way].Do(ctx, j)
	if err != nil {
		return out, err
	}
	out = diskRun{took: milliseconds(start), late: r.Late, logits: r.Logits[0]}
	l.wg.Wait()
	out.read, out.bytes = l.took, l.bytes
	return out, nil
}

func milliseconds(since time.Time) float64 { return time.Since(since).Seconds() * 1000 }

// lower has the blocks leave memory, and the system's cache.
func (s *shelf) lower(keys []plan.Key) error {
	for _, key := range keys {
		if key == (plan.Key{}) {
			continue
		}
		if err := s.store.Delete(key); err != nil { // the disk keeps it, see slowed
			return err
		}
	}
	if s.cold {
		return forget(s.dir)
	}
	return nil
}

// reading brings the blocks of a job up.
type reading struct {
	*loading.Loading
	wg    sync.WaitGroup
	pins  []*kv.Entry
	took  float64
	bytes int64
}

// start begins to read the blocks of a job, which it returns a copy of.
func (s *shelf) start(way int, job *engine.Job, keys []plan.Key) (*engine.Job, *reading) {
	j, b := *job, *job.Blend
	b.Parts = slices.Clone(b.Parts)
	tokens := 0
	for i := range b.Parts {
		if part := &b.Parts[i]; keys[i] != (plan.Key{}) {
			part.Entry = nil
			tokens += part.Tokens
		}
	}
	l := &reading{Loading: loading.New(tokens, &s.paces[way])}
	b.Load, j.Blend = l.Loading, &b
	parts, shape, start := b.Parts, s.model.Shape(), time.Now()
	l.wg.Go(func() {
		defer l.End()
		for i := range keys {
			if keys[i] == (plan.Key{}) {
				continue
			}
			if e, _ := s.store.Get(keys[i]); e != nil {
				l.pins = append(l.pins, e)
				l.Here(parts[i].Tokens, e, []int{i})
				continue
			}
			if !l.Next(parts[i].Tokens) {
				break
			}
			s.store.Fetch(context.Background(), keys[i])
			e, _ := s.store.Get(keys[i])
			if e != nil {
				l.pins = append(l.pins, e)
				l.bytes += int64(shape.ChunkBytes(e.Len(), false))
			}
			l.Came(e, []int{i})
		}
		l.took = milliseconds(start)
	})
	return &j, l
}

// release waits for what is being read and lets all go.
func (l *reading) release() {
	l.Stop()
	l.wg.Wait()
	for _, e := range l.pins {
		e.Release()
	}
}

// JSON writes the report.
func (d *Disk) JSON(w io.Writer) error {
	return report.JSON(w, d)
}

// Text writes a table.
func (d *Disk) Text(w io.Writer) error {
	rate := "as the disk reads, nothing of it cached"
	if d.Rate > 0 {
		rate = fmt.Sprintf("at %.0f MiB/s", d.Rate/(1<<20))
	}
	fmt.Fprintf(w, "%s, %s\n%s's shape, random weights, bf16, budget %.2f; items' blocks are on disk, %s\n\n", d.Date,
		d.Device, d.Shape, d.Budget, rate)
	fmt.Fprintf(w, "%7s %10s  %10s %9s %9s %9s %9s %9s %6s %6s\n", "tokens", "blocks MiB", "memory ms", "first ms",
		"read ms", "ahead ms", "beside ms", "saved ms", "late", "off")
	for _, l := range d.Lines {
		_, err := fmt.Fprintf(w, "%7d %10.1f  %10.2f %9.2f %9.2f %9.2f %9.2f %9.2f %6d %6.2g\n", l.Tokens,
			float64(l.Bytes)/(1<<20),
			l.Memory, l.First, l.Read, l.Ahead, l.Beside, l.Saved, l.Late, l.Off)
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "\nmemory: with the blocks there; first: its layers before rows are chosen, predicted; "+
		"ahead: read, then computed; beside: read beside these layers;\nlate: tokens that were computed since they did not "+
		"come in time; off: most that scores differ from those with the blocks in memory")
	return err
}
