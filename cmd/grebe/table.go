package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/term"

	"grebe/internal/config"
)

// tableCmd has the commands for tables of embeddings.
type tableCmd struct {
	Import tableImportCmd `cmd:"" help:"Write rows of a table of embeddings from files."`
}

func (tableCmd) Help() string {
	return `Examples:

    grebe table import items vectors.npy -c grebe.yaml`
}

type tableImportCmd struct {
	Table    string   `arg:"" help:"Name of the table, as the configuration has it."`
	Files    []string `arg:"" type:"path" help:"Rows: .npy (float32, two dimensions), .f32 (numbers row after row) or .ndjson ({\"key\": 17, \"row\": [..]} per line)." placeholder:"FILE"`
	Config   string   `short:"c" type:"path" xor:"target" help:"Write to the table's store, as this configuration names it." placeholder:"FILE"`
	Server   string   `xor:"target" help:"Write through this running server." placeholder:"URL"`
	Dim      int      `want:"at least 1" help:"Numbers of a row; needed with --server." placeholder:"N"`
	FirstKey uint64   `help:"Key of the first row of .npy and .f32 files; the others follow." placeholder:"N"`
	accessFlags
}

func (tableImportCmd) Help() string {
	return `Rows replace those that are there. What a table in Redis is given is seen by all servers at once; a table in Pebble belongs to the
server that runs on its data_dir: write to it with --server while that runs. A command that was stopped can be run again.

Examples:

    grebe table import items vectors.npy -c grebe.yaml
    grebe table import items changed.ndjson --server http://127.0.0.1:8080 --dim 128`
}

// rowSink takes rows.
type rowSink interface {
	dim() int
	put(keys []uint64, rows []float32) error
	close() error
}

func (c *tableImportCmd) Run(w *world) error {
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

// apart refuses files whose rows would replace each other's: those without keys all begin at the same one.
func (c *tableImportCmd) apart() error {
	before := ""
	for _, name := range c.Files {
		if ext := filepath.Ext(name); ext != ".npy" && ext != ".f32" {
			continue
		}
		if before != "" {
			return usagef("the rows of %s would replace those of %s: import files without keys one by one, each with its --first-key", name, before)
		}
		before = name
	}
	return nil
}

func (c *tableImportCmd) sink(w *world) (rowSink, error) {
	if c.Server != "" {
		return newServerRows(w, c)
	}
	if c.Config == "" {
		return nil, usagef("say where the table is: -c FILE, or --server URL")
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.env})
	if err != nil {
		return nil, err
	}
	return newLocalRows(w.ctx, &cfg.Config, c.Table)
}

// one imports a file.
func (c *tableImportCmd) one(w *world, name string, sink rowSink) error {
	rows, err := openRows(name, sink.dim(), c.FirstKey)
	if err != nil {
		return err
	}
	defer rows.close()
	bar := newRowBar(w.stderr, name, rows.size)
	for {
		keys, values, err := rows.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = sink.put(keys, values)
		}
		if err == nil {
			err = w.ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s, after %d rows: %w", name, bar.rows, err)
		}
		bar.add(len(keys), rows.done())
	}
	bar.end()
	return nil
}

// rowBar shows how far an import is: on a terminal a line that changes, else a line every few seconds.
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
	return &rowBar{out: out, terminal: ok && term.IsTerminal(int(f.Fd())), name: name, size: max(size, 1), start: now, drawn: now}
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
	text := fmt.Sprintf("%s: %3.0f %%  %d rows  %.0f rows/s  %v left", b.name, 100*share, b.rows, b.rate(), left)
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
	fmt.Fprintf(b.out, "%s: %d rows, %.0f per second\n", b.name, b.rows, b.rate())
}
