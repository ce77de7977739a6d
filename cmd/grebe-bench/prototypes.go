package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	benchproto "grebe/bench/proto"
	"grebe/index"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/wire"
	"grebe/kv/proto"
	"grebe/model/hstu"
	"grebe/reuse"
	"grebe/shop"
	"grebe/shop/demo"
)

type prototypesCmd struct {
	Config    string    `short:"c" type:"path" placeholder:"FILE"`
	Model     string    `help:"Name of the model. Default: the first decoder." placeholder:"NAME"`
	UsersFile string    `name:"users-file" type:"path" placeholder:"FILE"`
	PoolUsers int       `name:"pool-users" default:"2000" want:"at least 1" placeholder:"N"`
	Users     int       `default:"50" want:"at least 1" placeholder:"N"`
	Split     string    `default:"test" enum:"test,validation"`
	Memory    string    `default:"64MiB" want:"a size such as 64MiB" placeholder:"SIZE"`
	Radius    float32   `want:"above 0 and at most 1" placeholder:"R"`
	Least     int       `want:"at least 1" help:"Drop clusters of fewer users; default 2." placeholder:"N"`
	Left      []float32 `want:"at least 0 and below 1" placeholder:"X,Y,Z"`

	Many       int     `want:"at least 1" placeholder:"N"`
	ManyUsers  int     `name:"many-users" default:"20000" want:"at least 1" placeholder:"N"`
	ManyRadius float32 `name:"many-radius" default:"0.02" want:"above 0 and at most 1" placeholder:"R"`
	ManyFile   string  `name:"many-file" type:"path" placeholder:"FILE"`
	Threads    int     `want:"at least 1 and at most 1024" help:"Lookups at once; default: all cores." placeholder:"N"`

	Seed uint64 `default:"1" help:"Seed of the shop and the samples; default ${default}."`
	JSON bool   `name:"json" help:"Print JSON."`
	cli.LogFlags
}

func (prototypesCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config": "Configuration file that names the model to measure. Default: the demo's.",
		"users-file": "Users (NDJSON); the last --users of them are looked up only. Default: the demo shop's " +
			"customers.",
		"pool-users":  "Users whose histories become prototypes; default ${default}.",
		"users":       "Users whose histories are looked up; default ${default}.",
		"split":       "Customers of the demo shop to look up: test, or validation to choose settings; default ${default}.",
		"memory":      "Most memory for the KV of prototypes; default ${default}.",
		"radius":      "Largest relative error within a cluster, from 0 to 1; default 0.1.",
		"left":        "Decay per token of the three sums that describe a context; default 0.6,0.98,0.9995.",
		"many":        "Also measure lookups in an index of so many prototypes.",
		"many-users":  "Users that this index is made of; default ${default}.",
		"many-radius": "Largest relative error within its clusters; a small one makes many. Default ${default}.",
		"many-file":   "File for this index; used if it exists, else written.",
	}
}

func (prototypesCmd) Help() string {
	return `Measures prototypes, which replace the KV of history tokens in blended prompts. It makes prototypes of the
histories of some users and looks up those of others. It reports how many tokens find a prototype, how far its keys
and values are from the true ones in each layer, and whether the estimated distance (drift) is right. It also reports
how fast lookups are and how often they find the nearest prototype.

Examples:

    grebe-bench prototypes
    grebe-bench prototypes --many 1000000
    grebe-bench prototypes -c grebe.yaml --users-file users.ndjson --json`
}

func (c *prototypesCmd) Run(w *cli.World) error {
	size, err := config.ParseSize(c.Memory)
	if err != nil {
		return err
	}
	if len(c.Left) != 0 && len(c.Left) != proto.Scales {
		return cli.Usagef("--left: want %d numbers", proto.Scales)
	}
	if c.LogLevel == "info" {
		c.LogLevel = "error"
	}
	tmp, err := os.MkdirTemp("", "grebe-prototypes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	r, err := c.measure(w, tmp, size.Bytes)
	if err != nil {
		return err
	}
	if c.JSON {
		return r.JSON(w.Stdout)
	}
	return r.Text(w.Stdout)
}

func (c *prototypesCmd) measure(w *cli.World, tmp string, size int64) (*benchproto.Report, error) {
	cfg, err := c.configure(w, tmp, size)
	if err != nil {
		return nil, err
	}
	s, err := app.Load(w.Ctx, cfg, options(c.Logger(w.Stderr)))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m := &s.Models()[0]
	pool, unseen, many, err := c.users()
	if err != nil {
		return nil, err
	}
	bar := index.NewBar(w.Stderr, w.Terminal)
	defer bar.End()
	o := &benchproto.Options{Cache: m.Cache, Do: m.Runner.Do, File: filepath.Join(tmp, "pool.proto"),
		Preamble: len(m.Prompt.Preamble()),
		Threads:  c.Threads, Most: c.Many, ManyFile: c.ManyFile, Seed: c.Seed}
	if o.Threads < 1 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	var open []io.Closer
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	poolFor := func(users []*grebev1.User, radius float32, least int) (*reuse.Pool, error) {
		p, closer, err := index.PoolOf(s.Catalog(), m, cfg.Models[0].Path, users)
		if err != nil {
			return nil, err
		}
		open = append(open, closer)
		p.Bytes, p.Progress = size, bar.Prototypes
		p.Config = proto.Config{Seed: c.Seed, Radius: radius, Least: least}
		copy(p.Config.Left[:], c.Left)
		return p, nil
	}
	if o.Pool, err = poolFor(pool, c.Radius, c.Least); err != nil {
		return nil, err
	}
	others, err := poolFor(unseen, 0, 0)
	if err != nil {
		return nil, err
	}
	for i := range others.Users {
		tokens, err := others.History(i)
		if err != nil {
			return nil, err
		}
		o.Unseen = append(o.Unseen, tokens)
	}
	if c.Many > 0 {
		if o.Many, err = poolFor(many, c.ManyRadius, 1); err != nil {
			return nil, err
		}
	}
	r, err := benchproto.Run(w.Ctx, o)
	if err != nil {
		return nil, err
	}
	r.Model, r.Device = cfg.Models[0].Name, s.Device().Name()
	return r, nil
}

// configure has one decoder, and memory for the pool.
func (c *prototypesCmd) configure(w *cli.World, tmp string, size int64) (*config.Config, error) {
	file := c.Config
	if file == "" {
		dir := filepath.Join(tmp, "demo")
		if err := demo.Ensure(dir); err != nil {
			return nil, err
		}
		file = filepath.Join(dir, demo.ConfigFile)
	}
	loaded, err := config.Load(config.Source{File: file, Env: w.Env})
	if err != nil {
		return nil, err
	}
	cfg := &loaded.Config
	cfg.Models = slices.DeleteFunc(cfg.Models, func(m config.Model) bool {
		return hstu.Is(m.Path) || c.Model != "" && m.Name != c.Model
	})
	if len(cfg.Models) == 0 {
		return nil, fmt.Errorf("no decoder %s in %s", c.Model, file)
	}
	cfg.Models = cfg.Models[:1]
	cfg.DataDir = filepath.Join(tmp, "data")
	cfg.Models[0].DeviceMemory = config.Size{Bytes: 2*size + kvMemory/4}
	return cfg, os.MkdirAll(cfg.DataDir, 0o700)
}

// users returns those of the pool, others, and those of the index of many prototypes.
func (c *prototypesCmd) users() (pool, unseen, many []*grebev1.User, err error) {
	if c.UsersFile == "" {
		sh, err := shop.New(c.Seed, shop.Default)
		if err != nil {
			return nil, nil, nil, err
		}
		customers := func(split shop.Split, n int) (out []*grebev1.User) {
			for i := range n {
				out = append(out, sh.UserMessage(sh.User(split, i)))
			}
			return out
		}
		split := shop.Test
		if c.Split == "validation" {
			split = shop.Validation
		}
		pool, unseen = customers(shop.Train, c.PoolUsers), customers(split, c.Users)
		if c.Many > 0 {
			many = customers(shop.Train, c.ManyUsers)
		}
		return pool, unseen, many, nil
	}
	data, err := os.ReadFile(c.UsersFile)
	if err != nil {
		return nil, nil, nil, err
	}
	var all []*grebev1.User
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		u, err := wire.DecodeUser(lines.Bytes())
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%s:%d: %w", c.UsersFile, n, err)
		}
		all = append(all, u)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", c.UsersFile, err)
	}
	if len(all) <= c.Users {
		return nil, nil, nil, cli.Usagef("--users: %d of %d in %s: none is left for the pool", c.Users, len(all), c.UsersFile)
	}
	most := len(all) - c.Users
	return all[:min(c.PoolUsers, most)], all[most:], all[:min(c.ManyUsers, most)], nil
}
