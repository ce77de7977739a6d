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
	"grebe/shop"
	"grebe/shop/demo"
	"grebe/sim"
)

// Rankings of four shapes are timed: little and much text of a user, few and many items. Their differences are the costs of
// tokens and items.
var frontShapes = [4]struct{ purchases, items int }{{5, 10}, {5, 100}, {40, 10}, {40, 100}}

const (
	frontWarm  = 40 // rankings of each shape that are not counted
	frontTimed = 60
)

// Front measures the work of a server outside of batches, as a client on the same machine sees it: it reads a request, makes
// tokens, looks up KV and answers. The server computes nothing (device none), and what it reports as its queue and batch is
// taken off. Requests come one at a time. Program is the path of grebe.
//
// The prompts are the demo's, of customers of the train split; the tokenizer is the demo's too.
func Front(ctx context.Context, program string) (f sim.Front, err error) {
	dir, err := os.MkdirTemp("", "grebe-profile-")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	home := filepath.Join(dir, "shop")
	if err := demo.Ensure(home); err != nil {
		return f, err
	}
	server, err := drive.Start(ctx, program, filepath.Join(home, demo.ConfigFile), []drive.Setting{
		{Key: "device", Value: "none"}, {Key: "cache.ahead", Value: "off"}, {Key: "data_dir", Value: filepath.Join(dir, "data")},
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	world, err := shop.New(1, shop.Default)
	if err != nil {
		return f, err
	}
	a := &asker{world: world, url: server.URL + "/v1/rank", random: rand.New(rand.NewPCG(7, 22))}
	var times, tokens [4][]float64
	for n := range frontWarm + frontTimed {
		for i, shape := range frontShapes { // in turn, so that what disturbs the machine meets all of them
			ms, count, err := a.rank(ctx, n, shape.purchases, shape.items)
			if err != nil {
				return f, err
			}
			if n >= frontWarm {
				times[i], tokens[i] = append(times[i], ms), append(tokens[i], count)
			}
		}
	}
	var ms, size [4]float64
	for i := range times {
		slices.Sort(times[i]) // a quartile, as for batches: disturbances only slow a request down
		slices.Sort(tokens[i])
		ms[i], size[i] = times[i][frontTimed/4], tokens[i][frontTimed/2]
	}
	return fitFront(ms, size), nil
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

// rank sends a ranking for a customer. It returns the milliseconds outside of queue and batch, and the prompt's tokens.
func (a *asker) rank(ctx context.Context, n, purchases, items int) (ms, tokens float64, err error) {
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
	}{demo.Model, named{fmt.Sprint("train", n), a.world.Text(a.world.Before(u, shop.Train, n, purchases))}, nil, 10, 10_000}
	for _, item := range a.random.Perm(len(a.world.Items))[:items] {
		body.Candidates = append(body.Candidates, named{ID: a.world.Items[item].ID})
	}
	raw, err := json.Marshal(&body)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(raw))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	took := time.Since(start).Seconds() * 1000
	if err != nil {
		return 0, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: %.200s", resp.Status, text)
	}
	var answer struct {
		Usage struct {
			Prompt float64 `json:"prompt_tokens"`
		} `json:"usage"`
		Timing struct {
			Queue   float64 `json:"queue"`
			Compute float64 `json:"compute"`
		} `json:"timing_ms"`
	}
	err = json.Unmarshal(text, &answer)
	return took - answer.Timing.Queue - answer.Timing.Compute, answer.Usage.Prompt, err
}
