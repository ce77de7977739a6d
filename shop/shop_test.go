package shop

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/catalog"
)

func world(t *testing.T) *World {
	t.Helper()
	w, err := New(1, Default)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// The trained models know this world: a change of a word or a weight makes them wrong, and shows here.
func TestTheWorldStays(t *testing.T) {
	w := world(t)
	var b bytes.Buffer
	if err := w.WriteItems(&b); err != nil {
		t.Fatal(err)
	}
	for _, split := range []Split{Train, Validation, Test} {
		for n := range 20 {
			u := w.User(split, n)
			if err := w.WriteUser(&b, u); err != nil {
				t.Fatal(err)
			}
			for _, i := range append(slices.Clone(u.Offer), u.Next, u.Chosen) {
				b.WriteString(w.Items[i].ID)
			}
		}
	}
	sum := sha256.Sum256(b.Bytes())
	const want = "1b414475c50dd354"
	if got := hex.EncodeToString(sum[:8]); got != want {
		t.Errorf("the world of seed 1 is %s, was %s: models that were trained on it do not fit any more; if that is meant, "+
			"train them again", got, want)
	}
}

func TestItems(t *testing.T) {
	w := world(t)
	if n := len(w.Items); n < 9000 || n > Default {
		t.Errorf("%d items, want about %d", n, Default)
	}
	titles := map[string]bool{}
	late := 0
	for i := range w.Items {
		it := &w.Items[i]
		if titles[it.Title] {
			t.Errorf("two items are called %q", it.Title)
		}
		titles[it.Title] = true
		if it.style < 0 || it.Cents <= 0 {
			t.Errorf("%+v has no style or price", it)
		}
		if it.Appears > 0 {
			late++
		}
	}
	if share := float64(late) / float64(len(w.Items)); math.Abs(share-0.2) > 0.03 {
		t.Errorf("%.2f of the items appear later, want a fifth", share)
	}
}

// The draws must follow the probabilities that are called true: next purchases of one state, by the
// share of them that falls on the likeliest item, category by category, and on the ten likeliest.
func TestDrawsFollowProbabilities(t *testing.T) {
	w := world(t)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 3 {
		s := w.State(w.User(Test, n))
		best := s.Best(len(w.Items))
		var total float64
		for _, b := range best {
			total += b.P
		}
		if math.Abs(total-1) > 1e-9 {
			t.Errorf("user %d: probabilities add up to %v, want 1", n, total)
		}
		const draws = 20_000
		seen := make([]int, len(w.Items))
		for range draws {
			seen[s.drawItem(r)]++
		}
		for _, cut := range []int{1, 10, 100, 1000} {
			var p float64
			got := 0
			for _, b := range best[:cut] {
				p += b.P
				got += seen[b.Item]
			}
			if d := math.Abs(float64(got)/draws - p); d > 5*math.Sqrt(p*(1-p)/draws) {
				t.Errorf("user %d: %.4f of the draws are among the %d likeliest, want %.4f", n, float64(got)/draws, cut, p)
			}
		}
	}
}

// Chosen must follow the same probabilities within the offer, or ranking by them would not be best.
func TestChoicesFollowProbabilities(t *testing.T) {
	w := world(t)
	const users = 1500
	var expected, variance float64
	hits := 0
	for n := range users {
		u := w.User(Validation, n)
		p := w.State(u).Probabilities(u.Offer)
		var total float64
		for _, x := range p {
			total += x
		}
		best := slices.Max(p)
		if u.Offer[slices.Index(p, best)] == u.Chosen {
			hits++
		}
		expected += best / total
		variance += best / total * (1 - best/total)
	}
	if d := math.Abs(float64(hits) - expected); d > 4*math.Sqrt(variance) {
		t.Errorf("%d of %d customers take the likeliest offer, want %.0f", hits, users, expected)
	}
}

// State must be a function of what the text says: it is rebuilt here from the text alone.
func TestTheTextSaysEverything(t *testing.T) {
	w := world(t)
	byText := map[string]int{}
	for i := range w.Items {
		byText[w.Items[i].Text()] = i
	}
	for n := range 50 {
		u := w.User(Test, n)
		got, want := read(t, w, w.Text(u), byText), w.State(u)
		a, b := got.Probabilities(u.Offer), want.Probabilities(u.Offer)
		if !slices.Equal(a, b) {
			t.Fatalf("user %d: probabilities from the text differ from those of the state\n%s", n, w.Text(u))
		}
	}
}

// read parses a customer's text.
func read(t *testing.T, w *World, text string, byText map[string]int) *State {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var p Profile
	for d := range shelves {
		if strings.Contains(lines[0], shelves[d].hobby) {
			p.Hobbies = append(p.Hobbies, d)
		}
	}
	slices.SortFunc(p.Hobbies, func(a, b int) int {
		return strings.Index(lines[0], shelves[a].hobby) - strings.Index(lines[0], shelves[b].hobby)
	})
	for k, words := range styleTastes {
		if strings.Contains(lines[0], words) {
			p.Styles = append(p.Styles, k)
		}
	}
	p.Budget = slices.IndexFunc(budgets, func(b string) bool { return strings.HasSuffix(lines[0], b) })
	s := w.Start(&p)
	for _, l := range lines[1:] {
		switch {
		case l == "":
		case strings.HasPrefix(l, "- "):
			at := strings.Index(l, "/5 ")
			item, ok := byText[l[2:at-3]]
			if !ok {
				t.Fatalf("no item %q", l[2:at-3])
			}
			s.Buy(item, int(l[at-1]-'0'))
		default:
			day, query, found := strings.Cut(l, ", searched for ")
			s.Visit(dayOf(t, day))
			if found {
				s.Search(slices.IndexFunc(w.categories, func(c category) bool {
					return slices.Contains(c.queries, strings.Trim(query, `"`))
				}))
			}
		}
	}
	return s
}

func dayOf(t *testing.T, text string) int {
	t.Helper()
	for d := range Days + 1 {
		if date(d).Format("2 January 2006") == text {
			return d
		}
	}
	t.Fatalf("no day %q", text)
	return 0
}

// No two searches may read the same and mean something else.
func TestQueriesAreOfOneCategory(t *testing.T) {
	seen := map[string]string{}
	for _, c := range world(t).categories {
		for _, q := range c.queries {
			if other := seen[q]; other != "" {
				t.Errorf("%q is a search for %s and for %s", q, other, c.name)
			}
			seen[q] = c.name
		}
	}
}

func TestHistoriesGrow(t *testing.T) {
	w := world(t)
	u := w.User(Train, 3)
	short := *u
	short.Visits = u.Visits[:len(u.Visits)-1]
	if a, b := w.Text(&short), w.Text(u); !strings.HasPrefix(b, a) {
		t.Errorf("a longer history does not begin with the shorter one: %q, %q", a, b)
	}
}

// A question in the middle must read as the history did then, and its answer must be what came.
func TestBefore(t *testing.T) {
	w := world(t)
	for n := range 20 {
		u := w.User(Train, n)
		text, all := w.Text(u), w.UserMessage(u).History
		for k := range u.Events() {
			b := w.Before(u, Train, n, k)
			short := w.Text(b)
			rest, ok := strings.CutPrefix(text, short)
			if !ok || !strings.HasPrefix(rest, "- "+w.Items[b.Next].Text()+".") {
				t.Fatalf("user %d before %d: the text is no beginning that ends before the purchase:\n%s", n, k, short)
			}
			if got := w.UserMessage(b).History; !slices.Equal(got, all[:k]) || w.Items[b.Next].ID != all[k] {
				t.Errorf("user %d before %d: history %v and then %s", n, k, got, w.Items[b.Next].ID)
			}
			if !slices.Contains(b.Offer, b.Chosen) {
				t.Errorf("user %d before %d: took what was not offered", n, k)
			}
		}
	}
}

func TestNothingIsBoughtTwiceOrEarly(t *testing.T) {
	w := world(t)
	for n := range 100 {
		u := w.User(Train, n)
		seen := map[int]bool{}
		check := func(item, day int) {
			if seen[item] || w.Items[item].Appears > day {
				t.Errorf("user %d: %s twice, or before it appeared", n, w.Items[item].ID)
			}
		}
		for _, v := range u.Visits {
			for _, p := range v.Purchases {
				check(p.Item, v.Day)
				seen[p.Item] = true
			}
		}
		check(u.Next, Days)
		if !slices.Contains(u.Offer, u.Chosen) || len(u.Offer) != offerSize {
			t.Errorf("user %d: took what was not offered, or of %d", n, len(u.Offer))
		}
		for _, i := range u.Offer {
			check(i, Days)
		}
	}
}

func TestSplitsAreDifferentPeople(t *testing.T) {
	w := world(t)
	texts := map[string]string{}
	for _, split := range []Split{Train, Validation, Test} {
		for n := range 200 {
			u := w.User(split, n)
			text := w.Text(u)
			if other := texts[text]; other != "" {
				t.Errorf("%s and %s are the same", u.ID, other)
			}
			texts[text] = u.ID
		}
	}
}

func TestExponentials(t *testing.T) {
	for k := -maxPoints; k <= maxPoints; k++ {
		want := math.Ldexp(math.Exp(float64(k)/16), 20)
		if got := float64(exponential(k)); math.Abs(got-want) > 1+want*1e-9 {
			t.Errorf("e^(%d/16) is %v, want %v", k, got, want)
		}
	}
}

// What is exported must be what the server's catalog takes.
func TestExportsAreImported(t *testing.T) {
	w := world(t)
	dir := t.TempDir()
	var items, users bytes.Buffer
	if err := w.WriteItems(&items); err != nil {
		t.Fatal(err)
	}
	for n := range 30 {
		if err := w.WriteUser(&users, w.User(Test, n)); err != nil {
			t.Fatal(err)
		}
	}
	c := catalog.New(catalog.Options{})
	for name, load := range map[string]func(string) (int, error){"items": c.LoadItems, "users": c.LoadUsers} {
		data := map[string][]byte{"items": items.Bytes(), "users": users.Bytes()}[name]
		path := filepath.Join(dir, name+".ndjson")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := load(path); err != nil || n != bytes.Count(data, []byte("\n")) {
			t.Errorf("%s: %d lines were taken: %v", name, n, err)
		}
	}
}

func TestTrace(t *testing.T) {
	w := world(t)
	a, b := w.Trace(Test, 20, 200, 50, 7), w.Trace(Test, 20, 200, 50, 7)
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	if !bytes.Equal(x, y) {
		t.Error("one seed gives two traces")
	}
	if !slices.IsSortedFunc(a, func(p, q Request) int { return int(p.AtMs - q.AtMs) }) {
		t.Error("arrivals go back")
	}
	if rate := 200 / (float64(a[199].AtMs) / 1000); rate < 35 || rate > 70 {
		t.Errorf("%.0f requests per second, want about 50", rate)
	}
}

// The stream says what the text says: every purchase with its stars, every visit and search, the profile.
func TestStreamSaysWhatTheTextSays(t *testing.T) {
	w := world(t)
	marks := w.Marks()
	for n := range 20 {
		u := w.User(Test, n)
		var purchases, visits, searches, profile int
		for _, r := range w.Stream(u) {
			switch {
			case r.Purchase():
				purchases++
			case marks[r.Mark] == visitRow:
				visits++
			case strings.HasPrefix(marks[r.Mark], searchRow):
				searches++
			default:
				profile++
			}
		}
		text := w.Text(u)
		if purchases != u.Events() || searches != strings.Count(text, ", searched for") || visits+searches != len(u.Visits) {
			t.Errorf("customer %d: %d purchases, %d visits, %d searches for\n%s", n, purchases, visits, searches, text)
		}
		if want := len(u.Profile.Hobbies) + len(u.Profile.Styles) + 1; profile != want {
			t.Errorf("customer %d: %d rows of the profile, want %d", n, profile, want)
		}
	}
}
