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
	"grebe/bench/report"
	"grebe/schedule"
	"grebe/shop"
	"grebe/shop/demo"
	"grebe/sim"
)

// Rankings of four shapes are timed: little and much text of a user, few and many items. Their differences are the costs of
// tokens and items.
var frontShapes = [4]struct{ purchases, items int }{{5, 10}, {5, 100}, {40, 10}, {40, 100}}

const (
	frontWarm  = 10 // rankings of each shape that are not counted
	frontTimed = 40
)

// served is what a server with the demo's model was measured at.
type served struct {
	front   sim.Front
	batches []schedule.Sample // of one request each
}

// serve measures a server with the demo's model: its work outside of batches, and how long batches take there. Between two
// requests it pauses for about as long as the last one took, as a server does that is half busy: after a pause threads have to
// wake up, and caches are cold.
//
// Work outside of batches is what a client on the same machine waits for beside the queue and the batch that the server reports:
// it reads a request, makes tokens, looks up KV and answers. The prompts are of customers of the shop's train split.
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
	server, err := drive.Start(ctx, program, filepath.Join(home, demo.ConfigFile), append([]drive.Setting{
		{Key: "cache.ahead", Value: "off"}, {Key: "data_dir", Value: filepath.Join(dir, "data")},
	}, settings...))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	world, err := shop.New(1, shop.Default)
	if err != nil {
		return nil, err
	}
	r = &served{}
	a := &asker{world: world, url: server.URL + "/v1/rank", random: rand.New(rand.NewPCG(7, 22))}
	var times, tokens [4][]float64
	for n := range frontWarm + frontTimed {
		for i, shape := range frontShapes { // in turn, so that what disturbs the machine meets all of them
			for _, prefix := range []string{"auto", "none"} {
				x, err := a.rank(ctx, n, shape.purchases, shape.items, prefix)
				if err != nil {
					return nil, err
				}
				switch {
				case n < frontWarm:
				case prefix == "auto":
					times[i], tokens[i] = append(times[i], x.outside()), append(tokens[i], x.Usage.Prompt)
				default: // nothing is cached, so that keys are known
					r.batches = append(r.batches, x.batch(shape.items))
				}
			}
		}
	}
	var ms, size [4]float64
	for i := range times {
		ms[i], size[i] = report.Median(times[i]), report.Median(tokens[i])
	}
	r.front = fitFront(ms, size)
	return r, nil
}

// slowdown returns how many times as long as predicted batches take in the server, in the median, and the standard deviation of
// the logarithm, from the quartiles.
func (r *served) slowdown(m *schedule.PrefillModel) (median, noise float64) {
	var ratios []float64
	for _, b := range r.batches {
		ratios = append(ratios, b.Ms/m.Predict(b.Rows, b.Keys, b.Requests))
	}
	slices.Sort(ratios)
	const quartiles = 1.349 // standard deviations between those of a normal distribution
	noise = math.Log(ratios[len(ratios)*3/4]/ratios[len(ratios)/4]) / quartiles
	return report.Median(ratios), min(noise, 1)
}

// describe adds what was measured to a profile. Requests of events have no texts, and only the demo's model was served.
func (r *served) describe(p *sim.Profile, m *Model) {
	if m.Events > 0 {
		return
	}
	p.Front = r.front
	if m.Name == Models["demo"].Name {
		median, noise := r.slowdown(&p.Prefill)
		p.Slowdown, p.Noise = round(median, 3), round(noise, 3)
	}
}

// fitFront finds the costs from the times and tokens of the four shapes.
func fitFront(ms, tokens [4]float64) sim.Front {
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
	world  *shop.World
	url    string
	http   http.Client
	random *rand.Rand
}

// answer is what a server says of a ranking.
type answer struct {
	took  float64 // milliseconds
	Usage struct {
		Prompt   float64 `json:"prompt_tokens"`
		User     int     `json:"user_tokens"`
		Items    int     `json:"item_tokens"`
		Question int     `json:"instruction_tokens"`
		Computed int     `json:"computed_tokens"`
	} `json:"usage"`
	Timing struct {
		Queue   float64 `json:"queue"`
		Compute float64 `json:"compute"`
	} `json:"timing_ms"`
}

// outside returns the milliseconds outside of queue and batch.
func (a *answer) outside() float64 { return a.took - a.Timing.Queue - a.Timing.Compute }

// batch returns the batch of a ranking whose prompt was all computed, with the user first and items of about the same length.
func (a *answer) batch(items int) schedule.Sample {
	u := &a.Usage
	preamble := int(u.Prompt) - u.User - u.Items - u.Question
	causal := func(rows, seen int) int { return rows*seen + rows*(rows+1)/2 }
	keys := causal(preamble, 0) + causal(u.User, preamble) + items*causal(u.Items/items, preamble+u.User) +
		causal(u.Question, preamble+u.User+u.Items)
	return schedule.Sample{Rows: u.Computed, Keys: keys, Requests: 1, Ms: a.Timing.Compute}
}

// rank sends a ranking for a customer, and pauses after it.
func (a *asker) rank(ctx context.Context, n, purchases, items int, prefix string) (*answer, error) {
	u := a.world.User(shop.Train, n)
	for u.Events() <= purchases {
		n += frontWarm + frontTimed
		u = a.world.User(shop.Train, n)
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
		Prefix     string  `json:"prefix"`
	}{demo.Model, named{fmt.Sprint("train", n), a.world.Text(a.world.Before(u, shop.Train, n, purchases))}, nil, 10, 10_000, prefix}
	for _, item := range a.random.Perm(len(a.world.Items))[:items] {
		body.Candidates = append(body.Candidates, named{ID: a.world.Items[item].ID})
	}
	raw, err := json.Marshal(&body)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(raw))
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
	out := &answer{took: took.Seconds() * 1000}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, err
	}
	select {
	case <-time.After(min(time.Duration(a.random.ExpFloat64()*float64(took)), time.Second)):
	case <-ctx.Done():
	}
	return out, ctx.Err()
}
