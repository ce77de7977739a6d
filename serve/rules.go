package serve

import (
	"math"
	"math/rand/v2"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
	"grebe/internal/wire"
)

// cutSamples is the note of a sampled answer whose search cut paths that might have been drawn.
const cutSamples = "the samples are approximate: the search cut paths that might have been drawn; " +
	"a larger beam_width cuts fewer"

// rulesOf checks the rules of a request for items that have the given attributes. It draws a seed if the request needs
// one and has none.
func rulesOf(req *grebev1.RecommendRequest, items attributes) (r generate.Rules, err error) {
	if len(req.Quota) > wire.MaxFilter {
		return r, Errorf(InvalidArgument, "quota", "%d attributes, at most %d", len(req.Quota), wire.MaxFilter)
	}
	if err := checkAttributes("quota", req.Quota, items); err != nil {
		return r, err
	}
	for name, n := range req.Quota {
		if err := checkRange("quota."+shown(name), int(n), 1, wire.MaxResults); err != nil {
			return r, err
		}
		if r.Quota == nil {
			r.Quota = map[string]int{}
		}
		r.Quota[name] = int(n)
	}
	if r.Boost, err = boostsOf(req.Boost); err != nil {
		return r, err
	}
	if err := checkAttributes("boost", r.Boost, items); err != nil {
		return r, err
	}
	t := req.Temperature
	if t != 0 && !(t >= wire.MinTemperature && t <= wire.MaxTemperature) {
		return r, Errorf(InvalidArgument, "temperature", "%v is not 0 or between %v and %v", t, wire.MinTemperature,
			wire.MaxTemperature)
	}
	if req.GetSeed() > wire.MaxSeed {
		return r, Errorf(InvalidArgument, "seed", "%d is above %d", req.GetSeed(), uint64(wire.MaxSeed))
	}
	r.Temperature = t
	switch {
	case t == 0:
	case req.Seed != nil:
		r.Seed = *req.Seed
	default:
		r.Seed = rand.Uint64() >> 11 // whole in the numbers of JavaScript
	}
	return r, nil
}

// boostsOf checks what is added to scores.
func boostsOf(m map[string]*grebev1.Boosts) (map[string]map[string]float64, error) {
	if len(m) == 0 {
		return nil, nil
	}
	out, n := make(map[string]map[string]float64, len(m)), 0
	for name, values := range m {
		field := "boost." + shown(name)
		if len(values.GetValues()) == 0 {
			return nil, Errorf(InvalidArgument, field, "has no values")
		}
		if n += len(values.Values); n > wire.MaxBoosts {
			return nil, Errorf(InvalidArgument, "boost", "more than %d values", wire.MaxBoosts)
		}
		for v, x := range values.Values {
			if !(math.Abs(x) <= wire.MaxBoost) {
				return nil, Errorf(InvalidArgument, field+"."+shown(v), "%v is not between %d and %d", x, -wire.MaxBoost,
					wire.MaxBoost)
			}
		}
		out[name] = values.Values
	}
	return out, nil
}

// ruled returns the field of a rule that a request has; "": it has none.
func ruled(req *grebev1.RecommendRequest) string {
	switch {
	case len(req.Quota) > 0:
		return "quota"
	case len(req.Boost) > 0:
		return "boost"
	case req.Temperature != 0:
		return "temperature"
	case req.WholePrompt:
		return "whole_prompt"
	case req.OnePerPath:
		return "one_per_path"
	}
	return ""
}
