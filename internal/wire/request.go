package wire

import (
	"math"

	grebev1 "grebe/api/grebe/v1"
)

// Bounds of what a request may list.
const (
	MaxCandidates = 10000
	MaxHistory    = 100000
	MaxTokens     = 4 << 20
	MaxAttributes = 256
	MaxValues     = 4096
	MaxFeatures   = 256
	MaxCodes      = 64
)

// DecodeRank reads a request of /v1/rank.
func DecodeRank(in []byte) (*grebev1.RankRequest, error) {
	m := &grebev1.RankRequest{}
	err := decode(in, false, func(d *decoder) {
		d.object(func(key string) {
			switch key {
			case "model":
				m.Model = d.string()
			case "user":
				m.User = &grebev1.User{}
				d.user(m.User)
			case "candidates":
				d.list(MaxCandidates, func() {
					it := &grebev1.Item{}
					d.item(it)
					m.Candidates = append(m.Candidates, it)
				})
			case "top_k":
				m.TopK = d.count()
			case "prefix":
				m.Prefix = d.string()
			case "deadline_ms":
				m.DeadlineMs = d.count()
			case "request_id":
				m.RequestId = d.string()
			case "explain":
				m.Explain = d.bool()
			case "budget":
				m.Budget = &grebev1.Budget{}
				d.budget(m.Budget)
			default:
				d.unknown()
			}
		})
	})
	return m, err
}

func (d *decoder) budget(m *grebev1.Budget) {
	d.object(func(key string) {
		switch key {
		case "items":
			m.Items = new(d.float())
		case "history":
			m.History = new(d.float())
		default:
			d.unknown()
		}
	})
}

// DecodeItem reads an item.
func DecodeItem(in []byte) (*grebev1.Item, error) {
	m := &grebev1.Item{}
	return m, decode(in, false, func(d *decoder) { d.item(m) })
}

// DecodeUser reads a user.
func DecodeUser(in []byte) (*grebev1.User, error) {
	m := &grebev1.User{}
	return m, decode(in, false, func(d *decoder) { d.user(m) })
}

func (d *decoder) item(m *grebev1.Item) {
	d.object(func(key string) {
		switch key {
		case "id":
			m.Id = d.string()
		case "text":
			s := d.string()
			m.Text = &s
		case "tokens":
			m.Tokens = d.tokens()
		case "identifier":
			n := d.count()
			m.Identifier = &n
		case "codes":
			d.list(MaxCodes, func() { m.Codes = append(m.Codes, d.count()) })
		case "attributes":
			m.Attributes = map[string]*grebev1.Values{}
			d.object(func(name string) {
				if len(m.Attributes) == MaxAttributes {
					d.fail("more than %d attributes", MaxAttributes)
				}
				m.Attributes[name] = &grebev1.Values{Values: d.strings(MaxValues)}
			})
		default:
			d.unknown()
		}
	})
}

func (d *decoder) user(m *grebev1.User) {
	d.object(func(key string) {
		switch key {
		case "id":
			m.Id = d.string()
		case "history":
			m.History = d.strings(MaxHistory)
		case "text":
			s := d.string()
			m.Text = &s
		case "tokens":
			m.Tokens = d.tokens()
		case "events":
			m.Events = d.events()
		case "new_events":
			m.NewEvents = d.events()
		default:
			d.unknown()
		}
	})
}

func (d *decoder) event(m *grebev1.Event) {
	d.object(func(key string) { d.eventField(m, key) })
}

// eventField reads the value of a field of an event.
func (d *decoder) eventField(m *grebev1.Event, key string) {
	switch key {
	case "id":
		m.Id = d.string()
	case "item":
		m.Item = d.string()
	case "time":
		m.Time = d.integer(math.MinInt64, math.MaxInt64)
	case "action":
		m.Action = int32(d.integer(math.MinInt32, math.MaxInt32))
	case "features":
		m.Features = map[string]float64{}
		d.object(func(name string) {
			if len(m.Features) == MaxFeatures {
				d.fail("more than %d features", MaxFeatures)
			}
			m.Features[name] = d.float()
		})
	default:
		d.unknown()
	}
}

// count reads an integer from 0 on.
func (d *decoder) count() int32 { return int32(d.integer(0, math.MaxInt32)) }

// tokens reads a list of tokens; an empty one is not nil.
func (d *decoder) tokens() []int32 {
	out := []int32{}
	d.list(MaxTokens, func() { out = append(out, d.count()) })
	return out
}

// strings reads a list of strings; an empty one is not nil.
func (d *decoder) strings(most int) []string {
	out := []string{}
	d.list(most, func() { out = append(out, d.string()) })
	return out
}
