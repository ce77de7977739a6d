package profile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/shop"
	"grebe/shop/demo"
	"grebe/sim"
	"grebe/workload"
)

// Rankings of four shapes are timed: little and much text of a user, few and many items. Their differences are the
// costs of tokens and items.
var frontShapes = [4]struct{ purchases, items int }{{5, 10}, {5, 100}, {40, 10}, {40, 100}}

const (
	warmServed  = 60 // rankings that are not counted
	leastServed = 240
	mostServed  = 4000
	servedFor   = 40 * time.Second
	buyers      = 60 // customers
	// servedTokens is memory for KV that is full soon, so that batches have to evict KV as those of a server do that runs
	// for long.
	servedTokens = 24 << 10
	// atOnce is the most milliseconds in the queue of a request whose batch began at once.
	atOnce = .5
)

// served is what a server was measured at.
type served struct {
	model string
	front sim.Front
	log   []byte // of its decisions
}

// serve measures a server with a model that is about half busy: its work outside of batches, and how long batches take
// there. Rankings come at random times, for customers of the shop's train split.
//
// Work outside of batches is what a client on the same machine waits for beside the queue and the batch that the server
// reports: it reads a request, makes tokens, looks up KV and answers. Recording takes time there, so batches are
// measured in a second server.
func serve(ctx context.Context, o *Options, name string) (r *served, err error) {
	dir, err := os.MkdirTemp("", "grebe-profile-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	home, err := NewShop(filepath.Join(dir, "shop"), name)
	if err != nil {
		return nil, err
	}
	m := Models[name]
	settings := append([]drive.Setting{
		{Key: "data_dir", Value: filepath.Join(dir, "data")}, {Key: "slo_ms", Value: "5000"},
		{Key: "models[0].host_memory", Value: fmt.Sprint(servedTokens * m.tokenBytes())},
	}, o.Settings...)
	a, err := newAsker()
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "log")
	answers, err := a.load(ctx, o.Program, home.Config, settings)
	if err != nil {
		return nil, err
	}
	if _, err = a.load(ctx, o.Program, home.Config, append(settings,
		drive.Setting{Key: "record", Value: log})); err != nil {
		return nil, err
	}
	r = &served{model: name, front: fitFront(answers)}
	r.front.Shared = o.Device.Memory().Host() == o.Device.Memory()
	r.log, err = os.ReadFile(log)
	return r, err
}

// slowdown compares the batches of a server with what a profile predicts for them: how many times as long they take,
// what is added to each, by how much a request that comes delays the batch that runs, and the ratios that remain.
func slowdown(p *sim.Profile, batches []Measured) error {
	if len(batches) < enoughServed {
		return fmt.Errorf("the server ran only %d batches", len(batches))
	}
	var sums moments
	for i := range batches {
		b := &batches[i]
		x := vector{p.Predict(&b.Work), 1}
		if p.Front.Shared {
			x[2] = float64(b.Arrived)
		}
		if p.Batches != nil {
			_, _, large := p.Batches.Products(b.Rows)
			x[3] = one(large)
		}
		sums.add(x, b.Ms, x[0])
	}
	c, _ := sums.solve()
	p.Slowdown, p.Added, p.Front.Delay = round(c[0], 3), round(c[1], 4), round(c[2], 4)
	if c[3] > 0 { // kernels that are launched one by one wait for other threads
		p.Batches.Large = round(p.Batches.Large+c[3]/c[0], 4)
	}
	var all []float64
	for i := range batches {
		b := &batches[i]
		all = append(all, max((b.Ms-c[2]*float64(b.Arrived))/(c[0]*p.Predict(&b.Work)+c[1]), fastest))
	}
	p.Ratios = parts(all)
	return nil
}

const (
	enoughServed = 100
	fastest      = .1 // of ratios
	numParts     = 50
)

// parts sorts values and returns the means of as many parts of the same size, or all if there are fewer.
func parts(v []float64) sim.Ratios {
	slices.Sort(v)
	n := min(len(v), numParts)
	out := make(sim.Ratios, n)
	for i := range out {
		part := v[i*len(v)/n : (i+1)*len(v)/n]
		for _, x := range part {
			out[i] += x / float64(len(part))
		}
		out[i] = round(out[i], 3)
	}
	return out
}

// describe adds what was measured to the report of a decoder. Only one of them was served.
func (r *served) describe(to *Report, name string) error {
	p := &to.Profile
	if p.Front = r.front; name != r.model {
		return nil
	}
	var left int
	var err error
	if to.Served, left, err = Recorded(bytes.NewReader(r.log), p); err != nil {
		return err
	}
	if to.Served = to.Served[min(warmServed, len(to.Served)):]; len(to.Served) < 10*left {
		return fmt.Errorf("of the server's batches only %d are known, %d are not", len(to.Served), left)
	}
	return slowdown(p, to.Served)
}

// fitFront finds the costs of requests, tokens and items from the rankings that came while no batch ran, and how many
// times as long the work took for each: threads that compute have the cores.
func fitFront(answers []answer) sim.Front {
	var ms, tokens [4]float64
	for i := range frontShapes {
		var times, sizes []float64
		for k := range answers {
			if x := &answers[k]; x.shape == i && x.Timing.Queue < atOnce {
				times, sizes = append(times, x.outside()), append(sizes, x.Usage.Prompt)
			}
		}
		ms[i], tokens[i] = typical(times), typical(sizes)
	}
	f := fitShapes(ms, tokens)
	var idle, beside []float64
	for k := range answers {
		x := &answers[k]
		ratio := max(x.outside()/(f.Request+f.Token*x.Usage.Prompt+f.Item*float64(frontShapes[x.shape].items)), fastest)
		if x.Timing.Queue < atOnce {
			idle = append(idle, ratio)
		} else {
			beside = append(beside, ratio)
		}
	}
	f.Idle, f.Beside = parts(idle), parts(beside)
	return f
}

// typical returns the mean without the slowest tenth, which somebody else on the machine may have delayed; 0 of
// nothing.
func typical(v []float64) float64 {
	slices.Sort(v)
	v = v[:len(v)-len(v)/10]
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

// fitShapes finds the costs from the times and tokens of the four shapes.
func fitShapes(ms, tokens [4]float64) sim.Front {
	var f sim.Front
	f.Token = max(0, (ms[2]-ms[0]+ms[3]-ms[1])/(tokens[2]-tokens[0]+tokens[3]-tokens[1]))
	more := float64(frontShapes[1].items - frontShapes[0].items)
	f.Item = max(0, ((ms[1]-ms[0]+ms[3]-ms[2])-f.Token*(tokens[1]-tokens[0]+tokens[3]-tokens[2]))/(2*more))
	for i := range ms {
		f.Request += (ms[i] - f.Token*tokens[i] - f.Item*float64(frontShapes[i].items)) / 4
	}
	f.Request = round(max(0, f.Request), 4)
	f.Token, f.Item = round(f.Token, 7), round(f.Item, 6)
	return f
}

// asker sends rankings: the same ones to each server.
type asker struct {
	http   http.Client
	world  *shop.World
	random *rand.Rand
	bodies [][]byte
	shapes []int
}

func newAsker() (*asker, error) {
	world, err := shop.New(1, shop.Default)
	if err != nil {
		return nil, err
	}
	a := &asker{world: world, random: rand.New(rand.NewPCG(7, 22))}
	a.http.Transport = &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	return a, nil
}

// draw makes rankings until there are n.
func (a *asker) draw(n int) error {
	for len(a.bodies) < n {
		shape := a.random.IntN(len(frontShapes))
		body, err := draw(a.world, a.random, frontShapes[shape].purchases, frontShapes[shape].items)
		if err != nil {
			return err
		}
		a.bodies, a.shapes = append(a.bodies, body), append(a.shapes, shape)
	}
	return nil
}

// draw makes a ranking for a customer with about so many purchases.
func draw(world *shop.World, r *rand.Rand, purchases, items int) ([]byte, error) {
	n := r.IntN(buyers)
	purchases += r.IntN(4)
	u := world.User(shop.Train, n)
	for u.Events() <= purchases {
		n += buyers
		u = world.User(shop.Train, n)
	}
	type named struct {
		ID   string `json:"id,omitempty"`
		Text string `json:"text,omitempty"`
	}
	body := struct {
		Model      string  `json:"model"`
		User       named   `json:"user"`
		Candidates []named `json:"candidates"`
		TopK       int     `json:"top_k"`
		Deadline   int     `json:"deadline_ms"`
	}{demo.Model, named{fmt.Sprint("train", n), world.Text(world.Before(u, shop.Train, n, purchases))}, nil, 10, 10_000}
	for _, item := range r.Perm(len(world.Items))[:items] {
		body.Candidates = append(body.Candidates, named{ID: world.Items[item].ID})
	}
	return json.Marshal(&body)
}

// load starts a server and sends it the first rankings one by one. The others come at random times, so often that
// batches take half of the time.
func (a *asker) load(ctx context.Context, program, config string, settings []drive.Setting) (out []answer, err error) {
	server, err := drive.Start(ctx, program, config, settings)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := a.draw(warmServed); err != nil {
		return nil, err
	}
	url := server.URL + "/v1/rank"
	computing := 0.0
	for i := range warmServed {
		x, err := a.rank(ctx, url, i)
		if err != nil {
			return nil, err
		}
		computing += x.Timing.Compute
	}
	rate := warmServed / (computing / 1e3) / 2
	n := min(max(int(rate*servedFor.Seconds()), leastServed), mostServed)
	if err := a.draw(warmServed + n); err != nil {
		return nil, err
	}
	out = make([]answer, n)
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(rate, 22), Requests: n, Timeout: time.Minute,
	}, func(ctx context.Context, i int) error {
		x, err := a.rank(ctx, url, warmServed+i)
		if err == nil {
			out[i] = *x
		}
		return err
	})
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("errors %v", res.Errors)
	}
	return out, err
}

// answer is what a server says of a ranking.
type answer struct {
	shape int
	took  float64 // milliseconds
	Usage struct {
		Prompt float64 `json:"prompt_tokens"`
	} `json:"usage"`
	Timing struct {
		Queue   float64 `json:"queue"`
		Compute float64 `json:"compute"`
	} `json:"timing_ms"`
}

// outside returns the milliseconds outside of queue and batch.
func (a *answer) outside() float64 { return a.took - a.Timing.Queue - a.Timing.Compute }

// rank sends ranking i.
func (a *asker) rank(ctx context.Context, url string, i int) (*answer, error) {
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(a.bodies[i]))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	took := time.Since(start)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	out := &answer{shape: a.shapes[i], took: took.Seconds() * 1000}
	return out, json.Unmarshal(text, out)
}
