package eval

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
	"grebe/shop"
)

// Question is what ways are asked about one user. It is a line of requests.ndjson.
type Question struct {
	User string `json:"user"`
	// Events, unless nil, says that the question is asked in the middle of the user's history, after so
	// many events: such questions are for training.
	Events     *int     `json:"events,omitempty"`
	Candidates []string `json:"candidates"`
	Chosen     string   `json:"chosen"`         // the candidate that the user took
	Next       string   `json:"next,omitempty"` // what the user took of the whole catalog
	// Probabilities, where they are known, are the true ones of the candidates to be taken from the
	// whole catalog; within the list they are in proportion to these.
	Probabilities []float64 `json:"probabilities,omitempty"`
	Best          []Likely  `json:"best,omitempty"` // likeliest items of the whole catalog, best first
}

// Likely is an item and its true probability.
type Likely struct {
	ID string  `json:"id"`
	P  float64 `json:"p"`
}

// Data is items, users and questions.
type Data struct {
	Name      string
	Questions []Question
	Notes     []string // what a reader of the results must know

	items  map[string]*grebev1.Item
	order  []string // ids of all items
	users  map[string]*grebev1.User
	counts map[string]int // how often each item was taken, by people other than in the questions' answers

	// chances returns the true probabilities of items to be question k's next; nil where they are not known.
	chances func(k int, ids []string) []float64
}

// Known reports whether the true probabilities are known.
func (d *Data) Known() bool { return len(d.Questions) > 0 && len(d.Questions[0].Probabilities) > 0 }

// Identifiers reports whether the items have identifiers.
func (d *Data) Identifiers() bool { return len(d.order) > 0 && d.items[d.order[0]].Identifier != nil }

// Texts reports whether the users come with a text.
func (d *Data) Texts() bool {
	return len(d.Questions) > 0 && d.users[d.Questions[0].User].Text != nil
}

// counted is the number of training customers whose purchases make the popularity of the shop.
const counted = 2000

// Shop returns questions of the first test customers of the shop.
func Shop(w *shop.World, users int) *Data { return ShopFrom(w, 0, users) }

// ShopFrom is Shop without some of the first customers.
func ShopFrom(w *shop.World, first, users int) *Data {
	d := newData("the shop, test customers (in no training split)")
	if first > 0 {
		d.Name += fmt.Sprintf(" without the first %d", first)
	}
	for i := range w.Items {
		d.addItem(w.ItemMessage(i))
	}
	histories := make([][]string, counted)
	onAllCores(counted, func(n int) { histories[n] = w.UserMessage(w.User(shop.Train, n)).History })
	for _, h := range histories {
		d.count(h)
	}
	numbers := make(map[string]int, len(w.Items))
	for i := range w.Items {
		numbers[w.Items[i].ID] = i
	}
	states := d.customers(w, first, users)
	d.chances = func(k int, ids []string) []float64 {
		items := make([]int, len(ids))
		for i, id := range ids {
			items[i] = numbers[id]
		}
		return states[k].Probabilities(items)
	}
	return d
}

// customers adds test customers and the questions about them, and returns what they want.
func (d *Data) customers(w *shop.World, first, n int) []*shop.State {
	d.Questions = make([]Question, n)
	states, messages := make([]*shop.State, n), make([]*grebev1.User, n)
	onAllCores(n, func(k int) {
		u := w.User(shop.Test, first+k)
		d.Questions[k], states[k], messages[k] = Ask(w, u), w.State(u), w.UserMessage(u)
	})
	for _, m := range messages {
		d.users[m.Id] = m
	}
	return states
}

// onAllCores calls f with 0 to n-1.
func onAllCores(n int, f func(k int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for k := int(next.Add(1)) - 1; k < n; k = int(next.Add(1)) - 1 {
				f(k)
			}
		})
	}
	wg.Wait()
}

// IsShop reports whether a file has the items of the shop: all of them, and no others.
func IsShop(path string, w *shop.World) (bool, error) {
	own := make(map[string]bool, len(w.Items))
	for i := range w.Items {
		own[w.Items[i].ID] = true
	}
	others := false
	err := lines(path, func(line []byte) error {
		it, err := wire.DecodeItem(line)
		if err != nil {
			return err
		}
		if _, ok := own[it.Id]; !ok {
			others = true
		}
		delete(own, it.Id)
		return nil
	})
	return !others && len(own) == 0, err
}

// Equip takes the items as a file has them, with identifiers and codes; all items must be in it.
func (d *Data) Equip(path string) error {
	known := map[string]bool{}
	err := lines(path, func(line []byte) error {
		it, err := wire.DecodeItem(line)
		if err != nil {
			return err
		}
		if d.items[it.Id] == nil {
			return fmt.Errorf("id: %q is no item of %s", it.Id, d.Name)
		}
		known[it.Id] = true
		d.items[it.Id] = it
		return nil
	})
	if err == nil && len(known) < len(d.items) {
		err = fmt.Errorf("eval: %s: %d of the %d items of %s are missing", path, len(d.items)-len(known), len(d.items),
			d.Name)
	}
	return err
}

// Ask returns the question at the end of a customer's visits, with what is known of the answer.
func Ask(w *shop.World, u *shop.User) Question {
	q, s := Plain(w, u), w.State(u)
	q.Probabilities = s.Probabilities(u.Offer)
	for _, b := range s.Best(generated) {
		q.Best = append(q.Best, Likely{w.Items[b.Item].ID, b.P})
	}
	return q
}

// Plain returns the question without the true probabilities: for training, which is to learn from what
// people took, as it would have to elsewhere.
func Plain(w *shop.World, u *shop.User) Question {
	return Question{User: u.ID, Candidates: w.IDs(u.Offer), Chosen: w.Items[u.Chosen].ID, Next: w.Items[u.Next].ID}
}

func newData(name string) *Data {
	return &Data{Name: name, items: map[string]*grebev1.Item{}, users: map[string]*grebev1.User{},
		counts: map[string]int{}}
}

func (d *Data) addItem(it *grebev1.Item) {
	if d.items[it.Id] == nil {
		d.order = append(d.order, it.Id)
	}
	d.items[it.Id] = it
}

func (d *Data) count(history []string) {
	for _, id := range history {
		d.counts[id]++
	}
}

// Files name NDJSON files. Requests may be empty: then each user's last item is held out, and the
// candidates are that one and others drawn at random.
type Files struct {
	Items, Users, Requests string
	Most                   int // users asked about; 0 all
	Candidates             int // of lists that are drawn; 100
	Seed                   uint64
}

// Read reads data from files.
func Read(f Files) (*Data, error) {
	d := newData(f.Users)
	err := lines(f.Items, func(line []byte) error {
		it, err := wire.DecodeItem(line)
		if err == nil {
			d.addItem(it)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var order []string
	err = lines(f.Users, func(line []byte) error {
		u, err := wire.DecodeUser(line)
		if err != nil {
			return err
		}
		if len(u.History) == 0 {
			for _, e := range u.Events {
				u.History = append(u.History, e.Item)
			}
		}
		d.users[u.Id] = u
		order = append(order, u.Id)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if f.Requests != "" {
		err = d.readQuestions(f)
	} else {
		err = d.holdOut(f, order)
	}
	if err != nil {
		return nil, err
	}
	for _, id := range order {
		d.count(d.users[id].History)
	}
	if len(d.Questions) == 0 {
		return nil, fmt.Errorf("eval: %s: no user with a history of two items of the catalog %s: the last item of each "+
			"history is held out to measure by",
			f.Users, f.Items)
	}
	return d, nil
}

func (d *Data) readQuestions(f Files) error {
	return lines(f.Requests, func(line []byte) error {
		if f.Most > 0 && len(d.Questions) == f.Most {
			return nil
		}
		var q Question
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&q); err != nil {
			return err
		}
		if err := d.check(&q); err != nil {
			return err
		}
		d.Questions = append(d.Questions, q)
		return nil
	})
}

func (d *Data) check(q *Question) error {
	if q.Events != nil {
		return fmt.Errorf("events: a question in the middle of a history is for training, not for measuring")
	}
	if d.users[q.User] == nil {
		return fmt.Errorf("user: no user %q", q.User)
	}
	for i, id := range q.Candidates {
		if d.items[id] == nil {
			return fmt.Errorf("candidates[%d]: no item %q", i, id)
		}
	}
	if !slices.Contains(q.Candidates, q.Chosen) {
		return fmt.Errorf("chosen: %q is no candidate", q.Chosen)
	}
	if n := len(q.Probabilities); n > 0 && n != len(q.Candidates) {
		return fmt.Errorf("probabilities: %d for %d candidates", n, len(q.Candidates))
	}
	sum := 0.0
	for i, p := range q.Probabilities {
		if p < 0 {
			return fmt.Errorf("probabilities[%d]: %v is negative", i, p)
		}
		sum += p
	}
	if len(q.Probabilities) > 0 && !(sum > 0 && sum <= math.MaxFloat64) {
		return fmt.Errorf("probabilities: their sum is %v", sum)
	}
	return nil
}

// holdOut takes each user's last item as the answer.
func (d *Data) holdOut(f Files, order []string) error {
	r := rand.New(rand.NewPCG(f.Seed, 1))
	if f.Candidates <= 0 {
		f.Candidates = 100
	}
	d.Notes = append(d.Notes, fmt.Sprintf("Each user's last item was held out: it is the right answer, among up to %d "+
		"candidates, the others drawn at random. "+
		"The best that is possible is not known.", f.Candidates))
	told := false
	for _, id := range order {
		if f.Most > 0 && len(d.Questions) == f.Most {
			break
		}
		u := d.users[id]
		last := len(u.History) - 1
		if last < 1 || d.items[u.History[last]] == nil {
			continue
		}
		if u.Text != nil && !told {
			told = true
			d.Notes = append(d.Notes, "Users have texts, which were used as they are: if a text names the item that was held "+
				"out, the result is too good.")
		}
		answer := u.History[last]
		u.History = u.History[:last]
		if len(u.Events) == last+1 {
			u.Events = u.Events[:last]
		}
		d.Questions = append(d.Questions, Question{User: id, Candidates: d.drawn(r, u, answer, f.Candidates), Chosen: answer,
			Next: answer})
	}
	return nil
}

// drawn returns the answer among other items that the user does not have, in random order.
func (d *Data) drawn(r *rand.Rand, u *grebev1.User, answer string, n int) []string {
	in := map[string]bool{answer: true}
	for _, id := range u.History {
		in[id] = true
	}
	out := []string{answer}
	for _, i := range r.Perm(len(d.order)) {
		if len(out) >= n {
			break
		}
		if id := d.order[i]; !in[id] {
			out = append(out, id)
		}
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// byPopularity orders items by how often they were taken; ties stay in order.
func (d *Data) byPopularity(ids []string) []string {
	out := slices.Clone(ids)
	slices.SortStableFunc(out, func(a, b string) int { return cmp.Compare(d.counts[b], d.counts[a]) })
	return out
}

// byRecency orders items by when the user last took one of their category, the latest first, and
// those of one category by popularity.
func (d *Data) byRecency(ids []string, user string) []string {
	last := map[string]int{}
	for i, id := range d.users[user].History {
		if c, ok := d.category(id); ok {
			last[c] = i + 1
		}
	}
	var known, rest []string
	for _, id := range d.byPopularity(ids) {
		if c, ok := d.category(id); ok && last[c] > 0 {
			known = append(known, id)
		} else {
			rest = append(rest, id)
		}
	}
	slices.SortStableFunc(known, func(a, b string) int {
		x, _ := d.category(a)
		y, _ := d.category(b)
		return cmp.Compare(last[y], last[x])
	})
	return append(known, rest...)
}

func (d *Data) category(id string) (string, bool) {
	it := d.items[id]
	if it == nil || it.Attributes["category"] == nil || len(it.Attributes["category"].Values) == 0 {
		return "", false
	}
	return it.Attributes["category"].Values[0], true
}

// shelves are the items of the whole catalog, the most popular first, and those of each category.
type shelves struct {
	all        []string
	byCategory map[string][]string
}

func (d *Data) shelves() *shelves {
	s := &shelves{all: d.byPopularity(d.order), byCategory: map[string][]string{}}
	for _, id := range s.all {
		if c, ok := d.category(id); ok {
			s.byCategory[c] = append(s.byCategory[c], id)
		}
	}
	return s
}

// first returns the first items that are not in a history: those of its categories, where category says them, the
// latest first, then all others, each by popularity.
func (s *shelves) first(history []string, category func(string) (string, bool)) []string {
	taken := map[string]bool{}
	for _, id := range history {
		taken[id] = true
	}
	var out []string
	add := func(ids []string) {
		for _, id := range ids {
			if len(out) == generated {
				return
			}
			if !taken[id] {
				taken[id] = true
				out = append(out, id)
			}
		}
	}
	if category != nil {
		for _, id := range slices.Backward(history) {
			if c, ok := category(id); ok {
				add(s.byCategory[c]) // again: nothing is left to add
			}
		}
	}
	add(s.all)
	return out
}

// lines calls each for the lines of a file that are not empty.
func lines(path string, each func([]byte) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("eval: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		if err := each(s.Bytes()); err != nil {
			return fmt.Errorf("eval: %s:%d: %w", path, n, err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("eval: %s: %w", path, err)
	}
	return nil
}
