package evict

// list is a doubly linked list of small integers that does not allocate. Element n is the sentinel: its next is the
// newest element and its prev the oldest.
type list struct {
	links []link
	n     int32
}

// link holds both neighbours together, because they are always used together.
type link struct{ next, prev int32 }

const unlinked = -1

func newList(n int) list {
	l := list{links: make([]link, n+1), n: int32(n)}
	for i := range l.links {
		l.links[i] = link{unlinked, unlinked}
	}
	l.links[n] = link{int32(n), int32(n)}
	return l
}

func (l *list) has(i int32) bool { return l.links[i].next != unlinked }

func (l *list) pushNewest(i int32) { l.insertAfter(l.n, i) }
func (l *list) pushOldest(i int32) { l.insertAfter(l.oldest(), i) }

// insertAfter links i as the next older element after at.
func (l *list) insertAfter(at, i int32) {
	after := l.links[at].next
	l.links[at].next, l.links[after].prev = i, i
	l.links[i] = link{after, at}
}

func (l *list) remove(i int32) {
	was := l.links[i]
	l.links[was.prev].next, l.links[was.next].prev = was.next, was.prev
	l.links[i] = link{unlinked, unlinked}
}

// replace puts new in the place of old.
func (l *list) replace(old, new int32) {
	at := l.links[old].prev
	l.remove(old)
	l.insertAfter(at, new)
}

// oldest returns the oldest element, or n if the list is empty. newer steps on from it.
func (l *list) oldest() int32         { return l.links[l.n].prev }
func (l *list) newer(i int32) int32   { return l.links[i].prev }
func (l *list) newestIs(i int32) bool { return l.links[l.n].next == i }
