package reuse

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"grebe/compute"
	"grebe/engine"
	"grebe/internal/durable"
	"grebe/kv"
	"grebe/kv/proto"
	"grebe/kv/proto/rows"
	"grebe/plan"
)

// Pool describes the histories from which prototypes are made.
type Pool struct {
	Users      []string                         // ids
	History    func(i int) ([]int32, error)     // tokens of a user's segment; called several times
	Embeddings func(token int32) []float32      // of the model
	Natural    func(token int32) bool           // whether a token may have prototypes; nil: all may
	Bytes      int64                            // most bytes of KV
	Config     proto.Config                     // Most is set from Bytes
	Fresh      bool                             // discard the existing prototypes
	Progress   func(part string, done, all int) // may be nil
}

// Built is the result of a build.
type Built struct {
	Prototypes, Added int
	Pages, Computed   int // all pages of KV, and those computed by this build
	Tokens            int // computed for those pages
	Lost              int // pages whose histories no longer exist
	Bytes             int64
}

// BuildPrototypes makes the prototypes of histories, or adds missing ones to those in the file, and computes the pages
// of KV that no tier has. It can be stopped; the next call continues.
func (c *Cache) BuildPrototypes(ctx context.Context, do Do, file string, from *Pool) (*Built, error) {
	if err := c.movable(); err != nil {
		return nil, err
	}
	b := c.poolBuild(do, from)
	x, added, err := b.index(ctx, file)
	if err != nil {
		return nil, err
	}
	p := c.prototypes(file, x)
	defer p.Close()
	out := &Built{Prototypes: x.Len(), Added: added, Bytes: int64(x.Len()) * c.bytesPerToken}
	return out, b.pages(ctx, p, out)
}

// movable refuses a model whose KV cannot be moved to other positions.
func (c *Cache) movable() error {
	if c.opt.Shape.KV == compute.FP8 || c.opt.Shape.Pointwise != nil {
		return fmt.Errorf("reuse: KV in %v cannot be moved to other positions", c.opt.Shape.KV)
	}
	return nil
}

// IndexPrototypes makes only the index of a pool, with no more than most prototypes. Without their KV nothing can be
// reused, but lookups can be measured.
func (c *Cache) IndexPrototypes(ctx context.Context, do Do, from *Pool, most int) (*proto.Index, error) {
	b := c.poolBuild(do, from)
	cfg := from.Config
	cfg.Most = most
	return proto.Build(ctx, cfg, b.model(), b, b.tell)
}

// HistoryKV computes the keys and values of a user's segment and copies them to the host.
func (c *Cache) HistoryKV(ctx context.Context, do Do, tokens []int32) ([]rows.Chunk, error) {
	return (&poolBuild{cache: c, do: do}).history(ctx, tokens)
}

// Shape returns the model's shape.
func (c *Cache) Shape() compute.Shape { return c.opt.Shape }

// Memory returns the memory that entries are in.
func (c *Cache) Memory() compute.Memory { return c.opt.Pool.Memory() }

func (c *Cache) poolBuild(do Do, from *Pool) *poolBuild {
	b := &poolBuild{cache: c, do: do, pool: from, bySource: map[uint64]int{}}
	for i, id := range from.Users {
		b.bySource[c.source(id)] = i
	}
	return b
}

// poolBuild is a build in progress.
type poolBuild struct {
	cache    *Cache
	do       Do
	pool     *Pool
	bySource map[uint64]int
}

// Len and History implement proto.Histories.
func (b *poolBuild) Len() int { return len(b.pool.Users) }

func (b *poolBuild) History(i int) ([]int32, uint64, error) {
	tokens, err := b.pool.History(i)
	return tokens, b.cache.source(b.pool.Users[i]), err
}

func (b *poolBuild) tell(part string, done, all int) {
	if b.pool.Progress != nil {
		b.pool.Progress(part, done, all)
	}
}

// model returns what the index needs to know about the model.
func (b *poolBuild) model() proto.Model {
	natural := b.pool.Natural
	if natural == nil {
		natural = func(int32) bool { return true }
	}
	return proto.Model{Digest: b.cache.prototypeSpace(), Embeddings: b.pool.Embeddings, Natural: natural, Teacher: b.teach}
}

// index makes or extends the index, and writes it.
func (b *poolBuild) index(ctx context.Context, file string) (x *proto.Index, added int, err error) {
	c := b.cache
	cfg := b.pool.Config
	cfg.Most = int(b.pool.Bytes/c.bytesPerToken) / proto.Page * proto.Page
	if cfg.Most < proto.Page {
		return nil, 0, fmt.Errorf("reuse: %d bytes are no room for a page of prototypes, which takes %d", b.pool.Bytes,
			proto.Page*c.bytesPerToken)
	}
	m := b.model()
	old, err := proto.Open(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), b.pool.Fresh, errors.Is(err, proto.ErrDamaged):
		x, err = proto.Build(ctx, cfg, m, b, b.tell)
	case err != nil:
		return nil, 0, fmt.Errorf("reuse: %w", err)
	case old.Model() != m.Digest:
		x, err = proto.Build(ctx, cfg, m, b, b.tell) // the file is of another model and cannot be used
	default:
		added = -old.Len()
		if old.Len() >= cfg.Most { // it is full
			return old, 0, nil
		}
		x, err = proto.Extend(ctx, old, cfg.Most, m, b, b.tell)
	}
	if old != nil {
		defer old.Close()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reuse: %w", err)
	}
	if err := durable.MkdirAll(filepath.Dir(file)); err != nil {
		return nil, 0, fmt.Errorf("reuse: %w", err)
	}
	if err := x.Write(file); err != nil {
		return nil, 0, fmt.Errorf("reuse: %w", err)
	}
	return x, added + x.Len(), nil
}

// history computes a history's KV as requests do, and copies it to the host.
func (b *poolBuild) history(ctx context.Context, tokens []int32) ([]rows.Chunk, error) {
	c := b.cache
	p := &plan.Plan{}
	var sees []int32
	if len(c.preamble.tokens) > 0 {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Preamble, Tokens: c.preamble.tokens})
		sees = []int32{0}
	}
	user := len(p.Segments)
	p.Segments = append(p.Segments, plan.Segment{Kind: plan.User, Tokens: tokens, Start: len(c.preamble.tokens),
		Sees: sees})
	job := &engine.Job{Plan: p, Segments: make([]engine.Segment, user+1)}
	job.Segments[user].Keep = true
	if user > 0 {
		if e, _ := c.opt.Store.Get(c.preamble.key); e != nil {
			defer e.Release()
			job.Segments[0].Entry = e
		}
	}
	ctx, cancel := context.WithTimeout(ctx, batchTime)
	defer cancel()
	r, err := b.do(ctx, job)
	if err != nil {
		return nil, fmt.Errorf("reuse: compute a history of %d tokens: %w", len(tokens), err)
	}
	e := r.Kept[user]
	if e == nil {
		return nil, fmt.Errorf("reuse: keep a history of %d tokens: %w", len(tokens), kv.ErrFull)
	}
	defer e.Release()
	return rows.Read(c.opt.Pool.Memory(), &c.opt.Shape, e)
}

// teach returns, for some tokens of a history, their keys and values of all layers but the first, which depends only on
// the token. Each layer's vector has length 1, and they are scaled together so that distances are relative errors.
func (b *poolBuild) teach(ctx context.Context, tokens []int32, at []int) ([][]float32, error) {
	chunks, err := b.history(ctx, tokens)
	if err != nil {
		return nil, err
	}
	s := &b.cache.opt.Shape
	n := rows.Width(s)
	out := make([][]float32, len(at))
	for i, t := range at {
		chunk, place := rows.Find(chunks, t)
		v := make([]float32, 0, 2*(s.Layers-1)*n)
		for l := 1; l < s.Layers; l++ {
			v = v[:len(v)+2*n]
			k, values := v[len(v)-2*n:len(v)-n], v[len(v)-n:]
			chunk.Keys(k, s, l, place, len(b.cache.preamble.tokens)+t)
			chunk.Values(values, s, l, place)
			share := 1 / math.Sqrt(2*float64(s.Layers-1))
			stretch(k, share)
			stretch(values, share)
		}
		out[i] = v
	}
	return out, nil
}

// stretch scales a vector to a length, unless its length is 0.
func stretch(v []float32, to float64) {
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum > 0 {
		by := float32(to / math.Sqrt(sum))
		for i := range v {
			v[i] *= by
		}
	}
}

// pages computes the pages that no tier has.
func (b *poolBuild) pages(ctx context.Context, p *Prototypes, out *Built) error {
	held := held{source: math.MaxUint64}
	for page, key := range p.keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		first := page * proto.Page
		n := 0
		for n < proto.Page && first+n < p.index.Len() && p.index.Prototype(first+n).Count > 0 {
			n++
		}
		if n == 0 || !p.index.Alive(page) {
			continue
		}
		out.Pages++
		var have [1]int32
		if b.cache.opt.Store.Peek([]plan.Key{key}, have[:]); have[0] == 0 && !b.cache.opt.Store.Below(key) {
			ok, err := b.page(ctx, p, key, first, n, &held, out)
			if err != nil {
				return err
			}
			if !ok {
				out.Lost++
			}
		}
		b.tell("pages", page+1, len(p.keys))
	}
	return b.cache.opt.Store.Written(ctx)
}

// drainEvery is the number of published pages after which the build waits until they are written.
const drainEvery = 16

// held is the history computed last. Its prototypes may be in two pages.
type held struct {
	source uint64
	tokens []int32
	chunks []rows.Chunk
}

// has reports whether a prototype's token is still at its place in the history.
func (h *held) has(is *proto.Prototype) bool {
	return int(is.Place) < len(h.tokens) && h.tokens[is.Place] == is.Token
}

// page computes a page's KV and publishes it. It returns false if a history no longer exists.
func (b *poolBuild) page(ctx context.Context, p *Prototypes, key plan.Key, first, n int, h *held,
	out *Built) (bool, error) {
	c := b.cache
	s := &c.opt.Shape
	raw := make([]byte, s.ChunkBytes(n, false))
	for i := range n {
		is := p.index.Prototype(first + i)
		if h.source != is.Source {
			ok, err := b.hold(ctx, h, &is, out)
			if !ok || err != nil {
				return false, err
			}
		}
		if !h.has(&is) {
			return false, nil
		}
		chunk, place := rows.Find(h.chunks, int(is.Place))
		rows.Copy(s, raw, i, n, chunk, place)
	}
	e, err := c.opt.Store.Reserve(kv.Exact, n, nil)
	if err != nil {
		return false, fmt.Errorf("reuse: keep a page of prototypes: %w", err)
	}
	defer e.Release()
	chunk := e.AppendChunks(nil)[0]
	block := compute.Block{Addr: chunk.Addr, Bytes: chunk.Bytes, Size: len(raw)}
	if err := c.opt.Pool.Memory().Write(block, raw); err != nil {
		return false, fmt.Errorf("reuse: keep a page of prototypes: %w", err)
	}
	c.opt.Store.PublishFor(c.owner, plan.Item, key, nil, e)
	if out.Computed++; out.Computed%drainEvery == 0 {
		// Otherwise pages could be evicted before they are written.
		if err := c.opt.Store.Written(ctx); err != nil {
			return false, err
		}
	}
	return true, nil
}

// hold computes the history of a prototype. It returns false if the history no longer exists or has changed.
func (b *poolBuild) hold(ctx context.Context, h *held, is *proto.Prototype, out *Built) (bool, error) {
	i, ok := b.bySource[is.Source]
	if !ok {
		return false, nil
	}
	tokens, err := b.pool.History(i)
	if err != nil {
		return false, fmt.Errorf("reuse: history of user %s: %w", b.pool.Users[i], err)
	}
	if next := (held{tokens: tokens}); !next.has(is) {
		return false, nil
	}
	chunks, err := b.history(ctx, tokens)
	if err != nil {
		return false, err
	}
	*h = held{source: is.Source, tokens: tokens, chunks: chunks}
	out.Tokens += len(tokens)
	return true, nil
}
