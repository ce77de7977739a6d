// Package proto measures the semantic history pool (RCL-2) for users who are not in the pool. It reports how many of
// their tokens are matched, how far the keys and values of matched prototypes are from the user's own, and how fast
// and how well prototypes are found.
//
// An error is that of one token's keys, or values, in one layer: the length of the difference divided by the length of
// the true vector. Keys are compared at the same position. The first layer depends on the token alone, so its only
// error is rounding.
package proto

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"grebe/blend"
	"grebe/engine"
	"grebe/kv"
	pool "grebe/kv/proto"
	"grebe/kv/proto/rows"
	"grebe/reuse"
)

// Options say what to measure.
type Options struct {
	Cache *reuse.Cache
	Do    reuse.Do
	Pool  *reuse.Pool // of what prototypes are made
	File  string      // of their index
	// Unseen are the histories of users who are not in the pool.
	Unseen [][]int32
	// Preamble is the length of what stands before a history.
	Preamble int
	// Many is what the index is made of by which lookups are measured, of at most Most prototypes; nil: they are not.
	Many *reuse.Pool
	// ManyFile keeps that index; one that is there is used. Empty: it is kept nowhere.
	ManyFile string
	Most     int
	Threads  int // that look up at once
	Seed     uint64
	Now      func() time.Time
}

// Report is what was measured.
type Report struct {
	Model, Device string
	Histories     int // in the pool
	Prototypes    int
	PoolBytes     int64
	BuildSeconds  float64
	Users         int // unseen ones
	Tokens        int // of theirs
	Natural       float64
	Matched       float64 // of all tokens
	Runs          float64 // mean length of what is placed at once
	Layers        []Layer
	// Near is the share of matched tokens whose keys and values have a cosine of at least 0.95 in every layer, and
	// NearBefore that of the first token of the pool's that is the same, whatever its context: what a match by
	// embeddings of tokens alone gives.
	Near, NearStatic float64
	Drift            []Quarter
	// Within is the share of matches within the limit of drift that is served, and Served their mean error.
	Within, Served float64
	Lookup         *Lookup
}

// Layer has mean errors and cosines of matches, and the errors of static ones.
type Layer struct {
	K, V, KCos, VCos   float64
	StaticK, StaticV   float64
	StaticKC, StaticVC float64
}

// Quarter is of a quarter of the matches, by drift.
type Quarter struct{ Drift, Error float64 }

// Lookup says how prototypes are found.
type Lookup struct {
	Prototypes int
	Threads    int
	PerSecond  float64 // tokens, median
	Slowest    float64
	Fastest    float64
	Nanos      float64 // of a processor, per token
	Recall     float64 // share of tokens with a prototype in reach that got the nearest
	Found      float64 // share of them that got one
	Sampled    int
	// Drift is the mean of what lookups find, and BestDrift that of the nearest.
	Drift, BestDrift float64
}

// Run measures.
func Run(ctx context.Context, o *Options) (*Report, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	start := o.Now()
	built, err := o.Cache.BuildPrototypes(ctx, o.Do, o.File, o.Pool)
	if err != nil {
		return nil, err
	}
	r := &Report{Histories: len(o.Pool.Users), Prototypes: built.Prototypes, PoolBytes: built.Bytes,
		BuildSeconds: o.Now().Sub(start).Seconds(),
		Users:        len(o.Unseen)}
	p, err := o.Cache.OpenPrototypes(o.File)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	if err := o.errors(ctx, p, r); err != nil {
		return nil, err
	}
	if o.Many != nil {
		if r.Lookup, err = o.lookups(ctx); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// sums add up the errors of matches.
type sums struct {
	layers  []Layer
	matched int
	static  int
	near    int
	nearS   int
	runs    int
	natural int
	drifts  []Quarter
}

// errors compares matches with the truth.
func (o *Options) errors(ctx context.Context, p *reuse.Prototypes, r *Report) error {
	shape := o.Cache.Shape()
	s := &sums{layers: make([]Layer, shape.Layers)}
	static, err := o.static(ctx)
	if err != nil {
		return err
	}
	var m reuse.Matches
	for _, tokens := range o.Unseen {
		if err := ctx.Err(); err != nil {
			return err
		}
		truth, err := o.Cache.HistoryKV(ctx, o.Do, tokens)
		if err != nil {
			return err
		}
		r.Tokens += len(tokens)
		p.Find(&m, tokens, 0, o.Preamble, 0)
		parts := m.Append(nil, 0)
		m.Fetch(parts)
		err = o.compare(s, tokens, truth, parts, static)
		m.Release()
		if err != nil {
			return err
		}
		for _, t := range tokens {
			if o.Pool.Natural(t) {
				s.natural++
			}
		}
	}
	s.report(r)
	return nil
}

// row is a token's keys and values: layer by layer, K then V.
type row []float32

func (o *Options) row(chunks []rows.Chunk, token, position int) row {
	s := o.Cache.Shape()
	n := rows.Width(&s)
	out := make(row, 2*s.Layers*n)
	chunk, place := rows.Find(chunks, token)
	for l := range s.Layers {
		chunk.Keys(out[2*l*n:(2*l+1)*n], &s, l, place, position)
		chunk.Values(out[(2*l+1)*n:(2*l+2)*n], &s, l, place)
	}
	return out
}

// static has, for each token, one occurrence of the pool's, of any context.
func (o *Options) static(ctx context.Context) (map[int32]row, error) {
	out := map[int32]row{}
	r := rand.New(rand.NewPCG(o.Seed, 1))
	for range min(40, len(o.Pool.Users)) {
		tokens, err := o.Pool.History(r.IntN(len(o.Pool.Users)))
		if err != nil {
			return nil, err
		}
		var chunks []rows.Chunk
		for i, t := range tokens {
			if _, ok := out[t]; ok || !o.Pool.Natural(t) {
				continue
			}
			if chunks == nil {
				if chunks, err = o.Cache.HistoryKV(ctx, o.Do, tokens); err != nil {
					return nil, err
				}
			}
			out[t] = o.row(chunks, i, o.Preamble+i)
		}
	}
	return out, nil
}

// compare adds a user's matches.
func (o *Options) compare(s *sums, tokens []int32, truth []rows.Chunk, parts []engine.Part,
	static map[int32]row) error {
	shape, memory := o.Cache.Shape(), o.Cache.Memory()
	pages := map[*kv.Entry][]rows.Chunk{}
	for i := range parts {
		p := &parts[i]
		if p.Entry == nil {
			return fmt.Errorf("proto: the page of tokens %d to %d is gone", p.At, p.At+p.Tokens)
		}
		page, ok := pages[p.Entry]
		if !ok {
			var err error
			if page, err = rows.Read(memory, &shape, p.Entry); err != nil {
				return err
			}
			pages[p.Entry] = page
		}
		s.runs++
		for k := range p.Tokens {
			at := p.At + k
			position := o.Preamble + at
			is := o.row(truth, at, position)
			got := o.row(page, p.First+k, position-p.Turn)
			s.add(is, got, p.Drift[k])
			if other, ok := static[tokens[at]]; ok {
				s.addStatic(is, other)
			}
		}
	}
	return nil
}

// near is the cosine from which on keys or values count as the same.
const near = 0.95

func (s *sums) add(is, got row, drift float32) {
	s.matched++
	n := len(is) / (2 * len(s.layers))
	all, total := true, 0.0
	for l := range s.layers {
		y := &s.layers[l]
		k, kc := differ(is[2*l*n:(2*l+1)*n], got[2*l*n:(2*l+1)*n])
		v, vc := differ(is[(2*l+1)*n:(2*l+2)*n], got[(2*l+1)*n:(2*l+2)*n])
		y.K, y.V, y.KCos, y.VCos = y.K+k, y.V+v, y.KCos+kc, y.VCos+vc
		all = all && kc >= near && vc >= near
		if l > 0 {
			total += (k*k + v*v) / float64(2*(len(s.layers)-1))
		}
	}
	if all {
		s.near++
	}
	s.drifts = append(s.drifts, Quarter{float64(drift), math.Sqrt(total)})
}

func (s *sums) addStatic(is, other row) {
	s.static++
	n := len(is) / (2 * len(s.layers))
	all := true
	for l := range s.layers {
		y := &s.layers[l]
		k, kc := differ(is[2*l*n:(2*l+1)*n], other[2*l*n:(2*l+1)*n])
		v, vc := differ(is[(2*l+1)*n:(2*l+2)*n], other[(2*l+1)*n:(2*l+2)*n])
		y.StaticK, y.StaticV, y.StaticKC, y.StaticVC = y.StaticK+k, y.StaticV+v, y.StaticKC+kc, y.StaticVC+vc
		all = all && kc >= near && vc >= near
	}
	if all {
		s.nearS++
	}
}

// differ returns the relative error of b, and the cosine of both.
func differ(a, b []float32) (relative, cosine float64) {
	var d, aa, bb, ab float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		d += (x - y) * (x - y)
		aa, bb, ab = aa+x*x, bb+y*y, ab+x*y
	}
	return math.Sqrt(d / aa), ab / math.Sqrt(aa*bb)
}

func (s *sums) report(r *Report) {
	n, m := float64(max(s.matched, 1)), float64(max(s.static, 1))
	for _, l := range s.layers {
		r.Layers = append(r.Layers, Layer{l.K / n, l.V / n, l.KCos / n, l.VCos / n, l.StaticK / m, l.StaticV / m,
			l.StaticKC / m, l.StaticVC / m})
	}
	all := float64(max(r.Tokens, 1))
	r.Natural, r.Matched, r.Runs = float64(s.natural)/all, float64(s.matched)/all, n/float64(max(s.runs, 1))
	r.Near, r.NearStatic = float64(s.near)/n, float64(s.nearS)/m
	slices.SortFunc(s.drifts, func(a, b Quarter) int {
		switch {
		case a.Drift < b.Drift:
			return -1
		case a.Drift > b.Drift:
			return 1
		}
		return 0
	})
	for _, d := range s.drifts {
		if d.Drift <= blend.DriftLimit {
			r.Within, r.Served = r.Within+1/n, r.Served+d.Error
		}
	}
	r.Served /= max(1, r.Within*n)
	for i := range 4 {
		part := s.drifts[len(s.drifts)*i/4 : len(s.drifts)*(i+1)/4]
		var q Quarter
		for _, d := range part {
			q.Drift += d.Drift / float64(len(part))
			q.Error += d.Error / float64(len(part))
		}
		r.Drift = append(r.Drift, q)
	}
}

// lookups measures an index of many prototypes, without their KV.
func (o *Options) lookups(ctx context.Context) (*Lookup, error) {
	x, err := o.many(ctx)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	l := &Lookup{Prototypes: x.Len(), Threads: o.Threads}
	o.time(x, l)
	o.recall(x, l)
	return l, nil
}

// many opens or makes the index.
func (o *Options) many(ctx context.Context) (*pool.Index, error) {
	if o.ManyFile != "" {
		if x, err := pool.Open(o.ManyFile); !errors.Is(err, fs.ErrNotExist) {
			return x, err
		}
	}
	x, err := o.Cache.IndexPrototypes(ctx, o.Do, o.Many, o.Most/pool.Page*pool.Page)
	if err == nil && o.ManyFile != "" {
		err = x.Write(o.ManyFile)
	}
	return x, err
}
