package evict

// list is a doubly linked list of small integers, without allocation: element n is the sentinel,
// whose next is the newest and whose prev is the oldest.
type list struct {
	next, prev []int32
	n          int32
}

const unlinked = -1

func newList(n int) list {
	l := list{next: make([]int32, n+1), prev: make([]int32, n+1), n: int32(n)}
	for i := range l.next {
		l.next[i], l.prev[i] = unlinked, unlinked
	}
	l.next[n], l.prev[n] = int32(n), int32(n)
	return l
}

func (l *list) has(i int32) bool { return l.next[i] != unlinked }

func (l *list) pushNewest(i int32) { l.insertAfter(l.n, i) }

// insertAfter links i as the element next older than at.
func (l *list) insertAfter(at, i int32) {
	after := l.next[at]
	l.next[at], l.prev[i] = i, at
	l.next[i], l.prev[after] = after, i
}

func (l *list) remove(i int32) {
	p, n := l.prev[i], l.next[i]
	l.next[p], l.prev[n] = n, p
	l.next[i], l.prev[i] = unlinked, unlinked
}

// replace links new where old is.
func (l *list) replace(old, new int32) {
	at := l.prev[old]
	l.remove(old)
	l.insertAfter(at, new)
}

// oldest returns the oldest element, n when there is none; newer steps from it.
func (l *list) oldest() int32         { return l.prev[l.n] }
func (l *list) newer(i int32) int32   { return l.prev[i] }
func (l *list) newestIs(i int32) bool { return l.next[l.n] == i }
