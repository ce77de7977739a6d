package schedule

// Prototypes is a user's history in which the KV of prototypes can replace that of some tokens. It is not exact, so
// what is computed with it is not kept.
type Prototypes struct {
	Tokens  int     // of the history
	Cached  int     // leading tokens whose own KV is cached; it is not used together with prototypes
	Matched int     // tokens that have a prototype
	Layers  int     // of the model; the first computes all tokens
	Budget  float64 // share of the matched tokens that is computed again in the others
}

// fewMatches is the part of a history, one token of so many, below which prototypes save next to nothing.
const fewMatches = 16

// Search reports whether it is worth looking for prototypes: less than half of the history is cached. Matched is not
// known yet.
func (p *Prototypes) Search() bool { return p.Tokens > 0 && 2*p.Cached < p.Tokens }

// Few reports whether too few tokens matched for prototypes to be used.
func (p *Prototypes) Few() bool { return fewMatches*p.Matched < p.Tokens }

// Invest reports whether a user is computed whole and kept, rather than with prototypes. It returns the milliseconds that
// both take, exact and near.
//
// The user is computed whole where that costs less, since what is cached of it saves as much. It is also computed whole
// where the user came before and is expected to save more when it returns than it costs now.
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
