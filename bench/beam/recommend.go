package beam

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"grebe/bench/load"
	"grebe/generate"
	"grebe/prompt"
)

// Recommend is whole recommendations one after the other, with the constraint and without.
type Recommend struct {
	Width   int    `json:"width"`
	Context int    `json:"context"`
	User    string `json:"user"` // new: nothing of the prompt is cached; returning: all but the last tokens
	Ways    []Way  `json:"ways"` // constrained, free
	Rows    [2]int `json:"rows"` // beams computed per request, of each way
	// Invalid is the share of the free search's paths that no item has.
	Invalid float64 `json:"invalid_free"`
}

// Throughput is a closed loop of clients with returning users, with the constraint.
type Throughput struct {
	Width    int     `json:"width"`
	Clients  int     `json:"clients"`
	Rate     float64 `json:"requests_per_second"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	PerBatch float64 `json:"rounds_per_batch"` // in batches with any
	Busy     float64 `json:"engine_busy"`      // share of the time
}

const (
	levels    = 3
	levelSize = 256
	firstCode = 1024 // token of code 0
	wanted    = 10
)

// crowd is a system with a catalog so dense that few beams are settled early: then both ways compute
// almost the same rows, and their difference is what the constraint costs.
type crowd struct {
	*system
	context int
	seed    uint64
}

func openCrowd(ctx context.Context, o *Options, count int) (*crowd, error) {
	cfg := prompt.Config{GenerateInstruction: prompt.Text{Tokens: []int32{1, 2, 3}}}
	for l := range int32(levels) {
		cfg.Codes.FirstToken = append(cfg.Codes.FirstToken, firstCode+l*levelSize)
		cfg.Codes.Size = append(cfg.Codes.Size, levelSize)
	}
	s, err := openSystem(ctx, o.Model, o.Dir, o.Threads, cfg, 2<<30)
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(4, 4))
	items := make([]*prompt.Item, count)
	for i := range items {
		items[i] = &prompt.Item{ID: fmt.Sprint("i", i), Identifier: -1,
			Codes:      []int32{r.Int32N(levelSize), r.Int32N(levelSize), r.Int32N(levelSize)},
			Attributes: map[string][]string{"price": {fmt.Sprintf("%d.%02d", price(i)/100, price(i)%100)}}}
	}
	snap, err := generate.NewSnapshot("bench", items, s.prompt, s.model, nil)
	if err != nil {
		s.close()
		return nil, err
	}
	s.generator.Use(snap)
	return &crowd{system: s, context: o.Contexts[0]}, nil
}

// user returns the tokens of a user, the same for the same number.
func (c *crowd) user(n uint64) []int32 {
	r := rand.New(rand.NewPCG(n, 1))
	out := make([]int32, c.context-3) // the instruction follows
	for i := range out {
		out[i] = 4 + r.Int32N(firstCode-4)
	}
	return out
}

// ask recommends once.
func (c *crowd) ask(ctx context.Context, user uint64, width int, free bool) (*generate.Result, error) {
	q := c.request(user, width)
	q.Free = free
	return c.generator.Recommend(ctx, q)
}

func (c *crowd) request(user uint64, width int) *generate.Request {
	return &generate.Request{UserID: fmt.Sprint("u", user), User: c.user(user), N: wanted, Width: width}
}

func recommend(ctx context.Context, o *Options, r *Report, p *printer) error {
	c, err := openCrowd(ctx, o, o.items)
	if err != nil {
		return err
	}
	defer c.close()
	r.Device, r.Model = c.device.Name(), c.describe()
	p.recommendHead(c, o)
	for _, width := range o.widths(128, 512) {
		for _, user := range []string{"new", "returning"} {
			x, err := c.compare(ctx, o, width, user == "new")
			if err != nil {
				return fmt.Errorf("recommend with %d beams: %w", width, err)
			}
			r.Recommend = append(r.Recommend, x)
			p.recommend(&x)
			v := &x.Ways[1]
			r.Checks = append(r.Checks, Check{
				What: fmt.Sprintf("the constraint costs at most 3 %%, width %d, %s user", width, user),
				Got: fmt.Sprintf("%+.1f %% [%+.1f, %+.1f] of the time without it", 100*(1/v.Over-1), 100*(1/v.High-1),
					100*(1/v.Low-1)),
				OK: 1/v.Over <= 1.03})
		}
	}
	p.throughputHead()
	for _, width := range o.widths(32, 128, 512) {
		for _, clients := range o.Clients {
			t, err := c.closed(ctx, o, width, clients)
			if err != nil {
				return fmt.Errorf("%d clients with %d beams: %w", clients, width, err)
			}
			r.Throughputs = append(r.Throughputs, t)
			p.throughput(&t)
		}
	}
	return nil
}

// compare times recommendations with the constraint and without, for users who are new or not.
func (c *crowd) compare(ctx context.Context, o *Options, width int, fresh bool) (Recommend, error) {
	x := Recommend{Width: width, Context: c.context, User: "returning"}
	if fresh {
		x.User = "new"
	}
	paths, invalid := 0, 0
	run := func(free bool) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			if fresh {
				c.seed++
			}
			start := time.Now()
			res, err := c.ask(ctx, c.seed, width, free)
			took := time.Since(start)
			if err != nil {
				return 0, err
			}
			if free {
				x.Rows[1] = res.Rows
				paths, invalid = paths+res.Paths, invalid+res.Paths-res.Valid
			} else {
				x.Rows[0] = res.Rows
			}
			return took, nil
		}
	}
	blocks := o.Blocks
	if !fresh {
		blocks *= 3 // they are short
	}
	var err error
	x.Ways, err = compare(ctx, blocks, way{"constrained", run(false)}, way{"free", run(true)})
	x.Invalid = float64(invalid) / float64(max(paths, 1))
	return x, err
}

// closed measures clients with returning users.
func (c *crowd) closed(ctx context.Context, o *Options, width, clients int) (Throughput, error) {
	const users = 8
	for u := range uint64(users) {
		if _, err := c.ask(ctx, u, 1, false); err != nil { // caches the prompt
			return Throughput{}, err
		}
	}
	var begun time.Time
	do := func(ctx context.Context, i int) error {
		if i == clients { // after the warm-up
			c.engine.take()
			begun = time.Now()
		}
		_, err := c.ask(ctx, uint64(i)%users, width, false)
		return err
	}
	res, err := load.Closed(ctx, load.Options{Workers: clients, Requests: o.Requests, WarmupRequests: clients}, do)
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("%v", res.Errors)
	}
	if err != nil {
		return Throughput{}, err
	}
	a := c.engine.take()
	return Throughput{Width: width, Clients: clients, Rate: res.Throughput, P50: res.Latency.P50, P99: res.Latency.P99,
			PerBatch: float64(a.rounds) / float64(max(a.batches, 1)),
			Busy:     min(1, a.busy.Seconds()/time.Since(begun).Seconds())},
		nil
}
