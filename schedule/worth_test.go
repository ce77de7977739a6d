package schedule

import (
	"math/rand/v2"
	"testing"

	"grebe/plan"
)

// counted returns the rows and keys of a request, order and set of loaded tiers, according to the plan's mask.
func counted(in *Request, o plan.Order, load Tiers, reuse bool) (rows, keys int) {
	p, computed := written(in, o, load, reuse)
	for q, row := range p.Mask() {
		if !computed[q] {
			continue
		}
		rows++
		for _, sees := range row {
			if sees {
				keys++
			}
		}
	}
	return rows, keys
}

// part returns how many entries and tokens of a tier an order loads, after tokens from nearer tiers.
func part(in *Request, o plan.Order, t plan.Tier, after int) (entries, tokens int) {
	if o == plan.UserFirst {
		tokens = max(0, min(int(in.UserCached[t]), int(in.User)-after))
		return min(1, tokens), tokens
	}
	for i, n := range in.Items {
		if in.ItemTier[i] == t {
			entries, tokens = entries+1, tokens+int(n)
		}
	}
	return entries, tokens
}

// plainOption prices an order tier by tier, nearest first. A tier is loaded if that makes the request no slower, or
// always. A user is loaded from the front without a gap.
func plainOption(in *Request, c *Costs, o plan.Order, always bool) Option {
	price := func(load Tiers, transfer float64) Option {
		rows, keys := counted(in, o, load, true)
		return Option{Rows: rows, Keys: keys, Load: load, Transfer: transfer,
			Ms: max(in.Queue, transfer) + c.Model.Predict(rows, keys, 1)}
	}
	best, loaded := price(0, 0), 0
	for t := plan.Device; t < plan.NumTiers; t++ {
		entries, tokens := part(in, o, t, loaded)
		if tokens == 0 {
			continue
		}
		cost := float64(entries)*c.Transfer[t].Entry + float64(tokens)*c.Transfer[t].Token
		with := price(best.Load|1<<t, best.Transfer+cost)
		if always || with.Ms <= best.Ms {
			best = with
			loaded += tokens
		} else if o == plan.UserFirst {
			break
		}
	}
	return best
}

// Options are priced as in the plain version. A partly cached user is worth the rest.
func TestOptionsAgainstPlainOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(51, 52))
	partly, slow := 0, 0
	for range 700 {
		in, c := draw(rng)
		c.Transfer[plan.Device] = Transfer{Entry: rng.Float64() / 4, Token: rng.Float64() / 4}
		c.Keep = plan.Device + plan.Tier(rng.IntN(int(plan.NumTiers-plan.Device)))
		for _, policy := range []Policy{Predicted, BAT} {
			d := Decide(&in, &c, policy)
			for _, o := range []plan.Order{plan.UserFirst, plan.ItemFirst} {
				got, want := d.User, plainOption(&in, &c, o, policy == BAT)
				if o == plan.ItemFirst {
					got = d.Item
				}
				got.Value = 0
				if got.Rows != want.Rows || got.Keys != want.Keys || got.Load != want.Load ||
					!close2(got.Transfer, want.Transfer) || !close2(got.Ms, want.Ms) {
					t.Fatalf("%v, %v-first of %+v: %+v, want %+v", policy, o, in, got, want)
				}
			}
			loaded := 0
			for tier := plan.Device; tier < plan.NumTiers; tier++ {
				if d.User.Load.Has(tier) {
					_, tokens := part(&in, plan.UserFirst, tier, loaded)
					loaded += tokens
				}
			}
			missing := int(in.User) - loaded
			if missing > 0 && loaded > 0 {
				partly++
			}
			all := in
			all.UserCached = [plan.NumTiers]int32{plan.Device: in.User}
			rows, keys := counted(&all, plan.UserFirst, 1<<plan.Device, true)
			transfer := d.User.Transfer + float64(missing)*c.Transfer[c.Keep].Token
			kept := max(in.Queue, transfer) + c.Model.Predict(rows, keys, 1)
			if kept > d.User.Ms {
				slow++
			}
			returns := c.Discount * max(0, in.Frequency-in.Coldest)
			if in.UserRoom {
				returns = c.Discount * (in.Frequency + c.RoomReturns)
			}
			want := returns * max(0, min(d.User.Ms, d.Item.Ms)-min(kept, d.Item.Ms))
			if missing == 0 {
				want = 0
			}
			if !close2(d.User.Value, want) {
				t.Fatalf("%v of %+v: the user is worth %v, want %v", policy, in, d.User.Value, want)
			}
		}
	}
	if partly < 150 || slow < 25 {
		t.Errorf("%d users were cached in part, %d cost more from the cache: the draw tests too little", partly, slow)
	}
}
