package alloc

// Governor grants background traffic a share of the bandwidth that requests leave free on a link, and nothing while
// requests use all of it. Time is an argument, in seconds (HLM-4 in docs/explain/papers.md).
type Governor struct {
	Link  float64 // bytes per second
	Share float64 // of the free bandwidth that background traffic may use; 0 to 1

	demand float64 // bytes per second, decayed
	credit float64 // bytes granted and not spent
	at     float64
}

const (
	demandWindow = 0.25 // seconds over which demand decays
	burstWindow  = 0.02 // most credit that can be saved up, in seconds
)

// Demand notes bytes that a request moves.
func (g *Governor) Demand(now float64, bytes int64) {
	g.advance(now)
	g.demand += float64(bytes) / demandWindow
}

// Rate returns the bytes per second that background traffic may use.
func (g *Governor) Rate() float64 { return max(0, g.Link-g.demand) * g.Share }

// Grant returns how many of the wanted bytes may be moved now. The caller reports the bytes that it moved with Spend.
func (g *Governor) Grant(now float64, want int64) int64 {
	g.advance(now)
	return min(want, int64(g.credit))
}

// Spend subtracts moved bytes from the credit.
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
