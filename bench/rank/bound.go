package rank

import (
	"math"
	"slices"

	grebev1 "grebe/api/grebe/v1"
)

// visit is a request as bound sees it.
type visit struct {
	at      float64 // seconds
	items   float64 // tokens
	counted bool    // after the warm-up
}

// bound returns the tokens per measured request that no choice of orders can go below, if room is that
// many tokens of users beside all items and the future is known. Requests come one at a time: those that are under way
// together may share more.
//
// With a price on holding a token for a second, users are independent, and the best plan of each is
// found by going through its requests. For every price the sum of their costs, less what all the room
// would cost, is below what is possible (Lagrange's bound: the room counts on average over the time);
// the highest such sum is the bound. What the warm-up computes is forgiven.
func (b *bout) bound(room float64) float64 {
	perBlock, warm := b.options.blocks()
	type user struct {
		tokens float64
		visits []visit
	}
	users := map[string]*user{}
	var begin, end float64
	for i := range perBlock * (warm + b.options.Blocks) {
		r := b.source.at(i)
		items := 0
		for k, c := range r.msg.Candidates { // equal ones are computed once
			if !slices.ContainsFunc(r.msg.Candidates[:k], func(d *grebev1.Item) bool {
				return slices.Equal(c.Tokens, d.Tokens)
			}) {
				items += len(c.Tokens)
			}
		}
		u := users[r.msg.User.Id]
		if u == nil {
			u = &user{tokens: float64(len(r.msg.User.Tokens))}
			users[r.msg.User.Id] = u
		}
		u.visits = append(u.visits, visit{r.at.Seconds(), float64(items), i >= perBlock*warm})
		if i == perBlock*warm {
			begin = r.at.Seconds()
		}
		end = r.at.Seconds()
	}
	sum := func(price float64) float64 {
		total := 0.0
		for _, u := range users {
			total += leastCost(u.tokens, u.visits, price, begin)
		}
		if price > 0 {
			total -= price * room * (end - begin)
		}
		return total
	}
	measured := float64(perBlock * b.options.Blocks)
	question := float64(b.source.w.Spec().Instruction)
	return maximum(sum, math.IsInf(room, 1))/measured + question
}

// maximum of a concave function of the price, or its value at 0.
func maximum(sum func(price float64) float64, free bool) float64 {
	best := sum(0)
	if free {
		return best
	}
	lo, hi := math.Log(1e-8), math.Log(1e3)
	for range 80 {
		a, b := lo+(hi-lo)/3, hi-(hi-lo)/3
		x, y := sum(math.Exp(a)), sum(math.Exp(b))
		best = max(best, x, y)
		if x < y {
			lo = a
		} else {
			hi = b
		}
	}
	return best
}

// leastCost returns that of a user's requests: tokens computed, and tokens held over seconds since
// begin at a price.
func leastCost(tokens float64, visits []visit, price, begin float64) float64 {
	without, with := 0.0, math.Inf(1) // cost so far if the user is not cached now, if it is
	for i, v := range visits {
		computed := func(n float64) float64 {
			if v.counted {
				return n
			}
			return 0
		}
		if i > 0 { // the time since the last request, held
			with += price * tokens * max(v.at-max(visits[i-1].at, begin), 0)
		}
		itemFirst := computed(tokens)
		keep := min(with+computed(min(v.items, tokens)), without+computed(tokens+v.items))
		drop := min(without+itemFirst, with+itemFirst)
		without, with = min(drop, keep), keep
	}
	return min(without, with)
}
