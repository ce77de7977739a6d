package simpaper

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"grebe/sim"
	"grebe/workload"
)

// source makes the requests of a stream at a rate; of a closed loop, at about the rate that the fleet serves. Seeds
// change users, items and times.
func (s *Stream) source(rate float64, seed uint64) (sim.Stream, error) {
	switch {
	case s.Workload != "":
		return s.table1(rate, seed)
	case s.RcLLM != "":
		return newPrompts(s, rate, seed)
	case s.Regime != "":
		return s.rankings(rate, seed)
	}
	return nil, fmt.Errorf("no stream of requests")
}

// table1 is a workload of BAT's Table 1.
type table1 struct{ *workload.Workload }

func (s *Stream) table1(rate float64, seed uint64) (*table1, error) {
	spec, err := workload.Named(s.Workload, workload.Scale{})
	if err != nil {
		return nil, err
	}
	if s.Users > 0 {
		spec.Users = s.Users
	}
	if s.Items > 0 {
		spec.Items = s.Items
	}
	spec.Seed = seed
	spec.Activity = rate * 3600 / float64(spec.Users)
	w, err := workload.New(spec)
	if err != nil {
		return nil, err
	}
	return &table1{w}, nil
}

func (t *table1) Items() int { return t.Spec().Items }

func (t *table1) ItemTokens(item int32) int32 { return int32(t.ItemLen(int(item))) }

// Past calls visit with requests of the same law: the stream's own from its beginning on, because the seed decides
// which items are hot.
func (t *table1) Past(visit func(r *sim.Request) bool) {
	w, err := workload.New(t.Spec())
	if err != nil {
		return // the same spec made t
	}
	all(&table1{w}, visit)
}

// all calls visit with the requests of a stream.
func all(s sim.Stream, visit func(r *sim.Request) bool) {
	var r sim.Request
	for s.Next(&r) && visit(&r) {
	}
}

func (t *table1) Next(r *sim.Request) bool {
	next := t.Workload.Next()
	r.At, r.User, r.UserTokens = next.At, uint64(next.User), int32(t.UserLen(next.User, next.Version))
	r.Items, r.ItemTokens = r.Items[:0], r.ItemTokens[:0]
	for _, item := range next.Items {
		r.Items, r.ItemTokens = append(r.Items, int32(item)), append(r.ItemTokens, t.ItemTokens(int32(item)))
	}
	return true
}

// dataset is what RcLLM says of its prompts, or what is assumed of them: see assumptions/rcllm-fig6.yaml.
type dataset struct {
	items      int
	itemTokens float64
	candidates float64 // median
	history    float64 // median tokens
}

var datasets = map[string]dataset{
	"amazon":    {778_000, 87, 17, 520},
	"yelp":      {150_000, 76, 24, 400},
	"goodreads": {500_000, 124, 20, 330},
}

// lengthSigma is that of the factor by which prompts differ in length.
const lengthSigma = 0.4

// prompts are RcLLM's: each of another user, with candidates of the user's community and others. Items of a community
// are those whose number leaves the community's as the remainder, and the first items of each are the most popular.
type prompts struct {
	dataset
	stream  *Stream
	seed    uint64
	rng     *rand.Rand
	rate    float64 // requests per second
	at      float64
	users   uint64
	anyItem *workload.Zipf
	inside  *workload.Zipf
	homes   *workload.Zipf // nil: users have each community alike
	lengths []uint16
	chosen  map[int32]bool
}

// popularity is the exponent of the law by which items are drawn, and flat how many ranks flatten its head.
const (
	popularity = 0.9
	flat       = 20
)

func newPrompts(s *Stream, rate float64, seed uint64) (*prompts, error) {
	d, ok := datasets[s.RcLLM]
	if !ok {
		return nil, fmt.Errorf("no dataset %q", s.RcLLM)
	}
	if s.Communities < 1 || s.Communities > d.items/100 {
		return nil, fmt.Errorf("%d communities of %d items", s.Communities, d.items)
	}
	if s.ItemTokens > 0 {
		d.itemTokens = s.ItemTokens
	}
	p := &prompts{
		dataset: d, stream: s, seed: seed, rng: rand.New(rand.NewPCG(seed, 31)), rate: rate, chosen: map[int32]bool{},
		anyItem: workload.NewZipf(d.items, flat, popularity),
		inside:  workload.NewZipf(d.items/s.Communities, flat, popularity),
		lengths: make([]uint16, d.items),
	}
	if s.CommunityZipf > 0 {
		p.homes = workload.NewZipf(s.Communities, 1, s.CommunityZipf)
	}
	for i := range p.lengths { // log-normal with sigma 0.4, as in package workload
		z := p.rng.NormFloat64()
		p.lengths[i] = uint16(max(1, math.Round(d.itemTokens*math.Exp(0.4*z-0.08))))
	}
	return p, nil
}

func (p *prompts) Items() int { return p.items }

func (p *prompts) ItemTokens(item int32) int32 { return int32(p.lengths[item]) }

// Past calls visit with requests of other users.
func (p *prompts) Past(visit func(r *sim.Request) bool) {
	earlier, err := newPrompts(p.stream, 1, p.seed+before)
	if err != nil {
		return // the same stream made p
	}
	all(earlier, visit)
}

// before is added to a seed for requests before those of a run.
const before = 1000

func (p *prompts) Next(r *sim.Request) bool {
	p.at += p.rng.ExpFloat64() / p.rate
	p.users++
	r.At, r.User = time.Duration(p.at*float64(time.Second)), p.users
	factor := math.Exp(lengthSigma * p.rng.NormFloat64())
	r.UserTokens = int32(max(1, math.Round(p.history*factor)))
	n := min(max(1, int(math.Round(p.candidates*factor))), 100)
	home := p.rng.IntN(p.stream.Communities)
	if p.homes != nil {
		home = p.homes.Draw(p.rng)
	}
	clear(p.chosen)
	r.Items, r.ItemTokens = r.Items[:0], r.ItemTokens[:0]
	for len(r.Items) < n {
		item := int32(0)
		if p.rng.Float64() < p.stream.Share {
			item = int32(p.inside.Draw(p.rng)*p.stream.Communities + home)
		} else {
			item = int32(p.anyItem.Draw(p.rng))
		}
		if !p.chosen[item] {
			p.chosen[item] = true
			r.Items, r.ItemTokens = append(r.Items, item), append(r.ItemTokens, p.ItemTokens(item))
		}
	}
	return true
}
