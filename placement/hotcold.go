package placement

import (
	"errors"
	"fmt"
	"math"
)

// changed is the share of the hot set's mass that must change before Refresh returns another map.
const changed = 0.02

// Traffic says how much of the items' KV may come from other nodes (BAT-4, step 1 of Algorithm 1).
type Traffic struct {
	Alpha      float64 // communication time that is tolerated, as a share of the prefill time
	Prefill    float64 // seconds to prefill a user's tokens behind Candidates cached items
	Bandwidth  float64 // tokens of KV per second
	Candidates int     // per request
	ItemTokens float64 // mean tokens of an item
	Nodes      int
}

// Validate returns an error for the first invalid field.
func (t *Traffic) Validate() error {
	finite := func(v float64) bool { return v >= 0 && v <= math.MaxFloat64 }
	switch {
	case !finite(t.Alpha) || !finite(t.Prefill) || !finite(t.Bandwidth):
		return fmt.Errorf("placement: traffic %+v: alpha, prefill and bandwidth must be finite and not negative", *t)
	case t.Candidates < 1 || !(t.ItemTokens > 0 && t.ItemTokens <= math.MaxFloat64):
		return fmt.Errorf("placement: traffic of %d candidates with %v tokens each", t.Candidates, t.ItemTokens)
	case t.Nodes < 1:
		return fmt.Errorf("placement: traffic between %d nodes", t.Nodes)
	}
	return nil
}

// tokens returns αtB/(cS): the tokens that may be sent while a request is computed, per token that it needs.
func (t *Traffic) tokens() float64 {
	return t.Alpha * t.Prefill * t.Bandwidth / (float64(t.Candidates) * t.ItemTokens)
}

// Printed returns R_max as the paper prints it: αtB(N−1)/(cSN), at most 1.
func (t *Traffic) Printed() float64 {
	n := float64(t.Nodes)
	return min(t.tokens()*(n-1)/n, 1)
}

// Corrected returns the R for which the remote traffic R·c·S·(N−1)/N fills αtB: αtBN/((N−1)cS), at most 1. A
// request finds 1/N of the sharded items on its own node, so more of them may be sharded, not fewer.
func (t *Traffic) Corrected() float64 {
	n := float64(t.Nodes)
	if t.Nodes == 1 {
		return 1
	}
	return min(t.tokens()*n/(n-1), 1)
}

// HotCold places the hottest items on all nodes and the rest by hash (BAT-4, steps 2 and 3 of Algorithm 1). The hot
// set is the smallest one whose share of the uses is at least 1−remote. uses says how often each item is requested.
func HotCold(c Config, uses []float64, remote float64) (*Map, error) {
	if len(uses) != c.Items {
		return nil, fmt.Errorf("placement: uses of %d items, want %d", len(uses), c.Items)
	}
	if err := checkRemote(uses, remote); err != nil {
		return nil, err
	}
	m, err := newMap(c)
	if err != nil {
		return nil, err
	}
	m.heat(HotSet(uses, 0, remote))
	return m, nil
}

// Refresh returns the map of the next epoch with a hot set of other uses, and true; or m itself and false if no more
// than 2 % of the hot set's mass changed. uses may have more items than the map.
func (m *Map) Refresh(uses []float64, remote float64) (*Map, bool, error) {
	if m.full || m.ties != nil {
		return nil, false, errors.New("placement: refresh the hot set of a map that HotCold did not make")
	}
	if len(uses) < m.items || len(uses) > math.MaxInt32 {
		return nil, false, fmt.Errorf("placement: uses of %d items, want at least %d", len(uses), m.items)
	}
	if err := checkRemote(uses, remote); err != nil {
		return nil, false, err
	}
	hot := HotSet(uses, 0, remote)
	var mass, came, left float64
	for _, i := range hot {
		mass += uses[i]
		if !m.everywhere(i) {
			came += uses[i]
		}
	}
	kept := make([]bool, len(uses))
	for _, i := range hot {
		kept[i] = true
	}
	for i := range int32(m.items) {
		if m.everywhere(i) && !kept[i] {
			left += uses[i]
		}
	}
	if !Shifted(mass, came, left) {
		return m, false, nil
	}
	next := *m
	next.Epoch++
	next.items = len(uses)
	next.heat(hot)
	return &next, true, nil
}

// Shifted reports whether a hot set of a mass is worth publishing: the uses of items that came, or that left, are more
// than 2 % of it.
func Shifted(mass, came, left float64) bool { return max(came, left) > changed*mass }

// heat makes a table with these items everywhere and the others by hash.
func (m *Map) heat(hot []int32) {
	m.table = make([]uint16, m.items)
	for i := range m.table {
		m.table[i] = uint16(hashed(int32(i), len(m.parts)))
	}
	for _, i := range hot {
		m.table[i] = everywhere
	}
}

// HotSet returns the items from the hottest on until their share of the uses is at least 1−remote (BAT-4, step 2 of
// Algorithm 1). Others are the uses of items that uses does not list.
func HotSet(uses []float64, others, remote float64) []int32 {
	total, cdf := others, 0.
	for _, u := range uses {
		total += u
	}
	if total == 0 {
		return nil
	}
	order := byUses(uses)
	for n, i := range order {
		cdf += uses[i] / total
		if cdf >= 1-remote {
			return order[:n+1]
		}
	}
	return order // the sum was rounded down
}

func checkRemote(uses []float64, remote float64) error {
	if !(remote >= 0 && remote <= 1) {
		return fmt.Errorf("placement: remote share %v, want 0 to 1", remote)
	}
	return checkUses(uses)
}
