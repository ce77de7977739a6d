package beam

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/bench/load"
	"grebe/catalog"
	"grebe/generate"
	"grebe/prompt"
	"grebe/serve"
)

// DataOptions say what Data runs over. Zero values stand for defaults.
type DataOptions struct {
	Folder  string   // with a folder for each data set
	Sets    []string // industrial, beauty; both
	Width   int      // of the beams; 64
	N       int      // items wanted; 10
	Users   int      // test users; all
	Clients int      // 8
	Model   string   // tiny, small or qwen3-0.6b; tiny
	Dir     string   // folder of its checkpoint
	Threads int
	JSON    bool
}

// Data is recommendations to the test users of a catalog with real codes.
type Data struct {
	Set      string  `json:"set"`
	Items    int     `json:"items"`
	Paths    int     `json:"paths"` // different codes
	Depth    int     `json:"depth"`
	Users    int     `json:"users"`
	Width    int     `json:"width"`
	Wanted   int     `json:"wanted"`
	Returned int     `json:"returned"`
	Unreal   int     `json:"unreal"` // returned, but not in the catalog, or with other codes
	Twice    int     `json:"twice"`  // returned twice to a user
	Seen     int     `json:"seen"`   // returned though it was to be left out
	Short    int     `json:"short"`  // users who got fewer than they wanted
	Rate     float64 `json:"requests_per_second"`
	// Without the constraint: paths that the search ended with, and those of them that no item has.
	FreePaths   int `json:"free_paths"`
	FreeInvalid int `json:"free_invalid"`
	FreeNothing int `json:"free_nothing"` // users for whom no path was an item
}

// RealData recommends to every test user of real catalogs, through the server, and checks each answer.
func RealData(ctx context.Context, o DataOptions, w io.Writer) ([]Data, []Check, error) {
	for _, d := range []struct {
		value *int
		is    int
	}{{&o.Width, 64}, {&o.N, 10}, {&o.Clients, 8}, {&o.Threads, runtime.GOMAXPROCS(0)}} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	if len(o.Sets) == 0 {
		o.Sets = []string{"industrial", "beauty"}
	}
	if o.Model == "" {
		o.Model = "tiny"
	}
	p := &printer{w: w, json: o.JSON}
	var out []Data
	var checks []Check
	for _, name := range o.Sets {
		d, err := readData(o.Folder, name)
		if err != nil {
			return out, checks, fmt.Errorf("bench beam: %w", err)
		}
		if o.Users > 0 {
			d.histories = d.histories[:min(o.Users, len(d.histories))]
		}
		x, err := recommendData(ctx, &o, d, p)
		if err != nil {
			return out, checks, fmt.Errorf("bench beam: %s: %w", name, err)
		}
		out = append(out, x)
		p.data(&x)
		checks = append(checks, Check{
			What: fmt.Sprintf("%s: every item that comes back is real, new to the user and there once", name),
			Got:  fmt.Sprintf("%d of %d items, %d users short", x.Returned-x.Unreal-x.Twice-x.Seen, x.Returned, x.Short),
			OK:   x.Returned > 0 && x.Unreal+x.Twice+x.Seen+x.Short == 0})
	}
	return out, checks, p.finish(struct {
		Data   []Data  `json:"data"`
		Checks []Check `json:"checks"`
	}{out, checks}, checks)
}

func recommendData(ctx context.Context, o *DataOptions, d *dataset, p *printer) (Data, error) {
	x := Data{Set: d.name, Items: len(d.items), Paths: d.paths(), Depth: d.depth, Users: len(d.histories), Width: o.Width,
		Wanted: o.N}
	cfg := prompt.Config{User: "{history}", History: "codes", GenerateInstruction: prompt.Text{Tokens: []int32{1, 2}}}
	next := int32(16)
	for _, n := range d.sizes() {
		cfg.Codes.FirstToken, cfg.Codes.Size = append(cfg.Codes.FirstToken, next), append(cfg.Codes.Size, n)
		next += n
	}
	s, err := openSystem(ctx, o.Model, o.Dir, o.Threads, cfg, 256<<20)
	if err != nil {
		return x, err
	}
	defer s.close()
	cat := catalog.New(catalog.Options{}) // histories are of items that are there
	var items []*prompt.Item
	for _, it := range d.items {
		if _, err := cat.PutItem(it); err != nil {
			return x, err
		}
		items = append(items, &prompt.Item{ID: it.Id, Identifier: -1, Codes: it.Codes})
	}
	snap, err := generate.NewSnapshot("1", items, s.prompt, s.model, nil)
	if err != nil {
		return x, err
	}
	s.generator.Use(snap)
	srv, err := serve.New(serve.Config{Catalog: cat, SLO: time.Minute, Models: []serve.Model{{
		Name: d.name, Runner: s.queue, Prompt: s.prompt, Cache: s.cache, Generate: s.generator, Vocab: s.model.Vocab(),
		Positions: s.model.MaxPositions()}}})
	if err != nil {
		return x, err
	}
	p.dataHead(s, &x)
	t := &trial{data: d, options: o, server: srv, system: s, report: &x, codes: map[string][]int32{}}
	for _, it := range d.items {
		t.codes[it.Id] = it.Codes
	}
	if x.Rate, err = t.all(ctx, t.ask); err != nil {
		return x, err
	}
	_, err = t.all(ctx, t.free)
	return x, err
}

// trial is one pass over the users.
type trial struct {
	data    *dataset
	options *DataOptions
	server  *serve.Service
	system  *system
	codes   map[string][]int32

	mu     sync.Mutex // guards report
	report *Data
}

// all has clients ask for every user, and returns the users per second.
func (t *trial) all(ctx context.Context, do load.Do) (float64, error) {
	r, err := load.Closed(ctx, load.Options{Workers: t.options.Clients, Requests: len(t.data.histories)}, do)
	if err == nil && len(r.Errors) > 0 {
		err = fmt.Errorf("%v", r.Errors)
	}
	return r.Throughput, err
}

// ask recommends to a user and checks what comes back.
func (t *trial) ask(ctx context.Context, user int) error {
	history := t.data.histories[user]
	resp, err := t.server.Recommend(ctx, &grebev1.RecommendRequest{
		User: &grebev1.User{History: history}, N: int32(t.options.N), BeamWidth: int32(t.options.Width), ExcludeSeen: true,
		DeadlineMs: 60_000})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	given := map[string]bool{}
	for _, r := range resp.Results {
		t.report.Returned++
		if codes, ok := t.codes[r.Id]; !ok || !slices.Equal(codes, r.Codes) {
			t.report.Unreal++
		}
		if given[r.Id] {
			t.report.Twice++
		}
		if slices.Contains(history, r.Id) {
			t.report.Seen++
		}
		given[r.Id] = true
	}
	if resp.Short || len(resp.Results) < t.options.N {
		t.report.Short++
	}
	return nil
}

// free counts what a search without the constraint ends with.
func (t *trial) free(ctx context.Context, user int) error {
	var tokens []int32
	for _, id := range t.data.histories[user] {
		ids, err := t.system.prompt.CodeTokens(t.codes[id])
		if err != nil {
			return err
		}
		tokens = append(tokens, ids...)
	}
	r, err := t.system.generator.Recommend(ctx, &generate.Request{
		User: tokens, N: t.options.N, Width: t.options.Width, Free: true})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.FreePaths += r.Paths
	t.report.FreeInvalid += r.Paths - r.Valid
	if r.Valid == 0 {
		t.report.FreeNothing++
	}
	return nil
}
