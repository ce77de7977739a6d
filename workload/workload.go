// Package workload makes ranking workloads with the statistics that decide how much a cache can save:
// how long users and items are, how popular items are, how often users come back, and when requests
// arrive. Games, Beauty, Books and Industry have the shapes of BAT's Table 1, scaled to the machine;
// arrivals come from Poisson or uniform processes or from recorded traces.
//
// A workload is a function of its Spec: the same Spec gives the same tokens and the same stream of
// requests (another architecture may round a length differently). Tokens of a user or an item are
// computed from its id when asked for, so that ten million users take no memory. There is no goroutine,
// no lock and no clock here: times are durations since the start of the stream. Only Next changes a
// Workload; everything else may be called from many goroutines.
//
// What a workload promises, and Measure prints beside the paper's figures:
//   - Lengths of users and items have the stated means. They are log-normal, clamped and rounded, and the
//     median is chosen so that clamping and rounding do not move the mean. Users of a log have the lengths of
//     their events. Users who come often have longer histories (Spec.Tie, Spec.Events).
//   - The hottest tenth of the items gets nine tenths of the accesses, although the candidates of a
//     request are distinct: the exponent of the Zipf law is solved for under that condition, and its
//     head is flattened so that requests do not all hold the same few items. Candidates are drawn
//     independently of the user and of the user's earlier requests (BAT section 3.3).
//   - A user's requests come in sessions, of one request where the Spec has no bursts. Sessions start as
//     a Poisson process, each for a user drawn in proportion to the user's events (Spec.Events) or from
//     a Zipf law over users. A long tail of users has one request an hour or none.
//   - Histories only grow: UserAt(i, v) is a prefix of UserAt(i, v+1).
package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Spec says what a workload looks like. Table1 has the paper's four.
type Spec struct {
	Name  string
	Users int
	// Items is the size of the catalog at the start.
	Items int

	UserTokens Lengths
	ItemTokens Lengths
	// Instruction is the number of tokens that end every prompt.
	Instruction int
	// Vocab bounds tokens: they are in [0, Vocab).
	Vocab int
	// Candidates is the number of distinct items in a request.
	Candidates int

	// Events, unless zero, is the log that users are drawn from. It decides both how often a user comes
	// and how long the user's history is, in the place of UserSkew, Tie and UserTokens.Sigma.
	Events Events
	// ItemSkew is over accesses, UserSkew over sessions.
	ItemSkew, UserSkew Skew
	// Activity is the mean number of requests per user and hour, over all users.
	Activity float64
	Session  Session
	// Tie is the correlation, in [0, 1], between how often a user comes and the logarithm of the
	// length of the user's history.
	Tie float64

	// Growth is the mean number of events added to a user's history between two requests; 0: histories
	// stay as they are. An event is the tokens of an item. A history stops growing at UserTokens.Max.
	Growth float64
	// NewItems is the number of items that appear per hour. A new item takes the place in the order
	// of popularity of an item drawn uniformly, which is not asked for again.
	NewItems float64

	Seed uint64
}

// Lengths is a log-normal distribution of token counts, clamped to [Min, Max] and rounded.
type Lengths struct {
	Mean     float64 // of the result, after clamping and rounding
	Sigma    float64 // standard deviation of the logarithm; 0: all are Mean
	Min, Max int
}

// Skew says that the hottest Of (a share of all) get Share of the accesses, by a Zipf law.
type Skew struct{ Share, Of float64 }

// Events is the law of the number of events per user in a log of interactions: Min and a Pareto tail
// (Lomax), so that a user at quantile q from the most active has Min + c·(q^(−1/Tail) − 1) events, at
// most Most, with c such that the mean is Mean if nobody reaches Most. Who draws users from a log with
// replacement draws each in proportion to these. The tokens of a history grow as the events to the Power.
type Events struct{ Min, Mean, Tail, Most, Power float64 }

// Session is a burst of requests of one user.
type Session struct {
	// Single is the share of sessions that have one request only.
	Single float64
	// More is the mean number of requests of the other sessions: 2 and a geometric number.
	More float64
	// Gap is the mean time between requests of a session (exponential).
	Gap time.Duration
}

// mean returns the mean number of requests per session.
func (s Session) mean() float64 { return s.Single + (1-s.Single)*s.More }

// Validate returns an error that says what is wrong with the Spec.
func (s *Spec) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(s.Users > 0 && s.Users <= math.MaxInt32, "users %d, want 1 to 2³¹−1", s.Users)
	check(s.Items > 0 && s.Items <= math.MaxInt32, "items %d, want 1 to 2³¹−1", s.Items)
	check(s.Candidates > 0 && s.Candidates <= s.Items, "candidates %d, want 1 to the number of items, %d", s.Candidates,
		s.Items)
	check(s.Vocab > 0 && s.Vocab <= math.MaxInt32, "vocabulary %d, want 1 to 2³¹−1", s.Vocab)
	check(s.Instruction >= 0, "instruction of %d tokens", s.Instruction)
	check(s.Activity > 0, "activity %v, want requests per user and hour above 0", s.Activity)
	check(s.Tie >= 0 && s.Tie <= 1, "tie %v, want a correlation from 0 to 1", s.Tie)
	check(s.Growth >= 0 && s.NewItems >= 0, "growth %v and new items %v must not be negative", s.Growth, s.NewItems)
	if e := s.Events; e != (Events{}) {
		check(e.Min > 0 && e.Mean > e.Min && e.Tail > 1 && e.Most >= e.Mean && e.Power >= 0,
			"events %+v, want 0 < min < mean ≤ most, a tail above 1 and a power of at least 0", e)
	}
	ses := s.Session
	check(ses.Single >= 0 && ses.Single <= 1 && (ses.More >= 2 || ses.Single == 1) && ses.Gap >= 0,
		"session %+v, want a share, a mean of at least 2 and a gap", ses)
	for name, l := range map[string]Lengths{"user": s.UserTokens, "item": s.ItemTokens} {
		check(l.Min >= 1 && float64(l.Min) <= l.Mean && l.Mean <= float64(l.Max) && l.Sigma >= 0,
			"%s tokens %+v, want 1 ≤ min ≤ mean ≤ max and sigma ≥ 0", name, l)
	}
	for name, k := range map[string]Skew{"item": s.ItemSkew, "user": s.UserSkew} {
		if name == "user" && s.Events != (Events{}) {
			continue
		}
		check(k.Of > 0 && k.Of < 1 && k.Share >= k.Of && k.Share < 1, "%s skew %+v, want 0 < of ≤ share < 1", name, k)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("workload %s: %w", s.Name, err)
	}
	return nil
}

// HourRequests returns the expected number of requests in an hour. A run that is to show the reuse of
// users that the Spec describes sends about as many: fewer requests meet more users for the first time.
func (s *Spec) HourRequests() int { return int(math.Round(float64(s.Users) * s.Activity)) }

// Workload makes the tokens and requests of a Spec.
type Workload struct {
	spec             Spec
	userLen, itemLen lengths
	users, items     ranking
	userZipf         zipf
	log              *eventLog // nil: users come by userZipf and are as long as userLen says
	stream           stream
}

// New returns the workload at the start of its stream.
func New(spec Spec) (*Workload, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	itemExp, err := exponent(spec.Items, spec.Candidates, spec.ItemSkew)
	if err != nil {
		return nil, fmt.Errorf("workload %s: popularity of items: %w", spec.Name, err)
	}
	w := &Workload{
		spec:    spec,
		itemLen: newLengths(spec.ItemTokens),
		users:   newRanking(spec.Users, spec.Seed, userRanks),
		items:   newRanking(spec.Items, spec.Seed, itemRanks),
	}
	if spec.Events != (Events{}) {
		w.log = newEventLog(spec.Events, spec.Users, spec.UserTokens)
	} else {
		userExp, err := exponent(spec.Users, 1, spec.UserSkew)
		if err != nil {
			return nil, fmt.Errorf("workload %s: activity of users: %w", spec.Name, err)
		}
		w.userLen, w.userZipf = newLengths(spec.UserTokens), newZipf(spec.Users, 1, userExp)
	}
	w.stream = newStream(&spec, newZipf(spec.Items, spec.Candidates, itemExp))
	return w, nil
}

// Spec returns what the workload was made from.
func (w *Workload) Spec() Spec { return w.spec }

// Exponents returns the Zipf exponents over items and over users, 0 where users are drawn from a log.
func (w *Workload) Exponents() (items, users float64) { return w.stream.items.s, w.userZipf.s }

// User returns the tokens of user i at the start. The caller owns them.
func (w *Workload) User(i int) []int32 { return w.UserAt(i, 0) }

// UserAt returns the tokens of user i after version events. The caller owns them.
func (w *Workload) UserAt(i, version int) []int32 {
	out := w.tokens(make([]int32, 0, w.UserLen(i, version)), userTokens, i, w.userBase(i))
	for k := range version {
		j := w.event(i, k)
		out = w.tokens(out, itemTokens, j, w.ItemLen(j))
	}
	return out
}

// UserLen returns len(UserAt(i, version)).
func (w *Workload) UserLen(i, version int) int {
	n := w.userBase(i)
	for k := range version {
		n += w.ItemLen(w.event(i, k))
	}
	return n
}

// userBase returns the length of a user's history at the start. Users who come often have long ones.
func (w *Workload) userBase(i int) int {
	if w.log != nil {
		return w.log.tokens(w.users.rank(i))
	}
	quantile := 1 - (float64(w.users.rank(i))+0.5)/float64(w.spec.Users)
	tie := w.spec.Tie
	own := normalQuantile(spread(w.users.rank(i), w.spec.Seed, userLengths))
	return w.userLen.at(tie*normalQuantile(quantile) + math.Sqrt(1-tie*tie)*own)
}

// event returns the item that user i met in event k: of the catalog at the start, so that what a
// version means does not depend on the stream.
func (w *Workload) event(i, k int) int {
	h := mix(mix(w.spec.Seed, userEvents, uint64(i)), userEvents, uint64(k))
	return int(h % uint64(w.spec.Items))
}

// Item returns the tokens of item j. The caller owns them.
func (w *Workload) Item(j int) []int32 {
	n := w.ItemLen(j)
	return w.tokens(make([]int32, 0, n), itemTokens, j, n)
}

// ItemLen returns len(Item(j)).
func (w *Workload) ItemLen(j int) int {
	place := j // items that appear later have no rank of their own
	if j < w.spec.Items {
		place = w.items.rank(j)
	}
	return w.itemLen.at(normalQuantile(spread(place, w.spec.Seed, itemLengths)))
}

// Instruction returns the tokens that end every prompt. The caller owns them.
func (w *Workload) Instruction() []int32 {
	return w.tokens(nil, instructionTokens, 0, w.spec.Instruction)
}

// tokens appends n tokens of the thing with that id.
func (w *Workload) tokens(dst []int32, kind uint64, id, n int) []int32 {
	state := mix(w.spec.Seed, kind, uint64(id))
	for range n {
		state += golden
		dst = append(dst, int32(scramble(state)>>32*uint64(w.spec.Vocab)>>32))
	}
	return dst
}

// drawUser draws the user of a session.
func (w *Workload) drawUser(r *rand.Rand) int {
	if w.log != nil {
		return w.users.id(w.log.draw(r))
	}
	return w.users.id(w.userZipf.draw(r))
}

// UserRank returns the place of user i in the order of activity, 0 the most active.
func (w *Workload) UserRank(i int) int { return w.users.rank(i) }

// What a number is drawn for: numbers for different things are independent.
const (
	userTokens = 1 + iota
	itemTokens
	instructionTokens
	userLengths
	itemLengths
	userEvents
	userRanks
	itemRanks
	streamDraws
)

const golden = 0x9e3779b97f4a7c15

// scramble is the output function of splitmix64.
func scramble(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// mix hashes a seed, a kind and an id.
func mix(seed, kind, id uint64) uint64 {
	return scramble(scramble(seed+kind*golden) + (id+1)*golden)
}

// unit maps a hash into (0, 1).
func unit(h uint64) float64 { return (float64(h>>11) + 0.5) / (1 << 53) }

// spread places a rank in (0, 1) by the golden ratio: any run of ranks covers it evenly, so that few
// users, or the few hottest items, have the stated mean length too and not one that chance gave them.
func spread(rank int, seed, kind uint64) float64 {
	_, u := math.Modf(float64(rank)*(math.Phi-1) + unit(mix(seed, kind, 0)))
	return min(max(u, 1e-12), 1-1e-12)
}

func normalQuantile(p float64) float64 { return math.Sqrt2 * math.Erfinv(2*p-1) }
