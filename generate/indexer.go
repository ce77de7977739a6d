package generate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"grebe/beam"
	"grebe/catalog/history"
	"grebe/prompt"
)

// indexer builds the indices of a model's items.
type indexer struct {
	prompt *prompt.Builder
	known  [][]bool // known codes per level: they were part of a path that the model has
}

func newIndexer(b *prompt.Builder) *indexer {
	x := &indexer{prompt: b, known: make([][]bool, b.Depth())}
	return x
}

// has reports whether the model has the codes of a path.
func (x *indexer) has(codes []int32) bool {
	if len(codes) != len(x.known) {
		return false
	}
	all := true
	for l, c := range codes {
		if c < 0 {
			return false
		}
		all = all && int(c) < len(x.known[l]) && x.known[l][c]
	}
	if all {
		return true
	}
	if _, err := x.prompt.CodeTokens(codes); err != nil {
		return false
	}
	for l, c := range codes {
		if more := int(c) + 1 - len(x.known[l]); more > 0 {
			x.known[l] = append(x.known[l], make([]bool, more)...)
		}
		x.known[l][c] = true
	}
	return true
}

// build builds the index of the items in some slots; nil if the model has the codes of none.
func (x *indexer) build(t *history.Table, slots []uint32) (*beam.Index, error) {
	numbers, codes := x.paths(t, slots)
	if len(numbers) == 0 {
		return nil, nil
	}
	ix, err := beam.BuildNumbered(x.prompt.CodeSizes(codes), codes, numbers)
	if err != nil {
		return nil, fmt.Errorf("generate: index %d items: %w", len(numbers), err)
	}
	return ix, nil
}

// paths returns the slots whose codes the model has, and their codes.
func (x *indexer) paths(t *history.Table, slots []uint32) (numbers []uint32, codes []int32) {
	depth := len(x.known)
	numbers, codes = make([]uint32, 0, len(slots)), make([]int32, 0, depth*len(slots))
	t.Paths(slots, func(slot uint32, path []int32) {
		if x.has(path) {
			numbers, codes = append(numbers, slot), append(codes, path...)
		}
	})
	return numbers, codes
}

// index makes the index of a version. It starts from the snapshot near, or from the first version of the generation,
// or builds the index of all items. It is nil if the model has the codes of no item.
func (x *indexer) index(v *history.Version, near *Snapshot,
	base func(first *history.Version) *beam.Index) (*beam.Index, error) {
	if near != nil && near.index != nil && near.at != nil {
		if near.at.Before(v) {
			return x.merge(near.index, near.at, v)
		}
		if prior, numbers := v.Prior(); prior != nil && near.at.Before(prior) {
			ix, err := x.merge(near.index, near.at, prior)
			if ix == nil || err != nil {
				return nil, err
			}
			return ix.Renumbered(numbers, v.Table().Slots()), nil
		}
	}
	first := v.First()
	if ix := base(first); ix != nil {
		return x.merge(ix, first, v)
	}
	return x.build(v.Table(), v.Live())
}

// merge derives the index of a version from that of an earlier one.
func (x *indexer) merge(ix *beam.Index, from, to *history.Version) (*beam.Index, error) {
	removed, added := to.Since(from)
	t := to.Table()
	numbers, codes := x.paths(t, added)
	removed = slices.DeleteFunc(removed, func(slot uint32) bool { return !ix.Holds(slot) })
	if len(numbers)+len(removed) == 0 {
		return ix, nil
	}
	if ix.Len()+len(numbers) == len(removed) {
		return nil, nil
	}
	sizes := x.prompt.CodeSizes(codes)
	for l := range sizes {
		sizes[l] = max(sizes[l], ix.Size(l))
	}
	out, err := ix.Merge(beam.Change{Sizes: sizes, Remove: removed, Add: numbers, Codes: codes})
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	return x.fit(out, t, removed)
}

// fit shrinks levels whose largest code is gone, if codes are found by text. So a snapshot does not depend on how it
// was made.
func (x *indexer) fit(ix *beam.Index, t *history.Table, removed []uint32) (*beam.Index, error) {
	sizes := make([]int, ix.Depth())
	for l := range sizes {
		sizes[l] = ix.Size(l)
	}
	smaller := slices.Clone(sizes)
	least := x.prompt.CodeSizes(nil)
	var path []int32
	for _, slot := range removed {
		path = t.Codes(path[:0], slot)
		for l, c := range path {
			if int(c) == sizes[l]-1 && smaller[l] == sizes[l] {
				smaller[l] = max(least[l], int(ix.Largest(l))+1)
			}
		}
	}
	if slices.Equal(sizes, smaller) {
		return ix, nil
	}
	return ix.Merge(beam.Change{Sizes: smaller})
}

// indexMagic begins the file of an index. The digest of its items and the index follow.
const (
	indexMagic  = "grebeSX1"
	indexHeader = 8 + 32
)

// write stores the index of the first version of a generation.
func (x *indexer) write(name string, ix *beam.Index, v *history.Version) error {
	return history.WriteFile(name, func(w io.Writer) error {
		head := append([]byte(indexMagic), v.Digest.String()...)
		if _, err := w.Write(head); err != nil {
			return err
		}
		_, err := ix.WriteTo(w)
		return err
	})
}

// errOther means that a stored index is intact but belongs to other items or another model.
var errOther = errors.New("the index has other items or codes")

// read maps a stored index. It returns errOther unless the index has exactly the items of the version whose codes the
// model has, because the vocabulary may have changed.
func (x *indexer) read(name string, v *history.Version) (*beam.Index, error) {
	data, owner, err := history.Map(name)
	if err != nil {
		return nil, err
	}
	if len(data) < indexHeader || string(data[:len(indexMagic)]) != indexMagic {
		return nil, fmt.Errorf("%w: not an index file", beam.ErrDamaged)
	}
	t := v.Table()
	ix, err := beam.Open(data[indexHeader:], t.Slots(), owner)
	if err != nil {
		return nil, err
	}
	if string(data[len(indexMagic):indexHeader]) != v.Digest.String() || !x.fits(ix, t, v.Live()) {
		return nil, errOther
	}
	return ix, nil
}

func (x *indexer) fits(ix *beam.Index, t *history.Table, slots []uint32) bool {
	if ix.Depth() != len(x.known) {
		return false
	}
	least := x.prompt.CodeSizes(nil)
	for l, n := range least {
		if size := max(n, int(ix.Largest(l))+1); ix.Size(l) != size {
			return false
		}
	}
	numbers, codes := x.paths(t, slots)
	if len(numbers) != ix.Len() {
		return false
	}
	depth := len(x.known)
	var path []int32
	for i, slot := range numbers {
		if !ix.Holds(slot) {
			return false
		}
		if i%1009 == 0 { // a sample is enough: the digest covers the rest
			path = ix.Path(path[:0], ix.Leaf(slot))
			if !slices.Equal(path, codes[i*depth:][:depth]) {
				return false
			}
		}
	}
	return true
}

// missing reports whether a file does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
