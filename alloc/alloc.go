// Package alloc decides how a pool of memory is divided between embeddings and KV. A Controller chooses α, the share of
// the embeddings, once per epoch from measurements of the last one (HLM-3 in docs/explain/papers.md). A Watcher also
// chooses it within an epoch. A Governor limits how fast new capacity is filled (HLM-4). A Budget divides memory
// between models.
//
// The package is pure: time is an argument, and a decision is a plain value. Decisions allocate nothing. Controllers
// are not safe for concurrent use.
package alloc

import "fmt"

// Epoch is the time between decisions in seconds.
const Epoch = 5

// Glances is the number of parts of an epoch, each of which is shown to a Watcher.
const Glances = 10

// The share stays between these limits, so that neither cache starves.
const (
	MinShare = 0.1
	MaxShare = 0.9
)

// Clip returns the nearest share within the limits.
func Clip(alpha float64) float64 { return min(max(alpha, MinShare), MaxShare) }

// State describes an epoch by the seven features of HLM-3.
type State struct {
	Hot    float64 // share of requests whose user also came within the minute before
	KVHit  float64 // share of requests that found the user's KV
	EmbHit float64 // share of look-ups that found the row
	Events float64 // mean length of histories
	Late   float64 // share of requests that missed the SLO
	Alpha  float64 // embeddings' share of the pool
	P99    float64 // milliseconds
}

// Observation is a State and further measurements, for controllers that use them.
type Observation struct {
	State
	Requests int
	LinkLoad float64 // share of the time in which the link moved rows for requests
	GPULoad  float64 // share of the time in which the GPU computed
	Gains    Gains
}

// load is the load of the busier resource.
func (o *Observation) load() float64 { return max(o.LinkLoad, o.GPULoad) }

// Decision is the result of a controller, with its reasons.
type Decision struct {
	From, To float64 // the share before and after
	Base     float64 // change that the policy chose
	Residual float64 // change that the adapter added
	Recovery bool    // a burst: the recovery controller overrode both
}

// String explains the decision in a line.
func (d Decision) String() string {
	if d.Recovery {
		return fmt.Sprintf("share of embeddings %.3f -> %.3f: recovery from a burst (policy %+.3f, adapter %+.3f overridden)",
			d.From, d.To, d.Base, d.Residual)
	}
	return fmt.Sprintf("share of embeddings %.3f -> %.3f: policy %+.3f, adapter %+.3f", d.From, d.To, d.Base, d.Residual)
}

// Controller chooses the share of the next epoch.
type Controller interface {
	Decide(*Observation) Decision
}

// Watcher is a controller that sees every part of an epoch and may move the boundary after each.
type Watcher interface {
	Controller
	// Glance decides after a part of an epoch. P99 and Late are those of the last whole epoch. It returns false to leave
	// the boundary where it is.
	Glance(*Observation) (Decision, bool)
}

// Static never moves the boundary.
type Static float64

// Decide returns the current share.
func (s Static) Decide(o *Observation) Decision { return Decision{From: o.Alpha, To: float64(s)} }
