// Package alloc decides how a pool of memory is divided between embeddings and KV: α, the embeddings' share, anew
// every epoch from what the last one was like (SEEDS.md HLM-3), or every part of one (Watcher), and how fast new capacity is filled (HLM-4).
//
// The package is pure: time is an argument, a decision is a plain value. Decisions allocate nothing. Controllers are
// not safe for concurrent use.
package alloc

import "fmt"

// Epoch is how many seconds pass between decisions.
const Epoch = 5

// Glances is how many parts of an epoch a Watcher sees.
const Glances = 10

// The share stays within these, so that neither cache starves.
const (
	MinShare = 0.1
	MaxShare = 0.9
)

// Clip returns the nearest share that is allowed.
func Clip(alpha float64) float64 { return min(max(alpha, MinShare), MaxShare) }

// State is what an epoch was like: the seven features of HLM-3.
type State struct {
	Hot    float64 // share of requests from users who had come within the last minute
	KVHit  float64 // share of requests that found the user's KV
	EmbHit float64 // share of look-ups that found the row
	Events float64 // mean length of histories
	Late   float64 // share of requests beyond the SLO
	Alpha  float64 // embeddings' share of the pool
	P99    float64 // milliseconds
}

// Observation is a State and what else was measured, for controllers that use more.
type Observation struct {
	State
	Requests int
	LinkLoad float64 // share of the time that the link moved rows for requests
	GPULoad  float64 // share of the time that the GPU computed
	Gains    Gains
}

// load is that of what is busiest.
func (o *Observation) load() float64 { return max(o.LinkLoad, o.GPULoad) }

// Decision says what a controller wants and why.
type Decision struct {
	From, To float64 // the share before and after
	Base     float64 // change that the policy chose
	Residual float64 // change that the adapter added
	Recovery bool    // a burst: the recovery controller overrode both
}

// String explains the decision in a line.
func (d Decision) String() string {
	if d.Recovery {
		return fmt.Sprintf("share of embeddings %.3f -> %.3f: recovery from a burst (policy %+.3f, adapter %+.3f overridden)", d.From, d.To, d.Base, d.Residual)
	}
	return fmt.Sprintf("share of embeddings %.3f -> %.3f: policy %+.3f, adapter %+.3f", d.From, d.To, d.Base, d.Residual)
}

// Controller chooses the share of the next epoch.
type Controller interface {
	Decide(*Observation) Decision
}

// Watcher is a controller that looks at every part of an epoch and may move the boundary there and then.
type Watcher interface {
	Controller
	// Glance is told what a part was like. P99 and Late are of the last whole epoch. False: nothing is to be done.
	Glance(*Observation) (Decision, bool)
}

// Static never moves.
type Static float64

// Decide returns the share.
func (s Static) Decide(o *Observation) Decision { return Decision{From: o.Alpha, To: float64(s)} }
