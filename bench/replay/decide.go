package replay

import (
	"fmt"
	"slices"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// decider replays the choices of prefix orders, and what they are made from.
type decider struct {
	// Costs and choices wait for their decision. There are several where requests decided at the same time and their
	// lines lie between one another, as before records had a lock for these.
	costs   []schedule.Costs
	choices []choice
	returns *schedule.Returns
	answers
}

func (d *decider) in(l *record.Line, _ []*record.Line) {
	v := &l.Values
	switch l.Op {
	case "costs":
		d.costs = append(d.costs, costs(v))
	case "decide":
		policy, err := schedule.ParsePolicy(v.Text())
		if err != nil {
			v.Fail(err)
		}
		v.Key()
		v.Bool()
		d.choices = append(d.choices, choice{request(v), policy})
	case "came":
		d.returns.Came(v.Uint64(), v.Float(), v.Time())
	case "kept":
		d.returns.Kept(v.Uint64(), v.Float())
	case "hit":
		d.returns.Hit(v.Uint64())
	case "evicted":
		d.returns.Evicted(v.Uint64(), v.Time())
	case "expect":
		d.decided("returns", d.returns.Expect(v.Float()))
	case "investing":
		m := model(v)
		in := schedule.Request{Preamble: int32(v.Int()), User: int32(v.Int()), Frequency: v.Float(), Returns: v.Float()}
		p := schedule.Prototypes{Matched: v.Int(), Cached: v.Int(), Layers: v.Int(), Budget: v.Float()}
		exact, near, invest := p.Invest(&in, &m)
		d.decided("invests", exact, near, invest)
	case "blending":
		m := model(v)
		b := schedule.Blending{Guess: schedule.Transfer{Entry: v.Float(), Token: v.Float()},
			Pace: schedule.Pace{Token: v.Float()}, Now: v.Time(), Layers: v.Int(), First: v.Int(), Budget: v.Float()}
		chosen := schedule.Option{Ms: v.Float(), Value: v.Float()}
		in := request(v)
		ms, pays := b.Pays(&in, &m, &chosen)
		d.decided("pays", ms, pays)
	case "reading":
		left, deadline, queue, compute := v.Time(), v.Bool(), v.Float(), v.Float()
		d.decided("within", schedule.PrefixWait(left, deadline, queue, compute))
	case "fetching":
		left, deadline, queue, alone, with := v.Time(), v.Bool(), v.Float(), v.Float(), v.Float()
		d.decided("fetches", schedule.FetchWait(left, deadline, queue, alone, with))
	case "gain":
		d.decided("share", d.returns.Gain(v.Float()))
	}
}

// costs reads what moving and keeping KV costs.
func costs(v *record.Values) (c schedule.Costs) {
	c.Model = model(v)
	for i, ms := range v.Floats() {
		t := &c.Transfer[i/2]
		if i%2 == 0 {
			t.Entry = ms
		} else {
			t.Token = ms
		}
	}
	c.Keep = tier(v, v.Text())
	c.Discount, c.RoomReturns = v.Float(), v.Float()
	return c
}

// request reads what Decide needs to know of a request.
func request(v *record.Values) schedule.Request {
	in := schedule.Request{
		Preamble: int32(v.Int()), LeadIn: int32(v.Int()), SharedCached: v.Bool(), Question: int32(v.Int()), PerItem: v.Bool(),
		Orders: schedule.Orders(v.Int()), User: int32(v.Int()),
	}
	for i, n := range v.Ints() {
		in.UserCached[i] = int32(n)
	}
	for _, n := range v.Ints() {
		in.Items = append(in.Items, int32(n))
	}
	for _, name := range v.Texts() {
		in.ItemTier = append(in.ItemTier, tier(v, name))
	}
	for _, f := range v.Floats() {
		in.ItemFrequency = append(in.ItemFrequency, float32(f))
	}
	in.Frequency, in.Coldest, in.Returns, in.ReturnsKnown, in.UserRoom = v.Float(), v.Float(), v.Float(), v.Bool(),
		v.Bool()
	in.Queue, in.Slack = v.Float(), v.Float()
	return in
}

func tier(v *record.Values, name string) plan.Tier {
	for t := plan.Missing; t < plan.NumTiers; t++ {
		if t.String() == name {
			return t
		}
	}
	v.Fail(fmt.Errorf("no tier %s", name))
	return plan.Missing
}

func (d *decider) did(l *record.Line) (was, now string) {
	if l.Op == "order" {
		return text(l), d.order(text(l))
	}
	return d.answers.did(l)
}

// order decides. Of several requests that wait it is the one, with the costs, that was answered so; the last if none
// was.
func (d *decider) order(was string) (now string) {
	i, j := len(d.costs)-1, len(d.choices)-1
	for n := range d.choices {
		for m := range d.costs {
			if now = d.choices[n].decide(&d.costs[m]); now == was {
				i, j = m, n
				break
			}
		}
		if now == was {
			break
		}
	}
	if i < 0 || j < 0 {
		return "nothing"
	}
	d.costs, d.choices = slices.Delete(d.costs, i, i+1), slices.Delete(d.choices, j, j+1)
	return now
}

// choice is one of a prefix order.
type choice struct {
	request schedule.Request
	policy  schedule.Policy
}

func (w *choice) decide(costs *schedule.Costs) string {
	c := schedule.Decide(&w.request, costs, w.policy)
	return record.Text("order", c.Order, c.Reason, c.Reuse, c.User.Ms, c.User.Value, c.Item.Ms, c.Item.Value,
		int(c.User.Load), int(c.Item.Load))
}

// model reads the coefficients of a model of prefill times.
func model(v *record.Values) schedule.PrefillModel {
	return schedule.PrefillModel{Fixed: v.Float(), Row: v.Float(), Square: v.Float(), Key: v.Float(), Request: v.Float()}
}
