package beam

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// ruledCase is a request with rules, and what each item has of them.
type ruledCase struct {
	c        catalog
	eligible map[int]bool
	model    func([]int32, int32) float32
	rules    Rules
	boosts   []float64 // by item
	kinds    []int     // by item, for the quota
	quota    int       // of each kind; 0: none
	n        int
}

// everything orders all eligible items the obvious way: it scores every path of the catalog, draws noise for every
// prefix, adds boosts, sorts, and takes items while their kind is below its quota.
func (k *ruledCase) everything() (out []Result, keys []float64) {
	type scored struct {
		Result
		key float64
	}
	var all []scored
	var walk func(prefix []int32, score, phi, g float64, hash uint64)
	walk = func(prefix []int32, score, phi, g float64, hash uint64) {
		if len(prefix) == len(k.c.sizes) {
			key := score
			if k.rules.Temperature > 0 {
				key = k.rules.Temperature * g
			}
			for i := range k.c.items() {
				if k.eligible[i] && slices.Equal(k.c.path(i), prefix) {
					r := Result{uint32(i), slices.Clone(prefix), score + k.boosts[i], k.boosts[i]}
					all = append(all, scored{r, key + k.boosts[i]})
				}
			}
			return
		}
		codes, _ := (&oracle{c: k.c}).continuations(prefix)
		t := cmp.Or(k.rules.Temperature, 1)
		sum, tempered := 0.0, 0.0
		for _, c := range codes {
			x := float64(k.model(prefix, c))
			sum, tempered = sum+math.Exp(x), tempered+math.Exp(x/t)
		}
		top := math.Inf(-1)
		noisy, phis, hashes := make([]float64, len(codes)), make([]float64, len(codes)), make([]uint64, len(codes))
		for i, c := range codes {
			hashes[i] = mix(hash + (uint64(c)+1)*0x9e3779b97f4a7c15)
			phis[i] = phi + float64(k.model(prefix, c))/t - math.Log(tempered)
			noisy[i] = phis[i] + gumbel(hashes[i])
			top = max(top, noisy[i])
		}
		for i, c := range codes {
			conditional := -math.Log(math.Exp(-g) - math.Exp(-top) + math.Exp(-noisy[i]))
			walk(append(slices.Clone(prefix), c), score+float64(k.model(prefix, c))-math.Log(sum), phis[i], conditional,
				hashes[i])
		}
	}
	start := root(k.rules.Seed)
	walk(nil, 0, 0, start.g, start.hash)
	slices.SortStableFunc(all, func(a, b scored) int { return cmp.Compare(b.key, a.key) })
	accept := k.accept()
	for _, s := range all {
		if len(out) < k.n && accept(s.Item) {
			out, keys = append(out, s.Result), append(keys, s.key)
		}
	}
	return out, keys
}

// accept returns the quota's decision, for one list of results.
func (k *ruledCase) accept() func(uint32) bool {
	taken := map[int]int{}
	return func(item uint32) bool {
		kind := k.kinds[item]
		if k.quota > 0 && taken[kind] == k.quota {
			return false
		}
		taken[kind]++
		return true
	}
}

func drawRuled(t testing.TB, r *rand.Rand, seed uint64) (*ruledCase, *Index, *Eligible, Options) {
	c := randomCatalog(r, 1+r.IntN(4), 1+r.IntN(60), 2+r.IntN(9), false)
	ix := c.build(t)
	opts, e, eligible := request(r, c, ix)
	k := &ruledCase{c: c, eligible: eligible, n: 1 + r.IntN(12), boosts: make([]float64, c.items())}
	k.model = remembered(hashed(seed))
	for range r.IntN(4) {
		b := Boost{NewSet(ix), 2 * r.NormFloat64()}
		for i := range c.items() {
			if r.IntN(3) == 0 {
				b.Set.Add(uint32(i))
				k.boosts[i] += b.Value
			}
		}
		k.rules.Boosts = append(k.rules.Boosts, b)
	}
	if r.IntN(2) == 0 {
		k.rules.Temperature, k.rules.Seed = 0.2+2*r.Float64(), r.Uint64()
	}
	kinds := 1 + r.IntN(6)
	for range c.items() {
		k.kinds = append(k.kinds, r.IntN(kinds))
	}
	if r.IntN(2) == 0 {
		k.quota = 1 + r.IntN(3)
	}
	opts.N = k.n
	if r.IntN(2) == 0 {
		opts.Width, opts.TopK, opts.Widths = 64, 0, nil // wider than the catalog
	} else if r.IntN(2) == 0 {
		opts.Width, opts.TopK, opts.Widths = 1+r.IntN(12), 0, nil
		e.Reset(ix, nil)
		for i := range c.items() {
			eligible[i] = true
		}
	}
	return k, ix, e, opts
}

// remembered computes each logit of a model once.
func remembered(model func([]int32, int32) float32) func([]int32, int32) float32 {
	type key struct {
		path [4]int32
		n    int
		code int32
	}
	known := map[key]float32{}
	return func(prefix []int32, code int32) float32 {
		k := key{n: len(prefix), code: code}
		copy(k.path[:], prefix)
		x, ok := known[k]
		if !ok {
			x = model(prefix, code)
			known[k] = x
		}
		return x
	}
}

// Searches with rules have the results of brute force over all items wherever they say so: always if the beam covers
// the catalog, and often if it does not.
func TestRulesAreBruteForce(t *testing.T) {
	var s Search
	wide, narrow, uncertain, differ := 0, 0, 0, 0
	for seed := range uint64(10_000) {
		k, ix, e, opts := drawRuled(t, rng(seed), seed)
		opts.Rules = &k.rules
		k.rules.Accept = nil
		if k.quota > 0 {
			k.rules.Accept = k.accept()
		}
		if err := s.Reset(ix, e, opts); err != nil {
			t.Fatal(err)
		}
		drive(t, &s, ix, k.model)
		got, short := s.Results(nil, opts.N)
		want, keys := k.everything()
		err := closeResults(got, want, keys)
		switch {
		case s.Exact() && !s.Certain():
			t.Fatalf("seed %d: nothing was cut, and the results are not certain", seed)
		case s.Certain() && (err != nil || short != (len(want) < k.n)):
			t.Fatalf("seed %d, width %d, %+v, quota %d: %v\ngot  %v\nwant %v", seed, opts.Width, k.rules, k.quota, err, got,
				want)
		case s.Exact():
			wide++
		case s.Certain():
			narrow++
		default:
			if uncertain++; err != nil {
				differ++
			}
		}
	}
	t.Logf("%d searches of everything, %d narrower and certain, %d uncertain, of which %d differ", wide, narrow, uncertain,
		differ)
	if wide < 5000 || narrow < 1000 || uncertain < 500 || differ < 100 {
		t.Errorf("the draw tests too little of one kind")
	}
}

// closeResults compares results. Items whose keys are equal, up to rounding, may change places.
func closeResults(got, want []Result, keys []float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d results, want %d", len(got), len(want))
	}
	for i, g := range got {
		if w := want[i]; g.Item != w.Item || !slices.Equal(g.Codes, w.Codes) || math.Abs(g.Boost-w.Boost) > 1e-12 {
			if i > 0 && keys[i-1]-keys[i] < 1e-6 || i+1 < len(keys) && keys[i]-keys[i+1] < 1e-6 {
				continue
			}
			return fmt.Errorf("result %d is %v, want %v", i, g, w)
		} else if !(math.Abs(g.Score-w.Score) <= 1e-5) {
			return fmt.Errorf("result %d has score %v, want %v", i, g.Score, w.Score)
		}
	}
	return nil
}

// Pairs of sampled items come as often as sequential draws without replacement say, in proportion to probability at the
// temperature times exp(boost / temperature), among eligible items. Narrow beams sample as exactly as wide ones.
func TestSampledFrequencies(t *testing.T) {
	const draws = 10_000
	c := catalog{sizes: []int{4, 3}, codes: []int32{0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 2, 0, 2, 2, 3, 0, 3, 1, 3, 2}}
	ix := c.build(t)
	for _, test := range []struct {
		name        string
		width       int
		temperature float64
		exclude     []int
		boosted     []int
	}{
		{"everything", 64, 1, nil, nil},
		{"narrow", 2, 1, nil, nil},
		{"cold", 3, 0.5, nil, nil},
		{"hot", 64, 3, nil, nil},
		{"excluded", 64, 0.7, []int{0, 4, 9}, nil},
		{"boosted", 64, 0.7, []int{1}, []int{2, 5, 8}},
	} {
		t.Run(test.name, func(t *testing.T) {
			k := &ruledCase{c: c, eligible: map[int]bool{}, model: remembered(hashed(3)), boosts: make([]float64, c.items()),
				kinds: make([]int, c.items()), n: 2}
			k.rules.Temperature = test.temperature
			e := &Eligible{}
			e.Reset(ix, nil)
			for i := range c.items() {
				if k.eligible[i] = !slices.Contains(test.exclude, i); !k.eligible[i] {
					e.Exclude(uint32(i))
				}
			}
			b := Boost{NewSet(ix), 0.8}
			for _, i := range test.boosted {
				b.Set.Add(uint32(i))
				k.boosts[i] = b.Value
			}
			k.rules.Boosts = []Boost{b}
			weights := weightsOf(k)
			count := map[[2]uint32]float64{}
			var s Search
			for seed := range uint64(draws) {
				k.rules.Seed = seed
				if err := s.Reset(ix, e, Options{Width: test.width, N: 2, Rules: &k.rules}); err != nil {
					t.Fatal(err)
				}
				drive(t, &s, ix, k.model)
				got, _ := s.Results(nil, 2)
				if !s.Certain() {
					t.Fatalf("seed %d: not certain", seed)
				}
				count[[2]uint32{got[0].Item, got[1].Item}]++
			}
			total := 0.0
			for _, w := range weights {
				total += w
			}
			chi, freedom := 0.0, -1.0
			rare, expectedRare := 0.0, 0.0
			for i, wi := range weights {
				for j, wj := range weights {
					if i == j || wi == 0 || wj == 0 {
						continue
					}
					expected := draws * wi / total * wj / (total - wi)
					seen := count[[2]uint32{uint32(i), uint32(j)}]
					if expected < 5 {
						rare, expectedRare = rare+seen, expectedRare+expected
						continue
					}
					chi, freedom = chi+(seen-expected)*(seen-expected)/expected, freedom+1
				}
			}
			if expectedRare >= 5 {
				chi, freedom = chi+(rare-expectedRare)*(rare-expectedRare)/expectedRare, freedom+1
			}
			t.Logf("chi-square %.1f at %.0f degrees of freedom", chi, freedom)
			if limit := freedom + 5*math.Sqrt(2*freedom); freedom < 10 || chi > limit {
				t.Errorf("chi-square %.1f at %.0f degrees of freedom, want at most %.1f", chi, freedom, limit)
			}
		})
	}
}

// weightsOf returns what each item's probability to be drawn first is in proportion to.
func weightsOf(k *ruledCase) []float64 {
	out := make([]float64, k.c.items())
	for i := range out {
		if !k.eligible[i] {
			continue
		}
		path, p := k.c.path(i), 1.0
		for l, code := range path {
			codes, _ := (&oracle{c: k.c}).continuations(path[:l])
			sum := 0.0
			for _, c := range codes {
				sum += math.Exp(float64(k.model(path[:l], c)) / k.rules.Temperature)
			}
			p *= math.Exp(float64(k.model(path[:l], code))/k.rules.Temperature) / sum
		}
		out[i] = p * math.Exp(k.boosts[i]/k.rules.Temperature)
	}
	return out
}

func TestRulesRefuse(t *testing.T) {
	c := catalog{sizes: []int{2}, codes: []int32{0, 1}}
	ix, other := c.build(t), c.build(t)
	var s Search
	for _, r := range []Rules{{Temperature: -1}, {Temperature: math.NaN()}, {Temperature: math.Inf(1)},
		{Boosts: []Boost{{NewSet(other), 1}}},
		{Boosts: []Boost{{NewSet(ix), math.NaN()}}}} {
		if err := s.Reset(ix, nil, Options{Width: 1, Rules: &r}); err == nil {
			t.Errorf("%+v is accepted", r)
		}
	}
	if err := s.Reset(ix, nil, Options{Width: 1, Free: true, Rules: &Rules{}}); err == nil {
		t.Error("a free search has rules")
	}
	if err := s.Reset(ix, nil, Options{Width: 1, Rules: &Rules{}}); err != nil {
		t.Error(err)
	} else if s.Remote(&Elsewhere{}) {
		t.Error("a search with rules runs elsewhere")
	}
}
