package main

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	"grebe/app/codebook"
	"grebe/catalog"
	"grebe/codes"
	"grebe/index"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/prompt"
	"grebe/serve"
)

// codesCmd makes semantic IDs.
type codesCmd struct {
	Items      string  `arg:"" type:"path" placeholder:"FILE"`
	Embeddings string  `type:"path" xor:"rows" placeholder:"FILE"`
	Tensor     string  `help:"Tensor of the .safetensors file; default its only one." placeholder:"NAME"`
	Config     string  `short:"c" type:"path" xor:"rows" placeholder:"FILE"`
	Model      string  `help:"That model; default the only one." placeholder:"NAME"`
	Format     string  `default:"" enum:"ndjson,csv,tsv,parquet,"`
	Map        string  `placeholder:"FIELD=COLUMN,…"`
	Separator  string  `help:"Character between the cells of CSV; default: a comma, in .tsv files a tab." placeholder:"C"`
	Lists      string  `default:";" placeholder:"TEXT"`
	Out        string  `short:"o" type:"path" placeholder:"FILE"`
	Codebook   string  `type:"path" required:"" placeholder:"FILE"`
	Fresh      bool    `help:"Replace an existing codebook. All codes change."`
	Levels     int     `want:"at least 1 and at most 16" placeholder:"N"`
	Sizes      []int   `want:"at least 1 and at most 65536" placeholder:"N"`
	Balance    float64 `default:"3" want:"at least 1" placeholder:"F"`
	Seed       uint64  `help:"Seed of random choices; default 0." placeholder:"N"`
	Collisions string  `default:"resolve" enum:"resolve,report"`
	Threads    int     `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	JSON       bool    `name:"json" help:"Print the report as JSON."`
	cli.LogFlags
}

func (codesCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"items": "Items, each with an id, in a file as grebe import reads it: NDJSON, .csv, .tsv or .parquet, also .gz and " +
			".zst; - is standard input.",
		"format": "Format of the file: ndjson, csv, tsv or parquet; default: by name. Standard input needs it.",
		"map": "Which column each field comes from, such as id=sku,text=title; default: columns have the names of " +
			"fields.",
		"lists":      "Text between the elements of a list in one cell; default ${default}. A cell may also be a JSON list.",
		"out":        "Write the items with codes to this file, as NDJSON. With --map it has the mapped fields only.",
		"embeddings": "One row per item, in the same order: .npy (float16, float32, float64) or .safetensors.",
		"config":     "Have a model of this configuration compute embeddings of the items' texts.",
		"codebook":   "The codebook. If the file exists, its items keep their codes and new items are added.",
		"levels":     "Codes of an item; default: those of the model of -c, or 3.",
		"sizes": "Codes of each level, such as 256,256,256; default: those of the model of -c, or by the number of items. " +
			"A level has at most as many codes as there are items.",
		"balance":    "A code has at most this many times the mean number of items; default ${default}.",
		"collisions": "resolve: each item gets codes of its own. report: items may share codes. Default ${default}.",
	}
}

func (codesCmd) Help() string {
	return `Makes semantic IDs by residual k-means: each level groups items by what remains of their embeddings after the
previous levels. Items with similar embeddings share their first codes.

With an existing codebook only new items get codes. Codes of removed items are not used again.

With -c a new codebook gets the levels and sizes of the model's codes: those of --model, or of the only model that has
codes. Codes that this model does not have are reported.

The report shows the error (what remains of the embeddings' variance) and a line per level: how many codes it has, how
many are used, and how evenly. Effective is the number of codes that would be as varied if all had equally many items;
largest is the number of items of the most frequent code. Then it says how many items had to move to codes that are not
their nearest, and how many share all their codes with others.

Examples:

    grebe codes items.ndjson --embeddings items.npy --codebook shop.codes --out coded.ndjson
    grebe codes items.ndjson -c grebe.yaml --model shop --codebook shop.codes --out coded.ndjson
    grebe codes products.parquet --map id=sku,text=title,attributes.brand=brand -c grebe.yaml \
        --codebook shop.codes --out coded.ndjson
    grebe import coded.ndjson --server http://127.0.0.1:8080`
}

// Run makes the codes.
func (c *codesCmd) Run(w *cli.World) error {
	if err := c.check(); err != nil {
		return err
	}
	m := &codebook.Make{
		Items: ingest.ItemFile{
			Path: c.Items, Stdin: w.Stdin, Format: c.Format, Separator: c.Separator, Map: c.Map, Lists: c.Lists,
		},
		Out: c.Out, Codebook: c.Codebook, Fresh: c.Fresh, Levels: c.Levels,
		Collisions: c.Collisions == "report", Threads: c.Threads,
		Options: codes.Options{Sizes: c.Sizes, Seed: c.Seed, Balance: c.Balance, Step: c.step(w)},
		Rows:    (&codebook.Embeddings{Path: c.Embeddings, Tensor: c.Tensor}).Rows,
	}
	if m.Threads == 0 {
		m.Threads = runtime.GOMAXPROCS(0)
	}
	if c.Config != "" {
		if err := c.configured(w, m); err != nil {
			return err
		}
	}
	r, err := m.Run(w.Ctx)
	if err != nil {
		return err
	}
	return c.print(w, r)
}

func (c *codesCmd) check() error {
	switch {
	case c.Embeddings == "" && c.Config == "":
		return cli.Usagef("give --embeddings FILE, or -c FILE to have a model compute embeddings")
	case c.Tensor != "" && c.Embeddings == "":
		return cli.Usagef("--tensor goes with --embeddings")
	case c.Model != "" && c.Config == "":
		return cli.Usagef("--model goes with -c")
	case c.Levels > 0 && c.Sizes != nil && c.Levels != len(c.Sizes):
		return cli.Usagef("--levels is %d, but --sizes has %s", c.Levels, human.Count(len(c.Sizes), "level"))
	}
	return nil
}

// step prints progress.
func (c *codesCmd) step(w *cli.World) func(codes.Progress) error {
	log := c.Logger(w.Stderr)
	return func(p codes.Progress) error {
		log.Debug("codes", "level", p.Level, "pass", p.Pass, "rows", p.Rows, "error", p.Error)
		return nil
	}
}

// configured takes embeddings and the default sizes from the configuration.
func (c *codesCmd) configured(w *cli.World, m *codebook.Make) error {
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil {
		return err
	}
	at := slices.IndexFunc(cfg.Models, func(m config.Model) bool { return m.Name == c.Model })
	if c.Model == "" && len(cfg.Models) == 1 {
		at = 0
	}
	if at < 0 {
		return cli.Usagef("--model: %s has the models %s", c.Config, strings.Join(names(cfg.Models), ", "))
	}
	m.Rows = func(_ context.Context, items *codebook.Items, places []int) ([]float32, int, error) {
		return c.embed(w, &cfg.Config, at, items, places)
	}
	of := generating(cfg.Models, at)
	if of == nil {
		return nil
	}
	if m.Model, err = app.CodeSizes(of); err != nil {
		return err
	}
	m.Misfit = func(sizes []int) {
		fmt.Fprintf(w.Stderr, "Warning: the codebook has the levels %v and model %q has %v: it cannot generate items with "+
			"other codes. --fresh without --levels and --sizes makes codes that fit.\n", sizes, of.Name, m.Model)
	}
	return nil
}

// generating returns the model whose codes the items get: the one at a place if it has codes, or the only one that has;
// nil: there is none.
func generating(models []config.Model, at int) *config.Model {
	if models[at].HasCodes() {
		return &models[at]
	}
	var out *config.Model
	for i := range models {
		if models[i].HasCodes() {
			if out != nil {
				return nil
			}
			out = &models[i]
		}
	}
	return out
}

// embed has a model compute the embeddings of items.
func (c *codesCmd) embed(
	w *cli.World, cfg *config.Config, at int, items *codebook.Items, places []int,
) ([]float32, int, error) {
	list, n := make([]*prompt.Item, 0, len(places)), 0
	err := items.Each(w.Ctx, func(m *grebev1.Item) error {
		if len(list) < len(places) && places[len(list)] == n {
			list = append(list, catalog.Item(m))
		}
		n++
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	a, err := app.Load(w.Ctx, cfg, options(c.Logger(w.Stderr)))
	if err != nil {
		return nil, 0, err
	}
	defer a.Close()
	bar := cli.NewBar(w, "items")
	defer bar.End()
	var m *serve.Model = &a.Models()[at]
	rows, dims, err := index.Embed(w.Ctx, m, list, func(done int) { bar.Update(done, len(list)) })
	if err != nil {
		err = fmt.Errorf("model %s: %w", m.Name, err)
	}
	return rows, dims, err
}

func names(models []config.Model) (out []string) {
	for _, m := range models {
		out = append(out, m.Name)
	}
	return out
}

func (c *codesCmd) print(w *cli.World, r *codebook.Result) error {
	if c.JSON {
		return json.NewEncoder(w.Stdout).Encode(r)
	}
	fmt.Fprintf(w.Stdout, "%s got codes, %d kept theirs", human.Count(r.Added, "item"), r.Kept)
	if r.Added > 0 {
		fmt.Fprintf(w.Stdout, "; error %.4f of the embeddings' variance", r.Error)
	}
	fmt.Fprintln(w.Stdout)
	t := tabwriter.NewWriter(w.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "level\tcodes\tused\teffective\tlargest")
	for i, l := range r.Levels {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.0f\t%d\n", i+1, l.Size, l.Used, l.Effective, l.Largest)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w.Stdout, "used: codes that items have\n"+
		"effective: how many they would be if all had equally many items\nlargest: items of the most frequent code")
	switch {
	case r.Moved == 0 && r.Added > 0:
		fmt.Fprintln(w.Stdout, "All new items have their nearest codes: none had to move")
	case r.Moved > 0:
		fmt.Fprintf(w.Stdout, "%s got the nearest free codes, because other items have the nearest ones\n",
			human.Count(r.Moved, "item"))
	}
	if r.Shared > 0 {
		fmt.Fprintf(w.Stdout, "%d items share all their codes with others, at most %d the same\n", r.Shared, r.Most)
	} else {
		fmt.Fprintln(w.Stdout, "No two items have the same codes")
	}
	return nil
}
