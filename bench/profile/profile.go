// Package profile measures how long batches take on a device and fits the profiles that package sim predicts with. One
// command fits them again after kernels change.
//
// Weights are random and of a model's shape: times do not depend on their values. Batches run through the engine that
// serves, with KV from its cache and pauses between them, and the median of repeated runs is fitted. Every other batch
// is left out of a second fit, whose error on them says how well the form predicts batches that it was not fitted to.
package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/bench/drive"
	"grebe/bench/report"
	"grebe/compute"
	"grebe/engine"
	"grebe/sim"
)

// Options say what to measure. Zero values mean the defaults in their comments.
type Options struct {
	Device  compute.Device // the caller closes it
	Label   string         // what the profiles' names begin with
	Models  []string       // of Models
	Repeats int            // runs of a batch in a pass; 3
	Passes  int            // over all batches; 4
	Longest time.Duration  // larger batches are left out once a batch takes longer; 1.5 s
	Budget  time.Duration  // of runs per model, beyond which batches are left out; 60 s
	Command string         // that measures this
	Program string         // path of the grebe that serves the first decoder; none: that is left out
	// Settings have that server use the same device.
	Settings []drive.Setting
	Seed     uint64
	Log      func(format string, args ...any) // progress
}

func (o *Options) setDefaults() {
	if o.Repeats <= 0 {
		o.Repeats = 3
	}
	if o.Passes <= 0 {
		o.Passes = 4
	}
	if o.Longest <= 0 {
		o.Longest = 1500 * time.Millisecond
	}
	if o.Budget <= 0 {
		o.Budget = 60 * time.Second
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
}

// Report is what was measured of one model.
type Report struct {
	Profile sim.Profile `json:"profile"`
	Device  string      `json:"device"`
	Command string      `json:"command"`
	Date    string      `json:"date"`
	Error   Error       `json:"error"`
	Copy    Copy        `json:"copy"`
	Samples []Sample    `json:"samples"`
	Served  []Measured  `json:"served,omitempty"` // batches of a server
	sizes   []int       // that the device is tuned for
}

// Error is the relative error of the fit.
type Error struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Max    float64 `json:"max"`
	// LeftOut is the median error on every other batch, of a fit to the rest.
	LeftOut float64 `json:"left_out_median"`
}

// Sample is a measured batch.
type Sample struct {
	Measured
	ByTile    []int   `json:"tiled_by_tile"` // Work.Tiled by tileSizes
	Batch     string  `json:"batch"`
	Predicted float64 `json:"predicted_ms"`
	Spread    float64 `json:"spread"` // standard deviation of the logarithm over repeats
	times     []float64
}

// Copy is how fast KV gets from host memory to the device.
type Copy struct {
	BytesPerSecond float64 `json:"bytes_per_second"` // of a large block; 0: the device computes in host memory
	EntryMs        float64 `json:"entry_ms"`         // added by each entry of a copy of many small ones
}

// Run measures models one after the other. If one fails, it returns the reports so far.
func Run(ctx context.Context, o Options) ([]Report, error) {
	o.setDefaults()
	for _, name := range o.Models {
		if _, ok := Models[name]; !ok {
			return nil, fmt.Errorf("bench profile: model %q is not one of %q", name, Names())
		}
	}
	var of *served
	var out []Report
	for _, name := range o.Models {
		m := Models[name]
		start := time.Now()
		r, err := o.measure(ctx, name, &m)
		if err != nil {
			return out, fmt.Errorf("bench profile: %s: %w", name, err)
		}
		if of == nil && m.Events == 0 && o.Program != "" {
			if of, err = serve(ctx, &o, name); err != nil {
				return out, fmt.Errorf("bench profile: serve %s: %w", name, err)
			}
		}
		if of != nil && m.Events == 0 { // requests of events have no texts
			if err := of.describe(r, name); err != nil {
				return out, fmt.Errorf("bench profile: %s: %w", name, err)
			}
			p := &r.Profile
			o.Log("%s: outside of batches %.2f ms per request, %.4f ms per item, %.5f ms per token\n", name, p.Front.Request,
				p.Front.Item,
				p.Front.Token)
			if p.Slowdown > 0 {
				o.Log("%s: batches take %.2f times as long in a server and %.2f ms\n", name, p.Slowdown, p.Added)
			}
		}
		out = append(out, *r)
		o.Log("%s: %d batches in %.1f s; relative error %.1f%% in the median, %.1f%% at P90, %.1f%% on batches left out\n",
			name, len(r.Samples),
			time.Since(start).Seconds(), 100*r.Error.Median, 100*r.Error.P90, 100*r.Error.LeftOut)
	}
	return out, nil
}

func (o *Options) measure(ctx context.Context, name string, m *Model) (r *Report, err error) {
	s, err := open(o.Device, m, o.Seed)
	defer func() { err = errors.Join(err, s.shut()) }()
	if err != nil {
		return nil, err
	}
	r = &Report{Device: o.Device.Name(), Command: o.Command, Date: time.Now().UTC().Format(time.DateOnly)}
	todo := decoderWork()
	if m.Events > 0 {
		todo = eventWork(m.Events)
	}
	slices.SortStableFunc(todo, func(a, b work) int { return a.rows() - b.rows() })
	if r.Samples, err = o.sweep(ctx, s, todo); err != nil {
		return nil, err
	}
	r.sizes = s.engine.Sizes(s.engine.MaxTokens())
	if err := r.fit(); err != nil {
		return nil, err
	}
	if r.Copy, err = timeCopies(o.Device.Memory(), m.tokenBytes()); err != nil {
		return nil, err
	}
	o.describe(r, s, name, m)
	return r, r.Profile.Validate()
}

// sweep measures all batches several times over, so that what disturbs a shared machine for a while does not meet all
// runs of a batch. If the time is over in the first pass, the batches so far are of all sizes.
func (o *Options) sweep(ctx context.Context, s *subject, todo []work) ([]Sample, error) {
	all := make([]Sample, len(todo))
	start, measured, most := time.Now(), 0, math.MaxInt
	for pass := range o.Passes {
		for k := range todo {
			i := 2 * k // every other one first
			if i >= len(todo) {
				i = 2*(k-(len(todo)+1)/2) + 1
			}
			if time.Since(start) > o.Budget && measured >= enough {
				break
			}
			if todo[i].rows() > most {
				continue
			}
			if err := o.sample(ctx, s, &todo[i], &all[i], pass == 0); err != nil {
				return nil, fmt.Errorf("%v: %w", &todo[i], err)
			}
			if slices.Max(all[i].times) > o.Longest.Seconds()*1000 {
				most = todo[i].rows()
			}
			measured++
		}
	}
	var out []Sample
	for i := range all {
		if x := &all[i]; len(x.times) > 0 {
			slices.Sort(x.times)
			x.Ms, x.Spread = report.Median(x.times), spread(x.times)
			out = append(out, *x)
		}
	}
	return out, nil
}

// enough batches make a fit.
const enough = 24

// Warm-ups come before timed runs: a GPU tunes and records a size at first.
const (
	warmups = 3
	slow    = 50 // milliseconds of a batch that has nothing to prepare after a run
	// After a batch the device rests for as long as it took, but no longer than this: in a server that is half busy,
	// threads sleep between batches.
	longestPause = 20 * time.Millisecond
)

// sample runs a batch several times.
func (o *Options) sample(ctx context.Context, s *subject, w *work, x *Sample, first bool) error {
	jobs, release, err := s.jobs(ctx, w)
	defer release()
	if err != nil {
		return err
	}
	x.Batch, x.ByTile = w.String(), x.ByTile[:0]
	for _, tile := range tileSizes {
		x.Work = workOf(jobs, tile)
		x.ByTile = append(x.ByTile, x.Tiled)
	}
	warm := 1
	if first {
		warm = warmups
	}
	out := make([]engine.Outcome, len(jobs))
	for i := 0; i < warm+o.Repeats; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := time.Now()
		s.engine.Run(jobs, out)
		took := time.Since(start)
		ms := took.Seconds() * 1000
		if err := drop(out); err != nil {
			return err
		}
		if i == 1 && ms > slow {
			warm = 1
		}
		if i >= warm {
			x.times = append(x.times, ms)
		}
		time.Sleep(min(took, longestPause))
	}
	return nil
}

// drop releases what a batch kept, and returns the first error.
func drop(out []engine.Outcome) error {
	var err error
	for i := range out {
		for _, e := range out[i].Kept {
			if e != nil {
				e.Release()
			}
		}
		err = errors.Join(err, out[i].Err)
		out[i] = engine.Outcome{}
	}
	return err
}

// spread returns the standard deviation of the logarithms, without the slowest run: on a shared machine that one is
// often somebody else's.
func spread(sorted []float64) float64 {
	t := sorted[:max(len(sorted)-1, 1)]
	mean, sum := 0.0, 0.0
	for _, v := range t {
		mean += math.Log(v) / float64(len(t))
	}
	for _, v := range t {
		sum += (math.Log(v) - mean) * (math.Log(v) - mean)
	}
	return math.Sqrt(sum / float64(len(t)))
}

// describe fills in what is known of the device.
func (o *Options) describe(r *Report, s *subject, name string, m *Model) {
	p := &r.Profile
	p.Name, p.Model = o.Label+"-"+name, m.Name
	p.Source = fmt.Sprintf("measured on %s, %s: %s; %d batches, relative "+
		"error %.1f%% in the median, %.1f%% at P90, %.1f%% on batches left out of a fit",
		r.Device, r.Date, o.Command, len(r.Samples), 100*r.Error.Median, 100*r.Error.P90, 100*r.Error.LeftOut)
	for i := range r.Samples {
		p.MaxRows = max(p.MaxRows, r.Samples[i].Rows)
	}
	p.KVTokenBytes = m.tokenBytes()
	p.HostBytes = memoryForKV()
	if r.Copy.BytesPerSecond > 0 {
		p.DeviceBytes, p.HostLink = s.free*9/10, r.Copy.BytesPerSecond
	}
	if m.Events > 0 {
		p.RowBytes, p.RowLink = int64(2*m.Shape.Hidden), r.Copy.BytesPerSecond
		if p.RowLink == 0 {
			p.RowLink = hostBytesPerSecond
		}
	}
}

// hostBytesPerSecond is assumed for rows that are gathered within host memory.
const hostBytesPerSecond = 5e9

// memoryForKV is three quarters of the machine's memory; 1 GiB if it is not known.
func memoryForKV() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	var kib int64
	if n, _ := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err != nil || n != 1 {
		return 1 << 30
	}
	return kib << 10 * 3 / 4
}

// timeCopies measures copies of KV from the host to the device: one large block, and many entries of an item's size.
func timeCopies(device compute.Memory, tokenBytes int64) (c Copy, err error) {
	host := device.Host()
	if host == device {
		return c, nil
	}
	const (
		large   = 256 << 20
		entries = 128
		tokens  = 10
	)
	to, err := device.Alloc(large)
	if err != nil {
		return c, err
	}
	defer device.Free(to)
	from, err := host.Alloc(large)
	if err != nil {
		return c, err
	}
	defer host.Free(from)
	one := int(tokenBytes) * tokens
	var small []compute.Move
	for i := range min(entries, large/one) {
		small = append(small, compute.MoveAll(to.Slice(i*one, one), from.Slice(i*one, one)))
	}
	whole, err := timed(device, compute.MoveAll(to, from))
	if err != nil {
		return c, err
	}
	c.BytesPerSecond = large / whole
	parts, err := timed(device, small...)
	each := parts - float64(len(small)*one)/c.BytesPerSecond
	c.EntryMs = max(0, each/float64(len(small))*1000)
	return c, err
}

// timed returns the median seconds of a copy.
func timed(m compute.Memory, moves ...compute.Move) (float64, error) {
	var times []float64
	for i := range 9 {
		start := time.Now()
		if err := m.Copy(moves...); err != nil {
			return 0, err
		}
		if i > 1 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	return report.Median(times), nil
}

// Write writes each profile to dir as NAME.json, and what was measured to LABEL.samples.ndjson, a line per model.
func Write(dir, label string, reports []Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("bench profile: %w", err)
	}
	var lines []byte
	for i := range reports {
		p := &reports[i].Profile
		if err := write(filepath.Join(dir, p.Name+".json"), p); err != nil {
			return err
		}
		line, err := json.Marshal(&reports[i])
		if err != nil {
			return fmt.Errorf("bench profile: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	return os.WriteFile(filepath.Join(dir, label+".samples.ndjson"), lines, 0o644)
}

func write(name string, content any) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("bench profile: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return report.JSON(f, content)
}

// round rounds to digits after the point.
func round(v float64, digits int) float64 {
	by := math.Pow10(digits)
	return math.Round(v*by) / by
}
