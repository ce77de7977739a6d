// Package plan describes what a request computes: segments of tokens, their positions, and which segments
// attend to which.
//
// A plan is a list of segments. A segment attends causally to itself and in full to the earlier segments in its Sees.
// Siblings may share a start position. Everything that Grebe serves is such a plan (BAT-1 in docs/explain/papers.md):
// user-first, item-first, pointwise, a beam step. The engine takes nothing but plans. Mask defines their meaning: every
// fast path must agree with dense attention under that mask.
//
// The package is pure. A plan does not change after it was built.
package plan

import (
	"errors"
	"fmt"
	"slices"
)

// Kind says what a segment contains. It does not affect results; caches and usage counts depend on it.
type Kind uint8

const (
	Preamble     Kind = iota // the start of every prompt, and lead-ins
	User                     // a user's profile and history
	Item                     // one candidate
	Instruction              // the question, which sees everything
	Discriminant             // the question about one candidate
	Beam                     // generated codes of one beam
)

var kinds = [...]string{"preamble", "user", "item", "instruction", "discriminant", "beam"}

func (k Kind) String() string { return kinds[k] }

// ParseKind reads a kind's name.
func ParseKind(s string) (Kind, error) {
	for i, n := range kinds {
		if n == s {
			return Kind(i), nil
		}
	}
	return 0, fmt.Errorf("plan: no segment kind %q", s)
}

// Segment is a run of tokens at consecutive positions.
type Segment struct {
	Kind   Kind
	Tokens []int32
	Start  int     // position of its first token
	Sees   []int32 // earlier segments it attends to in full, in key order

	// Extra and Scale are for models that are not decoders. Extra is nil, or has a number per token whose meaning is
	// the model's. Scale is the attention scale of the segment's rows, 0 for the model's own. Keys do not include
	// them, so KV that depends on them is never cached.
	Extra []int32
	Scale float32

	// Content is nil, or has equally many numbers for each token, whose meaning is the model's. The tokens MUST tell
	// apart all that it says of them and of the tokens before: keys do not include it, and KV that depends on it is
	// cached.
	Content []int32
}

// Plan is a request's segments, in the order in which they are computed.
type Plan struct {
	Segments []Segment
}

// Tokens returns the number of tokens of all segments.
func (p *Plan) Tokens() int {
	n := 0
	for i := range p.Segments {
		n += len(p.Segments[i].Tokens)
	}
	return n
}

// ErrTooLong means that a plan uses positions that the model does not have.
var ErrTooLong = errors.New("too long")

// Validate checks that a plan can run on a model with vocab tokens and positions below positions.
func (p *Plan) Validate(vocab, positions int) error {
	for i := range p.Segments {
		s := &p.Segments[i]
		if int(s.Kind) >= len(kinds) {
			return fmt.Errorf("plan: segment %d has no kind %d", i, s.Kind)
		}
		if s.Start < 0 || s.Start > positions || len(s.Tokens) > positions-s.Start {
			return fmt.Errorf("plan: %w: segment %d (%s) takes positions %d to %d, but the model has %d",
				ErrTooLong, i, s.Kind, s.Start, s.Start+len(s.Tokens), positions)
		}
		if s.Extra != nil && len(s.Extra) != len(s.Tokens) {
			return fmt.Errorf("plan: segment %d (%s) has %d tokens, but extra numbers of %d", i, s.Kind, len(s.Tokens),
				len(s.Extra))
		}
		if n := len(s.Tokens); len(s.Content) > 0 && (n == 0 || len(s.Content)%n != 0) {
			return fmt.Errorf("plan: segment %d (%s) has %d tokens, but %d numbers of content", i, s.Kind, n, len(s.Content))
		}
		for t, id := range s.Tokens {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("plan: segment %d (%s): token %d is %d, outside the vocabulary of %d",
					i, s.Kind, t, id, vocab)
			}
		}
		for _, j := range s.Sees {
			if j < 0 || int(j) >= i {
				return fmt.Errorf("plan: segment %d (%s) sees segment %d, which is not before it", i, s.Kind, j)
			}
		}
		if j, twice := repeated(s.Sees); twice {
			return fmt.Errorf("plan: segment %d (%s) sees segment %d twice", i, s.Kind, j)
		}
	}
	return nil
}

// repeated returns a segment that is listed twice. It allocates only for lists that are not in ascending
// order, which are rare.
func repeated(sees []int32) (segment int32, twice bool) {
	ascending := true
	for k := 1; k < len(sees) && ascending; k++ {
		ascending = sees[k-1] < sees[k]
	}
	if ascending {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(sees))
	for k := 1; k < len(sorted); k++ {
		if sorted[k-1] == sorted[k] {
			return sorted[k], true
		}
	}
	return 0, false
}

// Positions returns the position of every token, segments one after the other.
func (p *Plan) Positions() []int32 {
	out := make([]int32, 0, p.Tokens())
	for i := range p.Segments {
		s := &p.Segments[i]
		for t := range s.Tokens {
			out = append(out, int32(s.Start+t))
		}
	}
	return out
}

// Mask returns the plan's dense attention mask: Mask()[q][k] is true when token q attends to token k. Tokens
// are numbered through all segments. It is for references and tests.
func (p *Plan) Mask() [][]bool {
	first := make([]int, len(p.Segments))
	n := 0
	for i := range p.Segments {
		first[i] = n
		n += len(p.Segments[i].Tokens)
	}
	mask := make([][]bool, 0, n)
	for i := range p.Segments {
		s := &p.Segments[i]
		for t := range s.Tokens {
			row := make([]bool, n)
			for _, j := range s.Sees {
				for k := range p.Segments[j].Tokens {
					row[first[j]+k] = true
				}
			}
			for k := 0; k <= t; k++ {
				row[first[i]+k] = true
			}
			mask = append(mask, row)
		}
	}
	return mask
}
