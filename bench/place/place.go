// Package place measures how package placement cuts catalogs by similarity: quality on real histories beside METIS and
// published shares, quality on a generated graph beside METIS, and time and memory on a large one.
package place

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"grebe/bench/report"
	"grebe/eval/place"
	"grebe/internal/human"
	"grebe/placement"
)

// Options of the benchmark.
type Options struct {
	Parts   []string // of beauty, quality, scale; empty: beauty and quality
	Data    string   // folder with beauty/Beauty.txt
	Items   int      // of the large graph
	Edges   int64
	Quality int // items of the graph that METIS cuts too; it has 20 edges per item
	Nodes   int
	Slots   int // of the sketch that the large graph goes through; 0: all edges are in the graph
	Passes  int // over the items
	Metis   string
	Seed    uint64
	JSON    bool

	Progress func(what string, done, total int64)
}

var parts = []string{"beauty", "quality", "scale"}

// Validate returns an error for the first invalid option.
func (o *Options) Validate() error {
	for _, p := range o.Parts {
		if !slices.Contains(parts, p) {
			return fmt.Errorf("part %q: want one of %s", p, strings.Join(parts, ", "))
		}
	}
	if o.Items < 1 || o.Edges < 0 || o.Quality < 1 || o.Nodes < 1 || o.Slots < 0 {
		return errors.New("want at least one item and one node, and no negative numbers")
	}
	return nil
}

// Report is what was found.
type Report struct {
	Beauty  []Share `json:"beauty,omitempty"`
	Quality *Graph  `json:"quality,omitempty"`
	Scale   *Graph  `json:"scale,omitempty"`
	Notes   []string
}

// Graph is a generated graph and how it was cut.
type Graph struct {
	Items   int     `json:"items"`
	Edges   int64   `json:"edges"`
	Slots   int     `json:"slots"` // of the sketch; 0: all edges are in the graph
	Kept    int64   `json:"edges_kept"`
	Nodes   int     `json:"nodes"`
	Parts   int     `json:"micro_parts"`
	Build   float64 `json:"build_seconds"` // to generate the edges and to make the graph
	Seconds float64 `json:"cut_seconds"`   // to cut it into parts and micro-parts
	CPU     float64 `json:"cpu_seconds"`   // of the process until then: less than the time where others use the cores
	Peak    int64   `json:"peak_bytes"`    // resident memory of the process
	Cuts    []Cut   `json:"cuts"`
}

// Run measures, and prints to out.
func Run(ctx context.Context, o Options, out io.Writer) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if len(o.Parts) == 0 {
		o.Parts = []string{"beauty", "quality"}
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	r := &Report{}
	program, err := exec.LookPath(o.Metis)
	if err != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("no METIS beside: %v (Debian: metis)", err))
		program = ""
	}
	if slices.Contains(o.Parts, "beauty") {
		if r.Beauty, err = beauty(ctx, &o, program); errors.Is(err, os.ErrNotExist) {
			r.Notes = append(r.Notes, fmt.Sprintf("no histories: %v", err))
		} else if err != nil {
			return nil, err
		}
	}
	if slices.Contains(o.Parts, "quality") {
		if r.Quality, err = generated(ctx, &o, newWorld(o.Quality, 20*int64(o.Quality), o.Seed), 0, program); err != nil {
			return nil, err
		}
	}
	if slices.Contains(o.Parts, "scale") {
		if r.Scale, err = generated(ctx, &o, newWorld(o.Items, o.Edges, o.Seed), o.Slots, ""); err != nil {
			return nil, err
		}
	}
	if o.JSON {
		return r, report.JSON(out, r)
	}
	return r, r.print(out)
}

// generated makes a graph and cuts it.
func generated(ctx context.Context, o *Options, w world, slots int, program string) (*Graph, error) {
	start := time.Now()
	g, uses, err := w.build(ctx, slots, o)
	if err != nil {
		return nil, err
	}
	r := &Graph{Items: w.items, Edges: w.edges, Slots: slots, Kept: g.Edges(), Nodes: o.Nodes,
		Build: human.Seconds(time.Since(start))}
	start = time.Now()
	m, err := placement.Similar(placement.SimilarConfig{
		Config: placement.Config{Members: placement.Members(o.Nodes), Items: w.items}, Graph: g, Uses: uses,
		Hot: placement.HotShare, Passes: o.Passes,
		Progress: func(done, total int64) error { o.Progress("items placed", done, total); return ctx.Err() },
	})
	if err != nil {
		return nil, err
	}
	r.Seconds, r.Parts, r.CPU, r.Peak = human.Seconds(time.Since(start)), m.Parts(), cpu(), peak()
	fennel := measure(g, owners(m), o.Nodes)
	fennel.By, fennel.Seconds = "similar", r.Seconds
	r.Cuts = append(r.Cuts, fennel)
	if program != "" {
		start := time.Now()
		of, err := metis(ctx, program, g, m, 1)
		if err != nil {
			return nil, err
		}
		c := measure(g, of, o.Nodes)
		c.By, c.Seconds = "METIS", human.Seconds(time.Since(start))
		r.Cuts = append(r.Cuts, c)
	}
	hash, err := placement.Hash(placement.Config{Members: placement.Members(o.Nodes), Items: w.items})
	if err != nil {
		return nil, err
	}
	of := owners(hash)
	for i, p := range owners(m) {
		if p < 0 {
			of[i] = -1 // the same items count
		}
	}
	c := measure(g, of, o.Nodes)
	c.By = "hash"
	r.Cuts = append(r.Cuts, c)
	return r, nil
}

// build makes the graph, with all edges or through a sketch, and returns how often each item is used.
func (w world) build(ctx context.Context, slots int, o *Options) (*placement.Graph, []float64, error) {
	drawn, total, ended := int64(0), w.edges, false
	if slots == 0 {
		total *= 2 // NewGraph draws them twice
	}
	each := func(visit func(a, b int32, weight float32)) {
		w.until(func(a, b int32) bool {
			if drawn++; drawn%(1<<20) == 0 {
				o.Progress("edges drawn", min(drawn, total), total)
				ended = ended || ctx.Err() != nil
			}
			visit(a, b, 1)
			return !ended
		})
	}
	if slots == 0 {
		g, err := placement.NewGraph(w.items, each)
		if ended || err != nil {
			return nil, nil, errors.Join(ctx.Err(), err)
		}
		return g, w.uses(g), nil
	}
	s, err := placement.NewSketch(w.items, slots, w.seed)
	if err != nil {
		return nil, nil, err
	}
	uses := make([]float64, w.items)
	each(func(a, b int32, weight float32) {
		s.Pair(a, b, weight)
		uses[a]++
		uses[b]++
	})
	if ended {
		return nil, nil, ctx.Err()
	}
	g, err := s.Graph()
	return g, uses, err
}

// cpu returns the processor time of the process so far, in seconds.
func cpu() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return human.Seconds(time.Duration(u.Utime.Nano() + u.Stime.Nano()))
}

// peak returns the largest resident memory of the process so far, 0 where the system does not say.
func peak() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

// Share is the mean share of a request's items on its best node, on Amazon Beauty.
type Share struct {
	Map       string     `json:"map"`
	Shares    [3]float64 `json:"shares"` // k = 4, 16, 40
	Published [3]float64 `json:"published"`
	Busiest   float64    `json:"busiest_node"` // requests of 4 whose best node it is, by the mean
	Cut       float64    `json:"cut"`
}

var (
	candidates = [3]int{4, 16, 40}
	published  = map[string][3]float64{"hash": {.453, .268, .210}, "similar": {.654, .450, .373},
		"METIS": {.635, .458, .378}}
)

// beauty measures on held-out users: 8 nodes, nothing everywhere. A request of k has k−1 items, since the last one is
// what is to be found, taken from histories one behind the other. The numbers are means of four splits of the users.
func beauty(ctx context.Context, o *Options, program string) ([]Share, error) {
	const nodes, splits = 8, 4
	all, items, err := place.Histories(ctx, filepath.Join(o.Data, "beauty", "Beauty.txt"))
	if err != nil {
		return nil, err
	}
	names := []string{"hash", "similar", "METIS"}
	if program == "" {
		names = names[:2]
	}
	sums := make([]Share, len(names))
	for split := range uint64(splits) {
		r := rand.New(rand.NewPCG(o.Seed, split))
		var learn, test [][]int32
		for _, h := range all {
			if r.IntN(5) == 0 {
				test = append(test, h)
			} else {
				learn = append(learn, h)
			}
		}
		s, err := placement.NewSketch(items, 256, o.Seed)
		if err != nil {
			return nil, err
		}
		for _, h := range learn {
			s.Add(h)
		}
		g, err := s.Graph()
		if err != nil {
			return nil, err
		}
		c := placement.SimilarConfig{Config: placement.Config{Members: placement.Members(nodes), Items: items}, Graph: g,
			Uses: s.Uses(), Passes: o.Passes}
		similar, err := placement.Similar(c)
		if err != nil {
			return nil, err
		}
		hash := make([]int, items) // each item drawn by itself: no micro-parts
		for i := range hash {
			hash[i] = r.IntN(nodes)
		}
		cuts := [][]int{hash, owners(similar)}
		if program != "" {
			of, err := metis(ctx, program, g, similar, 1000)
			if err != nil {
				return nil, err
			}
			cuts = append(cuts, of)
		}
		for k, of := range cuts {
			x := &sums[k]
			x.Map, x.Published = names[k], published[names[k]]
			x.Cut += measure(g, of, nodes).Cut / splits
			for j, n := range candidates {
				share, busiest := best(place.Chunks(test, n-1, rand.New(rand.NewPCG(o.Seed, split))), of, nodes)
				x.Shares[j] += share / splits
				if j == 0 {
					x.Busiest += busiest / splits
				}
			}
		}
		o.Progress("splits of the histories", int64(split)+1, splits)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

// best returns the mean share of a request's items on its best node, and the requests of the node that is best most
// often by the mean. Ties go round.
func best(requests [][]int32, of []int, nodes int) (share, busiest float64) {
	busy, count := make([]float64, nodes), make([]int, nodes)
	for n, q := range requests {
		clear(count)
		for _, i := range q {
			count[of[i]]++
		}
		at := n % nodes
		for k := range nodes {
			if count[(n+k)%nodes] > count[at] {
				at = (n + k) % nodes
			}
		}
		busy[at]++
		share += float64(count[at]) / float64(len(q))
	}
	all := float64(len(requests))
	return share / all, slices.Max(busy) * float64(nodes) / all
}

func (r *Report) print(out io.Writer) error {
	var b strings.Builder
	if len(r.Beauty) > 0 {
		fmt.Fprintf(&b, "Amazon Beauty, 8 nodes, held-out users: share of a request's items on its best node, at k = 4, "+
			"16, 40\n")
		fmt.Fprintf(&b, "%-8s %-18s  %-18s  %7s  %5s\n", "map", "shares", "published", "busiest", "cut")
		for _, s := range r.Beauty {
			fmt.Fprintf(&b, "%-8s %.3f %.3f %.3f   %.3f %.3f %.3f   %7.2f  %.3f\n", s.Map, s.Shares[0], s.Shares[1], s.Shares[2],
				s.Published[0], s.Published[1], s.Published[2], s.Busiest, s.Cut)
		}
		b.WriteByte('\n')
	}
	for _, g := range []*Graph{r.Quality, r.Scale} {
		if g == nil {
			continue
		}
		fmt.Fprintf(&b, "%d items with %d edges, %d kept (%d slots per item; 0: all): made in %.1f s\n",
			g.Items, g.Edges, g.Kept, g.Slots, g.Build)
		fmt.Fprintf(&b, "cut for %d nodes and into %d micro-parts in %.1f s; the process used %.1f s of CPU and at most %s\n",
			g.Nodes, g.Parts, g.Seconds, g.CPU, human.Bytes(g.Peak))
		fmt.Fprintf(&b, "%-8s %6s  %12s  %8s\n", "by", "cut", "largest part", "seconds")
		for _, c := range g.Cuts {
			fmt.Fprintf(&b, "%-8s %6.4f  %12.4f  %8.1f\n", c.By, c.Cut, c.Largest, c.Seconds)
		}
		b.WriteByte('\n')
	}
	for _, n := range r.Notes {
		fmt.Fprintln(&b, n)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
