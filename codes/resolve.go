package codes

import (
	"cmp"
	"fmt"
	"slices"

	"grebe/internal/human"
)

// Resolve changes paths so that no two rows have the same one, and none has one of those taken, which are the paths of
// items that keep theirs. Of rows with the same path the one nearest to it keeps it. Each other row, from the nearest
// on, takes the nearest free code of the last level; where all are taken, it takes another code of the level above.
// Rows are what remains after Train or Encode, and follow their new paths. Resolve returns how many paths it changed.
func (b *Book) Resolve(m Machine, rows []float32, paths, taken []int32) (moved int, err error) {
	levels := len(b.Levels)
	s := &space{book: b, sizes: b.Sizes(), used: make([]map[uint64]uint64, levels)}
	s.room = make([]uint64, levels+1)
	s.room[levels] = 1
	for l := levels - 1; l >= 0; l-- {
		s.used[l] = map[uint64]uint64{}
		s.room[l] = s.room[l+1] * uint64(s.sizes[l])
	}
	for at := 0; at < len(taken); at += levels {
		if p := taken[at:][:levels]; s.free(p) {
			s.take(p)
		}
	}
	n := len(paths) / levels
	left := s.room[0]
	for _, c := range s.used[0] {
		left -= c
	}
	if uint64(n) > left {
		return 0, fmt.Errorf("no new codes for %s: %d paths of the levels %v are free: use more or larger levels",
			human.Count(n, "item"), left, s.sizes)
	}
	p := newPass(m, rows, b.Dims)
	order := make([]int32, n)
	for r := range order {
		order[r] = int32(r)
	}
	slices.SortFunc(order, func(a, c int32) int {
		return cmp.Or(cmp.Compare(p.square[a], p.square[c]), cmp.Compare(a, c))
	})
	var without []int32
	for _, r := range order {
		if path := paths[int(r)*levels:][:levels]; s.free(path) {
			s.take(path)
		} else {
			without = append(without, r)
		}
	}
	return len(without), s.place(p, paths, without)
}

// space has the paths that are taken.
type space struct {
	book  *Book
	sizes []int
	used  []map[uint64]uint64 // by level: how many paths begin with these codes up to that level
	room  []uint64            // by level: how many paths begin with the same codes before that level
}

// key numbers a path's beginning.
func (s *space) key(path []int32) (k uint64) {
	for l, c := range path {
		k = k*uint64(s.sizes[l]) + uint64(c)
	}
	return k
}

// free reports whether a path that begins so is free.
func (s *space) free(path []int32) bool {
	if len(path) == 0 {
		return true
	}
	return s.used[len(path)-1][s.key(path)] < s.room[len(path)]
}

func (s *space) take(path []int32) {
	for l := range path {
		s.used[l][s.key(path[:l+1])]++
	}
}

// place finds free paths for rows.
func (s *space) place(p *pass, paths, without []int32) error {
	levels := len(s.sizes)
	last := levels - 1
	k := s.sizes[last]
	if err := load(p.m, s.book.Levels[last], p.dims); err != nil {
		return err
	}
	block := blockRows(k)
	values, scores := make([]float32, block*p.dims), make([]float32, block*k)
	for from := 0; from < len(without); from += block {
		some := without[from:min(len(without), from+block)]
		pieces(p.m, 0, len(some), func(i int) {
			r := int(some[i])
			path, row := paths[r*levels:][:levels], p.row(r)
			for i := range row { // back to what remained above the last level
				row[i] += s.book.centroid(last, path[last])[i]
			}
			copy(values[i*p.dims:], row)
		})
		if err := p.m.Scores(scores[:len(some)*k], values[:len(some)*p.dims]); err != nil {
			return err
		}
		for i, r := range some {
			path, row := paths[int(r)*levels:][:levels], p.row(int(r))
			if s.best(path, last, scores[i*k:][:k]) {
				subtract(row, s.book.centroid(last, path[last]))
			} else {
				s.climb(path, row, last)
			}
			s.take(path)
		}
	}
	return nil
}

// best sets the code of a level to the free one with the highest score.
func (s *space) best(path []int32, level int, scores []float32) bool {
	if !s.free(path[:level]) {
		return false
	}
	found, score := int32(-1), float32(0)
	for c, v := range scores {
		if found >= 0 && v <= score {
			continue
		}
		path[level] = int32(c)
		if s.free(path[:level+1]) {
			found, score = int32(c), v
		}
	}
	path[level] = found
	return true
}

// climb finds a free path for a row that found none below its codes of the levels before level: it takes another code
// of the lowest level above that has one. There is one, because Resolve counted.
func (s *space) climb(path []int32, row []float32, level int) {
	for !s.free(path[:level]) {
		level--
		for i, v := range s.book.centroid(level, path[level]) {
			row[i] += v
		}
	}
	for l := level; l < len(s.sizes); l++ {
		scores := make([]float32, s.sizes[l])
		for c := range scores {
			scores[c] = float32(-apart(row, s.book.centroid(l, int32(c))))
		}
		s.best(path, l, scores)
		subtract(row, s.book.centroid(l, path[l]))
	}
}

func subtract(row, centroid []float32) {
	for i, v := range centroid {
		row[i] -= v
	}
}
