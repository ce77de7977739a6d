package alloc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"grebe/internal/scripttest"
)

// A controller of the boundary, a ghost and a governor of a link.
//
//	climb slo=100 share=.5             a controller, and the share of embeddings that it begins with
//	epoch hot=.3 gpu=.9 kv=50          an epoch: also requests, link, p99, hit, rows (saved by more memory, in ms), kv;
//	                                   times repeats it, and rise adds to hot each time
//	glance hot=.9 gpu=.95              a part of one
//	ghost 8                            a memory of eight evictions
//	evict a 10; miss a                 bytes; how much larger the cache should have been
//	governor link=1000 share=.5        bytes per second
//	demand 0.1 50; grant 0.2 100       at a time in seconds
//	budget 1000                        bytes that models share
//	model a used=300 least=10          a model
//	does a kept=40 saved=5 lost=9      what it does in each epoch from now on: bytes of new entries, milliseconds that
//	                                   hits saved
//	                                   and that evictions cost; without numbers it is idle
//	divide times=40                    epochs in which a model that adds entries fills what it may own
//	cache a users=60 entry=11 cost=1   an LRU cache of a model's users, each with an entry of so many bytes;
//	                                   also scan=1: none comes twice
//	busy a rate=4                      its requests in an epoch from now on, of users drawn at random
//	run 60                             seconds; what each may own, in the last third also, and its hits
func TestScenarios(t *testing.T) {
	scripttest.Files(t, "testdata/*.txt", (*scenario).run)
}

type scenario struct {
	climb    *Climb
	share    float64
	ghost    *Ghost
	governor *Governor
	budget   Budget
	models   []*Claim
	names    []string
	caches   []*cache
}

func (s *scenario) run(c *scripttest.Command, out *strings.Builder) {
	number := func(i int) (x float64) {
		if _, err := fmt.Sscan(c.Word(i), &x); err != nil {
			c.Fatal(err)
		}
		return x
	}
	switch c.Name {
	case "climb":
		s.climb, s.share = &Climb{SLO: c.Float("slo", 0)}, c.Float("share", 0.5)
	case "epoch":
		begin, hot := s.share, c.Float("hot", 0)
		for range c.Int("times", 1) {
			s.share = s.climb.Decide(s.observe(c, hot)).To
			hot += c.Float("rise", 0)
		}
		fmt.Fprintf(out, "epoch: %.3f -> %.3f\n", begin, s.share)
	case "glance":
		begin, moves := s.share, 0
		for range c.Int("times", 1) {
			if d, move := s.climb.Glance(s.observe(c, c.Float("hot", 0))); move {
				s.share = d.To
				moves++
			}
		}
		fmt.Fprintf(out, "glance: %.3f -> %.3f in %d moves\n", begin, s.share, moves)
	case "ghost":
		s.ghost = NewGhost(int(number(0)))
	case "evict":
		s.ghost.Evicted(uint64(c.Word(0)[0]), int64(number(1)))
	case "miss":
		if depth, ok := s.ghost.Missed(uint64(c.Word(0)[0])); ok {
			fmt.Fprintf(out, "%s: %d bytes more would have kept it\n", c.Word(0), depth)
		} else {
			fmt.Fprintf(out, "%s: not known\n", c.Word(0))
		}
	case "governor":
		s.governor = &Governor{Link: c.Float("link", 0), Share: c.Float("share", 0)}
	case "demand":
		s.governor.Demand(number(0), int64(number(1)))
		fmt.Fprintf(out, "%v: %.0f bytes a second are left\n", c.Word(0), s.governor.Rate())
	case "grant":
		n := s.governor.Grant(number(0), int64(number(1)))
		s.governor.Spend(n)
		fmt.Fprintf(out, "%v: %d granted\n", c.Word(0), n)
	case "budget":
		s.budget.Bytes = int64(number(0))
	case "model":
		s.models = append(s.models, &Claim{Used: int64(c.Int("used", 0)), Least: int64(c.Int("least", 0))})
		s.names = append(s.names, c.Word(0))
	case "does":
		m := s.models[slices.Index(s.names, c.Word(0))]
		m.Kept, m.Saved, m.Lost = int64(c.Int("kept", 0)), c.Float("saved", 0), c.Float("lost", 0)
	case "divide":
		for range c.Int("times", 1) {
			s.budget.Decide(s.models)
			for _, m := range s.models {
				m.Used = min(m.Used+m.Kept, m.Limit)
			}
		}
		fmt.Fprint(out, "divide:")
		sum := int64(0)
		for i, m := range s.models {
			fmt.Fprintf(out, " %s %d of %d", s.names[i], m.Used, m.Limit)
			sum += m.Limit
		}
		fmt.Fprintf(out, ", together %d\n", sum)
	case "cache":
		s.caches = append(s.caches, newCache(c.Word(0), c.Int("users", 1), int64(c.Int("entry", 1)), c.Float("cost", 1)))
		s.caches[len(s.caches)-1].scan = c.Int("scan", 0) > 0
	case "busy":
		s.caches[slices.IndexFunc(s.caches, func(o *cache) bool { return o.name == c.Word(0) })].rate = c.Float("rate", 0)
	case "run":
		compete(&s.budget, s.caches, int(number(0)), out)
	default:
		c.Fatal("no such command")
	}
}

func (s *scenario) observe(c *scripttest.Command, hot float64) *Observation {
	o := &Observation{
		State:    State{Hot: hot, EmbHit: c.Float("hit", 1), Alpha: s.share, P99: c.Float("p99", 0)},
		Requests: c.Int("requests", 1000), LinkLoad: c.Float("link", 0), GPULoad: c.Float("gpu", 0),
	}
	o.Gains.Emb[0], o.Gains.KV[0] = c.Float("rows", 0), c.Float("kv", 0)
	return o
}
