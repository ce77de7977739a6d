package wire

import grebev1 "grebe/api/grebe/v1"

// Bounds of a recommendation.
const (
	MaxResults   = 10000
	MaxBeamWidth = 4096
	MaxExclude   = 100000
	MaxFilter    = 64   // attributes
	MaxWanted    = 4096 // values of one attribute
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

// filter reads the values that are wanted of each attribute.
func (d *decoder) filter() map[string]*grebev1.Values {
	out := map[string]*grebev1.Values{}
	d.object(func(name string) {
		if len(out) == MaxFilter {
			d.fail("more than %d attributes", MaxFilter)
		}
		out[name] = &grebev1.Values{Values: d.strings(MaxWanted)}
	})
	return out
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
			})
		})
		w.bool("short", m.Short)
		if m.ShortReason != "" {
			w.string("short_reason", m.ShortReason)
		}
		w.string("catalog_version", m.CatalogVersion)
		w.object("usage", func() { w.usage(m.Usage) })
		w.object("timing_ms", func() { w.timing(m.TimingMs) })
		w.notes(m.Notes)
	})
}
