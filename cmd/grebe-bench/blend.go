package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	"grebe/bench/blend"
	rule "grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/eval/measure"
	"grebe/index"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/kv/proto"
	"grebe/model"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/shop/demo"
)

type blendCmd struct {
	Quality blendQualityCmd `cmd:"" help:"How well blended prompts rank."`
	Speed   blendSpeedCmd   `cmd:"" help:"How soon blended prompts answer, compared with a prefix cache."`
	Load    blendLoadCmd    `cmd:"" help:"Latency of blended prompts under load, compared with a prefix cache."`
	Disk    blendDiskCmd    `cmd:"" help:"How soon blended prompts answer when KV is on disk."`
}

func (blendCmd) Help() string {
	return `Measures blended prompts (prefix: blend). A blended prompt uses KV of other prompts for some of its tokens
and computes a share of them again.

Examples:

    grebe-bench blend quality --users 100
    grebe-bench blend speed --shape qwen3-8b --device cuda
    grebe-bench blend load --shape qwen3-8b --device cuda
    grebe-bench blend disk`
}

type blendSpeedCmd struct {
	Shape    string    `default:"qwen3-0.6b" enum:"tiny,qwen3-0.6b,qwen3-8b"`
	Device   string    `default:"cpu" enum:"cpu,cuda" help:"${enum}; default ${default}."`
	Budgets  []float64 `want:"at least 0 and at most 1" placeholder:"SHARE,..."`
	Repeats  int       `want:"at least 1" help:"Repetitions; the ways take turns in each. Default 9." placeholder:"N"`
	Multiple int       `want:"at least 1" placeholder:"N"`
	Layers   int       `want:"at least 1" placeholder:"N"`
	Seed     uint64    `default:"1" help:"Seed of weights and tokens; default ${default}."`
	JSON     bool      `name:"json" help:"Print JSON."`
}

func (blendSpeedCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"shape":   "Size of the model, with random weights: ${enum}; default ${default}.",
		"budgets": "Shares of the tokens that are computed again; default 0.3.",
		"multiple": "Round the number of computed tokens to a multiple. Default: the device's multiple; 1 does not " +
			"round.",
		"layers": "First layers that compute all tokens. Default: as in a server; 1 is RcLLM's choice.",
	}
}

func (blendSpeedCmd) Help() string {
	return `Measures how soon blended prompts answer, compared with a prefix cache that has the preamble. Prompts have
the sizes of the RcLLM paper: 2,200 to 3,000 tokens, of which 67 to 80 % are items and 10 to 25 % history. Blended
prompts find cached KV for every item and every token of the history. The weights are random.

Examples:

    grebe-bench blend speed
    grebe-bench blend speed --shape qwen3-8b --device cuda --json`
}

// openDevice opens a device by its name.
func openDevice(name string) (compute.Device, error) {
	return app.OpenDevice(&config.Config{Device: name}, slog.New(slog.DiscardHandler))
}

// result is what a part of this benchmark found.
type result interface {
	JSON(io.Writer) error
	Text(io.Writer) error
}

func show(w *cli.World, r result, asJSON bool) error {
	if asJSON {
		return r.JSON(w.Stdout)
	}
	return r.Text(w.Stdout)
}

func (c *blendSpeedCmd) Run(w *cli.World) error {
	dev, err := openDevice(c.Device)
	if err != nil {
		return err
	}
	r, err := blend.MeasureSpeed(w.Ctx, blend.SpeedOptions{
		Device: dev, Shape: c.Shape, Budgets: c.Budgets, Repeats: c.Repeats, Multiple: c.Multiple, Layers: c.Layers,
		Seed: c.Seed})
	if err != nil {
		return err
	}
	return show(w, r, c.JSON)
}

type blendLoadCmd struct {
	Shape   string  `default:"qwen3-0.6b" enum:"tiny,qwen3-0.6b,qwen3-8b"`
	Device  string  `default:"cpu" enum:"cpu,cuda" help:"${enum}; default ${default}."`
	Budget  float64 `default:"0.3" want:"above 0 and at most 1"`
	Share   float64 `default:"0.8" want:"at least 0.01 and at most 10"`
	Seconds float64 `default:"48" want:"above 0 and at most 86400"`
	Rounds  int     `default:"3" want:"at least 1"`
	Prompts int     `default:"4" want:"at least 1"`
	Layers  int     `want:"at least 1" placeholder:"N"`
	Seed    uint64  `default:"1" help:"Seed of weights, tokens and arrivals; default ${default}."`
	JSON    bool    `name:"json" help:"Print JSON."`
}

func (blendLoadCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"shape":   "Size of the model, with random weights: ${enum}; default ${default}.",
		"budget":  "Share of the tokens that is computed again; default ${default}.",
		"share":   "Rate of the requests, as a share of the highest rate with the prefix cache; default ${default}.",
		"seconds": "Length of the measurement in seconds, both ways together; default ${default}.",
		"rounds":  "Repetitions; the two ways take turns in each. Default ${default}.",
		"prompts": "Different prompts of each of the three sizes; default ${default}.",
		"layers":  "First layers that compute all tokens. Default: as in a server; 1 is RcLLM's choice.",
	}
}

func (blendLoadCmd) Help() string {
	return `Measures the latency of blended prompts under load, compared with a prefix cache that has the preamble.
Prompts are those of "blend speed", and they go through the server's queue and batches. First the highest rate with
the prefix cache is measured. Then requests arrive at random at a share of that rate, and the two ways take turns.
Latency counts from the time at which a request was due.

Examples:

    grebe-bench blend load --shape tiny
    grebe-bench blend load --shape qwen3-8b --device cuda --json`
}

func (c *blendLoadCmd) Run(w *cli.World) error {
	dev, err := openDevice(c.Device)
	if err != nil {
		return err
	}
	r, err := blend.MeasureLoad(w.Ctx, blend.LoadOptions{
		Device: dev, Shape: c.Shape, Each: c.Prompts, Budget: c.Budget, Share: c.Share, Seconds: c.Seconds, Rounds: c.Rounds,
		Layers: c.Layers, Seed: c.Seed,
	})
	if err != nil {
		return err
	}
	return show(w, r, c.JSON)
}

type blendDiskCmd struct {
	Shape   string  `default:"qwen3-0.6b" enum:"tiny,qwen3-0.6b,qwen3-8b"`
	Device  string  `default:"cpu" enum:"cpu,cuda" help:"${enum}; default ${default}."`
	Dir     string  `type:"path" placeholder:"DIR"`
	Rate    string  `want:"a size such as 1GiB" placeholder:"SIZE"`
	Only    int     `default:"0" enum:"0,1,2,3" placeholder:"N"`
	Budget  float64 `default:"0.3" want:"above 0 and at most 1"`
	Repeats int     `want:"at least 1" help:"Repetitions; the ways take turns in each. Default 7." placeholder:"N"`
	Layers  int     `want:"at least 1" placeholder:"N"`
	Seed    uint64  `default:"1" help:"Seed of weights and tokens; default ${default}."`
	JSON    bool    `name:"json" help:"Print JSON."`
}

func (blendDiskCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"shape": "Size of the model, with random weights: ${enum}; default ${default}.",
		"dir":   "Folder on the disk to measure. Default: the folder for temporary files.",
		"rate": "Read at most so much per second, such as 1GiB. Default: as fast as the disk, with nothing in the " +
			"system's cache.",
		"only":   "Measure the first, second or third prompt alone. Default: all.",
		"budget": "Share of the tokens that is computed again; default ${default}.",
		"layers": "First layers that compute all tokens. Default: as in a server; 1 is RcLLM's choice.",
	}
}

func (blendDiskCmd) Help() string {
	return `Measures how soon blended prompts answer when the KV of their items is on disk. Prompts are those of "blend
speed", one at a time through the server's queue. KV is read either before the prompt enters the queue (ahead), or
while the first layers compute, which do not need it (beside, as in a server). Both ways must give the same scores.

Examples:

    grebe-bench blend disk
    grebe-bench blend disk --shape tiny --rate 1GiB --json`
}

func (c *blendDiskCmd) Run(w *cli.World) error {
	rate := 0.0
	if c.Rate != "" {
		size, err := config.ParseSize(c.Rate)
		if err != nil {
			return err
		}
		rate = float64(size.Bytes)
	}
	tmp, err := os.MkdirTemp(c.Dir, "grebe-blend-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	dev, err := openDevice(c.Device)
	if err != nil {
		return err
	}
	r, err := blend.MeasureDisk(w.Ctx, blend.DiskOptions{
		Device: dev, Dir: tmp, Shape: c.Shape, Only: c.Only, Budget: c.Budget, Repeats: c.Repeats, Rate: rate,
		Layers: c.Layers, Seed: c.Seed,
	})
	if err != nil {
		return err
	}
	return show(w, r, c.JSON)
}

type blendQualityCmd struct {
	Config       string    `short:"c" type:"path" placeholder:"FILE"`
	Model        string    `help:"Name of the model. Default: the first that scores by identifier." placeholder:"NAME"`
	Users        int       `want:"at least 1" placeholder:"N"`
	ItemsFile    string    `name:"items-file" type:"path" placeholder:"FILE"`
	UsersFile    string    `name:"users-file" type:"path" placeholder:"FILE"`
	RequestsFile string    `name:"requests-file" type:"path" placeholder:"FILE"`
	Budgets      []float64 `want:"at least 0 and at most 1" placeholder:"SHARE,..."`
	Rules        []string  `want:"one of learned, attention, rcllm, cacheblend, epic, both" placeholder:"RULE,..."`
	NoOrders     bool      `name:"no-orders"`
	Window       int       `want:"at least 0" default:"0" placeholder:"N"`
	Multiple     int       `want:"at least 1" placeholder:"N"`
	PoolFile     string    `name:"pool-file" type:"path" placeholder:"FILE"`
	PoolUsers    int       `name:"pool-users" want:"at least 1" placeholder:"N"`
	Learn        int       `want:"at least 1" placeholder:"N"`
	Memory       string    `default:"64MiB" want:"a size such as 64MiB" placeholder:"SIZE"`
	DriftLimit   float32   `name:"drift-limit" want:"above 0 and at most 1" placeholder:"X"`
	Device       string    `default:"auto" enum:"auto,cpu,cuda" help:"${enum}; default ${default}."`
	DType        string    `name:"dtype" default:"auto" want:"one of auto, f32, bf16" placeholder:"FORMAT"`
	Parallel     int       `default:"1" want:"at least 1 and at most 1024" placeholder:"N"`
	Seed         uint64    `default:"1" help:"Seed of the shop and of the confidence intervals; default ${default}."`
	JSON         bool      `name:"json" help:"Print JSON."`
	cli.LogFlags
}

func (blendQualityCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config":        "Configuration file that names the model to measure. Default: the demo's.",
		"users":         "Number of users. Default: 200 of the demo shop, or all of --users-file.",
		"items-file":    "Items (NDJSON). Default: those of the configuration.",
		"users-file":    "Users (NDJSON) whose last item is to be predicted. Default: the demo shop's test customers.",
		"requests-file": "Requests (NDJSON) for these users, with candidates.",
		"budgets":       "Shares of the tokens that are computed again; default 0.05,0.1,0.15,0.2,0.3,0.5,0.7,1.",
		"rules":         "Rules from the list above. Default: all but both; learned needs --learn.",
		"no-orders":     "Do not measure prompts that are not blended (user first, items first).",
		"window":        "Last tokens of the prompt that are always computed; default ${default}.",
		"multiple": "Round the number of computed tokens to a multiple, as a GPU does to 128. Default: the " +
			"device's multiple.",
		"pool-file": "Users (NDJSON) whose histories become prototypes. Default: the demo shop's.",
		"pool-users": "Make prototypes of so many training customers of the demo shop, and use them for histories, " +
			"too.",
		"learn": "Learn from prompts of so many of these users which tokens to compute again, as grebe index " +
			"--importance does.",
		"memory": "Most memory for the KV of prototypes; default ${default}.",
		"drift-limit": "Compute tokens whose prototype is farther away than this, from 0 to 1; 1 computes none of " +
			"them. Default: as in a server.",
		"dtype":    "Number format: auto, f32 or bf16; default ${default}.",
		"parallel": "Users to measure at once; they share the cores. Default ${default}.",
	}
}

func (blendQualityCmd) Help() string {
	return `Measures how well blended prompts rank, against the same prompts computed in full: NDCG@10 and hit rates.
Blended prompts use the cached KV of items and compute a share of their tokens again. A rule chooses these tokens:

    attention   tokens that get the most attention in the second layer (Grebe's
                rule)
    rcllm       the same, in the first layer (RcLLM)
    cacheblend  tokens whose KV deviates most (CacheBlend)
    epic        the first tokens of each item (EPIC)
    both        attention and deviation
    learned     what --learn found out about tokens of items

Examples:

    grebe-bench blend quality --users 100
    grebe-bench blend quality --users 100 --pool-users 1000 --learn 32
    grebe-bench blend quality -c grebe.yaml --users-file users.ndjson --budgets 0.1,0.3`
}

func (c *blendQualityCmd) Run(w *cli.World) error {
	if c.LogLevel == "info" {
		c.LogLevel = "error" // the progress bar and the result are what a reader waits for
	}
	tmp, err := os.MkdirTemp("", "grebe-blend-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if c.Config == "" {
		dir := demo.Dir()
		if err := demo.Ensure(dir); err != nil {
			return err
		}
		c.Config = filepath.Join(dir, demo.ConfigFile)
	}
	q, err := c.measure(w, tmp)
	if err != nil {
		return err
	}
	if c.JSON {
		return q.JSON(w.Stdout)
	}
	return q.Text(w.Stdout)
}

func (c *blendQualityCmd) measure(w *cli.World, tmp string) (*blend.Quality, error) {
	switch learned := slices.Contains(c.Rules, "learned"); {
	case c.Learn > 0 && c.PoolUsers == 0:
		return nil, cli.Usagef("--learn: from whom? Give --pool-users")
	case learned && c.Learn == 0:
		return nil, cli.Usagef("--rules learned: from how many prompts? Give --learn")
	case len(c.Rules) == 0 && c.Learn > 0:
		c.Rules = append([]string{"learned"}, blend.Rules...)
	}
	e := &measure.Models{Config: c.Config, Users: c.Users, ItemsFile: c.ItemsFile, UsersFile: c.UsersFile,
		RequestsFile: c.RequestsFile, Seed: c.Seed}
	data, _, err := e.Data(tmp)
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(config.Source{File: c.Config})
	if err != nil {
		return nil, err
	}
	if c.Device != "auto" {
		cfg.Device = c.Device
	}
	mc, err := c.model(&cfg.Config)
	if err != nil {
		return nil, err
	}
	copies, builder, err := c.open(w, &cfg.Config, mc)
	if err != nil {
		return nil, err
	}
	var other others
	if c.PoolUsers > 0 {
		if other, err = c.others(w, tmp, mc.Name); err != nil {
			return nil, errors.Join(err, closeCopies(copies))
		}
		defer other.close()
	}
	bar := cli.NewRequestBar(w)
	defer bar.End()
	return blend.MeasureQuality(w.Ctx, blend.QualityOptions{
		History: other.history, Importance: other.importance, Device: copies[0].Device, Model: copies[0].Model,
		More: copies[1:], Prompt: builder, Data: data,
		Budgets: c.Budgets, Rules: c.Rules, NoOrders: c.NoOrders, Window: c.Window, Multiple: c.Multiple, Seed: c.Seed,
		Progress: bar.Update,
	})
}

// open opens the model as often as users are asked about at a time.
func (c *blendQualityCmd) open(w *cli.World, cfg *config.Config,
	mc *config.Model) ([]blend.Copy, *prompt.Builder, error) {
	if c.Parallel > 1 && cfg.Threads == 0 {
		cfg.Threads = max(1, runtime.GOMAXPROCS(0)/c.Parallel)
	}
	var copies []blend.Copy
	var builder *prompt.Builder
	for range max(1, c.Parallel) {
		dev, err := app.OpenDevice(cfg, c.Logger(w.Stderr))
		if err != nil {
			return nil, nil, errors.Join(err, closeCopies(copies))
		}
		m, b, err := openPrompts(dev, mc, c.DType)
		if err != nil {
			return nil, nil, errors.Join(err, dev.Close(), closeCopies(copies))
		}
		copies, builder = append(copies, blend.Copy{Device: dev, Model: m}), b
	}
	return copies, builder, nil
}

func closeCopies(copies []blend.Copy) error {
	var errs []error
	for _, c := range copies {
		errs = append(errs, c.Model.Close(), c.Device.Close())
	}
	return errors.Join(errs...)
}

// others is what is known from other users than those who are asked about.
type others struct {
	history    blend.History
	importance *rule.Importance // nil: none was asked for
	close      func()
}

// others makes prototypes, and learns what matters.
func (c *blendQualityCmd) others(w *cli.World, tmp, name string) (out others, err error) {
	size, err := config.ParseSize(c.Memory)
	if err != nil {
		return out, err
	}
	made := &prototypesCmd{Config: c.Config, Model: name, PoolUsers: c.PoolUsers, Users: 1, Seed: c.Seed,
		UsersFile: c.PoolFile}
	cfg, err := made.configure(w, tmp, size.Bytes)
	if err != nil {
		return out, err
	}
	if c.Device != "auto" {
		cfg.Device = c.Device
	}
	cfg.Models[0].DType = c.DType // prototypes stand in for what the model computes
	s, err := app.Load(w.Ctx, cfg, options(c.Logger(w.Stderr)))
	if err != nil {
		return out, err
	}
	users, _, _, err := made.users()
	if err != nil {
		return out, errors.Join(err, s.Close())
	}
	p, err := c.pool(w, users, s, cfg, filepath.Join(tmp, "pool.proto"), size.Bytes)
	if err == nil && c.Learn > 0 {
		m, f := &s.Models()[0], index.Importance{Prompts: c.Learn, Candidates: 100}
		out.importance, err = f.Measure(w, s.Catalog(), m, cfg.Models[0].Blend.Layers,
			index.UsersOf(s.Catalog(), c.Learn, m, users))
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}
	if err != nil {
		return out, errors.Join(err, s.Close())
	}
	out.history = func(tokens []int32, start int) ([]engine.Part, func()) {
		m := &reuse.Matches{}
		p.Find(m, tokens, 0, start, cmp.Or(c.DriftLimit, rule.DriftLimit))
		parts := m.Append(nil, 0)
		m.Fetch(parts)
		return parts, m.Release
	}
	out.close = func() { _ = errors.Join(p.Close(), s.Close()) }
	return out, nil
}

func (c *blendQualityCmd) pool(w *cli.World, users []*grebev1.User, s *app.App, cfg *config.Config, file string,
	bytes int64) (*reuse.Prototypes, error) {
	m := &s.Models()[0]
	from, closer, err := index.PoolOf(s.Catalog(), m, cfg.Models[0].Path, users)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	bar := index.NewBar(w.Stderr, w.Terminal)
	defer bar.End()
	from.Bytes, from.Progress, from.Config = bytes, bar.Prototypes, proto.Config{Seed: c.Seed}
	if _, err := m.Cache.BuildPrototypes(w.Ctx, m.Runner.Do, file, from); err != nil {
		return nil, err
	}
	return m.Cache.OpenPrototypes(file)
}

// model returns the one to measure.
func (c *blendQualityCmd) model(cfg *config.Config) (*config.Model, error) {
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; mc.Name == c.Model || c.Model == "" && mc.Scoring.Kind == "identifier" {
			return mc, nil
		}
	}
	return nil, fmt.Errorf("%s has no model %q that scores by identifier", c.Config, c.Model)
}

// openPrompts opens a model with its prompts.
func openPrompts(dev compute.Device, mc *config.Model, dtype string) (model.Model, *prompt.Builder, error) {
	m, err := model.Open(mc.Path, dev, model.Options{DType: dtype})
	if err != nil {
		return nil, nil, err
	}
	b, err := app.BuilderOf(mc)
	if err != nil {
		return nil, nil, errors.Join(err, m.Close())
	}
	return m, b, nil
}
