package schedule

import (
	"time"

	"grebe/plan"
)

// Blending describes an ordinary prompt that reuses the cached KV of items at whatever position they have. The first
// layers compute all tokens. The other layers skip tokens whose KV is reused, except for a budget of them.
type Blending struct {
	Layers int     // of the model
	First  int     // layers that compute all tokens; 0 counts as 1
	Budget float64 // share of the reused tokens that the other layers compute too

	Pace  Pace          // of the last reads from disk
	Now   time.Duration // on the clock of Pace
	Guess Transfer      // from disk, while the pace is unknown
}

// Pays reports whether a blended prompt is predicted to take less time than the chosen order, less what that order
// saves later requests. It returns the milliseconds of the prompt without the queue. Reads from disk count only beyond
// the time of the first layers.
func (b *Blending) Pays(in *Request, m *PrefillModel, chosen *Option) (ms float64, pays bool) {
	s := in.sumItems()
	known := s.total - s.tokens[plan.Missing]
	cached := 0
	for _, n := range in.UserCached {
		cached = max(cached, int(n))
	}
	layers := float64(b.Layers)
	whole := float64(int(in.User) - cached + s.total + int(in.Question))
	rows := whole - float64(known)*(1-b.Budget)*(layers-1)/layers
	each := float64(in.Preamble) + float64(in.User) + float64(s.total)/2 // keys per row
	ms = m.Predict(int(rows), int(rows*each), 1)
	if disk := s.tokens[plan.Disk]; disk > 0 {
		first := m.Predict(int(whole), int(whole*each), 1) * float64(max(b.First, 1)) / layers
		ms += max(0, b.Pace.Ms(b.Now, s.count[plan.Disk], disk, b.Guess)-first)
	}
	return ms, in.Queue+ms < chosen.net()
}
