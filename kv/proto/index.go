package proto

import (
	"math"
	"math/bits"
)

// Index finds prototypes.
type Index struct {
	space      *space
	prototypes []Prototype
	sketches   []uint64
	vectors    [][Width]int8
	thresholds [][Planes]float32 // by row of the space
	parts      []Generation
	model      [32]byte
	dead       []bool // by page: its prototypes are matched no more
	buckets    buckets
	unmap      func() error
}

// Generation is a run of prototypes that were made together. It begins a page.
type Generation struct {
	First, Len int
	Digest     [32]byte // of all that its prototypes' KV depends on but the model
}

// buckets are the tables. A row's prototypes are in each of the row's Tables tables, whose keys are the leading
// bits of the table's part of the sketch: as many as make about perBucket entries a bucket.
type buckets struct {
	bits    []uint8  // by row
	first   []uint32 // by row: of starts
	starts  []uint32 // of buckets in entries, by row, table and key, with one more behind each row
	entries []entry
}

// entry is a prototype in a bucket.
type entry struct {
	sketch uint64
	number uint32
}

const (
	perBucket = 8
	// scanned is how many entries of a bucket are looked at.
	scanned = 64
	// compared is how many of the entries with the nearest sketches are compared by their vectors.
	compared = 8
)

// bucketBits returns the bits of keys for n prototypes.
func bucketBits(n int) uint8 {
	b := bits.Len(uint(n / perBucket))
	return uint8(min(b, TableBits))
}

// key cuts a table's key out of a sketch.
func key(sketch uint64, table int, b uint8) uint32 {
	return uint32(sketch>>(table*TableBits)) & (1<<b - 1)
}

// fill makes the tables of all prototypes that are alive.
func (x *Index) fill() {
	rows := len(x.space.rows)
	count := make([]uint32, rows)
	for i := range x.prototypes {
		if x.alive(i) {
			count[x.space.row(x.prototypes[i].Token)]++
		}
	}
	b := buckets{bits: make([]uint8, rows), first: make([]uint32, rows)}
	places := 0
	for r, n := range count {
		b.bits[r], b.first[r] = bucketBits(int(n)), uint32(places)
		places += Tables<<b.bits[r] + 1
	}
	b.starts = make([]uint32, places)
	b.each(x, func(at uint32, _ int) { b.starts[at]++ })
	total := uint32(0)
	for i, n := range b.starts {
		b.starts[i] = total
		total += n
	}
	b.entries = make([]entry, total)
	next := append([]uint32(nil), b.starts...)
	b.each(x, func(at uint32, i int) {
		b.entries[next[at]] = entry{x.sketches[i], uint32(i)}
		next[at]++
	})
	x.buckets = b
}

// each calls f with every bucket that every prototype belongs to.
func (b *buckets) each(x *Index, f func(bucket uint32, prototype int)) {
	for i := range x.prototypes {
		r := x.space.row(x.prototypes[i].Token)
		if !x.alive(i) {
			continue
		}
		for t := range Tables {
			f(b.at(r, t, x.sketches[i]), i)
		}
	}
}

func (b *buckets) at(row int32, table int, sketch uint64) uint32 {
	k := b.bits[row]
	return b.first[row] + uint32(table)<<k + key(sketch, table, k)
}

// alive reports whether a prototype can be matched: it is one, and its page was not removed.
func (x *Index) alive(i int) bool {
	return x.prototypes[i].Count > 0 && !x.dead[i/Page] && x.space.known(x.prototypes[i].Token)
}

// Len returns the number of prototypes, with those that were removed and the gaps behind generations.
func (x *Index) Len() int { return len(x.prototypes) }

// Prototype returns a prototype. One that is a gap has a Count of 0.
func (x *Index) Prototype(i int) Prototype { return x.prototypes[i] }

// Generations returns the runs of prototypes that were made together. The caller MUST NOT change them.
func (x *Index) Generations() []Generation { return x.parts }

// Model returns what the builder was told of the model.
func (x *Index) Model() [32]byte { return x.model }

// Config returns what the index was made with.
func (x *Index) Config() Config { return x.space.cfg }

// Match is a prototype for a token.
type Match struct {
	Prototype int32   // −1: there is none
	Drift     float32 // 0 to 1
}

// block is how many tokens are taken through the stages of a lookup together, so that the memory that one
// waits for is under way for the others.
const block = 32

// Scratch is a lookup's memory: one for each that runs. The zero value is ready.
type Scratch struct {
	sums    sums
	rows    [block]int32
	sketch  [block]uint64
	vector  [block][Width]int8
	found   [block][compared]uint32
	count   [block]int
	starts  [block][Tables]uint32
	ends    [block][Tables]uint32
	touched uint64
}

// Match sets out[i] to the nearest prototype of tokens[i], for each i from from on, if its drift is at most most.
// Tokens are a whole history. It allocates nothing.
func (x *Index) Match(s *Scratch, tokens []int32, from int, most float32, out []Match) {
	x.match(s, tokens, from, math.MaxInt32-1, most, out)
}

// cover is Match for prototypes within the radius.
func (x *Index) cover(s *Scratch, tokens []int32, out []Match) {
	x.match(s, tokens, 0, x.space.radius(), 1, out)
}

// radius is that of clusters, squared and in steps.
func (s *space) radius() int32 {
	r := s.cfg.Radius * s.frame.steps
	return int32(min(r*r, math.MaxInt32/2))
}

// match is Match for prototypes whose squared distance, in steps, is at most limit.
func (x *Index) match(s *Scratch, tokens []int32, from int, limit int32, most float32, out []Match) {
	out = out[:len(tokens)]
	s.sums = sums{}
	for i := 0; i < from; i++ {
		out[i] = Match{Prototype: -1, Drift: 1}
		x.advance(&s.sums, tokens[i])
	}
	last := int32(-1)
	for i := from; i < len(tokens); i += block {
		n := min(block, len(tokens)-i)
		x.embed(s, tokens[i:i+n], i)
		x.ask(s, n)
		x.scan(s, n)
		last = x.compare(s, tokens[i:i+n], last, limit, most, out[i:i+n])
	}
}

func (x *Index) advance(s *sums, token int32) {
	advance(s, &x.space.rows[x.space.row(token)], &x.space.cfg.Left)
}

// embed makes the contexts of a block of tokens that begins at a place. Tokens that have no prototype get row 0.
func (x *Index) embed(s *Scratch, tokens []int32, at int) {
	sp := x.space
	for i, t := range tokens {
		r := sp.row(t)
		s.rows[i] = 0
		if b := &x.buckets; b.starts[b.first[r]] != b.starts[b.first[r]+uint32(Tables)<<b.bits[r]] {
			s.rows[i] = r
			s.sketch[i] = express(&s.sums, &sp.frame, place(at+i), &x.thresholds[r], &s.vector[i])
		}
		advance(&s.sums, &sp.rows[r], &sp.cfg.Left)
	}
}

// ask finds the buckets, and touches them, so that their memory is on its way.
func (x *Index) ask(s *Scratch, n int) {
	b := &x.buckets
	touched := uint64(0)
	for i := range n {
		if s.rows[i] == 0 {
			continue
		}
		for t := range Tables {
			at := b.at(s.rows[i], t, s.sketch[i])
			start, end := b.starts[at], b.starts[at+1]
			s.starts[i][t], s.ends[i][t] = start, min(end, start+scanned)
			if start < end {
				touched += b.entries[start].sketch
			}
		}
	}
	s.touched = touched
}

// scan keeps the entries with the nearest sketches.
func (x *Index) scan(s *Scratch, n int) {
	b := &x.buckets
	var far [compared]uint8
	for i := range n {
		found, count := &s.found[i], 0
		if s.rows[i] == 0 {
			s.count[i] = 0
			continue
		}
		sketch := s.sketch[i]
		for t := range Tables {
			for _, e := range b.entries[s.starts[i][t]:s.ends[i][t]] {
				d := uint8(bits.OnesCount64(e.sketch ^ sketch))
				if count == compared && d >= far[compared-1] {
					continue
				}
				count = keep(found, &far, count, e.number, d)
			}
		}
		s.count[i] = count
		for _, c := range found[:count] {
			prefetch(&x.vectors[c])
		}
	}
}

// keep inserts an entry among those found, nearest first, unless it is there.
func keep(found *[compared]uint32, far *[compared]uint8, count int, number uint32, d uint8) int {
	at := count
	for at > 0 && far[at-1] > d {
		at--
	}
	for j := at - 1; j >= 0 && far[j] == d; j-- {
		if found[j] == number {
			return count
		}
	}
	count = min(count+1, compared)
	copy(found[at+1:count], found[at:count-1])
	copy(far[at+1:count], far[at:count-1])
	found[at], far[at] = number, d
	return count
}

// compare chooses the nearest by vectors. What continues the last match is asked too: it often does, and then both
// can be placed together.
func (x *Index) compare(s *Scratch, tokens []int32, last, limit int32, most float32, out []Match) int32 {
	for i := range tokens {
		out[i] = Match{Prototype: -1, Drift: 1}
		if s.rows[i] == 0 {
			last = -1
			continue
		}
		best, number := limit+1, int32(-1)
		if next := last + 1; last >= 0 && x.follows(last, next, tokens[i]) {
			if d := distance(&s.vector[i], &x.vectors[next]); d < best {
				best, number = d, next
			}
		}
		for _, c := range s.found[i][:s.count[i]] {
			if d := distance(&s.vector[i], &x.vectors[c]); d < best {
				best, number = d, int32(c)
			}
		}
		last = -1
		if number < 0 {
			continue
		}
		if d := x.space.drift(best, s.rows[i]); d <= most {
			out[i] = Match{Prototype: number, Drift: d}
			last = number
		}
	}
	return last
}

// follows reports whether prototype next is of the token after that of last, and of this token.
func (x *Index) follows(last, next, token int32) bool {
	if int(next) >= len(x.prototypes) || next%Page == 0 {
		return false
	}
	a, b := &x.prototypes[last], &x.prototypes[next]
	return b.Token == token && b.Count > 0 && b.Source == a.Source && b.Place == a.Place+1
}

// drift makes a squared distance in steps, and what cannot be known from contexts, a number from 0 to 1.
func (s *space) drift(d, row int32) float32 {
	floor := s.floors[row]
	near := float32(d) / (s.frame.steps * s.frame.steps)
	return min(1, float32(math.Sqrt(float64(near+float32(floor*floor)))))
}

// Exhaustive returns the nearest prototype of a token of a history by comparing all: what Match is measured against.
func (x *Index) Exhaustive(tokens []int32, at int) Match {
	var before sums
	for _, t := range tokens[:at] {
		x.advance(&before, t)
	}
	row := x.space.row(tokens[at])
	none := Match{Prototype: -1, Drift: 1}
	if row == 0 {
		return none
	}
	var vector [Width]int8
	express(&before, &x.space.frame, place(at), &x.thresholds[row], &vector)
	best, number := int32(math.MaxInt32), int32(-1)
	for i := range x.prototypes {
		if x.prototypes[i].Token != tokens[at] || !x.alive(i) {
			continue
		}
		if d := distance(&vector, &x.vectors[i]); d < best {
			best, number = d, int32(i)
		}
	}
	if number < 0 {
		return none
	}
	return Match{Prototype: number, Drift: x.space.drift(best, row)}
}
