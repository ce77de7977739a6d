// Package ahead measures what it is worth that an idle server computes items before a request needs them, and what it
// costs requests.
//
// Reuse: a cold server is left idle, and then users who come once rank items of the hottest few hundred. The server can
// know which are hot from users' histories in its catalog alone.
//
// Latency: requests come at half of the capacity, in short slices on one server: before, with and after indexing. The
// slice with indexing is compared with the two around it, and the median over many rounds is the result. A machine that
// others use too disturbs some rounds, and these do not change a median.
package ahead

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grebe/bench/drive"
	"grebe/bench/report"
	"grebe/shop/demo"
)

// Options are those of Run. Zero values mean the default.
type Options struct {
	Program    string        // the path of grebe; required
	Parts      []string      // reuse, latency; both
	Hot        int           // hot items; 400
	Candidates int           // of a ranking; 60
	Requests   int           // of reuse; 480
	Idle       time.Duration // of reuse; 1 min
	Rounds     int           // of latency; 12
	Slice      time.Duration // of latency; longer if fewer than 300 requests come in it; 3 s
	Device     string        // of the server: auto, cpu or cuda; auto
	Threads    int           // of the server; 0: as many as there are cores
	JSON       bool
	Progress   io.Writer // what is being measured, a line each; none
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.Hot, 400}, {&o.Candidates, 60}, {&o.Requests, 480}, {&o.Rounds, 12}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.Idle == 0 {
		o.Idle = time.Minute
	}
	if o.Slice == 0 {
		o.Slice = 3 * time.Second
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Device == "" {
		o.Device = "auto"
	}
	if len(o.Parts) == 0 {
		o.Parts = []string{"reuse", "latency"}
	}
}

// The bars.
const (
	leastReused = 0.60 // of the prompts' tokens
	mostRatio   = 1.05 // of the P99 of rankings
)

// Report is what Run found.
type Report struct {
	Reuse   *Reuse   `json:"reuse,omitempty"`
	Latency *Latency `json:"latency,omitempty"`
	Passed  bool     `json:"passed"`
}

// Reuse is what one-shot users found on a server that was cold and idle.
type Reuse struct {
	Requests int     `json:"requests"`
	Tokens   float64 `json:"tokens"` // of a prompt
	Items    int     `json:"items"`  // computed ahead
	Ahead    float64 `json:"ahead"`  // share of the tokens that were reused
	First    float64 `json:"first"`  // that of the first tenth of the requests
	Off      float64 `json:"off"`    // Ahead without indexing
	OffFirst float64 `json:"off_first"`
	Most     float64 `json:"most"` // share of the tokens that are of items and what comes before them
}

// Run measures, and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	dir, err := os.MkdirTemp("", "grebe-bench-ahead-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	shop := filepath.Join(dir, "shop")
	if err := demo.Ensure(shop); err != nil {
		return nil, err
	}
	r := &Report{Passed: true}
	s := &site{o: &o, dir: dir, shop: shop}
	if s.lines, err = readLines(filepath.Join(shop, "items.ndjson")); err != nil {
		return nil, err
	}
	for _, part := range o.Parts {
		switch part {
		case "reuse":
			if r.Reuse, err = s.reuse(ctx); err == nil {
				r.Passed = r.Passed && r.Reuse.Ahead >= leastReused
			}
		case "latency":
			if r.Latency, err = s.latency(ctx); err == nil {
				r.Passed = r.Passed && r.Latency.Ratio <= mostRatio
			}
		default:
			err = fmt.Errorf("no part %q: reuse, latency", part)
		}
		if err != nil {
			return nil, fmt.Errorf("bench ahead: %w", err)
		}
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

// site is the demo's shop with other users.
type site struct {
	o         *Options
	dir, shop string
	lines     []item
	servers   int
}

// item is a line of the catalog.
type item struct {
	id   string
	line string
}

func readLines(name string) (out []item, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var it struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal([]byte(line), &it); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, item{it.ID, line})
	}
	return out, nil
}

// start starts a server with a data folder of its own.
func (s *site) start(ctx context.Context, settings ...drive.Setting) (*drive.Server, error) {
	s.servers++
	settings = append(settings, drive.Setting{Key: "data_dir", Value: filepath.Join(s.dir, fmt.Sprint("data", s.servers))},
		drive.Setting{Key: "device", Value: s.o.Device})
	if s.o.Threads > 0 {
		settings = append(settings, drive.Setting{Key: "threads", Value: fmt.Sprint(s.o.Threads)})
	}
	return drive.Start(ctx, s.o.Program, filepath.Join(s.shop, demo.ConfigFile), settings)
}

// hot draws the hot items, the hottest first. They are anywhere in the catalog.
func (s *site) hot() []string {
	r := rand.New(rand.NewPCG(21, 4))
	out := make([]string, s.o.Hot)
	for i, at := range r.Perm(len(s.lines))[:s.o.Hot] {
		out[i] = s.lines[at].id
	}
	return out
}

// writeUsers writes users whose histories name hot items seven times of ten, and any item otherwise.
func (s *site) writeUsers(name string, hot []string) error {
	const users, events = 2000, 20
	weights, sum := make([]float64, len(hot)), 0.0
	for i := range hot {
		sum += math.Pow(float64(i+10), -0.8)
		weights[i] = sum
	}
	r := rand.New(rand.NewPCG(21, 5))
	var b bytes.Buffer
	for u := range users {
		history := make([]string, events)
		for i := range history {
			history[i] = s.lines[r.IntN(len(s.lines))].id
			if r.IntN(10) < 7 {
				at, _ := slices.BinarySearch(weights, r.Float64()*sum)
				history[i] = hot[min(at, len(hot)-1)]
			}
		}
		line, err := json.Marshal(map[string]any{"id": fmt.Sprint("customer-", u), "history": history, "text": "A customer."})
		if err != nil {
			return err
		}
		b.Write(append(line, '\n'))
	}
	return os.WriteFile(name, b.Bytes(), 0o600)
}

// stranger describes a user whom nobody has seen, who bought so many things.
func stranger(seed uint64, things int) string {
	words := strings.Fields("tent stove lamp chair book kettle rope paint brush flour seeds gloves jacket boots bottle " +
		"map")
	r := rand.New(rand.NewPCG(22, seed))
	var b strings.Builder
	fmt.Fprintf(&b, "Customer %d.\n", seed)
	for range things {
		fmt.Fprintf(&b, "%d July 2026, bought \"%s and %s\"\n", 1+r.IntN(30), words[r.IntN(len(words))],
			words[r.IntN(len(words))])
	}
	return b.String()
}

// usage is what an answer says about its tokens.
type usage struct {
	Prompt int `json:"prompt_tokens"`
	Cached int `json:"cached_tokens"`
}

// reused is the share of the tokens that were cached.
func (u *usage) reused() float64 { return float64(u.Cached) / float64(max(u.Prompt, 1)) }

// rank asks for a ranking.
func rank(ctx context.Context, client *http.Client, base, prefix, user string, ids []string) (usage, error) {
	candidates := make([]map[string]string, len(ids))
	for i, id := range ids {
		candidates[i] = map[string]string{"id": id}
	}
	body, err := json.Marshal(map[string]any{
		"model": demo.Model, "prefix": prefix, "top_k": 1, "deadline_ms": 30_000,
		"user": map[string]string{"text": user}, "candidates": candidates,
	})
	if err != nil {
		return usage{}, err
	}
	var answer struct {
		Usage usage `json:"usage"`
	}
	err = ask(ctx, client, http.MethodPost, base+"/v1/rank", body, &answer)
	return answer.Usage, err
}

// ask sends a request and reads its answer.
func ask(ctx context.Context, client *http.Client, method, url string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.200s", method, url, resp.Status, text)
	}
	return json.Unmarshal(text, into)
}

// progress is how far the model is.
type progress struct {
	State                 string
	Items, Left, Computed int
	Tokens                int
}

func indexing(ctx context.Context, client *http.Client, method, base string) (progress, error) {
	var answer struct{ Models []progress }
	if err := ask(ctx, client, method, base+"/v1/items:index", nil, &answer); err != nil {
		return progress{}, err
	}
	if len(answer.Models) != 1 {
		return progress{}, fmt.Errorf("%d models keep items, want one", len(answer.Models))
	}
	return answer.Models[0], nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
