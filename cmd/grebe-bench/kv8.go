package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"grebe/app"
	"grebe/bench/kv8"
	"grebe/compute"
	"grebe/eval"
	"grebe/eval/measure"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
)

type kv8Cmd struct {
	Config     string   `short:"c" type:"path" placeholder:"FILE"`
	Checkpoint string   `type:"path" help:"Measure this checkpoint instead, with plain prompts." placeholder:"DIR"`
	Ways       []string `want:"one of user, item, pointwise" placeholder:"WAY"`
	Users      int      `want:"at least 1" placeholder:"N"`

	ItemsFile    string `name:"items-file" type:"path" placeholder:"FILE"`
	UsersFile    string `name:"users-file" type:"path" placeholder:"FILE"`
	RequestsFile string `name:"requests-file" type:"path" placeholder:"FILE"`

	Device *string `want:"one of auto, cpu, cuda" help:"auto, cpu or cuda. Default: the configuration's."`
	DType  string  `name:"dtype" default:"bf16" want:"one of auto, f32, bf16" placeholder:"FORMAT"`
	From   string  `default:"bf16" want:"one of f32, bf16, fp8" placeholder:"FORMAT"`
	To     string  `default:"fp8" want:"one of f32, bf16, fp8" placeholder:"FORMAT"`
	Seed   uint64  `default:"1" help:"Seed of the shop and of the confidence intervals; default ${default}."`
	JSON   bool    `name:"json" help:"Print JSON."`
	cli.LogFlags
}

func (kv8Cmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config": "Configuration file that names the models to measure.",
		"ways": "Kinds of rankings: user (user first), item (item first), pointwise; default all that the models " +
			"support.",
		"users":         "Number of users. Default: 200 of the demo shop, or all of --users-file.",
		"items-file":    "Items (NDJSON). Default: those of the configuration, or of the demo shop.",
		"users-file":    "Users (NDJSON) whose last item is to be predicted. Default: the demo shop's test customers.",
		"requests-file": "Requests (NDJSON) for these users, with candidates.",
		"dtype":         "Number format of the computation: auto, f32 or bf16; default ${default}.",
		"from":          "KV format to compare with: f32, bf16 or fp8; default ${default}.",
		"to":            "KV format to judge: f32, bf16 or fp8; default ${default}.",
	}
}

func (kv8Cmd) Help() string {
	return `Compares two servers that keep KV in different number formats, on the same rankings. It reports how far
scores differ, how alike the orders are (Kendall's tau, overlap of the first ten), NDCG, memory and time. Without -c
or --checkpoint it uses a small model with random weights.

Examples:

    grebe-bench kv8 --users 100
    grebe-bench kv8 -c grebe.yaml --device cuda --json
    grebe-bench kv8 -c grebe.yaml --from f32 --to bf16`
}

// kvMemory is for the cache of each of the two servers.
const kvMemory = 2 << 30

func (c *kv8Cmd) Run(w *cli.World) error {
	if c.Config != "" && c.Checkpoint != "" {
		return cli.Usagef("give either -c or --checkpoint")
	}
	if c.From == c.To {
		return cli.Usagef("--from and --to: both are %s: there is nothing to compare", c.To)
	}
	if c.LogLevel == "info" {
		c.LogLevel = "error" // the progress bar and the result are what a reader waits for
	}
	tmp, err := os.MkdirTemp("", "grebe-kv8-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r, err := c.measure(w, tmp)
	if err != nil {
		return err
	}
	if c.JSON {
		return r.JSON(w.Stdout)
	}
	return r.Text(w.Stdout)
}

func (c *kv8Cmd) measure(w *cli.World, tmp string) (*kv8.Report, error) {
	ways := c.Ways
	if len(ways) == 0 {
		ways = []string{"user", "item", "pointwise"}
	}
	e := &measure.Models{Config: c.Config, Checkpoint: c.Checkpoint, Ways: ways, Users: c.Users, ItemsFile: c.ItemsFile,
		UsersFile:    c.UsersFile,
		RequestsFile: c.RequestsFile, Device: c.Device, DType: c.DType, Seed: c.Seed, Yes: "yes", No: "no"}
	data, items, err := e.Data(tmp)
	if err != nil {
		return nil, err
	}
	var formats [2]kv8.Format
	var asked []eval.Way
	report := &kv8.Report{}
	for i, name := range []string{c.From, c.To} {
		cfg, err := c.configure(w, e, tmp, data, items, name)
		if err != nil {
			return nil, err
		}
		bytes, err := tokenBytes(cfg.Models[0].Path, name)
		if err != nil {
			return nil, err
		}
		s, err := app.Load(w.Ctx, cfg, options(c.Logger(w.Stderr)))
		if err != nil {
			return nil, err
		}
		defer s.Close()
		formats[i] = kv8.Format{Name: name, Asker: s.Service(), TokenBytes: bytes}
		asked, _ = e.WaysOf(s, data)
		report.Device, report.Model = s.Device().Name(), measure.DescribeModels(s)
	}
	if len(asked) == 0 {
		return nil, fmt.Errorf("no model of the configuration can do any of %v", ways)
	}
	bar := cli.NewRequestBar(w)
	r, err := kv8.Run(w.Ctx, data, formats, kv8.Options{Ways: asked, Seed: c.Seed, Progress: bar.Update})
	bar.End()
	if err != nil {
		return nil, err
	}
	r.Device, r.Model, r.Random = report.Device, report.Model, e.IsUntrained()
	return r, nil
}

// configure is eval's configuration with KV in a format, and a data folder of its own.
func (c *kv8Cmd) configure(w *cli.World, e *measure.Models, tmp string, d *eval.Data, items,
	format string) (*config.Config, error) {
	cfg, err := e.Configure(w, tmp, d, items)
	if err != nil {
		return nil, err
	}
	cfg.DataDir = filepath.Join(tmp, "data-"+format)
	// Models of events have no KV in other formats than their products'.
	if cfg.Models = slices.DeleteFunc(cfg.Models, func(m config.Model) bool { return hstu.Is(m.Path) }); len(
		cfg.Models) == 0 {
		return nil, errors.New("no model of the configuration is a decoder")
	}
	for i := range cfg.Models {
		cfg.Models[i].KVDType, cfg.Models[i].DeviceMemory = format, config.Size{Bytes: kvMemory}
	}
	return cfg, errors.Join(cfg.Validate(), os.MkdirAll(cfg.DataDir, 0o700))
}

// tokenBytes is what a token of a user's KV takes in a format.
func tokenBytes(dir, format string) (float64, error) {
	m, err := model.ReadConfig(dir)
	if err != nil {
		return 0, err
	}
	s := compute.Shape{Layers: m.Layers, KVHeads: m.KVHeads, HeadDim: m.HeadDim}
	for s.KV = compute.F32; s.KV <= compute.FP8; s.KV++ {
		if s.KV.String() == format {
			return float64(s.ChunkBytes(kv.ChainTokens, false)) / kv.ChainTokens, nil
		}
	}
	return 0, cli.Usagef("KV in %q: want f32, bf16 or fp8", format)
}
