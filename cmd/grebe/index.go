package main

import (
	"errors"
	"fmt"
	"slices"

	"grebe/app"
	"grebe/index"
	"grebe/internal/cli"
	"grebe/internal/config"
)

// indexCmd computes the KV of the catalog's items, or prototypes of users' histories, ahead of requests.
type indexCmd struct {
	Config string `short:"c" type:"path" help:"Configuration file of the server." placeholder:"FILE"`
	Server string `help:"Ask this running server to compute items while it is idle." placeholder:"URL"`
	Model  string `help:"Compute for this model only; default all." placeholder:"NAME"`
	prototypeFlags
	importanceFlags
	cli.AccessFlags
	cli.LogFlags
}

// prototypeFlags say how a pool of prototypes is made.
type prototypeFlags struct {
	Prototypes bool    `help:"Make prototypes of users' histories, for blended prompts, instead of computing items."`
	Users      int     `name:"prototype-users" default:"20000" want:"at least 1" placeholder:"N"`
	Memory     string  `name:"prototype-memory" default:"64MiB" want:"a size such as 64MiB" placeholder:"SIZE"`
	Radius     float32 `name:"prototype-radius" want:"above 0 and at most 1" placeholder:"R"`
	Least      int     `name:"prototype-least" want:"at least 1" placeholder:"N"`
	Fresh      bool    `name:"prototype-fresh"`
}

func (prototypeFlags) FlagHelp() cli.Texts {
	return cli.Texts{
		"prototype-users":  "Most users whose histories are read; default ${default}.",
		"prototype-memory": "Most memory for the KV of prototypes; default ${default}.",
		"prototype-radius": "Largest relative error of keys and values between contexts that share a prototype; default " +
			"0.1.",
		"prototype-least": "Fewest users that must share a context; default 2.",
		"prototype-fresh": "Delete the existing prototypes first; default: keep them and add to them.",
	}
}

// importanceFlags say how it is learned which tokens of items are computed again.
type importanceFlags struct {
	Importance bool `help:"Learn which tokens of items to compute again in blended prompts, instead of computing items."`
	Prompts    int  `name:"importance-prompts" default:"32" want:"at least 1" placeholder:"N"`
	Candidates int  `name:"importance-candidates" default:"100" want:"at least 1" placeholder:"N"`
}

func (importanceFlags) FlagHelp() cli.Texts {
	return cli.Texts{
		"importance-prompts":    "Prompts to learn from, each of another user if there are enough; default ${default}.",
		"importance-candidates": "Random items in each prompt; default ${default}.",
	}
}

// Help has the example that kong prints.
func (indexCmd) Help() string {
	return `Computes the keys and values of all items in large batches and stores them in the data folder for the server.
Items that are stored already are skipped, so a stopped run can be continued. The server must not be running.

A running server computes items by itself while it is idle (cache.ahead), in memory or on disk. With --server, grebe
index asks it to start now and shows its progress. It does the same with -c if the configuration has no cache.disk.

With --prototypes it reads users' histories instead and makes prototypes: keys and values of history tokens that blended
prompts reuse. Existing prototypes are kept and added to.

With --importance it ranks random items for some users instead, without reuse. It learns which tokens of items
blended prompts must compute again.

Without a server, items and prototypes need space on disk: cache: {disk: 10GiB} in the configuration.

Examples:

    grebe index -c grebe.yaml
    grebe index --server http://127.0.0.1:8080
    grebe index -c grebe.yaml --prototypes --prototype-memory 1GiB
    grebe index -c grebe.yaml --importance`
}

func (c *indexCmd) Run(w *cli.World) error {
	// their defaults
	if none := (prototypeFlags{Users: 20000, Memory: "64MiB"}); !c.Prototypes && c.prototypeFlags != none {
		return cli.Usagef("--prototype-users and similar flags need --prototypes")
	}
	if none := (importanceFlags{Prompts: 32, Candidates: 100}); !c.Importance && c.importanceFlags != none {
		return cli.Usagef("--importance-prompts and similar flags need --importance")
	}
	if c.Prototypes && c.Importance {
		return cli.Usagef("give --prototypes or --importance, not both")
	}
	if c.Server != "" {
		if c.Prototypes || c.Importance || c.Config != "" {
			return cli.Usagef("--server computes items: leave out -c, --prototypes and --importance")
		}
		return indexThrough(w, &c.AccessFlags, c.Server, c.Model)
	}
	if c.Config == "" {
		return cli.Usagef("give -c FILE, or --server URL to have a running server compute items")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil {
		return err
	}
	if c.Model != "" && !slices.ContainsFunc(cfg.Models, func(m config.Model) bool { return m.Name == c.Model }) {
		return cli.Usagef("no model %q in %s", c.Model, c.Config)
	}
	if items := !c.Prototypes && !c.Importance; items && !c.onDisk(&cfg.Config) {
		return c.inMemory(w, &cfg.Config)
	}
	s, err := app.Load(w.Ctx, &cfg.Config, options(c.Logger(w.Stderr)))
	switch {
	case errors.Is(err, app.ErrInUse) && (c.Prototypes || c.Importance):
		return fmt.Errorf("%w: stop the server first", err)
	case errors.Is(err, app.ErrInUse):
		return fmt.Errorf("%w: stop the server first, or have it compute items with --server %s", err, serverOf(&cfg.Config))
	case err != nil:
		return err
	}
	defer s.Close()
	memory, err := config.ParseSize(c.Memory)
	if err != nil {
		return err
	}
	made := index.Prototypes{Users: c.Users, Bytes: memory.Bytes, Radius: c.Radius, Least: c.Least, Fresh: c.Fresh}
	learned := index.Importance{Prompts: c.Prompts, Candidates: c.Candidates}
	done := 0
	for i := range s.Models() {
		m := &s.Models()[i]
		if c.Model != "" && c.Model != m.Name {
			continue
		}
		if m.Cache == nil {
			return fmt.Errorf("model %s: nothing is cached: give cache.host_memory a size", m.Name)
		}
		if room := cfg.Models[i].Disk.Bytes + cfg.Cache.Disk.Bytes; room == 0 && !c.Importance {
			return fmt.Errorf("model %s: nothing would be kept: give cache.disk and cache.host_memory a size", m.Name)
		}
		do := func() error { return index.Items(w, s.Catalog(), m) }
		if !m.ReadsTexts() && (c.Prototypes || c.Importance) {
			continue // a model of events has no texts
		}
		switch {
		case c.Prototypes:
			do = func() error { return made.Make(w, s.Catalog(), m, cfg.Models[i].Path, cfg.DataDir) }
		case c.Importance:
			do = func() error { return learned.Learn(w, s.Catalog(), m, cfg.Models[i].Blend.Layers, cfg.DataDir) }
		}
		if err := do(); err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		done++
	}
	if done == 0 {
		return cli.Usagef("prototypes and importance need a model of texts, and %s asks for models of events only", c.Config)
	}
	return nil
}

// onDisk reports whether a model that is asked for has room on disk.
func (c *indexCmd) onDisk(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Models, func(m config.Model) bool {
		return (c.Model == "" || c.Model == m.Name) && m.Disk.Bytes+cfg.Cache.Disk.Bytes > 0
	})
}

// inMemory has the server of a configuration compute items: without a disk nothing of this process would be kept.
func (c *indexCmd) inMemory(w *cli.World, cfg *config.Config) error {
	err := indexThrough(w, &c.AccessFlags, serverOf(cfg), c.Model)
	if errors.Is(err, errNoServer) {
		return fmt.Errorf("nothing would be kept: there is no room on disk, and %w. Give cache.disk a size such as 10GiB; "+
			"or start the server, "+
			"which computes items by itself while it is idle; or name a running server with --server", err)
	}
	return err
}
