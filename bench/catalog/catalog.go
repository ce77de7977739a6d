// Package catalog measures what versions of a large catalog cost: building the index of valid paths,
// changing a few items of it, storing and mapping it, going back to an earlier version. All of it runs
// the code that serves, on generated items.
package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/beam"
	"grebe/bench/report"
	store "grebe/catalog"
	"grebe/compute"
	"grebe/generate"
	"grebe/prompt"
)

// Options of a run. Zero means the default.
type Options struct {
	Items   int      // 10,000,000
	Changes []int    // items of each delta; 1, 1,000, 100,000
	Levels  int      // 3
	Size    int      // codes of a level; 8192
	Kinds   []string // uniform, clustered; both
	Parts   []string // index, versions; both
	Repeats int      // of each delta; 5
	Dir     string   // where the files go; a temporary folder
	Seed    uint64
	JSON    bool
}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.Items, 10_000_000}, {&o.Levels, 3}, {&o.Size, 8192}, {&o.Repeats, 5}} {
		if *d.v < 0 {
			return fmt.Errorf("%d is negative", *d.v)
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if len(o.Changes) == 0 {
		o.Changes = []int{1, 1000, 100_000}
	}
	if len(o.Kinds) == 0 {
		o.Kinds = []string{"uniform", "clustered"}
	}
	if len(o.Parts) == 0 {
		o.Parts = []string{"index", "versions"}
	}
	for _, c := range o.Changes {
		if c < 1 || c > o.Items {
			return fmt.Errorf("a delta of %d items of %d", c, o.Items)
		}
	}
	for _, k := range o.Kinds {
		if k != "uniform" && k != "clustered" {
			return fmt.Errorf("no kind %q: want uniform or clustered", k)
		}
	}
	for _, p := range o.Parts {
		if p != "index" && p != "versions" {
			return fmt.Errorf("no part %q: want index or versions", p)
		}
	}
	return nil
}

// Report is what a run measured.
type Report struct {
	Items    int        `json:"items"`
	Cores    int        `json:"cores"`
	Indices  []Index    `json:"indices,omitempty"`
	Versions []Versions `json:"versions,omitempty"`
	Checks   []Check    `json:"checks"`
}

// Index is what an index alone costs, on one core.
type Index struct {
	Kind         string  `json:"kind"`
	BuildSeconds float64 `json:"build_seconds"`
	BytesPerItem float64 `json:"bytes_per_item"`
	StoredBytes  float64 `json:"stored_bytes_per_item"`
	OpenSeconds  float64 `json:"open_seconds"`
	Leaves       int     `json:"leaves"`
	Deltas       []Delta `json:"deltas"`
}

// Delta is what changing some items costs: as many new or changed ones as deleted ones.
type Delta struct {
	Items      int     `json:"items"`
	Seconds    float64 `json:"seconds"`     // median
	Worst      float64 `json:"worst"`       // of the repeats
	CPUSeconds float64 `json:"cpu_seconds"` // median, all cores, garbage collection included
}

// Versions is what a server's versions cost, from the catalog's change to the swap, files synced.
type Versions struct {
	Kind            string  `json:"kind"`
	FillSeconds     float64 `json:"fill_seconds"`  // of the catalog, in memory: no part of what is measured
	FirstSeconds    float64 `json:"first_seconds"` // items and index built and stored
	StoredBytes     float64 `json:"stored_bytes_per_item"`
	RestartSeconds  float64 `json:"restart_seconds"`  // of a catalog that did not change: compared and mapped
	RollbackSeconds float64 `json:"rollback_seconds"` // to the version before
	CompactSeconds  float64 `json:"compact_seconds"`  // a delta that begins the next generation
	HeapBytes       float64 `json:"heap_bytes_per_item"`
	Deltas          []Delta `json:"deltas"`
}

// Check is a bar and what was reached.
type Check struct {
	What string `json:"what"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Passed reports whether all bars were reached.
func Passed(checks []Check) bool {
	return !slices.ContainsFunc(checks, func(c Check) bool { return !c.OK })
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bench catalog: %w", err)
	}
	r := &Report{Items: o.Items, Cores: runtime.GOMAXPROCS(0)}
	p := &printer{w: w, json: o.JSON}
	if slices.Contains(o.Parts, "index") {
		p.indexHead(r)
		for _, kind := range o.Kinds {
			ix, err := o.index(ctx, kind)
			if err != nil {
				return nil, err
			}
			r.Indices = append(r.Indices, *ix)
			p.index(ix)
		}
	}
	if slices.Contains(o.Parts, "versions") {
		p.versionsHead(r)
		for _, kind := range o.Kinds {
			v, err := o.versions(ctx, kind)
			if err != nil {
				return nil, err
			}
			r.Versions = append(r.Versions, *v)
			p.versions(v)
		}
	}
	r.check()
	return r, p.finish(r)
}

// paths draws the codes of items. Clustered ones crowd under few prefixes, as learned codes do.
type paths struct {
	r            *rand.Rand
	kind         string
	levels, size int
}

func (o *Options) paths(kind string, stream uint64) *paths {
	return &paths{rand.New(rand.NewPCG(o.Seed+11, stream)), kind, o.Levels, o.Size}
}

func (d *paths) append(codes []int32) []int32 {
	prefix := uint32(0)
	for range d.levels {
		code := d.r.Uint32N(uint32(d.size))
		if d.kind == "clustered" { // a few codes of each prefix take most of the items
			u := d.r.Float64()
			code = (prefix*2654435761>>7 + uint32(u*u*u*u*float64(d.size))) % uint32(d.size)
			prefix = prefix*31 + code + 1
		}
		codes = append(codes, int32(code))
	}
	return codes
}

func (o *Options) index(ctx context.Context, kind string) (*Index, error) {
	sizes := slices.Repeat([]int{o.Size}, o.Levels)
	codes := make([]int32, 0, o.Items*o.Levels)
	draw := o.paths(kind, 1)
	for range o.Items {
		codes = draw.append(codes)
	}
	begin := time.Now()
	ix, err := beam.Build(sizes, codes)
	if err != nil {
		return nil, err
	}
	out := &Index{Kind: kind, BuildSeconds: time.Since(begin).Seconds(), Leaves: ix.Nodes(o.Levels - 1)}
	out.BytesPerItem = float64(ix.Bytes()) / float64(o.Items)
	codes = nil
	var stored bytes.Buffer
	if _, err := ix.WriteTo(&stored); err != nil {
		return nil, err
	}
	begin = time.Now()
	if _, err := beam.Open(stored.Bytes(), o.Items, nil); err != nil {
		return nil, err
	}
	out.OpenSeconds = time.Since(begin).Seconds()
	out.StoredBytes = float64(stored.Len()) / float64(o.Items)
	stored = bytes.Buffer{}
	draw = o.paths(kind, 2)
	for _, n := range o.Changes {
		change := beam.Change{Sizes: sizes}
		for i := range n {
			change.Remove = append(change.Remove, uint32(i*(o.Items/n)))
			change.Add = append(change.Add, uint32(o.Items+i))
			change.Codes = draw.append(change.Codes)
		}
		d, err := o.repeat(ctx, n, nil, func() error {
			_, err := ix.Merge(change)
			return err
		})
		if err != nil {
			return nil, err
		}
		out.Deltas = append(out.Deltas, *d)
	}
	return out, nil
}

// repeat times something; what prepares it is not counted.
func (o *Options) repeat(ctx context.Context, n int, prepare, do func() error) (*Delta, error) {
	var wall, cpu []float64
	for range o.Repeats {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if prepare != nil {
			if err := prepare(); err != nil {
				return nil, err
			}
		}
		begin, used := time.Now(), cpuSeconds()
		if err := do(); err != nil {
			return nil, err
		}
		wall, cpu = append(wall, time.Since(begin).Seconds()), append(cpu, cpuSeconds()-used)
	}
	return &Delta{Items: n, Seconds: report.Median(wall), Worst: slices.Max(wall), CPUSeconds: report.Median(cpu)}, nil
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// noHead packs nothing: the model is no part of what is measured.
type noHead struct{}

func (noHead) Head([]int32) (compute.Linear, error) { return nil, nil }

func (o *Options) versions(ctx context.Context, kind string) (*Versions, error) {
	dir, err := os.MkdirTemp(o.Dir, "grebe-bench-catalog-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s := &shop{o: o, kind: kind, dir: dir, out: &Versions{Kind: kind}, draw: o.paths(kind, 3)}
	if err := s.fill(ctx); err != nil {
		return nil, err
	}
	if err := s.measure(ctx); err != nil {
		return nil, err
	}
	return s.out, nil
}

// shop is a catalog with its versions.
type shop struct {
	o       *Options
	kind    string
	dir     string
	draw    *paths
	catalog *store.Catalog
	keeper  *generate.Keeper
	gen     *generate.Generator
	next    int // number of the next item
	oldest  int // that is there
	out     *Versions
}

func (s *shop) fill(ctx context.Context) error {
	begin := time.Now()
	s.catalog = store.New(store.Options{MaxItems: 2 * s.o.Items, MaxMemory: 64 << 30})
	for s.next < s.o.Items {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.change(min(1<<14, s.o.Items-s.next), false); err != nil {
			return err
		}
	}
	s.out.FillSeconds = time.Since(begin).Seconds()
	sizes := slices.Repeat([]int32{int32(s.o.Size)}, s.o.Levels)
	first := make([]int32, s.o.Levels)
	for l := range first {
		first[l] = int32(l * s.o.Size)
	}
	b, err := prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: first, Size: sizes}}, nil, s.o.Levels*s.o.Size)
	s.gen = &generate.Generator{Prompt: b}
	return err
}

// change adds items, and deletes as many of the oldest if told so.
func (s *shop) change(n int, and bool) error {
	ops := make([]store.Op, 0, 2*n)
	codes := make([]int32, 0, n*s.o.Levels)
	for range n {
		at := len(codes)
		codes = s.draw.append(codes)
		ops = append(ops, store.Op{PutItem: &grebev1.Item{Id: fmt.Sprintf("item-%d", s.next), Codes: codes[at:]}})
		s.next++
		if and {
			ops = append(ops, store.Op{DeleteItem: fmt.Sprintf("item-%d", s.oldest)})
			s.oldest++
		}
	}
	for _, r := range s.catalog.Apply(ops) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// open makes or restores the versions.
func (s *shop) open() (float64, error) {
	runtime.GC()
	begin := time.Now()
	var err error
	s.keeper, err = generate.NewKeeper(s.catalog, generate.KeeperOptions{Dir: s.dir},
		generate.Target{Name: "bench", Generator: s.gen, Model: noHead{}})
	return time.Since(begin).Seconds(), err
}

func (s *shop) measure(ctx context.Context) (err error) {
	before := heap()
	if s.out.FirstSeconds, err = s.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.keeper.Close()) }()
	s.out.HeapBytes = float64(heap()-before) / float64(s.o.Items)
	for _, n := range s.o.Changes {
		d, err := s.o.repeat(ctx, n, func() error { return s.change(n, true) }, s.renew)
		if err != nil {
			return err
		}
		s.out.Deltas = append(s.out.Deltas, *d)
	}
	if s.out.StoredBytes, err = s.stored(); err != nil {
		return err
	}
	if err := s.keeper.Close(); err != nil {
		return err
	}
	if s.out.RestartSeconds, err = s.open(); err != nil {
		return err
	}
	begin := time.Now()
	if err := s.keeper.Rollback(""); err != nil {
		return err
	}
	s.out.RollbackSeconds = time.Since(begin).Seconds()
	if err := s.keeper.Activate("", generate.Auto, ""); err != nil {
		return err
	}
	return s.compact(ctx)
}

// compact changes so much that a generation begins.
func (s *shop) compact(ctx context.Context) error {
	for left := s.o.Items/8 + 1<<14; left > 0; left -= 1 << 14 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.change(min(left, 1<<14), true); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := s.renew(); err != nil {
		return err
	}
	s.out.CompactSeconds = time.Since(begin).Seconds()
	return nil
}

// renew makes the versions that a running server would make now, and checks that they are in use.
func (s *shop) renew() error {
	s.keeper.Renew()
	want := fmt.Sprint(s.catalog.Stats().Version)
	if snap := s.gen.Snapshot(); snap.Version != want || snap.Len() != s.o.Items {
		return fmt.Errorf("version %s with %d items is in use, want %s with %d", snap.Version, snap.Len(), want, s.o.Items)
	}
	return nil
}

// stored is the size of all files, per item.
func (s *shop) stored() (float64, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		total += info.Size()
	}
	return float64(total) / float64(s.o.Items), nil
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
