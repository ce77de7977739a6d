// Package rank measures what reuse is worth.
//
//   - Run serves rankings on workloads shaped as BAT's Table 1, by real compute on one random model. Each policy for
//     the prefix order has a cache of its own and the same memory.
//   - Assemble measures what it costs to rank with items gathered from the cache.
//   - Beauty measures how far the two prompt orders agree on real histories and titles.
//
// In Run, requests go through serve.Service.Rank in process. All policies see the same requests in the same order,
// take turns in blocks, and are compared block by block: that can be measured on a shared machine. Scale shrinks
// users, items and requests by one factor, so that an hour stays an hour. How often a user returns, how long an entry
// survives and what share of the users fits are those of the full size. The cache's clock is that of the stream, not
// of the wall.
//
// Memory is stated as room for all items and a share of the users' tokens. By default the share is the paper's: see
// paperShare.
package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	_ "grebe/bench/rivals" // for CachePolicies
	"grebe/evict"
	"grebe/schedule"
	"grebe/workload"
)

// How caches begin.
const (
	Cold    = "cold"
	Indexed = "indexed"
)

// Options say what Run measures. Zero values stand for defaults.
type Options struct {
	Workloads []string // names of package workload; the four of Table 1
	Policies  []string // none and user, which the others are compared with, are always there; all
	Requests  int      // per workload, warm-up included: the users are scaled so that they are an hour's; 1200
	Warmup    float64  // share of the requests before anything is counted; 1/3
	// DryWarmup has all of the warm-up but a block of it fill the caches without computing: with random numbers.
	DryWarmup bool
	Blocks    int     // that the policies take turns in; 25
	Tokens    float64 // scale of the lengths; 0.25
	// Memory is the share of the users' tokens that the cache has room for beside all items; negative:
	// the paper's for each workload.
	Memory float64
	Sweep  []float64 // shares for which tokens are counted without computing
	Count  bool      // count tokens only, at Memory too
	// Starts says how caches begin: Cold, with items computed when first asked for, or Indexed, with all items computed
	// before the first request. With both, the default, the indexed start is measured and the cold one is counted beside
	// it.
	Starts  []string
	Clients int     // of the closed loop; 4
	Open    float64 // load of the open loop as a share of UP's saturated rate; 0: left out
	Search  bool    // look for each policy's highest rate within the SLO
	// SearchTime bounds the search on a workload; 10 minutes. Repeats is how often a rate is tried, at most; 3.
	SearchTime time.Duration
	Repeats    int
	// CachePolicies, if any, are compared instead of policies for the prefix order: who leaves the cache, by
	// the names of package evict. The ratios are to the first. Users are reused, or what the only one of
	// Policies reuses; without items in the cache its memory is the users' share alone.
	CachePolicies []string
	SLO           time.Duration
	Seconds       float64 // of each run of the open loop and of the search; 10
	Model         string  // tiny, small, medium, qwen2-0.5b or qwen2-1.5b; small
	Device        string  // cpu or cuda; cpu
	Dir           string  // folder of the checkpoint, made when missing; in the user's cache folder
	Format        string  // bf16 or f32; bf16
	Threads       int
	Seed          uint64 // of the streams; 1
	JSON          bool
	// Progress is told of the rates that a search tries; nil: nobody is.
	Progress io.Writer
}

// Validate reports the first option that makes no sense.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	if len(o.Workloads) == 0 {
		o.Workloads = []string{"games", "beauty", "books", "industry"}
	}
	if len(o.Policies) == 0 {
		o.Policies = []string{"item", "longer", "bat", "predicted"}
	}
	if len(o.Starts) == 0 {
		o.Starts = []string{Cold, Indexed}
	}
	for _, s := range o.Starts {
		if s != Cold && s != Indexed {
			return fmt.Errorf("start %q is neither %s nor %s", s, Cold, Indexed)
		}
	}
	if o.Count && len(o.CachePolicies) > 0 {
		return errors.New("policies of the cache are timed, not counted")
	}
	for _, p := range o.Policies {
		if _, err := schedule.ParsePolicy(p); err != nil {
			return err
		}
	}
	for _, p := range o.CachePolicies {
		if !slices.Contains(evict.Names(), p) {
			return fmt.Errorf("policy of the cache %q is not one of %q", p, evict.Names())
		}
	}
	for _, name := range o.Workloads {
		if _, err := workload.Named(name, workload.Scale{}); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		value *int
		is    int
	}{{&o.Requests, 1200}, {&o.Blocks, 25}, {&o.Clients, 4}, {&o.Threads, runtime.GOMAXPROCS(0)}, {&o.Repeats, 3}} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	for _, d := range []struct {
		value *float64
		is    float64
	}{{&o.Warmup, 1. / 3}, {&o.Tokens, 0.25}, {&o.Seconds, 10}} {
		if *d.value <= 0 {
			*d.value = d.is
		}
	}
	if o.Warmup >= 1 || o.Tokens > 1 || o.Memory > 1 {
		return fmt.Errorf("warm-up %v, token scale %v, memory %v: want shares below 1", o.Warmup, o.Tokens, o.Memory)
	}
	if o.SLO <= 0 {
		o.SLO = 200 * time.Millisecond
	}
	if o.SearchTime <= 0 {
		o.SearchTime = 10 * time.Minute
	}
	if o.Model == "" {
		o.Model = "small"
	}
	if o.Format == "" {
		o.Format = "bf16"
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	return nil
}

// blocks returns the requests of a block and the number of warm-up blocks.
func (o *Options) blocks() (perBlock, warm int) {
	measured := int(float64(o.Requests) * (1 - o.Warmup))
	perBlock = max(measured/o.Blocks, 1)
	return perBlock, max(o.Requests/perBlock-o.Blocks, 1)
}

// spec scales a workload so that the run sends about an hour of its requests.
func (o *Options) spec(name string) (workload.Spec, float64, error) {
	full, err := workload.Named(name, workload.Scale{Tokens: o.Tokens})
	if err != nil {
		return full, 0, err
	}
	scale := min(float64(o.Requests)/float64(full.HourRequests()), 1)
	s, err := workload.Named(name, workload.Scale{Users: scale, Items: scale, Tokens: o.Tokens})
	s.Seed = o.Seed
	return s, scale, err
}

// start is how the caches of the main comparison begin.
func (o *Options) start() string {
	if slices.Contains(o.Starts, Indexed) {
		return Indexed
	}
	return Cold
}

// countsCold reports whether a cold start is counted beside the main comparison.
func (o *Options) countsCold() bool {
	return o.start() == Indexed && slices.Contains(o.Starts, Cold) && len(o.CachePolicies) == 0
}

// policies returns all to be compared: RE and UP first.
func (o *Options) policies() []schedule.Policy {
	out := []schedule.Policy{schedule.None, schedule.User}
	for _, name := range o.Policies {
		if p, err := schedule.ParsePolicy(name); err == nil && p != schedule.None && p != schedule.User {
			out = append(out, p)
		}
	}
	return out
}

// reuses is the policy for the prefix order where policies of the cache are compared.
func (o *Options) reuses() schedule.Policy {
	if len(o.Policies) == 1 {
		if p, err := schedule.ParsePolicy(o.Policies[0]); err == nil && p != schedule.None {
			return p
		}
	}
	return schedule.User
}

// Run measures and writes tables, or the report as JSON, to w.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bench rank: %w", err)
	}
	sys, err := open(&o)
	if err != nil {
		return nil, fmt.Errorf("bench rank: %w", err)
	}
	defer sys.close()
	perBlock, warm := o.blocks()
	r := &Report{
		Date: time.Now().UTC().Format(time.DateOnly), Device: sys.device.Name(), Model: sys.describe(), Format: o.Format,
		TokenScale: o.Tokens, Clients: o.Clients, BlockRequests: perBlock, WarmupBlocks: warm, Blocks: o.Blocks,
		Start: o.start(), Counted: o.Count, DryWarmup: o.DryWarmup,
	}
	p := newPrinter(w, o.JSON)
	p.head(r)
	for _, name := range o.Workloads {
		one, err := sys.workload(ctx, &o, name)
		if one != nil { // an interrupted search leaves what was measured before
			r.Workloads = append(r.Workloads, one)
			p.workload(one)
		}
		if err != nil {
			return r, errors.Join(fmt.Errorf("bench rank: %s: %w", strings.ToLower(name), err), p.finish(r))
		}
	}
	r.Checks = checks(r.Workloads)
	p.checks(r.Checks)
	return r, p.finish(r)
}
