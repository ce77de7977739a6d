// Package regime makes the workloads under which memory is divided between embeddings and KV: Steady, Trend and Burst
// (HLM-6 in docs/explain/papers.md), and others of the same family for training.
//
// A request is a ranking of candidates for a user with thousands of events. Users are of two kinds. Cold
// ones come once. Hot ones are in a session: they return after gaps that are their own, near to regular,
// and their histories grow a little in between. A Spec says, epoch by epoch, which share of the requests
// comes from hot users; sessions begin and end so that it holds within seconds. Items are popular by a power law,
// and a user's history names the same items whenever it is read.
//
// Embedding rows are counted in grains: one grain represents Grain rows of equal popularity. So a request over a
// quarter of a million rows takes some tens of look-ups (miniature simulation, Waldspurger et al., ATC '17).
//
// The same Spec gives the same stream. There is no clock: times are seconds since the start. A Stream is not safe
// for concurrent use.
package regime

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
)

// EpochSeconds is the length of an epoch: decisions are made between epochs.
const EpochSeconds = 5

// Spec says what a workload looks like.
type Spec struct {
	Name string
	Seed uint64
	// Hot is the share of requests from hot users in each epoch; its length is that of the workload.
	Hot []float64
	// Rate is in requests per second at a hot share of Base. At another it is Rate/(1 − Lift·(hot − Base)): with
	// Lift 0 hot requests replace cold ones, with 1/(1−Base) they come on top of them.
	Rate, Base, Lift float64
	// Long multiplies the histories of users who first come in an epoch; nil: 1.
	Long []float64

	MinEvents, MaxEvents int     // of a history, uniform before Long
	Gap                  float64 // median seconds between requests of a session
	Spread               float64 // standard deviation of the logarithm of sessions' gaps
	Session              float64 // mean requests of a session that is not cut short
	NewEvents            int     // events added between requests of a session
	Candidates           int

	// Return says that hot users who leave when their share falls are the first to come when it rises.
	Return bool
	// GPUs is of how many the node is that serves; 0: one. LRU says that it keeps KV of hot users, in the order of use;
	// otherwise of all, by predicted returns.
	GPUs int
	LRU  bool

	Tables int     // rows that an event or candidate looks up
	Grains int     // of all tables
	Grain  int     // rows that a grain stands for
	Skew   float64 // exponent of the popularity of grains, not 1
}

// Validate says what is wrong with s.
func (s *Spec) Validate() error {
	for i, h := range s.Hot {
		if h < 0 || h > 0.95 || s.rate(h) <= 0 {
			return fmt.Errorf("regime: hot share %v in epoch %d", h, i)
		}
	}
	if len(s.Hot) == 0 || s.Rate <= 0 || s.MinEvents < 1 || s.MaxEvents < s.MinEvents || s.Gap <= 0 || s.Session < 1 ||
		s.Tables < 1 || s.Grains < 2 || s.Grain < 1 || s.Skew <= 0 || s.Skew == 1 ||
		s.Long != nil && len(s.Long) != len(s.Hot) {
		return fmt.Errorf("regime: %s makes no sense: %+v", s.Name, *s)
	}
	return nil
}

func (s *Spec) rate(hot float64) float64 { return s.Rate / (1 - s.Lift*(hot-s.Base)) }

// Request is one ranking.
type Request struct {
	At     float64 // seconds since the start
	User   uint64
	Events int // of the user's history, the new ones included
	Hot    bool
	number uint64
}

// Stream draws requests.
type Stream struct {
	spec   Spec
	rng    *rand.Rand
	now    float64 // until here sessions have been adjusted
	cold   float64 // time of the next cold request
	hot    sessions
	away   []*session // who will return
	rates  float64    // sum over sessions of 1/gap
	users  uint64
	number uint64
	ranks  []float64 // quantiles of the law of popularity
}

// session is a hot user.
type session struct {
	at     float64 // next request
	gap    float64
	user   uint64
	events int
}

type sessions []*session

func (s sessions) Len() int           { return len(s) }
func (s sessions) Less(i, j int) bool { return s[i].at < s[j].at }
func (s sessions) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *sessions) Push(x any)        { *s = append(*s, x.(*session)) }
func (s *sessions) Pop() any {
	old := *s
	x := old[len(old)-1]
	*s = old[:len(old)-1]
	return x
}

// NewStream begins a workload.
func NewStream(s Spec) (*Stream, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	st := &Stream{spec: s, rng: rand.New(rand.NewPCG(s.Seed, 0x9E3779B97F4A7C15)), users: s.Seed << 40}
	st.ranks = quantiles(s.Grains, s.Skew)
	st.cold = st.rng.ExpFloat64() / st.coldRate(0)
	return st, nil
}

func (s *Stream) epoch(t float64) int { return min(int(t/EpochSeconds), len(s.spec.Hot)-1) }

func (s *Stream) coldRate(t float64) float64 {
	h := s.spec.Hot[s.epoch(t)]
	return s.spec.rate(h) * (1 - h)
}

// adjusts is how often sessions are begun or ended so that the hot share holds.
const adjusts = 0.5

// Next returns the next request; false at the end.
func (s *Stream) Next() (Request, bool) {
	for {
		next := s.cold
		if len(s.hot) > 0 {
			next = min(next, s.hot[0].at)
		}
		if next < s.now {
			break
		}
		if s.now >= float64(len(s.spec.Hot))*EpochSeconds {
			return Request{}, false
		}
		s.adjust()
		s.now += adjusts
	}
	s.number++
	if len(s.hot) > 0 && s.hot[0].at < s.cold {
		return s.nextHot(), true
	}
	r := Request{At: s.cold, User: s.newUser(), Events: s.length(s.cold), number: s.number}
	s.cold += s.rng.ExpFloat64() / s.coldRate(s.cold)
	return r, true
}

func (s *Stream) nextHot() Request {
	x := s.hot[0]
	r := Request{At: x.at, User: x.user, Events: x.events, Hot: true, number: s.number}
	if s.rng.Float64()*s.spec.Session < 1 {
		s.rates -= 1 / x.gap
		heap.Pop(&s.hot)
		return r
	}
	x.at += x.gap * gamma4(s.rng)
	x.events += s.spec.NewEvents
	heap.Fix(&s.hot, 0)
	return r
}

// gamma4 has mean 1 and standard deviation 1/2: people come back near to regularly.
func gamma4(r *rand.Rand) float64 {
	return (r.ExpFloat64() + r.ExpFloat64() + r.ExpFloat64() + r.ExpFloat64()) / 4
}

// adjust begins or ends sessions until they ask as often as they should.
func (s *Stream) adjust() {
	h := s.spec.Hot[s.epoch(s.now)]
	want := h * s.spec.rate(h)
	for s.rates < want {
		x := s.begin()
		x.at = s.now + s.rng.Float64()*x.gap
		s.rates += 1 / x.gap
		heap.Push(&s.hot, x)
	}
	for s.rates > want*1.02 && len(s.hot) > 0 {
		x := heap.Remove(&s.hot, s.rng.IntN(len(s.hot))).(*session)
		s.rates -= 1 / x.gap
		if s.spec.Return {
			s.away = append(s.away, x)
		}
	}
}

// begin returns a hot user: one who was away, or a new one.
func (s *Stream) begin() *session {
	if n := len(s.away); n > 0 {
		x := s.away[n-1]
		s.away = s.away[:n-1]
		return x
	}
	x := &session{user: s.newUser(), events: s.length(s.now)}
	x.gap = s.spec.Gap * math.Exp(s.spec.Spread*s.rng.NormFloat64())
	return x
}

func (s *Stream) newUser() uint64 {
	s.users++
	return s.users
}

func (s *Stream) length(t float64) int {
	n := float64(s.spec.MinEvents) + s.rng.Float64()*float64(s.spec.MaxEvents-s.spec.MinEvents)
	if s.spec.Long != nil {
		n *= s.spec.Long[s.epoch(t)]
	}
	return max(int(n), 1)
}

// AppendRows appends the grains that a request looks up for the events of its history from number from on, and for
// its candidates.
func (s *Stream) AppendRows(dst []int32, r *Request, from int) []int32 {
	t, g := s.spec.Tables, s.spec.Grain
	for i := from * t / g; i < r.Events*t/g; i++ {
		dst = append(dst, s.grain(mix(r.User, uint64(i))))
	}
	// Candidates take a whole number of grains now and then, the right number on average.
	c := s.spec.Candidates * t
	n := c / g
	if mix(r.number, 1)%uint64(g) < uint64(c%g) {
		n++
	}
	for i := range n {
		dst = append(dst, s.grain(mix(r.number, uint64(i)+2)))
	}
	return dst
}

// grain maps 64 random bits to a grain.
func (s *Stream) grain(h uint64) int32 {
	i, part := h>>48, float64(h&(1<<48-1))/(1<<48)
	return int32(s.ranks[i] + part*(s.ranks[i+1]-s.ranks[i]))
}

// quantiles returns the inverse of a power law's distribution over n ranks, at 2¹⁶ points and the end. Between
// them it is as good as straight.
func quantiles(n int, skew float64) []float64 {
	const points = 1 << 16
	q := make([]float64, points+1)
	end := math.Pow(float64(n)+1, 1-skew)
	for i := range q {
		q[i] = math.Pow(1+float64(i)/points*(end-1), 1/(1-skew)) - 1
	}
	q[points] = float64(n) * (1 - 1e-12) // the last rank is n−1
	return q
}

// mix spreads two numbers over 64 bits (the finaliser of SplitMix64).
func mix(a, b uint64) uint64 {
	x := a*0x9E3779B97F4A7C15 + b*0xD6E8FEB86659FD93 + 0x2545F4914F6CDD1D
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
