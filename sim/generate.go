package sim

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"grebe/workload"
)

// newStream returns the requests that a scenario describes.
func newStream(s *Scenario) (Stream, error) {
	if s.Trace.File != "" {
		return playTrace(s)
	}
	return newGenerator(s)
}

// generator draws requests: users by their law, candidates by theirs.
type generator struct {
	s        *Scenario
	rng      *rand.Rand
	times    arrivals
	users    *workload.Zipf // nil: all are equally likely, or weights are given
	weights  []float64      // of users, summed up; nil: no file
	given    []int32        // tokens of users of the file
	userLen  workload.Sizes
	grown    map[uint64]int32 // tokens that histories have grown by
	items    *workload.Zipf
	inside   *workload.Zipf // ranks inside a community
	itemLen  []uint16       // by ordinal
	scatter  []int32        // ordinal by rank
	picked   []uint64       // by ordinal: a bit for each item of the request
	userSeed uint64
}

func newGenerator(s *Scenario) (*generator, error) {
	it := &s.Items
	times, err := newArrivals(s)
	if err != nil {
		return nil, err
	}
	g := &generator{
		s: s, rng: newRand(s.Seed, 2), times: times, grown: map[uint64]int32{}, userSeed: scramble(s.Seed + 3),
		items: workload.NewZipf(it.Count, it.Flat, it.Zipf), itemLen: make([]uint16, it.Count),
		scatter: make([]int32, it.Count),
		picked:  make([]uint64, (it.Count+63)/64),
	}
	if s.Users.File != "" {
		if err := g.readUsers(s.Users.File); err != nil {
			return nil, err
		}
	} else {
		if s.Users.Zipf > 0 {
			g.users = workload.NewZipf(s.Users.Count, 1, s.Users.Zipf)
		}
		g.userLen = workload.NewSizes(workload.Lengths(s.Users.Tokens))
	}
	if it.Generator == "communities" {
		g.inside = workload.NewZipf(it.Count/it.Communities, max(1, it.Flat/it.Communities), it.Zipf)
	}
	for i := range g.scatter {
		g.scatter[i] = int32(i)
	}
	r := newRand(s.Seed, 4) // so that no ordinal is hot because it is small
	r.Shuffle(it.Count, func(i, j int) { g.scatter[i], g.scatter[j] = g.scatter[j], g.scatter[i] })
	sizes := workload.NewSizes(workload.Lengths(it.Tokens))
	for rank, item := range g.scatter {
		g.itemLen[item] = uint16(min(sizes.At(spread(rank)), math.MaxUint16))
	}
	return g, nil
}

// spread places a number in (0, 1) by the golden ratio, so that any run of numbers covers it evenly.
func spread(n int) float64 {
	_, u := math.Modf(float64(n)*(math.Phi-1) + .5)
	return min(max(u, 1e-9), 1-1e-9)
}

// readUsers reads weights and tokens of users.
func (g *generator) readUsers(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("sim: read users: %w", err)
	}
	defer f.Close()
	sum := 0.0
	scan := bufio.NewScanner(f)
	for line := 1; scan.Scan(); line++ {
		var weight float64
		var tokens int32
		if _, err := fmt.Sscan(scan.Text(), &weight, &tokens); err != nil || !(weight > 0) || tokens < 1 || tokens > 1<<20 {
			return fmt.Errorf("sim: %s:%d: want a weight above 0 and a number of tokens, between blanks", file, line)
		}
		sum += weight
		g.weights, g.given = append(g.weights, sum), append(g.given, tokens)
	}
	if err := scan.Err(); err != nil {
		return fmt.Errorf("sim: read users: %w", err)
	}
	if len(g.weights) == 0 {
		return fmt.Errorf("sim: %s:1: there are no users", file)
	}
	return nil
}

// Items returns the size of the catalog.
func (g *generator) Items() int { return g.s.Items.Count }

// ItemTokens returns the length of an item.
func (g *generator) ItemTokens(item int32) int32 { return int32(g.itemLen[item]) }

// Past draws requests of the same laws from before the run.
func (g *generator) Past(visit func(r *Request) bool) {
	past := *g
	past.rng, past.grown = newRand(g.s.Seed, 6), map[uint64]int32{}
	var r Request
	for more := true; more; {
		past.drawUser(&r)
		past.drawItems(&r)
		more = visit(&r)
	}
}

// Next draws a request.
func (g *generator) Next(r *Request) bool {
	at, ok := g.times.next()
	if !ok {
		return false
	}
	r.At = at
	g.drawUser(r)
	g.drawItems(r)
	return true
}

func (g *generator) drawUser(r *Request) {
	switch {
	case g.weights != nil:
		x := g.rng.Float64() * g.weights[len(g.weights)-1]
		i, _ := slices.BinarySearch(g.weights, x)
		r.User = uint64(min(i, len(g.weights)-1))
		r.UserTokens = g.given[r.User]
	case g.users != nil:
		r.User = uint64(g.users.Draw(g.rng))
		r.UserTokens = int32(g.userLen.At(spread(int(r.User))))
	default:
		r.User = uint64(g.rng.IntN(g.s.Users.Count))
		r.UserTokens = int32(g.userLen.At(spread(int(r.User))))
	}
	if growth := g.s.Users.Growth; growth > 0 {
		more, seen := g.grown[r.User]
		if seen {
			more += int32(g.rng.ExpFloat64() * growth)
		}
		g.grown[r.User] = more
		r.UserTokens = min(r.UserTokens+more, int32(max(g.s.Users.Tokens.Max, int(r.UserTokens))))
	}
}

func (g *generator) drawItems(r *Request) {
	it := &g.s.Items
	r.Items, r.ItemTokens = r.Items[:0], r.ItemTokens[:0]
	home := 0
	if g.inside != nil {
		home = int(scramble(r.User^g.userSeed) % uint64(it.Communities))
	}
	for len(r.Items) < it.Candidates {
		rank := 0
		if g.inside != nil && g.rng.Float64() < it.Share {
			rank = g.inside.Draw(g.rng)*it.Communities + home // a community has every so-manieth rank
		} else {
			rank = g.items.Draw(g.rng)
		}
		item := g.scatter[rank]
		if g.picked[item/64]>>(item%64)&1 == 1 {
			continue
		}
		g.picked[item/64] |= 1 << (item % 64)
		r.Items = append(r.Items, item)
		r.ItemTokens = append(r.ItemTokens, int32(g.itemLen[item]))
	}
	for _, item := range r.Items {
		g.picked[item/64] = 0
	}
}

// arrivals are the times of requests.
type arrivals struct {
	l        Load
	duration time.Duration
	rng      *rand.Rand
	at       float64           // seconds
	recorded workload.Arrivals // nil: times are drawn
}

func newArrivals(s *Scenario) (arrivals, error) {
	a := arrivals{l: s.Load, duration: s.Duration.Duration, rng: newRand(s.Seed, 5)}
	if s.Load.Times == "" {
		return a, nil
	}
	times, err := workload.ReadTrace(s.Load.Times)
	if err != nil {
		return a, fmt.Errorf("sim: %w", err)
	}
	rate := workload.Rate(times)
	if rate == 0 {
		return a, fmt.Errorf("sim: %s: all requests arrive at once", s.Load.Times)
	}
	a.recorded = workload.Trace(times, s.Load.Rate/rate)
	return a, nil
}

// next returns when the next request arrives. The time to it is drawn at the rate of the last one.
func (a *arrivals) next() (time.Duration, bool) {
	if a.l.Clients > 0 {
		return 0, true
	}
	if a.recorded != nil {
		return a.recorded.Next()
	}
	gap := 1.0
	if a.l.Process == "poisson" {
		gap = a.rng.ExpFloat64()
	}
	a.at += gap / a.rate(a.at)
	at := a.at * float64(time.Second)
	return time.Duration(at), at < math.MaxInt64/2
}

// rate returns the requests per second at a time.
func (a *arrivals) rate(at float64) float64 {
	rate := a.l.Rate
	if a.l.Trend != 1 {
		rate *= 1 + (a.l.Trend-1)*min(1, at/a.duration.Seconds())
	}
	if b := &a.l.Burst; b.Every.Duration > 0 && math.Mod(at, b.Every.Seconds()) < b.Length.Seconds() {
		rate *= b.Factor
	}
	return rate
}
