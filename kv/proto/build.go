package proto

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Histories are what prototypes are made of. They are gone over several times, in order.
type Histories interface {
	Len() int
	// History returns a user's tokens, and a digest of the user's id. The tokens are read before the next call.
	History(i int) (tokens []int32, source uint64, err error)
}

// Model is what an index needs to know of a model.
type Model struct {
	Digest     [32]byte // of all that KV depends on besides a user's tokens
	Embeddings Embeddings
	// Natural reports whether a token may have prototypes. Identifiers, numbers and delimiters may not: they say
	// something about this user that no other history says.
	Natural func(token int32) bool
	// Teacher is nil, or gives a vector for each of some tokens of a history, such that the distance of two tokens' is
	// the error of taking one for the other: then contexts are embedded so that they predict it.
	Teacher func(ctx context.Context, tokens []int32, at []int) ([][]float32, error)
}

// Progress is told which part of the work is under way, and how many histories it has gone through.
type Progress func(part string, done, total int)

// builder is a build under way.
type builder struct {
	ctx      context.Context
	space    *space
	old      *Index // nil: none
	model    Model
	in       Histories
	progress Progress

	thresholds [][Planes]float32
	seen       []uint32 // by row: occurrences
	natural    []bool   // by row
	scratch    Scratch
	matches    []Match
}

// Build makes an index of histories.
func Build(ctx context.Context, cfg Config, m Model, in Histories, progress Progress) (*Index, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return build(&builder{ctx: ctx, space: newSpace(cfg), model: m, in: in, progress: progress})
}

// Extend makes an index that has all prototypes of x, under their numbers, and those of histories that x does not
// cover, up to most prototypes in all. It is an error when the model is not that of x.
func Extend(ctx context.Context, x *Index, most int, m Model, in Histories, progress Progress) (*Index, error) {
	if x.model != m.Digest {
		return nil, errors.New("proto: the index is of another model")
	}
	s := *x.space
	s.rowOf, s.tokens, s.rows, s.floors = slices.Clone(s.rowOf), slices.Clone(s.tokens), slices.Clone(s.rows),
		slices.Clone(s.floors)
	s.images = slices.Clone(s.images)
	s.cfg.Most = most
	if err := s.cfg.Validate(); err != nil {
		return nil, err
	}
	b := &builder{ctx: ctx, space: &s, old: x, model: m, in: in, progress: progress,
		thresholds: slices.Clone(x.thresholds)}
	return build(b)
}

func build(b *builder) (*Index, error) {
	if err := b.learn(); err != nil {
		return nil, err
	}
	if err := b.measure(); err != nil {
		return nil, err
	}
	c, err := b.cluster()
	if err != nil {
		return nil, err
	}
	c.choose(b.space.cfg.Most-b.base(), uint32(b.space.cfg.Least))
	return b.represent(c)
}

// base is the number of the first prototype that is made.
func (b *builder) base() int {
	if b.old == nil {
		return 0
	}
	return (b.old.Len() + Page - 1) / Page * Page
}

// each goes over all histories.
func (b *builder) each(part string, f func(i int, tokens []int32, source uint64) error) error {
	n := b.in.Len()
	for i := range n {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		tokens, source, err := b.in.History(i)
		if err != nil {
			return fmt.Errorf("proto: history %d: %w", i, err)
		}
		if err := f(i, tokens, source); err != nil {
			return err
		}
		if b.progress != nil {
			b.progress(part, i+1, n)
		}
	}
	return nil
}

// learn makes rows of all tokens that occur.
func (b *builder) learn() error {
	met := map[int32]bool{}
	var order []int32
	err := b.each("tokens", func(_ int, tokens []int32, _ uint64) error {
		for _, t := range tokens {
			if !met[t] {
				met[t] = true
				order = append(order, t)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !b.space.centred {
		b.space.centre(order, b.model.Embeddings)
		if b.model.Teacher != nil {
			if err := b.teach(); err != nil {
				return err
			}
		}
	}
	b.space.learn(order, b.model.Embeddings)
	b.space.setFloors()
	rows := len(b.space.rows)
	b.natural, b.seen = make([]bool, rows), make([]uint32, rows)
	for r, t := range b.space.tokens {
		b.natural[r] = r > 0 && b.model.Natural(t)
	}
	return nil
}

// walk calls f with every token that may have a prototype, the context in b.scratch.sums.
func (b *builder) walk(tokens []int32, f func(i int, row int32)) {
	s := b.space
	b.scratch.sums = sums{}
	for i, t := range tokens {
		r := s.row(t)
		if b.natural[r] {
			f(i, r)
		}
		advance(&b.scratch.sums, &s.rows[r], &s.cfg.Left)
	}
}

// measure counts tokens, and sets thresholds that are not set yet to the means of projections: then each plane
// parts the contexts of a token about in two.
func (b *builder) measure() error {
	known := len(b.thresholds)
	rows := len(b.space.rows)
	means := make([][Planes]float64, rows-known)
	err := b.each("contexts", func(_ int, tokens []int32, _ uint64) error {
		b.walk(tokens, func(i int, row int32) {
			b.seen[row]++
			if int(row) < known {
				return
			}
			m, at := &means[int(row)-known], place(i)
			for p := range m {
				m[p] += float64(b.space.frame.at(&b.scratch.sums, Width+p, at))
			}
		})
		return nil
	})
	for r := range means {
		var t [Planes]float32
		for p, sum := range means[r] {
			t[p] = float32(sum / float64(max(1, b.seen[known+r])))
		}
		b.thresholds = append(b.thresholds, t)
	}
	return err
}

// cluster finds clusters of occurrences that the old index does not cover.
func (b *builder) cluster() (*clusters, error) {
	c := newClusters(b.seen, 4*b.space.cfg.Most, b.space.radius())
	err := b.each("clusters", func(h int, tokens []int32, _ uint64) error {
		covered := b.covered(tokens)
		var vector [Width]int8
		b.walk(tokens, func(i int, row int32) {
			if covered != nil && covered[i].Prototype >= 0 {
				return
			}
			sketch := express(&b.scratch.sums, &b.space.frame, place(i), &b.thresholds[row], &vector)
			c.add(row, sketch, &vector, uint32(h))
		})
		return nil
	})
	return c, err
}

// covered returns what the old index matches; nil without one.
func (b *builder) covered(tokens []int32) []Match {
	if b.old == nil {
		return nil
	}
	b.matches = slices.Grow(b.matches[:0], len(tokens))[:len(tokens)]
	b.old.cover(&b.scratch, tokens, b.matches)
	return b.matches
}

// candidate is the occurrence nearest to a cluster's centre so far.
type candidate struct {
	cluster int
	history int
	place   int32
	source  uint64
	far     int32
	vector  [Width]int8
	sketch  uint64
}

// represent makes the index: of each cluster the occurrence that is nearest to its centre.
func (b *builder) represent(c *clusters) (*Index, error) {
	leaders := b.leaders(c)
	centres := make([][Width]int32, len(leaders.prototypes))
	members := make([]int32, len(centres))
	out := make([]Match, 0, 4096)
	matched := func(tokens []int32, f func(i, cluster int, sketch uint64, vector *[Width]int8)) {
		out = slices.Grow(out[:0], len(tokens))[:len(tokens)]
		leaders.cover(&leaders.build, tokens, out)
		var vector [Width]int8
		b.walk(tokens, func(i int, row int32) {
			if k := int(out[i].Prototype); k >= 0 {
				sketch := express(&b.scratch.sums, &b.space.frame, place(i), &b.thresholds[row], &vector)
				f(i, k, sketch, &vector)
			}
		})
	}
	err := b.each("centres", func(_ int, tokens []int32, _ uint64) error {
		matched(tokens, func(_, k int, _ uint64, vector *[Width]int8) {
			members[k]++
			for i, v := range vector {
				centres[k][i] += int32(v)
			}
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	best := make([]candidate, len(centres))
	middle := make([][Width]int8, len(centres))
	for k := range best {
		best[k] = candidate{cluster: k, history: -1}
		for i, sum := range centres[k] {
			middle[k][i] = int8(sum / max(1, members[k]))
		}
	}
	err = b.each("representatives", func(h int, tokens []int32, source uint64) error {
		matched(tokens, func(i, k int, sketch uint64, vector *[Width]int8) {
			if d := distance(vector, &middle[k]); best[k].history < 0 || d < best[k].far {
				best[k] = candidate{k, h, int32(i), source, d, *vector, sketch}
			}
		})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.assemble(c, best)
}

// leaders is an index of the clusters' first occurrences.
type leaders struct {
	*Index
	build Scratch
}

func (b *builder) leaders(c *clusters) *leaders {
	x := &Index{space: b.space, thresholds: b.thresholds, sketches: c.sketches, vectors: c.vectors}
	for i := range c.sketches {
		x.prototypes = append(x.prototypes, Prototype{Token: b.space.tokens[c.rows[i]], Count: c.counts[i],
			Place: -2 * int32(i)})
	}
	x.dead = make([]bool, len(x.prototypes)/Page+1)
	x.fill()
	return &leaders{Index: x}
}

// assemble numbers the representatives in the order of histories, so that what was neighbours there is so here.
func (b *builder) assemble(c *clusters, best []candidate) (*Index, error) {
	best = slices.DeleteFunc(best, func(k candidate) bool { return k.history < 0 })
	slices.SortFunc(best, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.history, b.history), cmp.Compare(a.place, b.place))
	})
	x := &Index{space: b.space, thresholds: b.thresholds, model: b.model.Digest}
	if b.old != nil {
		x.prototypes, x.sketches, x.vectors = slices.Clone(b.old.prototypes), slices.Clone(b.old.sketches),
			slices.Clone(b.old.vectors)
		x.parts, x.dead = slices.Clone(b.old.parts), slices.Clone(b.old.dead)
	}
	for gap := b.base() - len(x.prototypes); gap > 0; gap-- {
		x.prototypes, x.sketches, x.vectors = append(x.prototypes, Prototype{Token: -1}), append(x.sketches, 0),
			append(x.vectors, [Width]int8{})
	}
	first := len(x.prototypes)
	for _, k := range best {
		token := b.space.tokens[c.rows[k.cluster]]
		x.prototypes = append(x.prototypes, Prototype{Token: token, Place: k.place, Source: k.source,
			Count: c.counts[k.cluster]})
		x.sketches, x.vectors = append(x.sketches, k.sketch), append(x.vectors, k.vector)
	}
	x.dead = append(x.dead, make([]bool, (len(x.prototypes)+Page-1)/Page-len(x.dead))...)
	if len(best) > 0 {
		digest, err := b.digest(x, best)
		if err != nil {
			return nil, err
		}
		x.parts = append(x.parts, Generation{First: first, Len: len(best), Digest: digest})
	}
	x.fill()
	return x, nil
}

// digest is of the histories up to the last representative of each, of where the representatives are, and of
// what was there before.
func (b *builder) digest(x *Index, best []candidate) (out [32]byte, err error) {
	h := sha256.New()
	if n := len(x.parts); n > 0 {
		h.Write(x.parts[n-1].Digest[:])
	}
	var word [4]byte
	put := func(v int32) {
		binary.LittleEndian.PutUint32(word[:], uint32(v))
		h.Write(word[:])
	}
	for i := 0; i < len(best); {
		j := i
		for j < len(best) && best[j].history == best[i].history {
			put(best[j].place)
			j++
		}
		tokens, _, err := b.in.History(best[i].history)
		if err != nil {
			return out, fmt.Errorf("proto: history %d: %w", best[i].history, err)
		}
		if int(best[j-1].place) >= len(tokens) {
			return out, fmt.Errorf("proto: history %d became shorter", best[i].history)
		}
		put(-1)
		for _, t := range tokens[:best[j-1].place+1] {
			put(t)
		}
		put(-1)
		i = j
	}
	h.Sum(out[:0])
	return out, nil
}
