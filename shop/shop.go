// Package shop is a small world: an invented shop, the people who buy there, and what they write
// about it. Everything comes from a seed, and the process is known, so that the best possible
// recommendation is known too.
//
// # How people buy here
//
// The shop has about 10,000 items on some fifty shelves (categories) in thirteen departments. An item has a brand, a
// style (lightweight, handmade, quiet, …), a price, and a title that says all of it. A bargain ends in 90 cents, a
// dear price is a round sum. Most items are there from the start; a fifth appears over the two years that the world
// lasts. In a category the item of rank r sells in proportion to 1/(r+3): Zipf's law. Which items are on top depends
// on brand, product and luck. Departments differ too: the most popular attracts four times as many people as the
// least.
//
// A customer begins with a profile in words: two to four hobbies (departments), two styles, a budget.
// Then come visits, some days apart. A visit may begin with a search. For each purchase the customer
// chooses a category, then an item in it:
//
//   - The category comes from the customer's interests, from what goes with the last purchase (a tent,
//     then a sleeping bag), from the search, from the same shelf again, or from anywhere. How much each
//     counts depends on whether this is the visit's first purchase and whether there was a search.
//   - The item is chosen in proportion to its popularity, times how well style, brand and price suit
//     this customer. The brand bought last counts a little more. Nobody buys an item twice, or one that
//     has not appeared yet.
//
// Every purchase gets one to five stars and a short review. They depend on the customer's taste for
// style and brand and on luck, and they move tastes: a liked purchase makes its category, brand and
// style more likely, a disliked one less. Interests fade. A search, or a liked purchase from a shelf
// that was new to the customer, begins a new interest: tastes drift.
//
// # Why the optimum is exact
//
// Nothing about a customer is hidden. Profile, searches, purchases and stars are all in the customer's text
// (User.Text), and State is a function of them. State.Probabilities is therefore the true probability of the next
// purchase, given everything that a model can read. No ranking can be better on average than the one in its order.
//
// A test customer has two questions at the end. Next is the next purchase, from the whole shop. Offer is
// a list of a hundred items that the shop shows instead: items that the customer's visits suggest, popular
// items and any others. It is made without knowledge of the answer. Chosen is the item that the customer takes
// from that list, drawn by the same probabilities restricted to it.
//
// # Promises
//
// The package is pure. The same seed gives the same world on every machine: all draws and weights are
// integers, and floating-point numbers appear only in what Probabilities returns. A customer is a
// function of seed, split and number; customers of different splits are drawn independently. A World
// does not change and may be used from many goroutines.
package shop

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Item is a thing for sale.
type Item struct {
	ID         string
	Title      string
	Brand      string
	Style      string // as in styleNames, whatever word the title uses
	Category   string
	Department string
	Product    string // what it is, without brand, style and variant
	Cents      int
	Appears    int // day from which it is sold, 0 the first

	category, brand, style, tier int
	popularity                   uint64
}

// Text is how the item reads in a prompt.
func (it *Item) Text() string { return fmt.Sprintf("%s, $%s", it.Title, dollars(it.Cents)) }

func dollars(cents int) string {
	if cents%100 == 0 {
		return fmt.Sprint(cents / 100)
	}
	return fmt.Sprintf("%d.%02d", cents/100, cents%100)
}

// category is a shelf.
type category struct {
	name       string
	department int
	items      []int // in order of popularity
	with       []int // categories bought together with this one
	queries    []string
	weight     uint64 // popularity
}

// World is a shop. It does not change.
type World struct {
	Items []Item
	seed  uint64

	categories []category
	brands     []string
	hobbies    [][]int    // categories of each department
	crowds     []uint64   // how many people each department attracts
	popular    cumulative // over all items
	ranks      []int      // of items in their categories
}

// Days is how long the world lasts; all customers' last visits are on the last day.
const Days = 730

// Default is the number of items of the shop that the demo and the trained models know.
const Default = 10_000

// New makes the shop of a seed, with about so many items.
func New(seed uint64, items int) (*World, error) {
	w := &World{seed: seed}
	if err := w.furnish(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(seed, streamItems))
	each := max(1, items/len(w.categories))
	for _, place := range r.Perm(len(shelves)) {
		w.crowds = append(w.crowds, 1<<16/uint64(place+4))
	}
	for c := range w.categories {
		w.stock(r, c, each)
	}
	total := uint64(0)
	for i := range w.Items {
		w.Items[i].ID = fmt.Sprintf("i%05d", i+1)
		total += w.Items[i].popularity * w.categories[w.Items[i].category].weight >> 8
		w.popular = append(w.popular, total)
	}
	return w, nil
}

// What numbers are drawn for: streams of different things are independent.
const (
	streamItems = 1 + iota
	streamUsers
	streamTrace
	streamCuts
)

// furnish puts up the shelves.
func (w *World) furnish() error {
	byName := map[string]int{}
	for d, s := range shelves {
		w.hobbies = append(w.hobbies, nil)
		for k, second := range brandSecond {
			w.brands = append(w.brands, brandFirst[(d+3*k)%len(brandFirst)]+second)
		}
		for _, l := range s.lines {
			byName[l.name] = len(w.categories)
			w.hobbies[d] = append(w.hobbies[d], len(w.categories))
			w.categories = append(w.categories, category{name: l.name, department: d, queries: strings.Split(l.queries, "|")})
		}
	}
	for d, s := range shelves {
		for k, l := range s.lines {
			c := &w.categories[w.hobbies[d][k]]
			for _, name := range strings.Split(l.with, "|") {
				other, ok := byName[name]
				if !ok {
					return fmt.Errorf("shop: %s: no category %q to go with it", l.name, name)
				}
				c.with = append(c.with, other)
			}
		}
	}
	return nil
}

// stock puts n items on the shelf of a category.
func (w *World) stock(r *rand.Rand, c, n int) {
	cat := &w.categories[c]
	shelf := w.hobbies[cat.department]
	l := shelves[cat.department].lines[slices.Index(shelf, c)]
	products, styles, variants := strings.Split(l.products, "|"), strings.Split(l.styles, "|"),
		strings.Split(l.variants, "|")
	cat.weight = w.crowds[cat.department]/64 + r.Uint64N(128)
	productFame, brandFame := fame(r, len(products)), fame(r, len(brandSecond))
	type placed struct{ item, fame int }
	var order []placed
	titles := map[string]bool{}
	for len(order) < min(n, len(products)*len(styles)*len(variants)) {
		product, brand, style := r.IntN(len(products)), r.IntN(len(brandSecond)), r.IntN(len(styles))
		key, word, other := strings.Cut(styles[style], ":")
		if !other {
			word = key
		}
		what, usual := priced(products[product])
		name := w.brands[cat.department*len(brandSecond)+brand]
		it := Item{
			Title: fmt.Sprintf("%s %s %s, %s", name, word, what, variants[r.IntN(len(variants))]),
			Brand: name, Style: key, Category: cat.name, Department: shelves[cat.department].name, Product: what,
			category: c, brand: cat.department*len(brandSecond) + brand, style: slices.Index(styleNames, key),
			tier: r.IntN(tiers),
		}
		it.Cents = price(r, usual, it.tier)
		if r.IntN(5) == 0 {
			it.Appears = 1 + r.IntN(Days-30)
		}
		if titles[it.Title] {
			continue
		}
		titles[it.Title] = true
		order = append(order, placed{len(w.Items), productFame[product] + brandFame[brand] + r.IntN(64)})
		w.Items = append(w.Items, it)
	}
	w.ranks = append(w.ranks, make([]int, len(order))...)
	slices.SortStableFunc(order, func(a, b placed) int { return b.fame - a.fame })
	for rank, p := range order {
		w.Items[p.item].popularity = 1 << 16 / uint64(rank+4)
		cat.items = append(cat.items, p.item)
		w.ranks[p.item] = rank
	}
}

const tiers = 3

// priced cuts a product into its name and its usual price in dollars.
func priced(product string) (string, int) {
	at := strings.LastIndexByte(product, ' ')
	usual, err := strconv.Atoi(product[at+1:])
	if err != nil {
		panic("shop: no price: " + product) // a line of shelves is wrong: every test fails
	}
	return product[:at], usual
}

// price draws a price, in cents, for an item that is cheap, usual or dear. Shops give bargains away by
// their cents, and dear things have round prices: a reader can tell them apart.
func price(r *rand.Rand, usual, tier int) int {
	switch tier {
	case 0:
		return usual*(45+r.IntN(30))/100*100 + 90
	case 1:
		d := usual * (85 + r.IntN(40)) / 100
		if d%5 == 0 {
			d++
		}
		return d * 100
	}
	return (usual*(150+r.IntN(90))/500 + 1) * 500
}

func fame(r *rand.Rand, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = r.IntN(64)
	}
	return out
}

// cumulative are running sums of weights.
type cumulative []uint64

// draw draws an index in proportion to its weight.
func (c cumulative) draw(r *rand.Rand) int {
	i, _ := slices.BinarySearch(c, r.Uint64N(c[len(c)-1])+1)
	return i
}

// draw draws an index in proportion to weights, not all of which are 0.
func draw(r *rand.Rand, weights []uint64) int {
	var total uint64
	for _, x := range weights {
		total += x
	}
	at := r.Uint64N(total)
	for i, x := range weights {
		if at < x {
			return i
		}
		at -= x
	}
	panic("shop: a draw beyond the total")
}

// exponentials are 2²⁰·e^(k/16) for points k from −maxPoints to maxPoints, by integer arithmetic, so
// that weights are the same on every machine.
var exponentials = func() []uint64 {
	const (
		up   = 9818228425769839594 // 2⁶³·e^(1/16)
		down = 8664556174609911609 // 2⁶³·e^(−1/16)
	)
	out := make([]uint64, 2*maxPoints+1)
	out[maxPoints] = 1 << 40
	for k := 1; k <= maxPoints; k++ {
		out[maxPoints+k] = scale(out[maxPoints+k-1], up)
		out[maxPoints-k] = scale(out[maxPoints-k+1], down)
	}
	for i := range out {
		out[i] >>= 20
	}
	return out
}()

const maxPoints = 96

// scale returns x·by/2⁶³.
func scale(x, by uint64) uint64 {
	high, low := bits.Mul64(x, by)
	return high<<1 | low>>63
}

// exponential returns 2²⁰·e^(points/16).
func exponential(points int) uint64 {
	return exponentials[min(max(points, -maxPoints), maxPoints)+maxPoints]
}
