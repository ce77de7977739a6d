package rivals

import "grebe/evict"

// laruCost is LARU weighted by cost, such as the milliseconds that a hit saves. The victim is the entry predicted to
// save least per byte and time. An entry that saves twice the mean per byte counts as if it returned in half the time,
// so the choice is still the farthest return, in O(log k).
//
// LARU's bounds on misses hold for any predictions, so they hold here. Perfect predictions give the fewest misses only
// if all entries save the same per byte.
type laruCost struct {
	evict.Policy           // LARU
	density      []float64 // per slot: cost saved per byte by a hit
	mean         float64   // of recent requests
	n            int64
	now          int64
}

func newLARUCost(c evict.Config) (*laruCost, error) {
	p := &laruCost{density: make([]float64, c.Slots)}
	if refresh := c.Refresh; refresh != nil {
		c.Refresh = func(slots []evict.Slot, returns []int64) {
			refresh(slots, returns)
			for i, s := range slots {
				returns[i] = p.stretch(returns[i], p.density[s])
			}
		}
	}
	var err error
	p.Policy, err = evict.New("laru", c)
	return p, err
}

// costWindow is about how many recent requests the mean covers.
const costWindow = 4096

// weigh returns what a hit on the entry saves per byte, and adds it to the mean. An entry of unknown cost has the mean.
func (p *laruCost) weigh(a evict.Access) float64 {
	if a.Cost <= 0 {
		return p.mean
	}
	d := a.Cost / float64(a.Bytes)
	p.n++
	p.mean += (d - p.mean) / float64(min(p.n, costWindow))
	return d
}

// stretch multiplies the time until a predicted return by mean/density: an entry that saves half the mean counts as
// returning in twice the time.
func (p *laruCost) stretch(ret int64, density float64) int64 {
	if ret <= p.now || ret == evict.Never || density <= 0 {
		return ret
	}
	wait := float64(ret-p.now) * p.mean / density
	if wait >= float64(evict.Never-p.now)/2 {
		return evict.Never
	}
	return p.now + max(int64(wait), 1)
}

func (p *laruCost) Hit(s evict.Slot, a evict.Access) {
	p.now = a.Now
	p.density[s] = p.weigh(a)
	a.Return = p.stretch(a.Return, p.density[s])
	p.Policy.Hit(s, a)
}

func (p *laruCost) Miss(a evict.Access) {
	p.now = a.Now
	p.Policy.Miss(a)
}

func (p *laruCost) Insert(s evict.Slot, a evict.Access) {
	p.density[s] = p.weigh(a)
	a.Return = p.stretch(a.Return, p.density[s])
	p.Policy.Insert(s, a)
}

func (p *laruCost) Predict(s evict.Slot, ret int64) {
	p.Policy.Predict(s, p.stretch(ret, p.density[s]))
}
