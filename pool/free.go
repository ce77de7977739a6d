package pool

import "math/bits"

// freeList keeps the free extents of an arena: found by either end, so that neighbours join in O(1),
// and by size class, so that a run is found without a search among smaller ones.
type freeList struct {
	byFirst map[int]*extent
	byEnd   map[int]*extent // by the page after the last
	classes [48][]*extent   // class c: 2^c ≤ pages < 2^(c+1)
}

type extent struct {
	first, pages int
	at           int // index in its class
}

func newFreeList() freeList {
	return freeList{byFirst: map[int]*extent{}, byEnd: map[int]*extent{}}
}

func class(pages int) int { return bits.Len(uint(pages)) - 1 }

// look is how many extents of a class are tried before a larger class serves.
const look = 32

// take removes a run of need pages; false when none is long enough.
func (f *freeList) take(need int) (first int, ok bool) {
	own := f.classes[class(need)]
	e := fitting(own[max(0, len(own)-look):], need)
	for c := class(need) + 1; e == nil && c < len(f.classes); c++ {
		if n := len(f.classes[c]); n > 0 {
			e = f.classes[c][n-1]
		}
	}
	if e == nil {
		e = fitting(own, need)
	}
	if e == nil {
		return 0, false
	}
	f.remove(e)
	if rest := e.pages - need; rest > 0 {
		f.insert(e.first+need, rest)
	}
	return e.first, true
}

// fitting returns the latest extent of at least need pages.
func fitting(list []*extent, need int) *extent {
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].pages >= need {
			return list[i]
		}
	}
	return nil
}

// put adds pages [first, first+pages), none of which is free, joined with their free neighbours.
func (f *freeList) put(first, pages int) {
	if e := f.byEnd[first]; e != nil {
		f.remove(e)
		first, pages = e.first, pages+e.pages
	}
	if e := f.byFirst[first+pages]; e != nil {
		f.remove(e)
		pages += e.pages
	}
	f.insert(first, pages)
}

func (f *freeList) insert(first, pages int) {
	c := class(pages)
	e := &extent{first: first, pages: pages, at: len(f.classes[c])}
	f.classes[c] = append(f.classes[c], e)
	f.byFirst[first], f.byEnd[first+pages] = e, e
}

func (f *freeList) remove(e *extent) {
	list := f.classes[class(e.pages)]
	last := list[len(list)-1]
	list[e.at], last.at = last, e.at
	f.classes[class(e.pages)] = list[:len(list)-1]
	delete(f.byFirst, e.first)
	delete(f.byEnd, e.first+e.pages)
}
