package generate

import (
	"cmp"
	"math"
	"slices"

	"grebe/beam"
)

// Share is an item and its share of something, above 0.
type Share struct {
	ID    string
	Share float64
}

// Listed returns the items of a list that a request may get, by the log of their shares and the request's rules. It
// computes nothing with the model. Items that the model cannot generate are left out.
func (g *Generator) Listed(request *Request, list []Share) (*Result, error) {
	snap := g.snapshot.Load()
	if snap == nil || snap.index == nil {
		return nil, ErrNoCodes
	}
	var set *beam.Set
	if len(request.Filter) > 0 {
		set = snap.filter(request.Filter)
	}
	excluded := make(map[string]bool, len(request.Exclude))
	for _, id := range request.Exclude {
		excluded[id] = true
	}
	rules := snap.rules(&request.Rules)
	if rules == nil {
		rules = &beam.Rules{}
	}
	type place struct {
		Item
		number uint32
		key    float64
	}
	var places []place
	for _, s := range list {
		number, ok := snap.number(s.ID)
		if !ok || excluded[s.ID] || set != nil && !set.Has(number) {
			continue
		}
		p := place{number: number, Item: Item{ID: s.ID, Boost: rules.Of(number)}}
		p.Score = math.Log(s.Share) + p.Boost
		p.key = p.Score
		if t := rules.Temperature; t > 0 {
			p.key += t * beam.Noise(rules.Seed, s.ID)
		}
		places = append(places, p)
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(b.key, a.key) })
	out := &Result{Version: snap.Version}
	for _, p := range places {
		if len(out.Items) == request.N {
			break
		}
		if rules.Accept == nil || rules.Accept(p.number) {
			p.Codes = snap.table.Codes(nil, p.number)
			out.Items = append(out.Items, p.Item)
		}
	}
	out.Short = len(out.Items) < request.N
	return out, nil
}
