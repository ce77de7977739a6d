package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"grebe/internal/config"
	"grebe/kv/disk"
	"grebe/server"
)

// indexCmd computes the KV of the catalog's items, or prototypes of users' histories, ahead of requests.
type indexCmd struct {
	Config string `short:"c" required:"" type:"path" help:"Configuration file of the server." placeholder:"FILE"`
	Model  string `help:"Compute for this model only; default all." placeholder:"NAME"`
	prototypeFlags
	importanceFlags
	logFlags
}

// Help has the example that kong prints.
func (indexCmd) Help() string {
	return `Computes the keys and values of all items of the catalog in large batches and keeps them in the data
folder, where the server finds them. What is there already is not computed again, so that a run that was
stopped goes on where it was. The server, which does the same for items that are added or change while it
runs, must not be running.

With --prototypes it goes over users' histories instead and makes the pool of prototypes from which blended prompts take keys and
values of history tokens. A pool that is there is added to.

With --importance it ranks random items for some users instead, with ordinary prompts that are computed whole, and learns which tokens of items blended
prompts have to compute again.

Items and prototypes need room on disk: cache: {disk: 10GiB} in the configuration.

Examples:

    grebe index -c grebe.yaml
    grebe index -c grebe.yaml --prototypes --prototype-memory 1GiB
    grebe index -c grebe.yaml --importance`
}

func (c *indexCmd) Run(w *world) error {
	if none := (prototypeFlags{Users: 20000, Memory: "64MiB"}); !c.Prototypes && c.prototypeFlags != none { // their defaults
		return usagef("--prototype-users and its like go with --prototypes: without it, items are computed")
	}
	if none := (importanceFlags{Prompts: 32, Candidates: 100}); !c.Importance && c.importanceFlags != none {
		return usagef("--importance-prompts and its like go with --importance: without it, items are computed")
	}
	if c.Prototypes && c.Importance {
		return usagef("--prototypes and --importance: one at a time")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.env})
	if err != nil {
		return err
	}
	if c.Model != "" && !slices.ContainsFunc(cfg.Models, func(m config.Model) bool { return m.Name == c.Model }) {
		return usagef("no model %q in %s", c.Model, c.Config)
	}
	s, err := load(w.ctx, &cfg.Config, c.logger(w.stderr))
	if err != nil {
		return err
	}
	defer s.Close()
	done := 0
	for i := range s.models {
		m := &s.models[i]
		if c.Model != "" && c.Model != m.Name {
			continue
		}
		if m.Cache == nil {
			return fmt.Errorf("model %s: nothing is cached: give cache.host_memory a size", m.Name)
		}
		if room := cfg.Models[i].Disk.Bytes + cfg.Cache.Disk.Bytes; room == 0 && !c.Importance {
			return fmt.Errorf("model %s: nothing would be kept: give cache.disk and cache.host_memory a size", m.Name)
		}
		index := func() error { return s.index(w, m) }
		if m.Events != nil && (c.Prototypes || c.Importance) {
			continue // a model of events has no texts
		}
		switch {
		case c.Prototypes:
			index = func() error { return c.prototypeFlags.make(w, s, m, &cfg.Config, &cfg.Models[i]) }
		case c.Importance:
			index = func() error { return c.importanceFlags.learn(w, s, m, &cfg.Config, &cfg.Models[i]) }
		}
		if err := index(); err != nil {
			return fmt.Errorf("model %s: %w", m.Name, err)
		}
		done++
	}
	if done == 0 {
		return usagef("prototypes and importance are of texts, which models of events do not read: no other is asked for of %s", c.Config)
	}
	return nil
}

// index computes the items of one model, with a progress bar.
func (s *stack) index(w *world, m *server.Model) error {
	var items [][]int32
	skipped := 0
	for _, it := range s.catalog.Items() {
		tokens, err := m.Prompt.ItemTokens(it)
		if err != nil || len(tokens) == 0 {
			skipped++
			continue
		}
		items = append(items, tokens)
	}
	bar := newItemBar(w.stderr, w.terminal, len(items))
	var before, after disk.Stats
	if m.Disk != nil {
		before = m.Disk.Stats()
	}
	computed, tooLong, err := m.Cache.Precompute(w.ctx, m.Runner.Do, items, bar.add)
	bar.end()
	fmt.Fprintf(w.stdout, "%s: %d of %d items computed, %d were there already", m.Name, computed, len(items), bar.items-computed-tooLong)
	if skipped > 0 {
		fmt.Fprintf(w.stdout, ", %d have no tokens", skipped)
	}
	if tooLong > 0 {
		fmt.Fprintf(w.stdout, ", %d are too long for the model", tooLong)
	}
	if m.Disk != nil {
		after = m.Disk.Stats()
	}
	if n := after.Evictions - before.Evictions; n > 0 {
		fmt.Fprintf(w.stdout, "; %d entries had to make room for others: give cache.disk more", n)
	}
	fmt.Fprintln(w.stdout)
	if err != nil {
		return fmt.Errorf("%w; run the same command again to go on", err)
	}
	return unwritten(&before, &after)
}

// unwritten is an error when writes to disk failed meanwhile: what was computed is not kept then.
func unwritten(before, after *disk.Stats) error {
	if n := after.WriteErrors - before.WriteErrors; n > 0 {
		return fmt.Errorf("%d writes to disk failed, so that not all that was computed is kept: look whether the disk is full, then run the same command again", n)
	}
	return nil
}

// itemBar shows how far a long job is: a bar on a terminal, a line now and then elsewhere.
type itemBar struct {
	out           io.Writer
	terminal      bool
	total         int
	items, tokens int
	start, shown  time.Time
}

func newItemBar(out io.Writer, terminal bool, total int) *itemBar {
	now := time.Now()
	return &itemBar{out: out, terminal: terminal, total: total, start: now, shown: now}
}

func (p *itemBar) add(items, tokens int) {
	p.items += items
	p.tokens += tokens
	every := 10 * time.Second
	if p.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(p.shown) < every {
		return
	}
	p.show()
}

func (p *itemBar) show() {
	p.shown = time.Now()
	seconds := time.Since(p.start).Seconds()
	rate := float64(p.items) / seconds
	left := "?"
	if rate > 0 {
		left = time.Duration(float64(p.total-p.items) / rate * float64(time.Second)).Round(time.Second).String()
	}
	line := fmt.Sprintf("%d of %d items, %.0f items/s, %.0f tokens/s, %s left", p.items, p.total, rate, float64(p.tokens)/seconds, left)
	if !p.terminal {
		fmt.Fprintln(p.out, line)
		return
	}
	const width = 30
	full := width * p.items / max(1, p.total)
	fmt.Fprintf(p.out, "\r[%-*s] %s\x1b[K", width, strings.Repeat("#", full), line)
}

func (p *itemBar) end() {
	if p.total > 0 {
		p.show()
	}
	if p.terminal {
		fmt.Fprintln(p.out)
	}
}
