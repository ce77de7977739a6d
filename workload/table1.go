package workload

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Scale shrinks a workload so that the machine at hand can run it. Each factor is a share of the
// paper's figure, in (0, 1]; 0 means 1. They are apart because they decide different things:
//
//   - Users and requests belong together: what an infinite user cache can save depends on requests per
//     user, and a run sends about Spec.HourRequests() of them. Choose Users so that this number is what
//     the machine can compute.
//   - Items decide how much memory the catalog's KV takes. It is at least 20 times the candidates:
//     with fewer, 90 % of a request's distinct candidates do not fit into a tenth of the items.
//   - Tokens shortens users, items and the instruction alike, so that their proportion, which
//     decides between the prefix orders, stays. Items keep at least two tokens on average.
//
// The number of candidates, the skews and the sessions are never scaled.
type Scale struct{ Users, Items, Tokens float64 }

// shape is a column of Table 1 with what the paper says about it elsewhere or leaves open.
type shape struct {
	users, items           int
	userTokens, itemTokens float64
	userSigma              float64
	userShare              float64 // of sessions, on the most active tenth of the users
	activity               float64
	session                Session
	tie                    float64
}

const (
	candidates  = 100  // section 6.2
	maxPrompt   = 8192 // "the maximum prompt length approaches 8K tokens", section 6.2
	instruction = 32   // not given
	qwenVocab   = 151643
	// On Amazon Beauty the most active tenth of the users has 29.5 % of the events.
	amazonShare = 0.3
)

// The order of the datasets is that of Table 1. Frequencies of users are not in it; they are chosen so
// that what the paper says of each holds:
//   - Games: users come often, so that users as prefixes save more than items (section 6.2).
//   - Beauty, Books: items as prefixes save more than users (section 6.2). On Books over 70 % of the
//     requests have a user longer than the items (section 5.3).
//   - Industry: more than 55 % of the users come once an hour (section 4.3), many have fewer than 1000
//     tokens, and a user cache in memory reuses 18 % of the tokens (section 3.3): an infinite one a
//     little more.
var shapes = []struct {
	name string
	shape
}{
	{"Games", shape{15_000, 8_000, 1245, 11, 0.7, amazonShare, 8, Session{0.3, 6, 40 * time.Second}, 0.5}},
	{"Beauty", shape{22_000, 12_000, 2043, 18, 0.8, amazonShare, 1.3, Session{0.6, 3, 40 * time.Second}, 0.3}},
	{"Books", shape{510_000, 280_000, 1586, 15, 0.4, 0.4, 0.6, Session{0.6, 3, 40 * time.Second}, 0.9}},
	{"Industry", shape{10_000_000, 1_000_000, 1500, 10, 0.8, 0.4, 0.12, Session{0.85, 2.2, 60 * time.Second}, 0.4}},
}

// Games is Amazon Games: 15K users, 8K items.
func Games(s Scale) Spec { return mustNamed("games", s) }

// Beauty is Amazon Beauty: 22K users, 12K items.
func Beauty(s Scale) Spec { return mustNamed("beauty", s) }

// Books is Amazon Books: 510K users, 280K items.
func Books(s Scale) Spec { return mustNamed("books", s) }

// Industry is the paper's synthetic e-commerce workload: 10M users, 1M items.
func Industry(s Scale) Spec { return mustNamed("industry", s) }

// Table1 returns the four workloads in the paper's order.
func Table1(s Scale) []Spec {
	return []Spec{Games(s), Beauty(s), Books(s), Industry(s)}
}

// Named returns a workload of Table 1 by its name, in any case.
func Named(name string, s Scale) (Spec, error) {
	var names []string
	for i := range shapes {
		if strings.EqualFold(shapes[i].name, name) {
			return shapes[i].spec(shapes[i].name, s)
		}
		names = append(names, strings.ToLower(shapes[i].name))
	}
	return Spec{}, fmt.Errorf("workload %q is not one of %s", name, strings.Join(names, ", "))
}

// mustNamed is Named for the names above. A factor out of range is a mistake of the program: Named
// reports those of a user.
func mustNamed(name string, s Scale) Spec {
	spec, err := Named(name, s)
	if err != nil {
		panic(err)
	}
	return spec
}

func (p *shape) spec(name string, s Scale) (Spec, error) {
	for _, f := range []*float64{&s.Users, &s.Items, &s.Tokens} {
		if *f == 0 {
			*f = 1
		}
		if *f < 0 || *f > 1 || math.IsNaN(*f) {
			return Spec{}, fmt.Errorf("workload %s: scale %+v: want factors above 0 and at most 1", name, s)
		}
	}
	userMean := max(p.userTokens*s.Tokens, 4)
	itemMean := max(p.itemTokens*s.Tokens, 2)
	end := int(math.Ceil(instruction * s.Tokens))
	longest := int(maxPrompt*s.Tokens-candidates*itemMean) - end
	return Spec{
		Name:        name,
		Users:       max(int(math.Round(float64(p.users)*s.Users)), 10),
		Items:       max(int(math.Round(float64(p.items)*s.Items)), 20*candidates),
		UserTokens:  Lengths{userMean, p.userSigma, max(int(userMean/20), 1), max(longest, int(2*userMean))},
		ItemTokens:  Lengths{itemMean, 0.4, max(int(itemMean/4), 1), int(math.Ceil(4 * itemMean))},
		Instruction: end,
		Vocab:       qwenVocab,
		Candidates:  candidates,
		ItemSkew:    Skew{0.9, 0.1}, // section 4.1
		UserSkew:    Skew{p.userShare, 0.1},
		Activity:    p.activity,
		Session:     p.session,
		Tie:         p.tie,
		Seed:        1,
	}, nil
}
