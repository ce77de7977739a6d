package budget

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/workload"
)

// The bars.
const (
	leastBusy  = 0.90    // of the budget, that the only busy model gets within a phase
	leastWoken = 0.30    // that a model gets which wakes up beside one that is as busy: equal parts are 0.48
	leastFloor = 1. / 48 // that every model may own at any time: a third of a sixteenth
	mostSwing  = 0.15    // by which shares still change in the last third of a phase with two busy models
)

// Shares are the parts of the budget that models could own.
type Shares struct {
	Memory int64   `json:"memory"`
	Rate   float64 `json:"rate"`
	Phases []Phase `json:"phases"`
	Floor  float64 `json:"floor"` // the least that any model had at any time
}

// Phase is a time in which the same models were busy.
type Phase struct {
	Name    string    `json:"name"`
	Busy    []string  `json:"busy"`
	Model   string    `json:"model,omitempty"` // the one that should get a share
	Bar     float64   `json:"bar,omitempty"`   // that share
	Reached float64   `json:"reached_s"`       // seconds until it had the share; below 0: it did not get there
	Shares  []float64 `json:"shares"`          // of each model at the end
	Swing   float64   `json:"swing"`           // most less least that the model had in the last third
	Reused  []float64 `json:"reused"`          // share of the tokens of each model in the last third
	Samples []Sample  `json:"samples"`
}

// Sample is what each model could own at a time.
type Sample struct {
	Second float64   `json:"s"`
	Shares []float64 `json:"shares"`
}

func (s *Shares) passed() bool {
	for _, p := range s.Phases {
		if p.Bar > 0 && (p.Reached < 0 || p.Shares[index(p.Model)] < p.Bar) || len(p.Busy) == 2 && p.Swing > mostSwing {
			return false
		}
	}
	return s.Floor >= leastFloor*0.99 // limits are whole pages
}

func index(name string) int {
	for i, n := range names {
		if n == name {
			return i
		}
	}
	return -1
}

// shares measures them on a server with three models.
func (s *site) shares(ctx context.Context) (out *Shares, err error) {
	server, err := s.start(ctx, map[string]string{"one": "one", "two": "two", "three": "three"})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
	defer client.CloseIdleConnections()
	out = &Shares{Memory: s.o.Memory, Rate: s.o.Rate, Floor: 1}
	for i, p := range []Phase{
		{Name: "all fill their parts", Busy: names},
		{Name: "one stays busy", Busy: names[:1], Model: "one", Bar: leastBusy},
		{Name: "two wakes up", Busy: names[:2], Model: "two", Bar: leastWoken},
		{Name: "one falls idle", Busy: names[1:2], Model: "two", Bar: leastBusy},
	} {
		t := &timed{site: s, server: server, client: client, phase: &p, number: i, length: s.o.Phase}
		if p.Bar == 0 {
			t.length /= 2
		}
		if err := t.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		for _, sample := range p.Samples {
			for _, share := range sample.Shares {
				out.Floor = min(out.Floor, share)
			}
		}
		out.Phases = append(out.Phases, p)
	}
	return out, nil
}

// timed is a phase that runs.
type timed struct {
	*site
	server *drive.Server
	client *http.Client
	phase  *Phase
	number int
	length time.Duration

	mu     sync.Mutex
	reused [3]usage // of the last third
	failed error    // the last one of a request
}

// run sends the requests of a phase and samples shares meanwhile.
func (t *timed) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	var wg sync.WaitGroup
	for _, name := range t.phase.Busy {
		wg.Go(func() {
			if err := t.load(ctx, name, began); err != nil {
				cancel(err)
			}
		})
	}
	err := t.sample(ctx, began)
	if err != nil {
		cancel(err)
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	t.sum()
	return err
}

// load sends requests of one model, of users drawn at random.
func (t *timed) load(ctx context.Context, name string, began time.Time) error {
	seed := uint64(10*t.number + index(name))
	res, err := load.Open(ctx, load.Options{
		Name: name, Arrivals: workload.Poisson(t.o.Rate, seed), Duration: t.length, Timeout: time.Minute,
	}, func(ctx context.Context, i int) error {
		u, err := rank(ctx, t.client, t.server.URL, name, rand.New(rand.NewPCG(seed, uint64(i))).IntN(t.o.Users))
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case err != nil:
			t.failed = err
		case time.Since(began) > t.length*2/3:
			t.reused[index(name)].add(u)
		}
		return err
	})
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("%s: errors %v, the last: %w", name, res.Errors, t.failed)
	}
	return err
}

// sample reads the limits twice a second.
func (t *timed) sample(ctx context.Context, began time.Time) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		m, err := t.server.Metrics(ctx)
		if err != nil {
			return err
		}
		s := Sample{Second: time.Since(began).Seconds(), Shares: make([]float64, len(names))}
		for i, name := range names {
			s.Shares[i] = m[fmt.Sprintf("grebe_pool_limit_bytes{model=%q}", name)] / float64(t.o.Memory)
		}
		t.phase.Samples = append(t.phase.Samples, s)
		if time.Since(began) >= t.length {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// sum fills in what the samples say.
func (t *timed) sum() {
	p := t.phase
	last := p.Samples[len(p.Samples)-1]
	p.Shares, p.Reached = last.Shares, -1
	for i := range names {
		p.Reused = append(p.Reused, t.reused[i].reused())
	}
	at := index(p.Model)
	if at < 0 {
		return
	}
	low, high := 1., 0.
	for _, s := range p.Samples {
		if p.Reached < 0 && s.Shares[at] >= p.Bar {
			p.Reached = s.Second
		}
		if s.Second >= t.length.Seconds()*2/3 {
			low, high = min(low, s.Shares[at]), max(high, s.Shares[at])
		}
	}
	p.Swing = high - low
}
