package serve

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
)

// popularFallback is the one kind of fallback that there is.
const popularFallback = "popular"

const (
	popularHalfLife = 7 * 24 * time.Hour // an event counts half as much when it is this old
	popularFresh    = time.Minute        // for which a list is used before it is made again
	popularKept     = 100_000            // items of the list
	popularUsers    = 1_000_000          // whose events are counted
)

// popular is the list of items that have most events. It is made when a request needs it, and made again, beside
// requests, when it is old. The zero value is ready.
type popular struct {
	mu    sync.Mutex
	list  []generate.Share // most first; never changed
	at    time.Time        // of the list
	doing chan struct{}    // closed when the list that is being made is ready; nil: none is
}

// mostPopular returns the items with most events. It waits for the first list.
func (s *Service) mostPopular(ctx context.Context) ([]generate.Share, error) {
	p := &s.popular
	p.mu.Lock()
	now := s.now()
	if p.doing == nil && (p.at.IsZero() || now.Sub(p.at) >= popularFresh) {
		p.doing = make(chan struct{})
		s.background.Go(func() { s.countEvents(now) })
	}
	list, first, doing := p.list, p.at.IsZero(), p.doing
	p.mu.Unlock()
	if !first {
		return list, nil
	}
	select {
	case <-doing:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list, s.life.Err()
}

// countEvents makes the list.
func (s *Service) countEvents(now time.Time) {
	c := newCounts(now)
	for i, u := range s.catalog.Users(popularUsers) {
		if i%4096 == 0 && s.life.Err() != nil {
			break
		}
		c.add(u.Events)
	}
	list := c.shares(popularKept)
	p := &s.popular
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.life.Err() == nil {
		p.list, p.at = list, now
	}
	close(p.doing)
	p.doing = nil
}

// counts adds up events, each with the weight 2^(-age / half-life). Events of the future are as old as now. An event
// without a time is as old as the one before it of the same user; without one before it, as old as the oldest event of
// all. Weights are whole numbers, so that sums do not depend on the order of users.
type counts struct {
	now     int64
	oldest  int64
	weights map[string]uint64
	undated map[string]uint64 // numbers of events
}

// oneEvent is the weight of an event of now. The oldest ones weigh 1.
const oneEvent = 1 << 36

func newCounts(now time.Time) *counts {
	return &counts{now: now.Unix(), oldest: math.MaxInt64, weights: map[string]uint64{}, undated: map[string]uint64{}}
}

func (c *counts) add(events []*grebev1.Event) {
	at := int64(0)
	for _, e := range events {
		if t := e.GetTime(); t != 0 {
			at = t
		}
		if at == 0 {
			c.undated[e.GetItem()]++
			continue
		}
		c.oldest = min(c.oldest, at)
		c.weights[e.GetItem()] += c.weight(at)
	}
}

func (c *counts) weight(at int64) uint64 {
	age := float64(max(0, c.now-at))
	return max(1, uint64(oneEvent*math.Exp2(-age/popularHalfLife.Seconds())))
}

// shares returns the most items with the largest sums, largest first, and their shares of all events.
func (c *counts) shares(most int) []generate.Share {
	for id, n := range c.undated {
		c.weights[id] += n * c.weight(min(c.oldest, c.now))
	}
	list, total := make([]generate.Share, 0, len(c.weights)), uint64(0)
	for id, w := range c.weights {
		list = append(list, generate.Share{ID: id, Share: float64(w)})
		total += w
	}
	slices.SortFunc(list, func(a, b generate.Share) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.ID, b.ID))
	})
	list = slices.Clone(list[:min(len(list), most)])
	for i := range list {
		list[i].Share /= float64(total)
	}
	return list
}

// checkFallback checks the fallback of a request.
func (s *Service) checkFallback(req *grebev1.RecommendRequest) error {
	switch {
	case req.Fallback == "":
		return nil
	case req.Fallback != popularFallback:
		return Errorf(InvalidArgument, "fallback", "%s is not known: want popular", Quoted(req.Fallback))
	case s.cfg.Users != nil:
		return Errorf(Unprocessable, "fallback", "users are in a separate store, whose events are not counted")
	}
	return nil
}

// cold returns the user of a request that falls back: nothing is known of them, or only items that the model cannot
// read. It returns nil if the request does not fall back.
func (s *Service) cold(c *call, req *grebev1.RecommendRequest) (*grebev1.User, error) {
	if req.Fallback == "" || req.User == nil {
		return nil, nil
	}
	if err := s.checkFallback(req); err != nil {
		return nil, err
	}
	u := req.User
	if bare(u) {
		known, ok, err := &grebev1.User{}, false, error(nil)
		if u.Id != "" {
			known, ok, err = s.known(c, u.Id)
		}
		switch {
		case err != nil:
			return nil, err
		case ok:
			u = withNew(known, u.NewEvents)
		case len(u.NewEvents) > 0: // whom refuses new events of a user who is unknown
			return nil, nil
		}
	}
	if c.model.reads().shows(s, c, u) {
		return nil, nil
	}
	return u, nil
}

// bare reports whether a user has nothing but an id.
func bare(u *grebev1.User) bool {
	return u.GetText() == "" && len(u.Tokens) == 0 && len(u.History) == 0 && len(u.Events) == 0
}

// fallBack answers a request for a user of whom the model reads nothing.
func (s *Service) fallBack(ctx context.Context, c *call, id string, req *grebev1.RecommendRequest,
	find func(list []generate.Share) (*generate.Result, error)) (*grebev1.RecommendResponse, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	list, err := s.mostPopular(ctx)
	if err != nil {
		return nil, AsError(err)
	}
	res, err := find(list)
	if errors.Is(err, generate.ErrNoCodes) {
		return nil, Errorf(Unprocessable, "", "model %q cannot recommend: %v", c.model.Name, err)
	}
	if err != nil {
		return nil, err
	}
	resp := &grebev1.RecommendResponse{Model: c.model.Name, RequestId: id, Node: s.cfg.Node, Short: res.Short,
		CatalogVersion: res.Version,
		Usage:          generationUsage(res), TimingMs: &grebev1.Timing{}, Fallback: req.Fallback}
	resp.Usage.Note = c.note
	if res.Short {
		resp.ShortReason = shortCatalog
	}
	for _, it := range res.Items {
		resp.Results = append(resp.Results, &grebev1.Recommended{
			Id: it.ID, Codes: it.Codes, Score: it.Score, Boost: it.Boost})
	}
	if time.Since(c.start) <= c.deadline {
		s.metrics.sloOK.WithLabelValues(c.op).Inc()
	}
	resp.TimingMs.Total = milliseconds(time.Since(c.start))
	return resp, nil
}
