package profile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/bench/drive"
	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/shop"
	"grebe/shop/demo"
	"grebe/sim"
	"grebe/workload"
)

// Rankings of four shapes are timed: little and much text of a user, few and many items. Their differences are the costs of
// tokens and items.
var frontShapes = [4]struct{ purchases, items int }{{5, 10}, {5, 100}, {40, 10}, {40, 100}}

const (
	warmServed  = 60 // rankings that are not counted
	timedServed = 480
	buyers      = 60 // customers
	// servedMemory is full soon, so that batches have to evict KV as those of a server do that runs for long.
	servedMemory = 48 << 20
	// atOnce is the most milliseconds in the queue of a request whose batch began at once.
	atOnce = .5
)

// served is what a server with the demo's model was measured at.
type served struct {
	front sim.Front
	log   []byte // of its decisions
}

// serve measures a server with the demo's model that is about half busy: its work outside of batches, and how long batches take
// there. Rankings come at random times, for customers of the shop's train split.
//
// Work outside of batches is what a client on the same machine waits for beside the queue and the batch that the server reports:
// it reads a request, makes tokens, looks up KV and answers. Recording takes time there, so batches are measured in a second server.
func serve(ctx context.Context, program string, settings []drive.Setting) (r *served, err error) {
	dir, err := os.MkdirTemp("", "grebe-profile-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	home := filepath.Join(dir, "shop")
	if err := demo.Ensure(home); err != nil {
		return nil, err
	}
	settings = append([]drive.Setting{
		{Key: "cache.ahead", Value: "off"}, {Key: "data_dir", Value: filepath.Join(dir, "data")}, {Key: "workers", Value: "1"},
		{Key: "models[0].host_memory", Value: fmt.Sprint(servedMemory)},
	}, settings...)
	a, err := newAsker()
	if err != nil {
		return nil, err
	}
	config, log := filepath.Join(home, demo.ConfigFile), filepath.Join(dir, "log")
	answers, err := a.load(ctx, program, config, settings)
	if err != nil {
		return nil, err
	}
	if _, err = a.load(ctx, program, config, append(settings, drive.Setting{Key: "record", Value: log})); err != nil {
		return nil, err
	}
	r = &served{front: fitFront(answers)}
	r.log, err = os.ReadFile(log)
	return r, err
}

// slowdown compares the batches of a server with what a profile predicts for them. Slowdown is the median ratio and noise the standard
// deviation of its logarithm, from the quartiles, of batches during which no request came. The others tell how much a request that
// comes delays the batch that runs.
func slowdown(p *sim.Profile, batches []Measured) error {
	var ratios, delays []float64
	for i := range batches {
		if b := &batches[i]; b.Arrived == 0 {
			ratios = append(ratios, b.Ms/p.Predict(&b.Work))
		}
	}
	if len(ratios) < 10 {
		return fmt.Errorf("only %d batches of the server were not disturbed by other requests", len(ratios))
	}
	slices.Sort(ratios)
	const quartiles = 1.349 // standard deviations between those of a normal distribution
	p.Slowdown = round(report.Median(ratios), 3)
	p.Noise = round(min(math.Log(ratios[len(ratios)*3/4]/ratios[len(ratios)/4])/quartiles, 1), 3)
	for i := range batches {
		if b := &batches[i]; b.Arrived > 0 {
			delays = append(delays, (b.Ms-p.Predict(&b.Work)*p.Slowdown)/float64(b.Arrived))
		}
	}
	if p.Front.Shared && len(delays) > 0 {
		p.Front.Delay = round(max(0, report.Median(delays)), 4)
	}
	return nil
}

// describe adds what was measured to a report. Requests of events have no texts, and only the demo's model was served.
func (r *served) describe(to *Report, m *Model) error {
	if m.Events > 0 {
		return nil
	}
	p := &to.Profile
	if p.Front = r.front; m.Name != Models["demo"].Name {
		return nil
	}
	var left int
	var err error
	if to.Served, left, err = Recorded(bytes.NewReader(r.log), p); err != nil {
		return err
	}
	if to.Served = to.Served[min(warmServed, len(to.Served)):]; len(to.Served) < 10*left || len(to.Served) < timedServed/4 {
		return fmt.Errorf("of the server's batches only %d are known, %d are not", len(to.Served), left)
	}
	return slowdown(p, to.Served)
}

// fitFront finds the costs of requests, tokens and items from the rankings that came while no batch ran, and what is added while
// one runs: threads that compute have the cores.
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
	var added []float64
	for k := range answers {
		if x := &answers[k]; x.Timing.Queue >= atOnce {
			added = append(added, x.outside()-f.Request-f.Token*x.Usage.Prompt-f.Item*float64(frontShapes[x.shape].items))
		}
	}
	f.Busy = round(max(0, typical(added)), 4)
	return f
}

// typical returns the mean without the slowest tenth, which somebody else on the machine may have delayed; 0 of nothing.
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

// asker sends rankings.
type asker struct {
	http   http.Client
	bodies [][]byte
	shapes []int
}

// newAsker draws the rankings.
func newAsker() (*asker, error) {
	world, err := shop.New(1, shop.Default)
	if err != nil {
		return nil, err
	}
	a, r := &asker{}, rand.New(rand.NewPCG(7, 22))
	a.http.Transport = &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	for range warmServed + timedServed {
		shape := r.IntN(len(frontShapes))
		body, err := draw(world, r, frontShapes[shape].purchases, frontShapes[shape].items)
		if err != nil {
			return nil, err
		}
		a.bodies, a.shapes = append(a.bodies, body), append(a.shapes, shape)
	}
	return a, nil
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

// load starts a server, sends it the first rankings one by one, and the others at random times, half as often as it answered.
func (a *asker) load(ctx context.Context, program, config string, settings []drive.Setting) (out []answer, err error) {
	server, err := drive.Start(ctx, program, config, settings)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	url, start := server.URL+"/v1/rank", time.Now()
	for i := range warmServed {
		if _, err := a.rank(ctx, url, i); err != nil {
			return nil, err
		}
	}
	rate := warmServed / time.Since(start).Seconds() / 2
	out = make([]answer, timedServed)
	res, err := load.Open(ctx, load.Options{
		Name: "rankings", Arrivals: workload.Poisson(rate, 22), Requests: timedServed, Timeout: time.Minute,
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
