package ingest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/term"

	"grebe/embed"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/human"
)

// Rows imports rows of an embedding table. Exactly one of Config and Server is set.
type Rows struct {
	Table    string
	Files    []string
	Config   string // write to the table's store that this configuration names
	Server   string // write through this server
	Dim      int    // numbers per row; required with Server
	FirstKey uint64 // first key of files without keys
	Access   *cli.AccessFlags
	Specs    func(*config.Config) []embed.Spec // returns a configuration's tables
}

// rowSink takes rows.
type rowSink interface {
	dim() int
	put(keys []uint64, rows []float32) error
	close() error
}

// Run writes the rows.
func (c *Rows) Run(w *cli.World) error {
	if err := c.apart(); err != nil {
		return err
	}
	sink, err := c.sink(w)
	if err != nil {
		return err
	}
	for _, name := range c.Files {
		if err = c.one(w, name, sink); err != nil {
			break
		}
	}
	return errors.Join(err, sink.close())
}

// apart refuses files whose rows would overwrite each other: keys of files without keys all begin at FirstKey.
func (c *Rows) apart() error {
	before := ""
	for _, name := range c.Files {
		if ext := filepath.Ext(name); ext != ".npy" && ext != ".f32" {
			continue
		}
		if before != "" {
			return cli.Usagef("the rows of %s would replace those of %s: import files without keys one by one, each with its "+
				"--first-key", name, before)
		}
		before = name
	}
	return nil
}

func (c *Rows) sink(w *cli.World) (rowSink, error) {
	if c.Server != "" {
		return newServerRows(w, c)
	}
	if c.Config == "" {
		return nil, cli.Usagef("say where the table is: -c FILE, or --server URL")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil {
		return nil, err
	}
	return newLocalRows(w.Ctx, &cfg.Config, c.Specs(&cfg.Config), c.Table)
}

// one imports a file.
func (c *Rows) one(w *cli.World, name string, sink rowSink) error {
	rows, err := openRows(name, sink.dim(), c.FirstKey)
	if err != nil {
		return err
	}
	defer rows.close()
	bar := newRowBar(w.Stderr, name, rows.size)
	for {
		keys, values, err := rows.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = sink.put(keys, values)
		}
		if err == nil {
			err = w.Ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s, after %s: %w", name, human.Count(bar.rows, "row"), err)
		}
		bar.add(len(keys), rows.done())
	}
	bar.end()
	return nil
}

// rowBar shows the progress of an import: on a terminal a line that is updated, else a line every few seconds.
type rowBar struct {
	out          io.Writer
	terminal     bool
	name         string
	rows         int
	size         int64 // bytes of the file
	start, drawn time.Time
}

func newRowBar(out io.Writer, name string, size int64) *rowBar {
	f, ok := out.(*os.File)
	now := time.Now()
	return &rowBar{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), name: name, size: max(size, 1), start: now,
		drawn: now}
}

func (b *rowBar) add(rows int, done int64) {
	b.rows += rows
	every := 5 * time.Second
	if b.terminal {
		every = 100 * time.Millisecond
	}
	if time.Since(b.drawn) < every {
		return
	}
	b.drawn = time.Now()
	share := min(float64(done)/float64(b.size), 1)
	left := time.Duration(float64(time.Since(b.start)) * (1 - share) / max(share, 1e-6)).Round(time.Second)
	text := fmt.Sprintf("%s: %3.0f %%  %s  %.0f rows/s  %v left", b.name, 100*share, human.Count(b.rows, "row"), b.rate(),
		left)
	if b.terminal {
		fmt.Fprintf(b.out, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(b.out, text)
}

func (b *rowBar) rate() float64 { return float64(b.rows) / max(time.Since(b.start).Seconds(), 1e-9) }

func (b *rowBar) end() {
	if b.terminal {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
	fmt.Fprintf(b.out, "%s: %s, %.0f per second\n", b.name, human.Count(b.rows, "row"), b.rate())
}
