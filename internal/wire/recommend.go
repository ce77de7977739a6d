package wire

import (
	"math"

	grebev1 "grebe/api/grebe/v1"
)

// Bounds of a recommendation.
const (
	MaxResults   = 10000
	MaxBeamWidth = 8192
	MaxExclude   = 100000
	MaxFilter    = 64   // attributes
	MaxWanted    = 4096 // values of one attribute
	MaxBoosts    = 256  // values of all attributes
	MaxBoost     = 100  // above and below 0
	MaxSeed      = math.MaxInt64

	// A temperature above 0 is between these.
	MinTemperature, MaxTemperature = 0.001, 100
)

// DecodeRecommend reads a request of /v1/recommend.
func DecodeRecommend(in []byte) (*grebev1.RecommendRequest, error) {
	m := &grebev1.RecommendRequest{}
	err := decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "model":
				m.Model = d.string()
			case "user":
				m.User = &grebev1.User{}
				d.user(m.User)
			case "n":
				m.N = int32(d.integer(1, MaxResults))
			case "beam_width":
				m.BeamWidth = int32(d.integer(1, MaxBeamWidth))
			case "top_k":
				m.TopK = d.count()
			case "exclude":
				m.Exclude = d.strings(MaxExclude)
			case "exclude_seen":
				m.ExcludeSeen = d.bool()
			case "filter":
				m.Filter = d.filter()
			case "quota":
				m.Quota = d.quota()
			case "boost":
				m.Boost = d.boost()
			case "temperature":
				m.Temperature = d.float()
			case "seed":
				m.Seed = new(uint64(d.integer(0, MaxSeed)))
			case "rank":
				m.Rank = &grebev1.RankFound{}
				d.rankFound(m.Rank)
			case "fallback":
				m.Fallback = d.string()
			case "whole_prompt":
				m.WholePrompt = d.bool()
			case "one_per_path":
				m.OnePerPath = d.bool()
			case "explain":
				m.Explain = d.bool()
			case "deadline_ms":
				m.DeadlineMs = d.count()
			case "request_id":
				m.RequestId = d.string()
			default:
				d.unknown()
			}
		})
	})
	return m, err
}

// rankFound reads how found items are ranked.
func (d *decoder) rankFound(m *grebev1.RankFound) {
	d.object(func(key string) {
		switch key {
		case "model":
			m.Model = d.string()
		case "candidates":
			m.Candidates = int32(d.integer(1, MaxResults))
		case "prefix":
			m.Prefix = d.string()
		default:
			d.unknown()
		}
	})
}

// quota reads the most results of a value of each attribute.
func (d *decoder) quota() map[string]int32 {
	out := map[string]int32{}
	d.object(func(name string) {
		if len(out) == MaxFilter {
			d.fail("more than %d attributes", MaxFilter)
		}
		out[name] = int32(d.integer(1, MaxResults))
	})
	return out
}

// boost reads what is added to scores, by attribute and value.
func (d *decoder) boost() map[string]*grebev1.Boosts {
	out, n := map[string]*grebev1.Boosts{}, 0
	d.object(func(name string) {
		b := &grebev1.Boosts{Values: map[string]float64{}}
		d.object(func(value string) {
			if n++; n > MaxBoosts {
				d.fail("more than %d values", MaxBoosts)
			}
			b.Values[value] = d.float()
		})
		out[name] = b
	})
	return out
}

// filter reads the conditions of each attribute.
func (d *decoder) filter() map[string]*grebev1.Condition {
	out := map[string]*grebev1.Condition{}
	d.object(func(name string) {
		if len(out) == MaxFilter {
			d.fail("more than %d attributes", MaxFilter)
		}
		out[name] = d.condition()
	})
	return out
}

// condition reads a list of values, or an object with values that are not wanted and bounds.
func (d *decoder) condition() *grebev1.Condition {
	c := &grebev1.Condition{}
	switch d.peek() {
	case '[':
		c.Values = d.strings(MaxWanted)
	case '{':
		d.object(func(key string) {
			switch key {
			case "not":
				c.Not = d.strings(MaxWanted)
			case "gte":
				c.Gte = d.bound()
			case "gt":
				c.Gt = d.bound()
			case "lt":
				c.Lt = d.bound()
			case "lte":
				c.Lte = d.bound()
			default:
				d.fail("unknown condition: want not, gte, gt, lt or lte")
			}
		})
	default:
		d.expect("a list of values, or an object with not, gte, gt, lt or lte")
	}
	return c
}

// bound reads a number or a time.
func (d *decoder) bound() string {
	if d.peek() != '"' {
		return d.number()
	}
	s := d.string()
	if s == "" {
		d.fail("is empty")
	}
	return s
}

// EncodeRecommend writes a response of /v1/recommend.
func EncodeRecommend(m *grebev1.RecommendResponse) []byte {
	return encode(func(w *writer) {
		w.string("model", m.Model)
		w.string("request_id", m.RequestId)
		w.string("node", m.Node)
		w.list("results", len(m.Results), func(i int) {
			r := m.Results[i]
			w.nested('{', '}', func() {
				w.string("id", r.Id)
				w.ints("codes", r.Codes)
				w.float("score", r.Score)
				if r.Boost != 0 {
					w.float("boost", r.Boost)
				}
				if r.RankScore != nil {
					w.float("rank_score", *r.RankScore)
				}
			})
		})
		if m.Fallback != "" {
			w.string("fallback", m.Fallback)
		}
		if m.Seed != nil {
			w.int("seed", int64(*m.Seed))
		}
		w.bool("short", m.Short)
		if m.ShortReason != "" {
			w.string("short_reason", m.ShortReason)
		}
		w.string("catalog_version", m.CatalogVersion)
		w.object("usage", func() { w.usage(m.Usage) })
		w.object("timing_ms", func() { w.timing(m.TimingMs) })
		if by := m.Ranked; by != nil {
			w.object("ranked", func() {
				w.string("model", by.Model)
				w.string("prefix", by.Prefix)
				w.int("candidates", int64(by.Candidates))
				w.object("usage", func() { w.usage(by.Usage) })
				w.object("timing_ms", func() { w.timing(by.TimingMs) })
			})
		}
		w.explained(m.Parts, m.Route)
		w.notes(m.Notes)
	})
}
