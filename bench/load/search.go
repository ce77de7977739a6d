package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"grebe/workload"
)

// SearchOptions say how to look for the highest rate that keeps the SLO.
type SearchOptions struct {
	// Run is one run; its SLO must be set and its Arrivals are not used. Its Drain is by default five
	// times the SLO, at least a second: what comes later has failed already. Indices of requests go on
	// from run to run, so that none is sent twice.
	Run Options
	// Arrivals makes the arrivals of a run; Poisson, seeded by its number.
	Arrivals func(rate float64, run int) workload.Arrivals
	// Start is the first rate tried, per second; it is multiplied or divided by Step (2) until one rate
	// keeps the SLO and one does not. A smaller step is squared each time, until it is 2. A tenth of a closed loop's
	// throughput is a good one, or nearly all of it with a small step.
	Start, Step float64
	// Max and Min bound the rates tried; 1024 times Start and Start/1024. Below Min the search ends with 0.
	Max, Min float64
	// Time bounds the search; of several in turns the first one's counts. No rate is tried after it, and what
	// was found by then is the result; 0: no bound.
	Time time.Duration
	// Precision is the ratio between rates at which the search ends, less 1; 0.05.
	Precision float64
	// Repeats is the number of runs at a rate: it keeps the SLO if most of them do; 3.
	Repeats int
	// Requests is the least number of a run's, which lasts longer where the rate is low: 99 % of fewer than
	// 100 are all of them; 100.
	Requests int
	// Tried, when not nil, is told of every rate that was tried.
	Tried func(name string, t *Trial)
}

// Found is what Search found.
type Found struct {
	Name string  `json:"name"`
	Rate float64 `json:"rate"` // the highest that kept the SLO; 0: none did
	// Limit is the lowest rate that did not keep it; 0: all did.
	Limit float64 `json:"limit"`
	// Cut says that the time was over before Rate and Limit were as close as they were to be.
	Cut    bool    `json:"cut,omitempty"`
	Best   Result  `json:"best"` // the runs at Rate together
	Trials []Trial `json:"trials"`
}

// Trial is the runs at one rate.
type Trial struct {
	Rate float64  `json:"rate"`
	Kept bool     `json:"kept"`
	Runs []Result `json:"runs"`
}

func (o *SearchOptions) prepare() error {
	if o.Run.SLO <= 0 {
		return errors.New("no SLO is given")
	}
	if o.Start <= 0 {
		return errors.New("no rate to start from is given")
	}
	if o.Arrivals == nil {
		o.Arrivals = func(rate float64, run int) workload.Arrivals { return workload.Poisson(rate, uint64(run)) }
	}
	if o.Run.Drain <= 0 {
		o.Run.Drain = max(5*o.Run.SLO, time.Second)
	}
	if o.Step <= 1 {
		o.Step = 2
	}
	if o.Max <= 0 {
		o.Max = 1024 * o.Start
	}
	if o.Min <= 0 {
		o.Min = o.Start / 1024
	}
	if o.Precision <= 0 {
		o.Precision = 0.05
	}
	if o.Repeats <= 0 {
		o.Repeats = 3
	}
	if o.Requests <= 0 {
		o.Requests = 100
	}
	return nil
}

// Search looks for the highest rate at which 99 % of the requests are answered within the SLO, by
// doubling and bisection.
func Search(ctx context.Context, o SearchOptions, do Do) (Found, error) {
	found, err := SearchAll(ctx, []SearchOptions{o}, []Do{do})
	if len(found) == 0 {
		return Found{}, err
	}
	return found[0], err
}

// SearchAll searches for several in turns, a rate each, so that a machine that slows down slows all of
// them.
func SearchAll(ctx context.Context, all []SearchOptions, do []Do) ([]Found, error) {
	searches := make([]*search, len(all))
	for i, o := range all {
		s := &search{SearchOptions: o, do: do[i], found: Found{Name: o.Run.Name}}
		if err := s.prepare(); err != nil {
			return nil, fmt.Errorf("load %s: search: %w", o.Run.Name, err)
		}
		s.rate, s.step = s.Start, s.Step
		searches[i] = s
	}
	begun := time.Now()
	late := func(s *search) bool { return s.Time > 0 && time.Since(begun) >= s.Time }
	var err error
	for trying := true; trying && err == nil; {
		trying = false
		for _, s := range searches {
			if s.rate == 0 || err != nil {
				continue
			}
			if late(searches[0]) {
				s.found.Cut = true
				continue
			}
			trying = true
			if err = s.try(ctx, s.rate); err == nil {
				s.rate = s.next(s.rate)
			}
		}
	}
	out := make([]Found, len(searches))
	for i, s := range searches {
		out[i] = s.found
	}
	return out, err
}

type search struct {
	SearchOptions
	do    Do
	rate  float64 // to try next; 0: at the end
	step  float64
	runs  int
	found Found
}

// next returns the rate to try after one, 0 at the end.
func (s *search) next(rate float64) float64 {
	lo, hi := s.found.Rate, s.found.Limit
	step := s.step
	s.step = max(s.Step, min(step*step, 2))
	switch {
	case hi == 0:
		if rate >= s.Max {
			return 0
		}
		return min(step*rate, s.Max)
	case lo == 0:
		if rate/step < s.Min {
			return 0
		}
		return rate / step
	case hi/lo <= 1+s.Precision:
		return 0
	}
	return (lo + hi) / 2
}

// try runs at a rate until most of its repeats have gone one way.
func (s *search) try(ctx context.Context, rate float64) error {
	t := Trial{Rate: rate}
	kept, need := 0, s.Repeats/2+1
	for kept < need && len(t.Runs)-kept < s.Repeats+1-need {
		run := s.Run
		run.Abandon, run.Arrivals = true, s.Arrivals(rate, s.runs)
		run.Duration = max(run.Duration, time.Duration(float64(s.Requests)/rate*float64(time.Second)))
		r, err := Open(ctx, run, s.do)
		if err != nil {
			return fmt.Errorf("search at %.4g per second: %w", rate, err)
		}
		s.runs++
		s.Run.First = r.Next
		t.Runs = append(t.Runs, r)
		if r.KeepsSLO() {
			kept++
		}
	}
	t.Kept = kept >= need
	s.found.Trials = append(s.found.Trials, t)
	if t.Kept {
		s.found.Rate, s.found.Best = rate, Merge(t.Runs...)
	} else {
		s.found.Limit = rate
	}
	if s.Tried != nil {
		s.Tried(s.found.Name, &t)
	}
	return nil
}
