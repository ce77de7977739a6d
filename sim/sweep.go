package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Report is the result of a scenario: one run, or several at different rates.
type Report struct {
	Runs []*Result `json:"runs"`
	// Sustained is the highest rate that was tried at which enough requests were answered within the SLO; 0: none.
	Sustained float64 `json:"sustained,omitempty"`
	// Fails is the lowest rate that was tried at which they were not; 0: none.
	Fails   float64 `json:"fails,omitempty"`
	SLO     float64 `json:"slo_ms"`
	Within  float64 `json:"within"` // the share of requests that counts as enough
	Stopped bool    `json:"stopped,omitempty"`
}

// enough is the number of requests of a run below which its shares and percentiles are luck.
const enough = 100

// Warning says that a run counted too few requests; "": none did.
func (rep *Report) Warning() string {
	if len(rep.Runs) == 0 || rep.Stopped {
		return ""
	}
	least := slices.MinFunc(rep.Runs, func(a, b *Result) int { return a.Requests - b.Requests })
	if least.Requests >= enough {
		return ""
	}
	return fmt.Sprintf("a run counted only %d of %d requests; those of the warm-up are never counted. This is too few "+
		"for a figure: give %d or more, by a longer trace or run, or a shorter warmup", least.Requests, least.Ended, enough)
}

// Play runs a scenario, or its sweep. If ctx ends, the report has what there is.
func Play(ctx context.Context, s *Scenario, opt Options) (*Report, error) {
	if s.Trace.File != "" && opt.Stream == nil {
		if _, err := playTrace(s); err != nil {
			return nil, err
		}
	}
	rep := &Report{SLO: s.SLO.Seconds() * 1e3, Within: s.Sweep.Within}
	run := func(rate float64) (*Result, error) {
		at := *s
		if rate > 0 {
			at.setRate(rate)
		}
		r, err := Run(ctx, &at, opt)
		if err != nil {
			return nil, err
		}
		rep.Runs = append(rep.Runs, r)
		rep.Stopped = r.Stopped
		if r.Stopped {
			return nil, errStopped
		}
		return r, nil
	}
	err := rep.play(s, run)
	if errors.Is(err, errStopped) {
		err = nil
	}
	slices.SortStableFunc(rep.Runs, func(a, b *Result) int { return compareRates(a, b) })
	return rep, err
}

var errStopped = errors.New("stopped")

func compareRates(a, b *Result) int {
	switch {
	case a.Offered < b.Offered:
		return -1
	case a.Offered > b.Offered:
		return 1
	}
	return 0
}

func (rep *Report) play(s *Scenario, run func(rate float64) (*Result, error)) error {
	switch {
	case s.Sweep.Find:
		return rep.find(s, run)
	case len(s.Sweep.Rates) > 0:
		for _, rate := range s.Sweep.Rates {
			r, err := run(rate)
			if err != nil {
				return err
			}
			rep.note(rate, r)
		}
		return nil
	}
	_, err := run(0)
	return err
}

// note takes the result at a rate.
func (rep *Report) note(rate float64, r *Result) bool {
	ok := r.Within >= rep.Within
	if ok {
		rep.Sustained = max(rep.Sustained, rate)
	} else if rep.Fails == 0 || rate < rep.Fails {
		rep.Fails = rate
	}
	return ok
}

// find looks for the highest rate at the SLO: it doubles or halves the rate until one is enough and one is too much,
// and then halves the distance. The same seed draws the same requests at every rate.
func (rep *Report) find(s *Scenario, run func(rate float64) (*Result, error)) error {
	rate := s.Sweep.From
	if rate == 0 {
		rate = s.Load.Rate
	}
	low, high := 0.0, 0.0
	for range 40 {
		r, err := run(rate)
		if err != nil {
			return err
		}
		if rep.note(rate, r) {
			low = rate
		} else {
			high = rate
		}
		switch {
		case high == 0:
			rate *= 2
		case low == 0:
			rate /= 2
		case high-low <= s.Sweep.Digits*low:
			return nil
		default:
			rate = (low + high) / 2
		}
	}
	return nil
}

// setRate changes the load of a scenario. A recorded one is played faster or slower.
func (s *Scenario) setRate(rate float64) {
	if s.Trace.File != "" && s.Load.Rate > 0 {
		s.Trace.Speedup *= rate / s.Load.Rate
	}
	s.Load.Rate = rate
}
