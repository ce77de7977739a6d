package divide

import "time"

// visits remembers users' last visits, for at most most users and no longer than hotWithin. A known user is always
// refreshed. A new one is added if there is room. note takes constant time: it forgets at most two expired users and
// adds at most one.
type visits struct {
	most  int
	at    map[uint64]int32
	items []visit // 0 is the list's head: its next is the newest, its prev the oldest
	free  []int32
}

type visit struct {
	user       uint64
	last       time.Time
	next, prev int32
}

func newVisits(most int) *visits {
	return &visits{most: most, at: map[uint64]int32{}, items: make([]visit, 1)}
}

// note records a visit. It reports whether the user's previous visit was less than hotWithin ago.
func (v *visits) note(user uint64, now time.Time) (hot bool) {
	i, known := v.at[user]
	if known {
		hot = now.Sub(v.items[i].last) < hotWithin
		v.unlink(i)
	}
	v.expire(now)
	if !known {
		if len(v.at) >= v.most {
			return false
		}
		i = v.take()
		v.at[user] = i
	}
	v.items[i].user, v.items[i].last = user, now
	v.link(i)
	return hot
}

// expire forgets the two oldest users if their last visits are at least hotWithin ago.
func (v *visits) expire(now time.Time) {
	for range 2 {
		i := v.items[0].prev
		if i == 0 || now.Sub(v.items[i].last) < hotWithin {
			return
		}
		v.unlink(i)
		delete(v.at, v.items[i].user)
		v.free = append(v.free, i)
	}
}

// take returns an item that is not in use.
func (v *visits) take() int32 {
	if n := len(v.free); n > 0 {
		i := v.free[n-1]
		v.free = v.free[:n-1]
		return i
	}
	v.items = append(v.items, visit{})
	return int32(len(v.items) - 1)
}

// link makes an item the newest.
func (v *visits) link(i int32) {
	next := v.items[0].next
	v.items[i].prev, v.items[i].next = 0, next
	v.items[next].prev, v.items[0].next = i, i
}

func (v *visits) unlink(i int32) {
	prev, next := v.items[i].prev, v.items[i].next
	v.items[prev].next, v.items[next].prev = next, prev
}
