package route

import (
	"math"
	"slices"
	"time"
)

// Limits of the nodes that are priced: 1 + mostHolders + mostCover + mostRows + mostIdle.
const (
	mostHolders = 4 // of the user, the longest copies first
	mostCover   = 2 // with the most items
	mostRows    = 2 // with the most embedding shards of the request
	mostIdle    = 2 // with the least work, and a random one
)

// nearly is the share by which the user's home may cost more than the best node and still counts as equal.
const nearly = .01

// mostBehind bounds how many requests are counted that wait for the work of one. It lets a flood that ends spread.
const mostBehind = 8

// predicted picks the node with the least predicted milliseconds among a few candidates. The user's home wins ties:
// users stay where they are without a table of sessions.
//
// The work that a request brings is waited for by those behind it, so it has a price too: in the mean queue of the
// fleet there are so many requests, counted in the least work that this one can bring. Without that price, requests
// that find the nodes with their KV busy go to idle ones and compute everything there, until all nodes are busy.
func (r *Router) predicted(q *Request, now time.Duration) (node, count int) {
	var list [1 + mostHolders + mostCover + mostRows + mostIdle]int
	var prices [len(list)]priced
	candidates := r.candidates(list[:0], q)
	shortest := math.Inf(1)
	for i, n := range candidates {
		prices[i] = r.price(n, q)
		shortest = min(shortest, prices[i].own)
	}
	behind := min(mostBehind, r.meanWork()/max(shortest, .001))
	best, least, home := 0, 0.0, 0.0
	for i, n := range candidates {
		p := &prices[i]
		total := max(0, p.ms+r.penalty(n, now)) + behind*p.own
		if i == 0 {
			home = total
		}
		if i == 0 || total < least {
			best, least = i, total
		}
	}
	if home <= least*(1+nearly) {
		best = 0
	}
	r.priced = prices[best]
	return candidates[best], len(candidates)
}

// meanWork returns the mean work of the nodes that may be picked, in milliseconds.
func (r *Router) meanWork() float64 {
	sum := 0.0
	for _, n := range r.up {
		sum += r.work[n]
	}
	return sum / float64(len(r.up))
}

// candidates appends the nodes to price: the user's home, the holders of the user, the nodes with the most items and
// the most embedding rows, the one with the least work, and a random one.
func (r *Router) candidates(list []int, q *Request) []int {
	list = append(list, r.home(q.User))
	var room [max(mostHolders, mostCover, mostRows, mostIdle)]scored
	holders := room[:0]
	for i := range r.copies {
		if c := &r.copies[i]; r.isUp(c.Node) {
			holders = r.keepBest(holders, mostHolders, scored{c.Node, c.Tokens})
		}
	}
	list = add(list, holders)
	r.countCover(len(q.Prompt.Items))
	covers := room[:0]
	for _, n := range r.up {
		covers = r.keepBest(covers, mostCover, scored{n, r.cover[n]})
	}
	list = add(list, covers)
	if len(q.Shards) > 0 {
		rows := room[:0]
		for _, n := range r.up {
			rows = r.keepBest(rows, mostRows, scored{n, int32(-r.missing(n, q.Shards))})
		}
		list = add(list, rows)
	}
	room[0].node, room[1].node = r.leastLoaded(), r.up[r.random.IntN(len(r.up))]
	return add(list, room[:mostIdle])
}

// scored is a node with the tokens or items that it holds.
type scored struct {
	node int
	held int32
}

// keepBest adds a node to the best ones so far, of which it keeps a number. Of equals, the one with the least work is
// better, then the first one.
func (r *Router) keepBest(best []scored, most int, s scored) []scored {
	better := func(t scored) bool { return s.held > t.held || s.held == t.held && r.work[s.node] < r.work[t.node] }
	i := len(best)
	for i > 0 && better(best[i-1]) {
		i--
	}
	if i == most {
		return best
	}
	if len(best) < most {
		best = append(best, s)
	}
	copy(best[i+1:], best[i:])
	best[i] = s
	return best
}

// add appends the nodes that are not in the list.
func add(list []int, nodes []scored) []int {
	for _, s := range nodes {
		if !slices.Contains(list, s.node) {
			list = append(list, s.node)
		}
	}
	return list
}
