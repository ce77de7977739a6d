// Package place is grebe place: it reads requests from a file, builds the maps of package placement from most of them,
// and says what each map would cost and save for the others.
package place

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"grebe/bench/report"
	"grebe/internal/cli"
	"grebe/internal/human"
	"grebe/placement"
)

// Maps compares maps: its fields are the flags of grebe place.
type Maps struct {
	File   string   `arg:"" type:"path" help:"Requests: histories, users (NDJSON) or a trace (NDJSON)."`
	Nodes  int      `short:"n" required:"" want:"at least 1 and at most 1000" placeholder:"N"`
	Format string   `default:"auto" want:"one of auto, histories, users, requests" placeholder:"FORMAT"`
	Maps   []string `want:"one of hash, replicate, hot-cold, similar" placeholder:"MAP"`

	Candidates int     `want:"at least 1 and at most 100000" placeholder:"N"`
	Test       float64 `default:"0.2" want:"above 0 and below 1" placeholder:"SHARE"`
	ItemTokens float64 `default:"32" want:"above 0 and at most 1000000" placeholder:"N"`
	TokenBytes int64   `default:"28672" want:"at least 1 and at most 1000000000" placeholder:"BYTES"`

	Remote    float64 `default:"0.1" want:"at least 0 and at most 1" placeholder:"SHARE"`
	Gbit      float64 `want:"above 0 and at most 1000000" placeholder:"N"`
	PrefillMs float64 `name:"prefill-ms" want:"above 0 and at most 1000000" placeholder:"MS"`
	Alpha     float64 `default:"0.5" want:"above 0 and at most 1000" placeholder:"SHARE"`
	Formula   string  `default:"corrected" want:"one of corrected, printed" placeholder:"NAME"`

	Hot     float64 `default:"0.001" want:"at least 0 and at most 1" placeholder:"SHARE"`
	Slots   int     `default:"64" want:"at least 1 and at most 1024" placeholder:"N"`
	Passes  int     `default:"10" want:"at least 1 and at most 1000" placeholder:"N"`
	HeldOut float64 `name:"local-moves" want:"above 0 and at most 0.5" placeholder:"SHARE"`

	Current string `type:"path" placeholder:"FILE"`
	Out     string `type:"path" placeholder:"DIR"`
	Seed    uint64 `default:"1" help:"Which requests are held out, and of the sketch; default ${default}."`
	JSON    bool   `name:"json" help:"Print JSON."`
}

// FlagHelp has the help texts that are too long for tags.
func (Maps) FlagHelp() cli.Texts {
	return cli.Texts{
		"nodes": "Nodes that hold items.",
		"format": "Of the file: auto, histories (lines of a user and items), users (as grebe import takes them) or " +
			"requests (lines with candidates); default ${default}.",
		"maps": "hash, replicate, hot-cold, similar; default all.",
		"candidates": "Make requests of so many items from the held-out ones, one behind the other; default they are as " +
			"the file has them.",
		"test":        "Share of the requests that maps are measured on; the others make the maps; default ${default}.",
		"item-tokens": "Tokens of an item; default ${default}.",
		"token-bytes": "Bytes of KV per token; default ${default} (Qwen2-1.5B in bf16).",
		"remote":      "hot-cold: share of item accesses that may go to sharded items; default ${default}.",
		"gbit":        "hot-cold: compute that share (BAT's Algorithm 1) for a network of so many Gbit/s; with --prefill-ms.",
		"prefill-ms":  "Time to prefill a request whose items are cached.",
		"alpha":       "Time for communication that is tolerated, as a share of the prefill time; default ${default}.",
		"formula": "corrected or printed: the paper's formula looks inverted (docs/explain/placement.md); default " +
			"${default}.",
		"hot":    "similar: share of the items that all nodes hold; default ${default}.",
		"slots":  "similar: neighbours that the sketch keeps per item, 8 bytes each; default ${default}.",
		"passes": "similar: passes over the items; default ${default}.",
		"local-moves": "similar: keep this share of the requests out of the graph, and move items where these requests " +
			"improve.",
		"current": "The map that is in use (a file of --out), for the moves; default hash.",
		"out":     "Write the maps into this folder, as NAME.map, and the ids of the items as items.txt.",
	}
}

// Help has the examples that kong prints.
func (Maps) Help() string {
	return `Says what each way to place items on nodes costs and saves for the requests of a file: bytes per node, the
share of a request's items on its best node, tokens of KV that other nodes must send, how many of them, and what must be
copied from the map in use.

  hash       each item on one node, by hash
  replicate  all items on all nodes
  hot-cold   the hottest items on all nodes, the others by hash (BAT)
  similar    the hottest 0.1 % on all nodes, of the others those together that are requested together (RcLLM)

Maps are made from most requests and measured on the others.

Examples:

    grebe place users.ndjson --nodes 8
    grebe place trace.ndjson --nodes 8 --gbit 10 --prefill-ms 20 --item-tokens 87
    grebe place histories.txt --nodes 9 --current ./maps/similar.map --maps similar --out ./maps-9`
}

// Report is what grebe place found.
type Report struct {
	File       string  `json:"file"`
	Format     string  `json:"format"`
	Nodes      int     `json:"nodes"`
	Items      int     `json:"items"`
	Learned    int     `json:"requests_learned"`
	Measured   int     `json:"requests_measured"`
	Mean       float64 `json:"items_per_request"` // of those measured
	ItemTokens float64 `json:"item_tokens"`
	TokenBytes int64   `json:"token_bytes"`
	Remote     float64 `json:"remote_share"` // of hot-cold
	Current    string  `json:"current"`
	Maps       []Cost  `json:"maps"`
}

// Run compares them.
func (c *Maps) Run(w *cli.World) error {
	if (c.Gbit == 0) != (c.PrefillMs == 0) {
		return cli.Usagef("--gbit and --prefill-ms: give both or none")
	}
	var current *placement.Map
	if c.Current != "" {
		var err error
		if current, err = load(c.Current); err != nil {
			return err
		}
		if current.Nodes() > c.Nodes {
			return cli.Usagef("--current: the map in use has %d nodes, more than --nodes %d", current.Nodes(), c.Nodes)
		}
	}
	bar := cli.NewBar(w, "bytes")
	t, err := read(w.Ctx, c.File, c.Format, func(done, total int64) { bar.Update(int(done), int(total)) })
	bar.End()
	if err != nil {
		return err
	}
	r, maps, err := c.compare(w, t, current)
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := save(c.Out, t, maps); err != nil {
			return err
		}
	}
	if c.JSON {
		return report.JSON(w.Stdout, r)
	}
	r.print(w)
	return nil
}

// compare builds and measures the maps. They are returned by name.
func (c *Maps) compare(w *cli.World, t *trace, current *placement.Map) (*Report, map[string]*placement.Map, error) {
	learn, held, test := c.divide(t)
	if len(learn) == 0 || len(test) == 0 {
		return nil, nil, fmt.Errorf("%s: %d requests are too few: %d would make the maps and %d measure them",
			c.File, len(t.requests), len(learn), len(test))
	}
	b := &builder{Maps: c, items: len(t.names), learn: learn, held: held, previous: current}
	if err := b.count(w); err != nil {
		return nil, nil, err
	}
	r := &Report{File: c.File, Format: t.format, Nodes: c.Nodes, Items: len(t.names), Learned: len(learn) + len(held),
		Measured:   len(test),
		ItemTokens: c.ItemTokens, TokenBytes: c.TokenBytes, Current: cmp.Or(c.Current, "hash")}
	for _, q := range test {
		r.Mean += float64(len(q)) / float64(len(test))
	}
	if err := b.share(r); err != nil {
		return nil, nil, err
	}
	if current == nil {
		var err error
		if current, err = placement.Hash(b.config()); err != nil {
			return nil, nil, err
		}
	}
	maps := map[string]*placement.Map{}
	if len(c.Maps) == 0 {
		c.Maps = []string{"hash", "replicate", "hot-cold", "similar"}
	}
	for _, name := range slices.Compact(slices.Clone(c.Maps)) {
		m, err := b.build(w, name)
		if err != nil {
			return nil, nil, err
		}
		size := sizes{c.ItemTokens, c.TokenBytes}
		x := cost(m, test, size)
		x.Map = name
		moves, bytes := placement.Moves(current, m, func(int32) int64 { return size.item() })
		x.MovedSize = bytes
		for _, v := range moves {
			x.Moved += v.Items
		}
		x.Cut = b.graph.Cut(m)
		r.Maps = append(r.Maps, x)
		maps[name] = m
		if err := w.Ctx.Err(); err != nil {
			return nil, nil, err
		}
	}
	return r, maps, nil
}

// divide draws which requests make the maps, which judge local moves, and which measure.
func (c *Maps) divide(t *trace) (learn, held, test [][]int32) {
	r := rand.New(rand.NewPCG(c.Seed, 1))
	for _, q := range t.requests {
		switch x := r.Float64(); {
		case x < c.Test:
			test = append(test, q)
		case x < c.Test+(1-c.Test)*c.HeldOut:
			held = append(held, q)
		default:
			learn = append(learn, q)
		}
	}
	if c.Candidates > 0 {
		test = Chunks(test, c.Candidates, r)
	}
	return learn, held, test
}

// Chunks puts requests one behind the other, in random order, and cuts them into requests of k items. What is left at
// the end is dropped.
func Chunks(requests [][]int32, k int, r *rand.Rand) (out [][]int32) {
	var all []int32
	for _, i := range r.Perm(len(requests)) {
		all = append(all, requests[i]...)
	}
	for ; len(all) >= k; all = all[k:] {
		out = append(out, all[:k:k])
	}
	return out
}

// builder builds the maps of a trace.
type builder struct {
	*Maps
	items       int
	learn, held [][]int32
	sketch      *placement.Sketch
	graph       *placement.Graph
	remote      float64
	previous    *placement.Map
}

func (b *builder) config() placement.Config {
	return placement.Config{Epoch: 1, Members: placement.Members(b.Nodes), Items: b.items}
}

// count counts which items are requested, and together.
func (b *builder) count(w *cli.World) (err error) {
	if b.sketch, err = placement.NewSketch(b.items, b.Slots, b.Seed); err != nil {
		return err
	}
	bar := cli.NewBar(w, "requests")
	defer bar.End()
	for n, q := range b.learn {
		b.sketch.Add(q)
		if n%1024 == 0 {
			if err := w.Ctx.Err(); err != nil {
				return err
			}
			bar.Update(n, len(b.learn))
		}
	}
	b.graph, err = b.sketch.Graph()
	return err
}

// share determines how many accesses may go to sharded items of hot-cold.
func (b *builder) share(r *Report) error {
	b.remote = b.Remote
	if b.Gbit > 0 {
		t := placement.Traffic{Alpha: b.Alpha, Prefill: b.PrefillMs / 1e3,
			Bandwidth:  b.Gbit * 1e9 / 8 / float64(b.TokenBytes),
			Candidates: max(int(r.Mean+0.5), 1), ItemTokens: b.ItemTokens, Nodes: b.Nodes}
		if err := t.Validate(); err != nil {
			return err
		}
		b.remote = t.Corrected()
		if b.Formula == "printed" {
			b.remote = t.Printed()
		}
	}
	r.Remote = b.remote
	return nil
}

func (b *builder) build(w *cli.World, name string) (*placement.Map, error) {
	switch name {
	case "hash":
		return placement.Hash(b.config())
	case "replicate":
		return placement.Replicate(b.config())
	case "hot-cold":
		return placement.HotCold(b.config(), b.sketch.Uses(), b.remote)
	case "similar":
		bar := cli.NewBar(w, "items")
		defer bar.End()
		return placement.Similar(placement.SimilarConfig{
			Config: b.config(), Graph: b.graph, Uses: b.sketch.Uses(), Hot: b.Hot,
			Passes: b.Passes, HeldOut: b.held, Previous: b.previous, Progress: func(done, total int64) error {
				bar.Update(int(done), int(total))
				return w.Ctx.Err()
			}})
	}
	return nil, fmt.Errorf("no map %q", name)
}

// maxMap is more than the largest map takes: 2³¹ items with 2 bytes each, members, micro-parts and ties.
const maxMap = 5 << 30

func load(path string) (*placement.Map, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxMap {
		return nil, fmt.Errorf("%s: %s is no map", path, human.Bytes(info.Size()))
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := placement.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// save writes the maps and the ids of the items, in the order of their numbers.
func save(dir string, t *trace, maps map[string]*placement.Map) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for name, m := range maps {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name+".map"), m.Encode(), 0o644))
	}
	var ids []byte
	for _, id := range t.names {
		ids = append(append(ids, id...), '\n')
	}
	return errors.Join(append(errs, os.WriteFile(filepath.Join(dir, "items.txt"), ids, 0o644))...)
}

func (r *Report) print(w *cli.World) {
	out := w.Stdout
	fmt.Fprintf(out, "%s on %s; maps made from %s, measured on %d with %.1f items each\n",
		human.Count(r.Items, "item"), human.Count(r.Nodes, "node"), human.Count(r.Learned, "request"), r.Measured, r.Mean)
	fmt.Fprintf(out, "KV: %g tokens per item, %d bytes per token; hot-cold: at most %.3f of the accesses to sharded "+
		"items\n\n",
		r.ItemTokens, r.TokenBytes, r.Remote)
	fmt.Fprintf(out, "%-10s %11s %11s %9s  %6s %6s  %8s %8s  %7s %7s  %5s  %11s\n", "map", "bytes/node", "fullest",
		"on all",
		"best", "median", "remote", "any node", "fan-out", "busiest", "cut", "moved")
	for _, c := range r.Maps {
		fmt.Fprintf(out, "%-10s %11s %11s %9d  %6.3f %6.3f  %8.1f %8.1f  %7.2f %7.2f  %5.3f  %11s\n", c.Map,
			human.Bytes(c.BytesMean),
			human.Bytes(c.BytesMax), c.Hot, c.BestMean, c.BestHalf, c.Remote, c.RemoteAny, c.FanOut, c.Busiest, c.Cut,
			human.Bytes(c.MovedSize))
	}
	fmt.Fprintf(out, `
best, median: share of a request's items on its best node. remote: tokens that this node lacks, and that any node lacks.
fan-out: nodes it must ask. busiest: requests of the node that is best most often, by the mean. cut: weight of the pairs
of items that lie apart. moved: copies from the map in use (%s).
`, r.Current)
}
