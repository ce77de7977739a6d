package workload

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Request asks for a ranking.
type Request struct {
	User    int
	Version int           // of the user's history: its tokens are UserAt(User, Version)
	Items   []int         // distinct; the caller owns them
	At      time.Duration // since the start of the stream
}

// stream is the state of Next.
type stream struct {
	rng      *rand.Rand
	items    zipf
	chosen   map[int]struct{} // ranks in the request being made
	sessions float64          // that start per hour
	start    time.Duration    // of the next session
	open     sessions         // ordered by their next request

	histories map[int]history // of users seen, where histories grow
	arrival   time.Duration   // of the next new item
	newcomers []int           // ranks of new items, the first has id Items
	holder    map[int]int     // rank → the new item that has it
}

// history is how far a user's history has grown.
type history struct{ version, tokens int }

// session is a burst under way.
type session struct {
	next time.Duration
	user int
	left int    // requests, the next one included
	born uint64 // order of start, so that equal times have an order
}

type sessions struct {
	queue []session
	born  uint64
}

func (s *sessions) Len() int      { return len(s.queue) }
func (s *sessions) Swap(i, j int) { s.queue[i], s.queue[j] = s.queue[j], s.queue[i] }
func (s *sessions) Push(x any)    { s.queue = append(s.queue, x.(session)) }
func (s *sessions) Pop() any {
	last := s.queue[len(s.queue)-1]
	s.queue = s.queue[:len(s.queue)-1]
	return last
}
func (s *sessions) Less(i, j int) bool {
	a, b := &s.queue[i], &s.queue[j]
	if a.next != b.next {
		return a.next < b.next
	}
	return a.born < b.born
}

func newStream(spec *Spec, items zipf) stream {
	seed := mix(spec.Seed, streamDraws, 0)
	s := stream{
		rng:       rand.New(rand.NewPCG(seed, scramble(seed))),
		items:     items,
		chosen:    make(map[int]struct{}, spec.Candidates),
		sessions:  float64(spec.Users) * spec.Activity / spec.Session.mean(),
		histories: map[int]history{},
		holder:    map[int]int{},
	}
	s.start = s.wait(s.sessions)
	if spec.NewItems > 0 {
		s.arrival = s.wait(spec.NewItems)
	}
	return s
}

// wait draws the time until the next of perHour independent events an hour.
func (s *stream) wait(perHour float64) time.Duration {
	return time.Duration(s.rng.ExpFloat64() / perHour * float64(time.Hour))
}

// Next returns the next request; their times never go back. It is not for concurrent use.
func (w *Workload) Next() Request {
	s := &w.stream
	for len(s.open.queue) == 0 || s.start <= s.open.queue[0].next {
		heap.Push(&s.open, w.newSession())
		s.start += s.wait(s.sessions)
	}
	top := &s.open.queue[0]
	r := Request{User: top.user, At: top.next}
	if top.left--; top.left == 0 {
		heap.Pop(&s.open)
	} else {
		top.next += time.Duration(s.rng.ExpFloat64() * float64(w.spec.Session.Gap))
		heap.Fix(&s.open, 0)
	}
	r.Version = w.grow(r.User)
	w.appear(r.At)
	r.Items = w.candidates()
	return r
}

func (w *Workload) newSession() session {
	s := &w.stream
	n := 1
	if s.rng.Float64() >= w.spec.Session.Single {
		// Failures before a success of chance p have the mean 1/p − 1.
		p := 1 / (w.spec.Session.More - 1)
		for n = 2; s.rng.Float64() >= p; n++ {
		}
	}
	s.open.born++
	return session{next: s.start, user: w.drawUser(s.rng), left: n, born: s.open.born}
}

// grow adds the events since the user's last request and returns the version of the history.
func (w *Workload) grow(user int) int {
	if w.spec.Growth == 0 {
		return 0
	}
	s := &w.stream
	h, seen := s.histories[user]
	if !seen {
		s.histories[user] = history{0, w.userBase(user)}
		return 0
	}
	// A geometric number of events with mean Growth: most often none, sometimes several.
	for s.rng.Float64() >= 1/(1+w.spec.Growth) {
		n := w.ItemLen(w.event(user, h.version))
		if h.tokens+n > w.spec.UserTokens.Max {
			break
		}
		h.version++
		h.tokens += n
	}
	s.histories[user] = h
	return h.version
}

// appear lets the items that are new by then take their places.
func (w *Workload) appear(now time.Duration) {
	s := &w.stream
	for w.spec.NewItems > 0 && s.arrival <= now {
		rank := s.rng.IntN(w.spec.Items)
		s.holder[rank] = w.spec.Items + len(s.newcomers)
		s.newcomers = append(s.newcomers, rank)
		s.arrival += s.wait(w.spec.NewItems)
	}
}

func (w *Workload) candidates() []int {
	s := &w.stream
	clear(s.chosen)
	out := make([]int, 0, w.spec.Candidates)
	for len(out) < w.spec.Candidates {
		rank := s.items.draw(s.rng)
		if _, dup := s.chosen[rank]; dup {
			continue
		}
		s.chosen[rank] = struct{}{}
		out = append(out, w.itemAt(rank))
	}
	// The order of drawing puts popular items first, which retrieval would not.
	s.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (w *Workload) itemAt(rank int) int {
	if j, ok := w.stream.holder[rank]; ok {
		return j
	}
	return w.items.id(rank)
}

// ItemCount returns the number of items so far: ids are 0 to ItemCount()−1. It grows as Next goes on
// where Spec.NewItems is set, and must not be called beside Next then.
func (w *Workload) ItemCount() int { return w.spec.Items + len(w.stream.newcomers) }

// ItemRank returns the place of item j in the order of popularity, 0 the hottest. Like ItemCount, it
// must not be called beside Next where items appear.
func (w *Workload) ItemRank(j int) int {
	if j >= w.spec.Items {
		return w.stream.newcomers[j-w.spec.Items]
	}
	return w.items.rank(j)
}
