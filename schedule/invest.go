package schedule

// Prototypes describes a user's history in which KV of prototypes can replace that of some tokens. The result is not
// exact, so it is not kept.
type Prototypes struct {
	Tokens  int     // of the history
	Cached  int     // leading tokens with cached KV of their own, which cannot be combined with prototypes
	Matched int     // tokens that have a prototype
	Layers  int     // of the model; the first computes all tokens
	Budget  float64 // share of the matched tokens that the other layers compute again
}

// fewMatches: if fewer than one token in 16 has a prototype, prototypes save almost nothing.
const fewMatches = 16

// Search reports whether it is worth looking for prototypes: less than half of the history is cached. Matched is not
// used.
func (p *Prototypes) Search() bool { return p.Tokens > 0 && 2*p.Cached < p.Tokens }

// Few reports whether too few tokens matched to use prototypes.
func (p *Prototypes) Few() bool { return fewMatches*p.Matched < p.Tokens }

// Invest reports whether to compute a user exactly and keep it, rather than use prototypes. It returns the milliseconds
// of both, exact and near.
//
// Exact computation is chosen if it is cheaper, because enough is cached. It is also chosen if the user came before and
// is expected to save more on its return than it costs now.
func (p *Prototypes) Invest(in *Request, m *PrefillModel) (exact, near float64, invest bool) {
	ms := func(rows float64) float64 {
		keys := rows * (float64(in.Preamble) + float64(in.User)/2)
		return m.Predict(int(rows), int(keys), 1) - m.Predict(0, 0, 1)
	}
	layers, whole := float64(p.Layers), float64(in.User)
	near = ms(whole - float64(p.Matched)*(1-p.Budget)*(layers-1)/layers)
	exact = ms(whole - float64(p.Cached))
	return exact, near, exact < near || userClass(in.Frequency) > 0 && exact-near < in.Returns*near
}
