// Package index prepares data for the server before it starts: the KV of items, prototypes of histories, and the list
// of item tokens that blended prompts must compute again.
package index

import (
	"fmt"
	"io"
	"strings"
	"time"

	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/human"
	"grebe/kv/disk"
	"grebe/serve"
)

// Items computes the KV of one model's items, with a progress bar.
func Items(w *cli.World, c *catalog.Catalog, m *serve.Model) error {
	var items [][]int32
	skipped := 0
	for e := range c.All() {
		it := e.Item
		tokens, err := m.Prompt.ItemTokens(it)
		if err != nil || len(tokens) == 0 {
			skipped++
			continue
		}
		items = append(items, tokens)
	}
	bar := newItemBar(w.Stderr, w.Terminal, len(items))
	var before, after disk.Stats
	if m.Disk != nil {
		before = m.Disk.Stats()
	}
	computed, tooLong, err := m.Cache.Precompute(w.Ctx, m.Runner.Do, items, bar.add)
	bar.end()
	fmt.Fprintf(w.Stdout, "%s: %d of %s computed, %d already there", m.Name, computed,
		human.Count(len(items), "item"), bar.items-computed-tooLong)
	if skipped > 0 {
		fmt.Fprintf(w.Stdout, ", %d without tokens", skipped)
	}
	if tooLong > 0 {
		fmt.Fprintf(w.Stdout, ", %d too long for the model", tooLong)
	}
	if m.Disk != nil {
		after = m.Disk.Stats()
	}
	if n := after.Evictions - before.Evictions; n > 0 {
		fmt.Fprintf(w.Stdout, "; %s had to make room for others: give cache.disk more", human.Count(int64(n), "entry"))
	}
	fmt.Fprintln(w.Stdout)
	if err != nil {
		return fmt.Errorf("%w; run the same command again to go on", err)
	}
	return unwritten(&before, &after)
}

// unwritten returns an error if writes to disk failed meanwhile, because computed KV is lost then.
func unwritten(before, after *disk.Stats) error {
	if n := after.WriteErrors - before.WriteErrors; n > 0 {
		return fmt.Errorf("%s of KV to disk failed: check whether the disk is full, then run the same command again",
			human.Count(int64(n), "write"))
	}
	return nil
}

// itemBar shows the progress of a long job: a bar on a terminal, else a line now and then.
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
	line := fmt.Sprintf("%d of %s, %.0f items/s, %.0f tokens/s, %s left", p.items, human.Count(p.total, "item"),
		rate, float64(p.tokens)/seconds, left)
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
