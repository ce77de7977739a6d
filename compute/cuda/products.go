package cuda

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/compute/cuda/product"
)

// tuned are the fastest algorithms found so far, kept on disk for this GPU and library.
type tuned struct {
	path string

	mu   sync.Mutex
	best map[string]timed
}

// timed is an algorithm and how long the product took by it.
type timed struct {
	Algorithm    []byte  `json:"algorithm"`
	Microseconds float64 `json:"us"`
	Candidates   int     `json:"candidates"`
	First        float64 `json:"first_us"` // the library's own first choice
	// Tile is how the product of gate and up is fused with what follows; none where it is not.
	Tile *product.Tile `json:"tile,omitempty"`
}

func loadTuned(i driver.Info) (*tuned, error) {
	version, err := driver.BlasVersion()
	if err != nil {
		return nil, err
	}
	t := &tuned{best: map[string]timed{}}
	if dir := kernels.CacheDir(); dir != "" {
		name := regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(i.Name, "-")
		if i.Sharing.MPS && i.Sharing.Threads != "" { // a part of the GPU is another one
			name += fmt.Sprint("-", i.Processors)
		}
		t.path = filepath.Join(dir, fmt.Sprintf("products-%s-%d.json", name, version))
		if data, err := os.ReadFile(t.path); err == nil {
			_ = json.Unmarshal(data, &t.best) // a damaged file is measured anew
		}
	}
	return t, nil
}

// save keeps what was measured. A cache that cannot be written costs time at the next start, no more.
func (t *tuned) save() {
	if t.path == "" {
		return
	}
	data, err := json.MarshalIndent(t.best, "", " ")
	if err != nil || os.MkdirAll(filepath.Dir(t.path), 0o755) != nil {
		return
	}
	tmp := fmt.Sprintf("%s.%d", t.path, os.Getpid())
	if os.WriteFile(tmp, data, 0o600) == nil {
		_ = os.Rename(tmp, t.path)
	}
}

func numberOf(dt compute.DType) driver.Number {
	switch dt {
	case compute.BF16:
		return driver.NumberBF16
	case compute.FP8:
		return driver.NumberE4M3
	}
	return driver.NumberF32
}

// numberBytes is the size of a number.
func numberBytes(n driver.Number) int {
	switch n {
	case driver.NumberE4M3:
		return 1
	case driver.NumberBF16:
		return 2
	}
	return 4
}

// numberFormat is what kernels call a number.
func numberFormat(n driver.Number) compute.DType {
	switch n {
	case driver.NumberE4M3:
		return compute.FP8
	case driver.NumberBF16:
		return compute.BF16
	}
	return compute.F32
}

// untimed products are too small for the choice of an algorithm to matter.
const untimed = 1 << 28 // multiplications

// plan returns a product that is ready to run. The first call for a shape may take seconds. The caller
// is inside the context, and not capturing.
func (d *device) plan(p driver.Product) (*driver.Plan, error) {
	d.mu.Lock()
	pl := d.plans[p]
	d.mu.Unlock()
	if pl != nil {
		return pl, nil
	}
	d.tuned.mu.Lock()
	defer d.tuned.mu.Unlock()
	pl, err := d.blas.NewPlan(p)
	if err != nil {
		return nil, err
	}
	if err := d.choose(p, pl); err != nil {
		_ = pl.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if other := d.plans[p]; other != nil {
		_ = pl.Close()
		return other, nil
	}
	d.plans[p] = pl
	return pl, nil
}

// choose gives the plan its algorithm: the fastest for the product itself or, above the largest
// graph's rows, for the next of a few row counts.
func (d *device) choose(p driver.Product, pl *driver.Plan) error {
	measured := p
	measured.M = coarse(p.M)
	if measured.M*p.N*p.K >= untimed {
		a, err := d.fastest(measured)
		if err == nil && pl.Accepts(a) {
			pl.Use(a)
			return nil
		}
		if err != nil && !driver.OutOfMemory(err) {
			return err
		}
	}
	found, err := pl.Candidates(workspace, 1)
	if err != nil {
		return err
	}
	pl.Use(found[0])
	return nil
}

// coarse rounds rows above maxGraphRows up to 1.5·2ⁿ or 2ⁿ.
func coarse(m int) int {
	if m <= maxGraphRows {
		return m
	}
	n := maxGraphRows
	for n < m {
		if n+n/2 >= m {
			return n + n/2
		}
		n *= 2
	}
	return n
}

// candidates are timed for each product.
const candidates = 24

// fastest times the library's candidates, or remembers.
func (d *device) fastest(p driver.Product) (driver.Algorithm, error) {
	key := fmt.Sprintf("%dx%dx%d %d-%d add=%v", p.M, p.N, p.K, p.In, p.Out, p.Add)
	var best driver.Algorithm
	if t, ok := d.tuned.best[key]; ok && len(t.Algorithm) == len(best) {
		copy(best[:], t.Algorithm)
		return best, nil
	}
	r, err := newRace(d, p)
	if err != nil {
		return best, fmt.Errorf("time product %+v: %w", p, err)
	}
	defer r.close()
	t, err := r.run()
	if err != nil {
		return best, fmt.Errorf("time product %+v: %w", p, err)
	}
	d.tuned.best[key] = t
	d.tuned.save()
	copy(best[:], t.Algorithm)
	return best, nil
}

// race times algorithms of one product on random numbers. Weights are used in turns, so that they come
// from memory as they do in a model and not from the cache.
type race struct {
	d         *device
	p         driver.Product
	pl        *driver.Plan
	stream    *driver.Stream
	x, w, out driver.Ptr
	space     driver.Ptr
	copies    int
	wBytes    int
	begin     *driver.Event
	end       *driver.Event
	limit     float64 // microseconds above which a first try is enough; 0: none
}

func newRace(d *device, p driver.Product) (*race, error) {
	r, size := &race{d: d, p: p}, numberBytes
	x, w := float32(1), float32(0.02) // deviations
	if p.In == driver.NumberE4M3 {
		x, w = 112, 112 // as their scales have it
	}
	r.wBytes = p.N * p.K * size(p.In)
	r.copies = max(1, min(16, 3*max(d.c.Info().L2, 1)/r.wBytes))
	var err error
	take := func(n int) (q driver.Ptr) {
		if err == nil {
			q, err = d.c.Alloc(n)
		}
		return q
	}
	r.x, r.w = take(p.M*p.K*size(p.In)), take(r.wBytes*r.copies)
	r.out, r.space = take(p.M*p.N*size(p.Out)), take(workspace)
	if err == nil {
		r.stream, err = d.c.NewStream()
	}
	if err == nil {
		r.begin, err = d.c.NewEvent(true)
	}
	if err == nil {
		r.end, err = d.c.NewEvent(true)
	}
	if err == nil {
		r.pl, err = d.blas.NewPlan(p)
	}
	if err == nil {
		err = d.noise(r.stream, r.x, p.M*p.K, p.In, x)
	}
	if err == nil {
		err = d.noise(r.stream, r.w, r.copies*p.N*p.K, p.In, w)
	}
	if err == nil {
		err = d.noise(r.stream, r.out, p.M*p.N, p.Out, 1)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *race) close() {
	c := r.d.c
	if r.stream != nil {
		_ = r.stream.Sync() // not for the whole GPU: products are timed under a lock, and others may be capturing
	}
	for _, p := range []driver.Ptr{r.x, r.w, r.out, r.space} {
		_ = c.Free(p)
	}
	for _, e := range []*driver.Event{r.begin, r.end} {
		if e != nil {
			_ = e.Close()
		}
	}
	if r.pl != nil {
		_ = r.pl.Close()
	}
	if r.stream != nil {
		_ = r.stream.Close()
	}
}

func (r *race) run() (timed, error) {
	found, err := r.algorithms()
	if err != nil {
		return timed{}, err
	}
	all, err := r.timeAll(found)
	if err != nil {
		return timed{}, err
	}
	if len(all) == 0 {
		return timed{}, fmt.Errorf("none of %d algorithms runs", len(found))
	}
	first := all[0].Microseconds
	slices.SortStableFunc(all, func(a, b timed) int { return cmp.Compare(a.Microseconds, b.Microseconds) })
	best, err := r.final(all[:min(len(all), finalists)])
	best.Candidates, best.First = len(all), first
	return best, err
}

// finalists are timed again.
const finalists = 3

// final times the best few again, in turns: a GPU that has become warm slows down, and whoever ran first
// looked better than it is.
func (r *race) final(list []timed) (timed, error) {
	const turns = 3
	took := make([][]float64, len(list))
	for range turns {
		for i := range list {
			r.pl.Use(driver.Algorithm(list[i].Algorithm))
			us, err := r.time()
			if err != nil {
				return timed{}, err
			}
			took[i] = append(took[i], us)
		}
	}
	for i := range list {
		slices.Sort(took[i])
		list[i].Microseconds = took[i][turns/2]
	}
	return slices.MinFunc(list, func(a, b timed) int { return cmp.Compare(a.Microseconds, b.Microseconds) }), nil
}

// algorithms asks for candidates with the workspace and for such that need none.
func (r *race) algorithms() ([]driver.Algorithm, error) {
	found, err := r.pl.Candidates(workspace, candidates)
	if err != nil {
		return nil, err
	}
	more, err := r.pl.Candidates(0, candidates)
	if err != nil {
		return found, nil // there need not be any
	}
	for _, a := range more {
		if !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	return found, nil
}

// timeAll times algorithms, but for those of its own proposals that the library refuses to run.
func (r *race) timeAll(found []driver.Algorithm) ([]timed, error) {
	var out []timed
	defer func() { r.limit = 0 }()
	for _, a := range found {
		r.pl.Use(a)
		us, err := r.time()
		if err != nil && r.d.c.Lost() != nil {
			return nil, err
		}
		if err == nil {
			out = append(out, timed{Algorithm: slices.Clone(a[:]), Microseconds: us})
			if limit := 1.5*us + 20; r.limit == 0 || limit < r.limit { // 20: what a graph takes besides
				r.limit = limit
			}
		}
	}
	return out, nil
}

// time returns the microseconds of the plan's product.
func (r *race) time() (float64, error) {
	return r.timeOf(func(w driver.Ptr) error { return r.pl.Run(r.stream, r.out, r.x, w, r.space, workspace) })
}

// timeOf returns the microseconds of what f puts into the stream for the weights at w: the median of a
// few replays of a graph of several.
func (r *race) timeOf(f func(w driver.Ptr) error) (float64, error) {
	const replays = 5
	once, err := r.replay(f, 1, 1)
	if err != nil {
		return 0, err
	}
	if r.limit > 0 && once > r.limit {
		return once, nil
	}
	n := int(max(2, min(16, 2000/once)))
	return r.replay(f, n, replays)
}

func (r *race) replay(f func(w driver.Ptr) error, n, replays int) (float64, error) {
	g, err := r.stream.Capture(func() error {
		for i := range n {
			if err := f(r.w.At(i % r.copies * r.wBytes)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer g.Close()
	var all []time.Duration
	for i := range replays + 1 {
		if err := r.timeOnce(g); err != nil {
			return 0, err
		}
		took, err := r.end.Since(r.begin)
		if err != nil {
			return 0, err
		}
		if i > 0 { // the first one warms up
			all = append(all, took)
		}
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3 / float64(n), nil
}

// timeOnce runs a graph between the two events.
func (r *race) timeOnce(g *driver.Graph) error {
	if err := r.begin.Record(r.stream); err != nil {
		return err
	}
	if err := g.Launch(r.stream); err != nil {
		return err
	}
	if err := r.end.Record(r.stream); err != nil {
		return err
	}
	return r.end.Sync()
}

// ownProduct computes out = in·wᵀ, or adds to out, without the matrix library.
func (r *runner) ownProduct(p driver.Product, out, in driver.Ptr, w *linear) error {
	defines := []string{fmt.Sprintf("IN=%d", numberFormat(p.In)), fmt.Sprintf("OUT=%d", numberFormat(p.Out)), "ADD=0"}
	if p.Add {
		defines[2] = "ADD=1"
	}
	f, err := r.dev.kernel("plain_product.cu", "plain_product", defines...)
	if err != nil {
		return err
	}
	const block = 64
	return f.Launch(r.stream, driver.Launch{Grid: [3]int{(p.N + block - 1) / block, p.M}, Block: [3]int{block}},
		r.args.Reset().Ptr(out).Ptr(in).Ptr(w.data).Int(p.N).Int(p.K))
}

// noise fills memory with pseudo-random numbers. The caller is inside the context.
func (d *device) noise(s *driver.Stream, p driver.Ptr, n int, t driver.Number, deviation float32) error {
	f, err := d.kernel("noise.cu", "noise", fmt.Sprintf("FORMAT=%d", numberFormat(t)))
	if err != nil {
		return err
	}
	a, err := driver.NewArgs()
	if err != nil {
		return err
	}
	defer a.Free()
	return f.Launch(s, driver.Launch{Grid: [3]int{4 * d.c.Info().Processors}, Block: [3]int{256}},
		a.Ptr(p).Int64(int64(n)).Int(int(uint32(p>>8))).Float(0).Float(deviation))
}
