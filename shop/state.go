package shop

import "slices"

// Profile is what a customer says at the start.
type Profile struct {
	Name    string
	Hobbies []int // departments, dearest first
	Styles  []int
	Budget  int // 0 looks for bargains, 2 pays for the best
}

// State is what decides a customer's next purchase: a function of the profile and of what happened
// since, all of which is in the customer's text.
type State struct {
	w   *World
	day int

	interest []int // per category, 0 and more
	style    []int // points: sixteenths of a natural logarithm
	brand    []int // points
	budget   int
	usual    []int // style points that tastes fade to: the profile's

	last   int  // item bought last; −1 none
	first  bool // nothing was bought yet in this visit
	search int  // category searched for in this visit; −1 none
	bought []bool
}

// How tastes move and how much they count. Points are sixteenths of a natural logarithm.
const (
	hobbyInterest  = 320 // of the dearest hobby, in each of its categories
	hobbyStep      = 80  // less for each further one
	likedInterest  = 260
	bearInterest   = 60 // three stars
	searchInterest = 180
	mostInterest   = 900
	styleTaste     = 22 // of a style in the profile
	styleMove      = 7  // per purchase liked or disliked
	styleLimit     = 34
	brandMove      = 10
	brandLimit     = 30
	brandAgain     = 12 // the brand bought last
	priceStep      = 16 // per step between the budget and the item's
)

// Start returns the state of a customer before the first visit.
func (w *World) Start(p *Profile) *State {
	s := &State{
		w: w, interest: make([]int, len(w.categories)), style: make([]int, len(styleNames)),
		brand: make([]int, len(w.brands)), budget: p.Budget, last: -1, search: -1, first: true,
		bought: make([]bool, len(w.Items)),
	}
	for i, d := range p.Hobbies {
		for _, c := range w.hobbies[d] {
			s.interest[c] = hobbyInterest - i*hobbyStep
		}
	}
	for _, k := range p.Styles {
		s.style[k] = styleTaste
	}
	s.usual = slices.Clone(s.style)
	return s
}

// Visit begins a visit on a day.
func (s *State) Visit(day int) {
	s.day, s.first, s.search = day, true, -1
	for c, x := range s.interest {
		s.interest[c] = x * 7 / 8
	}
	for k, x := range s.style {
		s.style[k] = s.usual[k] + (x-s.usual[k])*15/16
	}
}

// Search notes that the customer searched for a category.
func (s *State) Search(category int) {
	s.search = category
	s.interest[category] = min(s.interest[category]+searchInterest, mostInterest)
}

// Buy notes a purchase and its stars, 1 to 5.
func (s *State) Buy(item, stars int) {
	it := &s.w.Items[item]
	s.bought[item], s.last, s.first = true, item, false
	mood := stars - 3 // −2 … 2
	move := func(x *int, by, limit int) { *x = min(max(*x+by, -limit), limit) }
	move(&s.style[it.style], mood*styleMove/2, styleLimit)
	move(&s.brand[it.brand], mood*brandMove/2, brandLimit)
	interest := &s.interest[it.category]
	switch {
	case mood > 0:
		*interest = min(*interest+likedInterest, mostInterest)
	case mood == 0:
		*interest = min(*interest+bearInterest, mostInterest)
	default:
		*interest /= 2
	}
}

// suits returns how well an item suits the customer, in points.
func (s *State) suits(it *Item) int {
	points := s.style[it.style] + s.brand[it.brand]
	if s.last >= 0 && s.w.Items[s.last].brand == it.brand {
		points += brandAgain
	}
	gap := it.tier - s.budget
	return points - priceStep*max(gap, -gap)
}

// source is where the category of a purchase comes from.
type source struct{ interests, with, search, same, anywhere uint64 }

// sources returns how much each source counts, in hundredths.
func (s *State) sources() source {
	switch {
	case s.first && s.search >= 0:
		return source{interests: 22, with: 4, search: 70, anywhere: 4}
	case s.first && s.last >= 0:
		return source{interests: 84, with: 12, anywhere: 4}
	case s.first:
		return source{interests: 96, anywhere: 4}
	case s.search >= 0:
		return source{interests: 24, with: 48, search: 18, same: 6, anywhere: 4}
	}
	return source{interests: 32, with: 58, same: 6, anywhere: 4}
}

// unit is the weight of a hundredth: shares are divided among categories without losing much.
const unit = 1 << 24

// categories returns the weights of the categories of the next purchase.
func (s *State) categories() []uint64 {
	cats := s.w.categories
	out := make([]uint64, len(cats))
	from := s.sources()
	var interests, all uint64
	for c, x := range s.interest {
		interests += square(x)
		all += cats[c].weight
	}
	if interests == 0 {
		from.anywhere += from.interests
	}
	for c, x := range s.interest {
		out[c] = from.anywhere * unit / all * cats[c].weight
		if interests > 0 {
			out[c] += from.interests * unit / interests * square(x)
		}
	}
	if s.last >= 0 {
		at := s.w.Items[s.last].category
		out[at] += from.same * unit
		for i, c := range cats[at].with {
			out[c] += from.with * unit * uint64(len(cats[at].with)-i) / uint64(len(cats[at].with)*(len(cats[at].with)+1)/2)
		}
	}
	if s.search >= 0 {
		out[s.search] += from.search * unit
	}
	return out
}

// square sharpens interests: what is liked twice as much is chosen four times as often.
func square(x int) uint64 { return uint64(x) * uint64(x) >> 6 }

// shelf returns the weights of a category's items, in the order of the category.
func (s *State) shelf(c int, dst []uint64) []uint64 {
	dst = dst[:0]
	for _, i := range s.w.categories[c].items {
		it := &s.w.Items[i]
		if s.bought[i] || it.Appears > s.day {
			dst = append(dst, 0)
			continue
		}
		dst = append(dst, it.popularity*exponential(s.suits(it))>>8)
	}
	return dst
}

// Probabilities returns the true probability that each candidate (an index of World.Items) is the next
// purchase, of all that could be bought now.
func (s *State) Probabilities(candidates []int) []float64 {
	out := make([]float64, len(candidates))
	byCategory := make([][]float64, len(s.w.categories))
	cats := s.categories()
	var all uint64
	for _, x := range cats {
		all += x
	}
	var shelf []uint64
	for k, i := range candidates {
		c := s.w.Items[i].category
		if byCategory[c] == nil {
			shelf = s.shelf(c, shelf)
			byCategory[c] = shares(shelf, float64(cats[c])/float64(all))
		}
		out[k] = byCategory[c][s.w.rank(i)]
	}
	return out
}

// shares divides a probability by weights.
func shares(weights []uint64, p float64) []float64 {
	var total uint64
	for _, x := range weights {
		total += x
	}
	out := make([]float64, len(weights))
	for i, x := range weights {
		if total > 0 {
			out[i] = p * float64(x) / float64(total)
		}
	}
	return out
}
