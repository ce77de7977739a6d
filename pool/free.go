package pool

import "math/bits"

// freeList keeps the free extents of an arena: their lengths stand at both of their ends, so that neighbours
// join in O(1), and they are listed by size class, so that a run is found without a search among smaller
// ones. It allocates nothing but room for the lists.
type freeList struct {
	length  []int32     // at the first and the last page of an extent: its pages
	at      []int32     // at the first page of an extent: its place in its class
	free    []uint64    // a bit per page: the first or last of a free extent
	classes [32][]int32 // class c: first pages of extents with 2^c ≤ pages < 2^(c+1)
}

func newFreeList(pages int) freeList {
	return freeList{length: make([]int32, pages), at: make([]int32, pages), free: make([]uint64, (pages+63)/64)}
}

func class(pages int) int { return bits.Len(uint(pages)) - 1 }

func (f *freeList) isEnd(page int) bool {
	return page >= 0 && page < len(f.length) && f.free[page/64]>>(page%64)&1 == 1
}

// look is how many extents of a class are tried before a larger class serves.
const look = 32

// find returns the first page of an extent of at least need pages; false when none is long enough.
func (f *freeList) find(need int) (first int, ok bool) {
	own := f.classes[class(need)]
	if first, ok = f.fitting(own[max(0, len(own)-look):], need); ok {
		return first, true
	}
	for c := class(need) + 1; c < len(f.classes); c++ {
		if n := len(f.classes[c]); n > 0 {
			return int(f.classes[c][n-1]), true
		}
	}
	return f.fitting(own, need)
}

// fitting returns the latest extent of at least need pages.
func (f *freeList) fitting(list []int32, need int) (int, bool) {
	for i := len(list) - 1; i >= 0; i-- {
		if int(f.length[list[i]]) >= need {
			return int(list[i]), true
		}
	}
	return 0, false
}

// take removes a run of need pages; false when none is long enough.
func (f *freeList) take(need int) (first int, ok bool) {
	first, ok = f.find(need)
	if ok {
		f.cut(first, need)
	}
	return first, ok
}

// cut takes the leading pages of an extent out of the list.
func (f *freeList) cut(first, pages int) {
	rest := int(f.length[first]) - pages
	f.remove(first)
	if rest > 0 {
		f.insert(first+pages, rest)
	}
}

// put adds pages [first, first+pages), none of which is free, joined with their free neighbours.
func (f *freeList) put(first, pages int) {
	if f.isEnd(first - 1) {
		n := int(f.length[first-1])
		first, pages = first-n, pages+n
		f.remove(first)
	}
	if next := first + pages; f.isEnd(next) {
		pages += int(f.length[next])
		f.remove(next)
	}
	f.insert(first, pages)
}

func (f *freeList) insert(first, pages int) {
	c, last := class(pages), first+pages-1
	f.length[first], f.length[last] = int32(pages), int32(pages)
	f.free[first/64] |= 1 << (first % 64)
	f.free[last/64] |= 1 << (last % 64)
	f.at[first] = int32(len(f.classes[c]))
	f.classes[c] = append(f.classes[c], int32(first))
}

func (f *freeList) remove(first int) {
	pages := int(f.length[first])
	c, last := class(pages), first+pages-1
	list := f.classes[c]
	moved := list[len(list)-1]
	list[f.at[first]] = moved
	f.at[moved] = f.at[first]
	f.classes[c] = list[:len(list)-1]
	f.free[first/64] &^= 1 << (first % 64)
	f.free[last/64] &^= 1 << (last % 64)
}
