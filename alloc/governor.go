package alloc

// Governor lets background traffic have what demand leaves of a link: a share of it, and nothing while demand takes
// all. It is told of demand and asked for grants; time is an argument, in seconds (SEEDS.md HLM-4).
type Governor struct {
	Link  float64 // bytes per second
	Share float64 // of what demand leaves, that background may have; 0 to 1

	demand float64 // bytes per second, decayed
	credit float64 // bytes granted and not spent
	at     float64
}

const (
	demandWindow = 0.25 // seconds in which demand is forgotten
	burstWindow  = 0.02 // seconds of credit that may be saved up
)

// Demand notes bytes that a request moves.
func (g *Governor) Demand(now float64, bytes int64) {
	g.advance(now)
	g.demand += float64(bytes) / demandWindow
}

// Rate returns the bytes per second that background traffic may have.
func (g *Governor) Rate() float64 { return max(0, g.Link-g.demand) * g.Share }

// Grant returns how many of the wanted bytes may be moved now. Spend says how many were.
func (g *Governor) Grant(now float64, want int64) int64 {
	g.advance(now)
	return min(want, int64(g.credit))
}

// Spend takes moved bytes off the credit.
func (g *Governor) Spend(bytes int64) { g.credit -= float64(bytes) }

func (g *Governor) advance(now float64) {
	dt := now - g.at
	if dt <= 0 {
		return
	}
	g.at = now
	g.demand *= max(0, 1-dt/demandWindow)
	g.credit = min(g.credit+g.Rate()*dt, g.Link*burstWindow)
}
