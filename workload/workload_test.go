package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// small returns the four workloads at a size that a test can look at.
func small() []Spec {
	return []Spec{
		Games(Scale{Users: 0.02, Items: 0.5}),
		Beauty(Scale{Users: 0.02}),
		Books(Scale{Users: 0.02, Items: 0.05}),
		Industry(Scale{Users: 0.02, Items: 0.02}),
	}
}

func mustNew(t testing.TB, spec Spec) *Workload {
	t.Helper()
	w, err := New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// What BAT says of its datasets: Table 1 and sections 3.3, 4.1, 4.3, 5.3 and 6.2.
func TestStreamsHaveThePapersStatistics(t *testing.T) {
	for _, spec := range small() {
		s, err := Measure(spec, 0)
		if err != nil {
			t.Fatal(err)
		}
		near := func(what string, got, want, tolerance float64) {
			if math.Abs(got-want) > tolerance*want {
				t.Errorf("%s: %s is %.4g, want %.4g within %.1f%%", s.Name, what, got, want, 100*tolerance)
			}
		}
		p := paper(s.Name)
		near("mean tokens of users", s.UserTokens, p.userTokens, 0.005)
		near("mean tokens of items", s.ItemTokens, p.itemTokens, 0.005)
		near("mean tokens of the candidates", s.RequestItemTokens, 100*p.itemTokens, 0.02)
		near("share of accesses on the hottest tenth", s.HotAccesses, 0.9, 0.005)
		if s.EitherReuse < max(s.UserReuse, s.ItemReuse) {
			t.Errorf("%s: the better prefix per request reuses %.3f, less than one for all: %.3f, %.3f", s.Name, s.EitherReuse,
				s.UserReuse, s.ItemReuse)
		}
		hits, reuse := lru(mustNew(t, spec), s.Requests, p)
		if users := reuse > s.ItemShare; users != (s.Name == "Games") {
			t.Errorf("%s: users reuse %.3f with the paper's memory, items %.3f; users save more on Games only", s.Name, reuse,
				s.ItemShare)
		}
		switch s.Name {
		case "Games":
			if math.Abs(s.EitherReuse-0.58) > 0.03 {
				t.Errorf("%s: the better prefix per request reuses %.3f, the paper up to 0.58", s.Name, s.EitherReuse)
			}
		case "Books":
			if s.UserLonger <= 0.7 {
				t.Errorf("Books: the user is longer in %.3f of the requests, want more than 0.7", s.UserLonger)
			}
		case "Industry":
			if s.OnceUsers <= 0.55 {
				t.Errorf("Industry: %.3f of the users come once, want more than 0.55", s.OnceUsers)
			}
			if hits > 0.18 || s.UserHits < 0.18 {
				t.Errorf("Industry: a user cache finds %.3f of the users, an infinite one %.3f, want 0.18 between them", hits,
					s.UserHits)
			}
			if reuse > 0.11 || reuse < 0.08 {
				t.Errorf("Industry: a user cache reuses %.3f, want a little less than 0.11", reuse)
			}
			if math.Abs(s.ItemShare-0.33) > 0.01 {
				t.Errorf("Industry: %.3f of the tokens are items', want about 0.33", s.ItemShare)
			}
			if share := shorter(mustNew(t, spec), 100*p.itemTokens); math.Abs(share-0.36) > 0.01 {
				t.Errorf("Industry: %.3f of the users have fewer tokens than the candidates, want 0.36", share)
			}
		}
	}
}

// lru returns the share of the requests whose user is in an LRU cache of users, and the share of the
// prompts' tokens that it saves, with the memory of section 6.4 for Qwen2-1.5B, scaled.
func lru(w *Workload, requests int, p *shape) (hits, reuse float64) {
	type entry struct{ tokens, last int }
	room := 4 * 150e9 / 28672 * float64(w.Spec().Users) / float64(p.users)
	cached, used := map[int]entry{}, 0.0
	var order [][2]int // users and when they came
	found, saved, all := 0, 0, 0
	for i := range requests {
		r := w.Next()
		n := w.UserLen(r.User, r.Version)
		all += n + w.Spec().Instruction
		for _, j := range r.Items {
			all += w.ItemLen(j)
		}
		if _, ok := cached[r.User]; ok {
			found++
			saved += n
		} else {
			used += float64(n)
		}
		cached[r.User] = entry{n, i}
		order = append(order, [2]int{r.User, i})
		for ; used > room; order = order[1:] {
			if e := cached[order[0][0]]; e.last == order[0][1] {
				delete(cached, order[0][0])
				used -= float64(e.tokens)
			}
		}
	}
	return float64(found) / float64(requests), float64(saved) / float64(all)
}

// shorter returns the share of the users with fewer tokens.
func shorter(w *Workload, than float64) float64 {
	n := 0
	for i := range w.Spec().Users {
		if float64(w.UserLen(i, 0)) < than {
			n++
		}
	}
	return float64(n) / float64(w.Spec().Users)
}

// Users of a log come in proportion to their events, at independent times.
func TestUsersOfALogComeByTheirEvents(t *testing.T) {
	spec := Games(Scale{Users: 0.01, Items: 0.25})
	spec.Candidates = 2
	w := mustNew(t, spec)
	const draws = 100_000
	counts := make([]int, spec.Users)
	for range draws {
		counts[w.UserRank(w.Next().User)]++
	}
	sum := 0.0
	for rank := range counts {
		sum += spec.Events.at((float64(rank) + 0.5) / float64(spec.Users))
	}
	for rank, got := range counts[5:] { // the steep first ones are means over their quantiles
		want := draws * spec.Events.at((float64(rank)+5.5)/float64(spec.Users)) / sum
		if math.Abs(float64(got)-want) > 5*math.Sqrt(want)+0.02*want {
			t.Errorf("the user of rank %d came %d times, want about %.0f", rank+5, got, want)
		}
	}
}

// The law against the log that it stands for.
func TestEventsOfAmazonBeauty(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "shared", "data", "beauty", "Beauty.txt"))
	if err != nil {
		t.Skipf("no log of Amazon Beauty: %v", err)
	}
	var events []float64
	sum := 0.0
	for line := range strings.Lines(string(text)) {
		n := float64(len(strings.Fields(line)) - 1)
		events = append(events, n)
		sum += n
	}
	slices.Sort(events)
	slices.Reverse(events)
	law := Beauty(Scale{}).Events
	log := newEventLog(law, len(events), Lengths{Mean: 100, Min: 1, Max: 10_000})
	if law.Most != events[0] {
		t.Errorf("the most active user has %.0f events, the law's %.0f", events[0], law.Most)
	}
	above := 0.0
	for i, n := range events {
		above += n
		if i+1 < len(events) && events[i+1] == n {
			continue
		}
		q := float64(i+1) / float64(len(events)) // share of users with at least n
		most := (law.Most - law.Min) / law.scale()
		want := math.Pow(1+min((n-0.5-law.Min)/law.scale(), most), -law.Tail)
		if math.Abs(q-want) > 0.006 {
			t.Errorf("%.4f of the users have %.0f events or more, by the law %.4f", q, n, want)
		}
		if got, want := above/sum, log.below(want)/log.total; math.Abs(got-want) > 0.02 {
			t.Errorf("users with %.0f events or more have %.4f of the events, by the law %.4f", n, got, want)
		}
	}
}

func TestScaledTokensKeepTheirMean(t *testing.T) {
	for _, spec := range Table1(Scale{Users: 0.001, Items: 0.001, Tokens: 0.2}) {
		s, err := Measure(spec, 200)
		if err != nil {
			t.Fatal(err)
		}
		p := paper(s.Name)
		if want := max(0.2*p.itemTokens, 2); math.Abs(s.ItemTokens-want) > 0.02*want {
			t.Errorf("%s: %.3f tokens per item, want %.3f", s.Name, s.ItemTokens, want)
		}
		if spec.Items < 2000 || spec.Users < 10 {
			t.Errorf("%s: scaled to %d users and %d items", s.Name, spec.Users, spec.Items)
		}
	}
}

func TestStreamIsReproducible(t *testing.T) {
	spec := Books(Scale{Users: 0.001, Items: 0.01})
	spec.Growth, spec.NewItems = 0.5, 50
	a, b := mustNew(t, spec), mustNew(t, spec)
	spec.Seed++
	other := mustNew(t, spec)
	same := 0
	for i := range 300 {
		ra, rb := a.Next(), b.Next()
		if !reflect.DeepEqual(ra, rb) {
			t.Fatalf("request %d is %v and %v", i, ra, rb)
		}
		if !slices.Equal(a.UserAt(ra.User, ra.Version), b.UserAt(rb.User, rb.Version)) {
			t.Fatalf("request %d: user %d has different tokens", i, ra.User)
		}
		if ra.User == other.Next().User {
			same++
		}
	}
	if same > 30 {
		t.Errorf("another seed asks for the same user in %d of 300 requests", same)
	}
	if slices.Equal(a.Item(0), other.Item(0)) {
		t.Error("another seed gives item 0 the same tokens")
	}
}

func TestRequests(t *testing.T) {
	spec := Beauty(Scale{Users: 0.05, Items: 0.2})
	w := mustNew(t, spec)
	var last time.Duration
	for i := range 500 {
		r := w.Next()
		if r.At < last {
			t.Fatalf("request %d at %v comes before %v", i, r.At, last)
		}
		last = r.At
		if r.User < 0 || r.User >= spec.Users || r.Version != 0 {
			t.Fatalf("request %d is of user %d, version %d", i, r.User, r.Version)
		}
		ids := slices.Clone(r.Items)
		slices.Sort(ids)
		if len(slices.Compact(ids)) != 100 || ids[0] < 0 || ids[99] >= spec.Items {
			t.Fatalf("request %d: candidates are not 100 distinct items: %v", i, ids)
		}
	}
}

func TestRequestsHaveTheirRate(t *testing.T) {
	spec := mustNamed("games-bursts", Scale{Items: 0.5})
	spec.Candidates = 2
	w := mustNew(t, spec)
	var last time.Duration
	for range spec.HourRequests() {
		last = w.Next().At
	}
	// At the end sessions are under way that have requests left: of minutes, not of an hour.
	if h := last.Hours(); math.Abs(h-1) > 0.05 {
		t.Errorf("an hour's requests took %.3f hours", h)
	}
}

// Sessions make a user's requests come close together.
func TestRequestsComeInBursts(t *testing.T) {
	spec := Industry(Scale{Users: 0.02, Items: 0.01})
	w := mustNew(t, spec)
	last := map[int]time.Duration{}
	repeats, soon := 0, 0
	for range spec.HourRequests() {
		r := w.Next()
		if before, ok := last[r.User]; ok {
			repeats++
			if r.At-before < 5*time.Minute {
				soon++
			}
		}
		last[r.User] = r.At
	}
	// Spread evenly over an hour, repeats within five minutes would be one in six at most.
	if share := float64(soon) / float64(repeats); share < 0.4 {
		t.Errorf("%d of %d repeats are within five minutes, want bursts", soon, repeats)
	}
}

func TestHistoriesGrow(t *testing.T) {
	spec := Games(Scale{Users: 0.01, Items: 0.25})
	spec.Growth = 0.5
	w := mustNew(t, spec)
	versions := map[int]int{}
	events, returns := 0, 0
	for range 3000 {
		r := w.Next()
		before, seen := versions[r.User]
		if !seen && r.Version != 0 || r.Version < before {
			t.Fatalf("user %d went from version %d (seen: %v) to %d", r.User, before, seen, r.Version)
		}
		if n := w.UserLen(r.User, r.Version); n > spec.UserTokens.Max {
			t.Fatalf("user %d has grown to %d tokens, more than %d", r.User, n, spec.UserTokens.Max)
		}
		if seen {
			returns++
			events += r.Version - before
		}
		versions[r.User] = r.Version
	}
	if mean := float64(events) / float64(returns); math.Abs(mean-0.5) > 0.08 {
		t.Errorf("%.3f events between requests, want 0.5", mean)
	}
}

func TestNewItems(t *testing.T) {
	spec := Games(Scale{Users: 0.01, Items: 0.25})
	spec.NewItems = 500
	w := mustNew(t, spec)
	var last time.Duration
	newer, hot, all := 0, 0, 0
	for range 2000 {
		r := w.Next()
		last = r.At
		for _, j := range r.Items {
			if j >= spec.Items {
				newer++
			}
			if w.ItemRank(j) < spec.Items/10 {
				hot++
			}
			all++
		}
	}
	appeared, want := w.ItemCount()-spec.Items, 500*last.Hours()
	if math.Abs(float64(appeared)-want) > 5*math.Sqrt(want) {
		t.Errorf("%d items appeared in %v, want about %.0f", appeared, last, want)
	}
	if newer == 0 {
		t.Error("no new item was asked for")
	}
	if share := float64(hot) / float64(all); math.Abs(share-0.9) > 0.01 {
		t.Errorf("%.3f of the accesses are on the hottest tenth, want 0.9 while items appear", share)
	}
}

func TestTokens(t *testing.T) {
	spec := Games(Scale{Users: 0.1})
	spec.Vocab = 1000
	w := mustNew(t, spec)
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, spec.Users-1).Draw(t, "user")
		v := rapid.IntRange(0, 20).Draw(t, "version")
		before, after := w.UserAt(i, v), w.UserAt(i, v+1)
		if len(after) <= len(before) || !slices.Equal(before, after[:len(before)]) {
			t.Fatalf("user %d: version %d is not a prefix of the next", i, v)
		}
		if len(after) != w.UserLen(i, v+1) {
			t.Fatalf("user %d: %d tokens, UserLen says %d", i, len(after), w.UserLen(i, v+1))
		}
		j := rapid.IntRange(0, spec.Items+100).Draw(t, "item")
		item := w.Item(j)
		if len(item) != w.ItemLen(j) || len(item) == 0 || !slices.Equal(item, w.Item(j)) {
			t.Fatalf("item %d: %d tokens, ItemLen says %d", j, len(item), w.ItemLen(j))
		}
		for _, tok := range append(after, item...) {
			if tok < 0 || int(tok) >= spec.Vocab {
				t.Fatalf("token %d is not in the vocabulary of %d", tok, spec.Vocab)
			}
		}
	})
	if n := len(w.Instruction()); n != spec.Instruction {
		t.Errorf("instruction of %d tokens, want %d", n, spec.Instruction)
	}
}

// Different ids must not share tokens, or a cache keyed by content would find what is not there.
func TestTokensDiffer(t *testing.T) {
	w := mustNew(t, Games(Scale{}))
	seen := map[string]int{}
	for j := range 8000 {
		item := w.Item(j)
		if len(item) < 4 {
			continue // short ones may collide
		}
		text := fmt.Sprint(item)
		if other, ok := seen[text]; ok {
			t.Fatalf("items %d and %d have the same tokens", other, j)
		}
		seen[text] = j
	}
}

func TestActiveUsersHaveLongHistories(t *testing.T) {
	w := mustNew(t, Industry(Scale{Users: 0.001, Items: 0.002}))
	var active, rest []float64
	for i := range w.Spec().Users {
		n := float64(w.UserLen(i, 0))
		if w.UserRank(i) < w.Spec().Users/10 {
			active = append(active, n)
		} else {
			rest = append(rest, n)
		}
	}
	if a, b := mean(active), mean(rest); a < 1.3*b {
		t.Errorf("the most active tenth has %.0f tokens, the others %.0f", a, b)
	}
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func TestValidate(t *testing.T) {
	for what, spoil := range map[string]func(*Spec){
		"users":            func(s *Spec) { s.Users = 0 },
		"candidates":       func(s *Spec) { s.Candidates = s.Items + 1 },
		"vocabulary":       func(s *Spec) { s.Vocab = 0 },
		"activity":         func(s *Spec) { s.Activity = 0 },
		"tie":              func(s *Spec) { s.Tie = 2 },
		"session":          func(s *Spec) { s.Session.Single = 2 },
		"user tokens":      func(s *Spec) { s.UserTokens.Max = 10 },
		"item skew":        func(s *Spec) { s.ItemSkew.Share = 1 },
		"user skew":        func(s *Spec) { s.Events, s.UserSkew = Events{}, Skew{} },
		"events":           func(s *Spec) { s.Events.Tail = 1 },
		"growth":           func(s *Spec) { s.Growth = -1 },
		"fewer candidates": func(s *Spec) { s.Items = 800 }, // 80 hot ones cannot be 90 of 100
	} {
		spec := Games(Scale{})
		spoil(&spec)
		if _, err := New(spec); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s out of range gives %v", what, err)
		}
	}
	for _, name := range []string{"Industry-spread", "games-bursts", "beauty-bursts", "books-bursts", "industry-bursts"} {
		if spec, err := Named(name, Scale{Users: 0.01, Items: 0.01}); err != nil || !strings.EqualFold(spec.Name, name) {
			t.Errorf("%s: %q, %v", name, spec.Name, err)
		}
	}
	if _, err := Named("movies", Scale{}); err == nil {
		t.Error("a workload of an unknown name")
	}
	if _, err := Named("books", Scale{Users: 2}); err == nil {
		t.Error("a scale of 2 is accepted")
	}
}

// The sampler against the chances it stands for.
func TestZipfDrawsItsChances(t *testing.T) {
	for _, c := range []struct {
		n, v int
		s    float64
	}{{10, 1, 0.5}, {50, 1, 1}, {1, 1, 1.2}, {1000, 1, 1.2}, {300, 100, 3.7}, {2000, 100, 8}, {40, 7, 0}} {
		z := newZipf(c.n, c.v, c.s)
		r := rand.New(rand.NewPCG(1, 2))
		const draws = 200_000
		counts := make([]int, c.n)
		for range draws {
			counts[z.draw(r)]++
		}
		sum := 0.0
		for k := range c.n {
			sum += math.Pow(float64(k+c.v)/float64(c.v), -c.s)
		}
		for k, got := range counts {
			want := draws * math.Pow(float64(k+c.v)/float64(c.v), -c.s) / sum
			if math.Abs(float64(got)-want) > 5*math.Sqrt(want)+5 {
				t.Errorf("n=%d v=%d s=%v: rank %d drawn %d times, want about %.0f", c.n, c.v, c.s, k, got, want)
			}
		}
	}
}

func TestLengthsHaveTheirMean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Lengths{Min: rapid.IntRange(1, 20).Draw(t, "min")}
		s.Max = s.Min + rapid.IntRange(5, 2000).Draw(t, "room")
		s.Mean = float64(s.Min) + rapid.Float64Range(0.1, 0.6).Draw(t, "mean")*float64(s.Max-s.Min)
		s.Sigma = rapid.Float64Range(0.1, 1.5).Draw(t, "sigma")
		l := newLengths(s)
		const n = 20_000
		sum := 0
		for i := range n {
			k := l.at(normalQuantile((float64(i) + 0.5) / n))
			if k < s.Min || k > s.Max {
				t.Fatalf("%+v gives %d", s, k)
			}
			sum += k
		}
		if got := float64(sum) / n; math.Abs(got-s.Mean) > 0.002*s.Mean+0.01 {
			t.Fatalf("%+v has the mean %.3f", s, got)
		}
	})
	if got := newLengths(Lengths{Mean: 12, Min: 1, Max: 20}).at(3); got != 12 {
		t.Errorf("without spread a length is %d, want the mean 12", got)
	}
}

func TestRankingIsABijection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3000).Draw(t, "n")
		r := newRanking(n, rapid.Uint64().Draw(t, "seed"), itemRanks)
		seen := make([]bool, n)
		for rank := range n {
			id := r.id(rank)
			if id < 0 || id >= n || seen[id] || r.rank(id) != rank {
				t.Fatalf("n=%d: rank %d has id %d, whose rank is %d", n, rank, id, r.rank(id))
			}
			seen[id] = true
		}
	})
}

// paper returns the column of Table 1, or nil for other workloads.
func paper(name string) *shape {
	for i := range shapes {
		if strings.EqualFold(shapes[i].name, name) {
			return &shapes[i].shape
		}
	}
	return nil
}
