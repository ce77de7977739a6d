package replay

import (
	"fmt"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// decider replays the choices of prefix orders, and what they are made from.
type decider struct {
	costs   schedule.Costs
	request schedule.Request
	policy  schedule.Policy
	returns *schedule.Returns
	next    string // what was decided last, of returns
}

func (d *decider) in(op string, v *record.Values) {
	switch op {
	case "costs":
		d.costs.Model = model(v)
		for i, ms := range v.Floats() {
			t := &d.costs.Transfer[i/2]
			if i%2 == 0 {
				t.Entry = ms
			} else {
				t.Token = ms
			}
		}
		d.costs.Keep = tier(v, v.Text())
		d.costs.Discount, d.costs.RoomReturns = v.Float(), v.Float()
	case "decide":
		var err error
		if d.policy, err = schedule.ParsePolicy(v.Text()); err != nil {
			v.Fail(err)
		}
		v.Key()
		v.Bool()
		d.request = request(v)
	case "came":
		d.returns.Came(v.Uint64(), v.Float(), v.Time())
	case "kept":
		d.returns.Kept(v.Uint64(), v.Float())
	case "hit":
		d.returns.Hit(v.Uint64())
	case "evicted":
		d.returns.Evicted(v.Uint64(), v.Time())
	case "expect":
		d.next = record.Text("returns", d.returns.Expect(v.Float()))
	case "gain":
		d.next = record.Text("share", d.returns.Gain(v.Float()))
	}
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
	in.Frequency, in.Coldest, in.Returns, in.ReturnsKnown, in.UserRoom = v.Float(), v.Float(), v.Float(), v.Bool(), v.Bool()
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

func (d *decider) did(op string, _ *record.Values) string {
	switch op {
	case "returns", "share":
		return d.next
	case "order":
	default:
		return ""
	}
	c := schedule.Decide(&d.request, &d.costs, d.policy)
	return record.Text("order", c.Order, c.Reason, c.Reuse, c.User.Ms, c.User.Value, c.Item.Ms, c.Item.Value, int(c.User.Load), int(c.Item.Load))
}

func (d *decider) rest() []string { return nil }

// model reads the coefficients of a model of prefill times.
func model(v *record.Values) schedule.PrefillModel {
	return schedule.PrefillModel{Fixed: v.Float(), Row: v.Float(), Square: v.Float(), Key: v.Float(), Request: v.Float()}
}
