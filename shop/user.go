package shop

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Split says what a customer is for. Customers of different splits are different people.
type Split uint64

// The splits.
const (
	Train Split = iota
	Validation
	Test
)

func (s Split) String() string { return [...]string{"train", "validation", "test"}[s] }

// User is a customer: a profile and visits. The last visit is under way.
type User struct {
	ID      string
	Profile Profile
	Visits  []Visit
	Next    int   // the purchase that follows, from the whole shop
	Offer   []int // distinct items that the shop shows, in no order
	Chosen  int   // what the customer takes when shown Offer
}

// Visit is a day on which a customer came.
type Visit struct {
	Day       int
	Search    int    // category; −1 none
	Query     string // what was typed
	Purchases []Purchase
}

// Purchase is an item that was bought, and what the customer says of it.
type Purchase struct {
	Item   int
	Stars  int // 1 to 5
	Review string
}

const (
	leastEvents  = 5
	mostEvents   = 80
	eventsTail   = 22 // mean number above the least, before the most cuts it
	offerSize    = 100
	offerPopular = 30 // of them by popularity
	offerSuited  = 45 // from the shelves that the state suggests, by popularity
)

// User returns customer n of a split.
func (w *World) User(split Split, n int) *User {
	r := rand.New(rand.NewPCG(w.seed*8+streamUsers, uint64(split)<<40|uint64(n)))
	u := &User{ID: fmt.Sprintf("%s-%d", split, n), Profile: w.profile(r)}
	s := w.Start(&u.Profile)
	days, sizes := plan(r)
	for i, day := range days {
		v := Visit{Day: day, Search: -1}
		s.Visit(day)
		if r.IntN(100) < 35 {
			v.Search = w.wish(r, s)
			v.Query = pick(r, w.categories[v.Search].queries)
			s.Search(v.Search)
		}
		n := sizes[i]
		if i == len(days)-1 {
			n-- // the next one is the question
		}
		for range n {
			p := w.purchase(r, s)
			s.Buy(p.Item, p.Stars)
			v.Purchases = append(v.Purchases, p)
		}
		u.Visits = append(u.Visits, v)
	}
	u.Next = s.drawItem(r)
	u.Offer = s.offer(r)
	u.Chosen = u.Offer[s.drawFrom(r, u.Offer)]
	return u
}

// Events returns the number of purchases in a customer's visits.
func (u *User) Events() int {
	n := 0
	for i := range u.Visits {
		n += len(u.Visits[i].Purchases)
	}
	return n
}

// Before returns customer n of a split as they were before purchase k, counted from 0: their text is
// that of u up to the line of that purchase, which is Next. Offer and Chosen are drawn anew. It gives
// models more questions to learn from than the one at the end.
func (w *World) Before(u *User, split Split, n, k int) *User {
	r := rand.New(rand.NewPCG(w.seed*8+streamCuts, uint64(split)<<56|uint64(n)<<16|uint64(k)))
	out := &User{ID: u.ID, Profile: u.Profile}
	for i := range u.Visits {
		v := u.Visits[i]
		if k < len(v.Purchases) {
			out.Next = v.Purchases[k].Item
			v.Purchases = v.Purchases[:k:k]
			out.Visits = append(out.Visits, v)
			break
		}
		k -= len(v.Purchases)
		out.Visits = append(out.Visits, v)
	}
	s := w.State(out)
	out.Offer = s.offer(r)
	out.Chosen = out.Offer[s.drawFrom(r, out.Offer)]
	return out
}

// State returns the state of a customer at the end of the visits, which decides Next and Chosen.
func (w *World) State(u *User) *State {
	s := w.Start(&u.Profile)
	for i := range u.Visits {
		v := &u.Visits[i]
		s.Visit(v.Day)
		if v.Search >= 0 {
			s.Search(v.Search)
		}
		for _, p := range v.Purchases {
			s.Buy(p.Item, p.Stars)
		}
	}
	return s
}

func (w *World) profile(r *rand.Rand) Profile {
	p := Profile{Name: pick(r, firstNames), Budget: r.IntN(tiers)}
	crowds := slices.Clone(w.crowds)
	for range 2 + r.IntN(3) {
		d := draw(r, crowds)
		crowds[d] = 0
		p.Hobbies = append(p.Hobbies, d)
	}
	p.Styles = r.Perm(len(styleNames))[:2]
	return p
}

// plan draws the days of the visits and their numbers of purchases.
func plan(r *rand.Rand) (days, sizes []int) {
	left := leastEvents
	for left < mostEvents && r.IntN(eventsTail+1) > 0 {
		left++
	}
	var gaps []int
	span := 0
	for left > 0 {
		n := 1
		for n < 5 && r.IntN(2) == 0 {
			n++
		}
		n = min(n, left)
		left -= n
		gap := 2 + r.IntN(26)
		sizes, gaps = append(sizes, n), append(gaps, gap)
		span += gap
	}
	day := Days
	days = make([]int, len(sizes))
	for i := len(days) - 1; i >= 0; i-- {
		days[i] = day
		if span > Days-10 {
			day -= max(1, gaps[i]*(Days-10)/span)
			continue
		}
		day -= gaps[i]
	}
	return days, sizes
}

// wish draws what a search is for: mostly an interest, sometimes something new.
func (w *World) wish(r *rand.Rand, s *State) int {
	if r.IntN(4) == 0 {
		return r.IntN(len(w.categories))
	}
	weights := make([]uint64, len(s.interest))
	for c, x := range s.interest {
		weights[c] = uint64(x) + 1
	}
	return draw(r, weights)
}

func (w *World) purchase(r *rand.Rand, s *State) Purchase {
	item := s.drawItem(r)
	it := &w.Items[item]
	// Luck counts as much as taste: three throws of a die, and what style and brand suggest.
	luck := 3 + r.IntN(12) + r.IntN(12) + r.IntN(12) + (s.style[it.style]+s.brand[it.brand])/3
	stars := 1
	for _, bound := range []int{11, 16, 22, 29} {
		if luck >= bound {
			stars++
		}
	}
	return Purchase{Item: item, Stars: stars, Review: review(r, it, w.categories[it.category].department, stars)}
}

// drawItem draws the next purchase.
func (s *State) drawItem(r *rand.Rand) int {
	cats := s.categories()
	var shelf []uint64
	for {
		c := draw(r, cats)
		shelf = s.shelf(c, shelf)
		if slices.Max(shelf) > 0 {
			return s.w.categories[c].items[draw(r, shelf)]
		}
		cats[c] = 0 // sold out for this customer
	}
}

// drawFrom draws the place of what the customer takes from a list.
func (s *State) drawFrom(r *rand.Rand, list []int) int {
	const grain = 1 << 40
	weights := make([]uint64, len(list))
	for i, p := range s.Probabilities(list) {
		weights[i] = uint64(p * grain)
	}
	return draw(r, weights)
}

// offer draws a list of distinct items that the customer does not have, without regard to what the
// customer will take.
func (s *State) offer(r *rand.Rand) []int {
	in := map[int]bool{}
	var out []int
	cats := s.categories()
	for len(out) < min(offerSize, len(s.w.Items)/2) {
		var i int
		switch {
		case len(out) < offerPopular:
			i = s.w.popular.draw(r)
		case len(out) < offerPopular+offerSuited:
			i = s.w.fromShelf(r, draw(r, cats))
		default:
			i = r.IntN(len(s.w.Items))
		}
		if !in[i] && !s.bought[i] && s.w.Items[i].Appears <= s.day {
			in[i] = true
			out = append(out, i)
		}
	}
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// fromShelf draws an item of a category by popularity alone.
func (w *World) fromShelf(r *rand.Rand, c int) int {
	items := w.categories[c].items
	weights := make([]uint64, len(items))
	for k, i := range items {
		weights[k] = w.Items[i].popularity
	}
	return items[draw(r, weights)]
}

// Likely is an item and the probability that it is bought next.
type Likely struct {
	Item int
	P    float64
}

// Best returns the k likeliest next purchases of the whole shop, the likeliest first.
func (s *State) Best(k int) []Likely {
	all := make([]int, len(s.w.Items))
	for i := range all {
		all[i] = i
	}
	out := make([]Likely, len(all))
	for i, p := range s.Probabilities(all) {
		out[i] = Likely{i, p}
	}
	slices.SortStableFunc(out, func(a, b Likely) int { return cmp.Compare(b.P, a.P) })
	return out[:min(k, len(out))]
}

// rank returns the place of an item in its category.
func (w *World) rank(item int) int { return w.ranks[item] }

func pick(r *rand.Rand, from []string) string { return from[r.IntN(len(from))] }
