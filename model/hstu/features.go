package hstu

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"grebe/compute"
	"grebe/plan"
)

// ContentFeature is a table beside the items' whose rows are part of what events and candidates are.
type ContentFeature struct {
	Name    string `json:"name"`
	Table   string `json:"table"`
	Rows    int    `json:"num_embeddings"`
	Dim     int    `json:"embedding_dim"`
	Target  bool   `json:"target"`   // of candidates only
	ItemMLP bool   `json:"item_mlp"` // goes into the item MLP too
}

// maxFeatures bounds what a row consists of.
const maxFeatures = 64

func (c *Config) checkContent() error {
	if len(c.Content) > maxFeatures {
		return fmt.Errorf("content_features has %d features, at most %d", len(c.Content), maxFeatures)
	}
	type size struct{ rows, dim int }
	sizes := map[string]size{c.ItemTable: {c.Items, c.TableDim}}
	for i, f := range c.Features {
		own := size{f.Rows, c.TableDim}
		if was, ok := sizes[f.Table]; ok && was != own {
			return fmt.Errorf("contextual_features[%d]: table %s has %d rows of %d numbers and %d of %d", i, f.Table, was.rows,
				was.dim, own.rows, own.dim)
		}
		sizes[f.Table] = own
	}
	names := map[string]bool{}
	for i, f := range c.Content {
		own := size{f.Rows, f.Dim}
		switch was, ok := sizes[f.Table]; {
		case f.Name == "" || f.Table == "" || names[f.Name] || f.Rows < 1 || f.Rows > maxRows || f.Dim < 1 ||
			f.Dim > maxWidth:
			return fmt.Errorf("content_features[%d]: %+v makes no sense", i, f)
		case ok && was != own:
			return fmt.Errorf("content_features[%d]: table %s has %d rows of %d numbers and %d of %d", i, f.Table, was.rows,
				was.dim, own.rows, own.dim)
		case c.Preprocessor == 0 && f.Dim != c.Hidden:
			return fmt.Errorf("content_features[%d]: rows of %d numbers are added to those of %d: want a preprocessor, or the "+
				"same", i, f.Dim, c.Hidden)
		case f.ItemMLP && (c.ItemMLP == 0 || c.Retrieval):
			return fmt.Errorf("content_features[%d]: item_mlp wants an item MLP, and retrieval false: the features of all "+
				"items are not known", i)
		}
		names[f.Name], sizes[f.Table] = true, own
	}
	if n := c.summands(); n > compute.MaxSumParts {
		return fmt.Errorf("rows are the sum of up to %d rows of tables, at most %d: want fewer content_features, or a "+
			"preprocessor", n, compute.MaxSumParts)
	}
	return nil
}

// summands returns how many parts a batch sums at most.
func (c *Config) summands() int {
	n := 1 // the item, or the MLP of all content
	for _, more := range []bool{len(c.ActionWeights) > 0, len(c.Features) > 0, c.Positions != None, c.Times != None} {
		if more {
			n++
		}
	}
	if c.Preprocessor > 0 {
		return n
	}
	for _, f := range c.Content {
		if n++; f.Target {
			n++ // what events have in its place
		}
	}
	return n
}

// RowOf returns the row of a table with so many rows for an id: id modulo rows. It is what the model is trained with,
// so tables may have fewer rows than there are ids.
func RowOf(id uint64, rows int) int32 { return int32(id % uint64(rows)) }

// RowOfText returns the row for an id that is a text: the number that it is in decimals, or else the 64 bits of its
// FNV-1a hash.
func RowOfText(id string, rows int) int32 {
	number, hash, isNumber := uint64(0), uint64(offset64), id != ""
	for i := range len(id) {
		c := uint64(id[i])
		hash = (hash ^ c) * prime64
		high, low := bits.Mul64(number, 10)
		sum, carry := bits.Add64(low, c-'0', 0)
		number, isNumber = sum, isNumber && c >= '0' && c <= '9' && high == 0 && carry == 0
	}
	if isNumber {
		return RowOf(number, rows)
	}
	return RowOf(hash, rows)
}

// Constants of FNV-1a with 64 bits. Packages fnv and strconv allocate for each text, and a history has thousands.
const (
	offset64 = 14695981039346656037
	prime64  = 1099511628211
)

// RowOfNumber returns the row for an id that is a number of JSON; −1 for one that is negative, not whole, or so large
// that it has neighbours.
func RowOfNumber(id float64, rows int) int32 {
	if !(id >= 0) || id != math.Trunc(id) || id > 1<<53 {
		return -1
	}
	return RowOf(uint64(id), rows)
}

// Width is how many numbers describe a row: its token, and a row of each feature's table.
func (v *Vocabulary) Width() int { return 1 + len(v.cfg.Content) }

// Featured reports whether rows have features, so that plans need Describe.
func (v *Vocabulary) Featured() bool { return len(v.cfg.Content) > 0 }

// LeastReused returns how many tokens of a history KV must have in common to be reused, 0 for any: of Identity's tokens
// few could be equal by chance.
func (v *Vocabulary) LeastReused() int {
	if v.Featured() {
		return leastReused
	}
	return 0
}

const leastReused = 4

// Identity has tokens for the rows of a history with features: hashes of 31 bits, by which KV is found.
//
// Token i comes from a SHA-256 digest of rows 0 … i+3, or of all rows where there are fewer, each of the last four from
// other bits of it. So where histories differ in row k, the tokens from k−3 on differ, each but for a chance of 2⁻³¹.
// KV of four or more rows is taken for another's only if at least four of these fail, which is as unlikely as a
// collision of 124 bits.
//
// An Identity never changes. nil is that of no rows.
type Identity struct {
	tokens []int32
	digest [sha256.Size]byte // of all rows
}

// Len returns the number of rows.
func (x *Identity) Len() int { return len(x.Tokens()) }

// Tokens returns the tokens, which MUST NOT be changed.
func (x *Identity) Tokens() []int32 {
	if x == nil {
		return nil
	}
	return x.tokens
}

// Identify returns the identity of the rows of x and those behind them. content has Describe's numbers of the latter.
func (v *Vocabulary) Identify(x *Identity, content []int32) *Identity {
	width := v.Width()
	had := x.Len()
	n := had + len(content)/width
	out := &Identity{tokens: make([]int32, n)}
	if x != nil {
		copy(out.tokens, x.tokens)
		out.digest = x.digest
	}
	digest := out.digest
	buf := make([]byte, 0, sha256.Size+4*width)
	word := func(i int) int32 { return int32(binary.LittleEndian.Uint32(digest[4*i:]) & math.MaxInt32) }
	for i := had; i < n; i++ {
		buf = append(buf[:0], digest[:]...)
		for _, x := range content[(i-had)*width : (i-had+1)*width] {
			buf = appendNumber(buf, x)
		}
		digest = sha256.Sum256(buf)
		if at := i - (leastReused - 1); at >= 0 {
			out.tokens[at] = word(leastReused - 1)
		}
	}
	for i := range min(n, leastReused-1) {
		out.tokens[n-1-i] = word(i)
	}
	out.digest = digest
	return out
}

// Describe gives the segments of a plan the content of their rows: history that of the user's segment, candidates that
// of the others, one row each, which repeat where the plan has each candidate twice.
func (v *Vocabulary) Describe(p *plan.Plan, user int, history, candidates []int32) error {
	if !v.Featured() {
		return nil
	}
	width, rest := v.Width(), candidates
	for i := range p.Segments {
		s := &p.Segments[i]
		if i == user {
			s.Content = history
		} else {
			if len(rest) == 0 {
				rest = candidates
			}
			n := min(len(s.Tokens)*width, len(rest))
			s.Content, rest = rest[:n:n], rest[n:]
		}
		if len(s.Content) != width*len(s.Tokens) {
			return fmt.Errorf("hstu: segment %d has %d rows, but %d numbers of content", i, len(s.Tokens), len(s.Content))
		}
	}
	return nil
}

// AppendEvent appends the content of an event: its token, and the rows of its features, −1 for none.
func (v *Vocabulary) AppendEvent(to []int32, token int32, row func(f *ContentFeature) int32) []int32 {
	to = append(to, token)
	for i := range v.cfg.Content {
		if f := &v.cfg.Content[i]; f.Target {
			to = append(to, dummyRow)
		} else {
			to = append(to, row(f))
		}
	}
	return to
}

// AppendCandidate is AppendEvent for a candidate.
func (v *Vocabulary) AppendCandidate(to []int32, token int32, row func(f *ContentFeature) int32) []int32 {
	to = append(to, token)
	for i := range v.cfg.Content {
		to = append(to, row(&v.cfg.Content[i]))
	}
	return to
}

// AppendContext appends the content of contextual rows.
func (v *Vocabulary) AppendContext(to, tokens []int32) []int32 {
	for _, token := range tokens {
		to = v.AppendCandidate(to, token, func(*ContentFeature) int32 { return -1 })
	}
	return to
}
