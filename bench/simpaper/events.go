package simpaper

import (
	"fmt"
	"time"

	"grebe/sim"
	"grebe/workload/regime"
)

// rankings is a stream of package regime: histories of events, and candidates behind them. All candidates are one item
// here, of as many tokens: they come last, are never cached, and would only take the simulator's time one by one.
type rankings struct {
	stream *regime.Stream
	spec   regime.Spec
	recent []regime.Request // by user, the newer one wins
}

// recents is how many users' last requests are remembered, until a node has looked up their rows. Users have
// consecutive numbers, so that it takes as many new users to forget one.
const recents = 1 << 16

// rankings makes the stream of a node's workload for the whole fleet: as many times the rate, and the users who come
// with it.
func (s *Stream) rankings(rate float64, seed uint64) (*rankings, error) {
	spec, err := regime.Named(s.Regime, seed)
	if err != nil {
		return nil, err
	}
	spec.Rate = rate
	if s.Part > 0 {
		spec.Grains = int(s.Part * float64(spec.Grains))
	}
	if s.Skip < 0 || s.Skip >= len(spec.Hot) {
		return nil, fmt.Errorf("leave out %d epochs of %d", s.Skip, len(spec.Hot))
	}
	spec.Hot = spec.Hot[s.Skip:]
	if s.Hot > 0 {
		spec.Base = s.Hot
		for i := range spec.Hot {
			spec.Hot[i] = s.Hot
		}
	}
	stream, err := regime.NewStream(spec)
	if err != nil {
		return nil, err
	}
	return &rankings{stream: stream, spec: spec, recent: make([]regime.Request, recents)}, nil
}

func (s *rankings) Items() int { return 1 }

func (s *rankings) ItemTokens(int32) int32 { return int32(s.spec.Candidates) }

func (s *rankings) Grains() (count, rows int) { return s.spec.Grains, s.spec.Grain }

func (s *rankings) Next(r *sim.Request) bool {
	q, ok := s.stream.Next()
	if !ok {
		return false
	}
	s.recent[q.User%recents] = q
	r.At, r.User, r.UserTokens = time.Duration(q.At*float64(time.Second)), q.User, int32(q.Events)
	r.Items, r.ItemTokens = append(r.Items[:0], 0), append(r.ItemTokens[:0], int32(s.spec.Candidates))
	return true
}

func (s *rankings) AppendGrains(dst []int32, r *sim.Request, cached int) []int32 {
	q := s.recent[r.User%recents]
	q.User, q.Events = r.User, int(r.UserTokens) // of another user, only the candidates' rows would be others
	return s.stream.AppendRows(dst, &q, cached)
}

// missCosts sets the weights of HLEM's router to profiled costs (section IV-C): what the score's terms are worth in
// milliseconds when they go from 0 to 1.
//
//   - KV: computing the history of a mean user again.
//   - Embeddings: reading all rows of a mean request over the link.
//   - Load: waiting in the queue of a node that has as much work as the SLO, which is what sim reports as a load of 1.
func missCosts(s *sim.Scenario, r *rankings) error {
	p, err := sim.LoadProfile(s.Fleet.Profile)
	if err != nil {
		return err
	}
	events := (r.spec.MinEvents + r.spec.MaxEvents) / 2
	s.Route.MissKV = p.Prefill.Predict(events, events*events/2, 1)
	s.Route.MissEMB = 1e3 * float64(events*r.spec.Tables) * float64(p.RowBytes) / p.RowLink
	s.Route.MissLoad = 1e3 * s.SLO.Seconds()
	return nil
}

// shares are the static divisions of memory that the best is taken of, as shares of embeddings.
var shares = []float64{0.5, 0.3, 0.7, 0.1}

// bestStatic tries static shares of memory and returns the one that sustains the highest rate. A share that does not
// sustain what the best one so far does is not looked at further.
func (r *runner) bestStatic(find func(share, above float64) (*Value, error)) (*Value, error) {
	best := &Value{}
	for _, share := range shares {
		v, err := find(share, best.Throughput)
		if err != nil {
			return nil, err
		}
		if v.Throughput > best.Throughput {
			best = v
		}
	}
	return best, nil
}
