package schedule

import "grebe/plan"

// Option is the price of one prefix order of a request.
type Option struct {
	Rows     int     // tokens to compute
	Keys     int     // keys that they attend to, summed
	Load     Tiers   // tiers whose cached part is loaded; the rest is computed again
	Transfer float64 // milliseconds of loading
	Ms       float64 // queue, transfer beyond the queue, compute
	Value    float64 // milliseconds that this choice is expected to save later requests
}

// net returns the cost less later savings.
func (o *Option) net() float64 { return o.Ms - o.Value }

// loading says which cached parts an option loads.
type loading uint8

const (
	loadNothing loading = iota
	loadAll
	loadWhatPays // only if loading is faster than computing
)

// items sums up the candidates of a request by tier.
type items struct {
	count, tokens, triangle [plan.NumTiers]int // triangle: Σ n(n+1)/2, the keys of causal attention
	total                   int                // tokens of all
	wantedTokens            float64            // Σ frequency·tokens of missing items
	wantedKeys              float64            // Σ frequency·triangle of missing items
}

func (in *Request) sumItems() items {
	var s items
	for i, n := range in.Items {
		tier := plan.Missing
		if in.ItemTier != nil {
			tier = in.ItemTier[i]
		}
		tokens := int(n)
		triangle := tokens * (tokens + 1) / 2
		s.count[tier]++
		s.tokens[tier] += tokens
		s.triangle[tier] += triangle
		if tier == plan.Missing && in.ItemFrequency != nil {
			f := float64(in.ItemFrequency[i])
			s.wantedTokens += f * float64(tokens)
			s.wantedKeys += f * float64(triangle)
		}
	}
	for _, n := range s.tokens {
		s.total += n
	}
	return s
}

// causal returns the number of keys of rows from..to of a segment that also attends to seen keys before it.
func causal(from, to, seen int) int {
	return (to-from)*seen + (to*(to+1)-from*(from+1))/2
}

// price sets the option's time: transfers run during the queue, compute after both.
func (o *Option) price(c *Costs, queue float64) {
	o.Ms = max(queue, o.Transfer) + c.Model.Predict(o.Rows, o.Keys, 1)
}

// try loads a cached part instead of computing it, if how requires it or if it is faster.
func (o *Option) try(c *Costs, in *Request, how loading, t plan.Tier, entries, rows, keys int) bool {
	if rows == 0 || how == loadNothing {
		return false
	}
	with := *o
	with.Rows -= rows
	with.Keys -= keys
	with.Transfer += float64(entries)*c.Transfer[t].Entry + float64(rows)*c.Transfer[t].Token
	with.Load.add(t)
	with.price(c, in.Queue)
	if how == loadWhatPays && with.Ms > o.Ms {
		return false
	}
	*o = with
	return true
}

// shared adds the preamble and lead-in to an option, if they must be computed.
func (o *Option) shared(in *Request, n int, how loading) {
	if in.SharedCached && how != loadNothing {
		return
	}
	o.Rows += n
	o.Keys += causal(0, n, 0)
}

// Cached returns how many tokens of a tier an order can load, and the keys that they would attend to if they were
// computed.
func (in *Request) Cached(order plan.Order, t plan.Tier) (rows, keys int) {
	if order == plan.UserFirst {
		from := 0
		for near := plan.Device; near < t; near++ {
			from += int(in.UserCached[near])
		}
		from = min(from, int(in.User))
		to := min(from+int(in.UserCached[t]), int(in.User))
		return to - from, causal(from, to, int(in.Preamble))
	}
	for i, n := range in.Items {
		if in.ItemTier != nil && in.ItemTier[i] == t {
			rows, keys = rows+int(n), keys+causal(0, int(n), int(in.Preamble+in.LeadIn))
		}
	}
	return rows, keys
}

// question adds the question, which attends to everything, or one question per item, which attends to its own item.
func (o *Option) question(in *Request, before int, s *items) {
	n, count := int(in.Question), len(in.Items)
	if in.PerItem {
		o.Rows += n * count
		o.Keys += count*causal(0, n, before) + n*s.total
		return
	}
	o.Rows += n
	o.Keys += causal(0, n, before+s.total)
}

// userFirst prices [preamble, user, items, question]. Only the user can be cached, because the items' KV depends on the
// user.
func (c *Costs) userFirst(in *Request, s *items, how loading) Option {
	lead, user := int(in.Preamble), int(in.User)
	var o Option
	o.shared(in, lead, how)
	o.Rows += user + s.total
	o.Keys += causal(0, user, lead) + s.total*(lead+user)
	for _, t := range s.triangle {
		o.Keys += t
	}
	o.question(in, lead+user, s)
	o.price(c, in.Queue)
	from := 0
	for t := plan.Device; t < plan.NumTiers; t++ {
		to := min(from+int(in.UserCached[t]), user)
		if to == from {
			continue
		}
		if !o.try(c, in, how, t, 1, to-from, causal(from, to, lead)) {
			break // the cached rest would not be contiguous
		}
		from = to
	}
	return o
}

// itemFirst prices [preamble, lead-in, items, user, question]. Only items can be cached, because the user's KV depends
// on them.
func (c *Costs) itemFirst(in *Request, s *items, how loading) Option {
	lead, user := int(in.Preamble+in.LeadIn), int(in.User)
	var o Option
	o.shared(in, lead, how)
	o.Rows += user + s.total
	o.Keys += s.total*lead + causal(0, user, lead+s.total)
	for _, t := range s.triangle {
		o.Keys += t
	}
	o.question(in, lead+user, s)
	o.price(c, in.Queue)
	for t := plan.Device; t < plan.NumTiers; t++ {
		o.try(c, in, how, t, s.count[t], s.tokens[t], s.tokens[t]*lead+s.triangle[t])
	}
	return o
}

// value sets what each option saves later requests.
//
// User-first keeps the user's KV. Without it, a later request of this user takes the cheaper of both orders as they
// are. With it, user-first becomes cheaper. The difference is saved once per return.
//
// Returns are those expected by observation (Request.Returns). Without observations they are the user's frequency
// beyond that of the pages it would evict, which save as much where they are (BAT-5's f_u > min f_p is the sign of that
// difference). With free room they are the frequency plus RoomReturns. They are discounted, unless they were observed
// and nothing is evicted.
//
// Item-first keeps the missing items, each worth its computation per expected use.
func (c *Costs) value(in *Request, s *items, user, item *Option) {
	missing := max(0, int(in.User)-user.loaded(in))
	if missing > 0 {
		kept := *user
		kept.Rows -= missing
		kept.Keys -= causal(int(in.User)-missing, int(in.User), int(in.Preamble))
		kept.Transfer += float64(missing) * c.Transfer[c.Keep].Token
		kept.price(c, in.Queue)
		saved := min(user.Ms, item.Ms) - min(kept.Ms, item.Ms)
		user.Value = c.returns(in) * max(0, saved)
	}
	perToken := c.Model.Row + float64(in.Preamble+in.LeadIn)*c.Model.Key
	item.Value = c.Discount * (s.wantedTokens*perToken + s.wantedKeys*c.Model.Key)
}

// loaded returns the number of the user's tokens that a user-first option loads.
func (o *Option) loaded(in *Request) int {
	n := 0
	for t := plan.Device; t < plan.NumTiers; t++ {
		if o.Load.Has(t) {
			n += int(in.UserCached[t])
		}
	}
	return min(n, int(in.User))
}

// returns gives the number of times a user is expected to find its kept KV: as observed, or by the user's frequency
// beyond that of the users it would evict; discounted.
func (c *Costs) returns(in *Request) float64 {
	switch {
	case in.ReturnsKnown && in.UserRoom:
		return in.Returns
	case in.ReturnsKnown:
		return c.Discount * in.Returns // the evicted entries, items too, would have been used
	case in.UserRoom:
		return c.Discount * (in.Frequency + c.RoomReturns)
	}
	return c.Discount * max(0, in.Frequency-in.Coldest)
}
