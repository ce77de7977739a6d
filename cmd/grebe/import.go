package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"grebe/catalog"
	"grebe/internal/config"
	"grebe/internal/wire"
)

type importCmd struct {
	Files   []string `arg:"" type:"path" help:"NDJSON files: one item or user per line, or {\"delete\": \"id\"}." placeholder:"FILE"`
	Server  string   `xor:"target" help:"Import through this running server." placeholder:"URL"`
	Config  string   `short:"c" xor:"target" type:"path" help:"Import into the data_dir of this configuration." placeholder:"FILE"`
	DataDir string   `xor:"target" type:"path" help:"Import into this folder; default: GREBE_DATA_DIR or ./grebe-data." placeholder:"DIR"`
	Kind    string   `default:"" enum:"items,users," help:"What the files hold: items or users; default: told by name or content."`
	OnError string   `default:"stop" enum:"skip,stop" help:"What a bad line does: ${enum}."`
	Restart bool     `help:"Begin at the start of each file, whatever was imported before."`
	accessFlags
}

func (importCmd) Help() string {
	return `Every line is a change by itself. An import that was stopped goes on where it was when the same
command is run again: lines that are there already are passed over. Bad lines are told with their
number and reason.

A server has its data_dir to itself: while it runs, import through it with --server.

Examples:

    grebe import items.ndjson users.ndjson -c grebe.yaml
    grebe import --kind items --on-error skip catalog.ndjson --data-dir ./grebe-data
    grebe import items.ndjson --server http://127.0.0.1:8080`
}

// Kinds of files.
const (
	kindItems = "items"
	kindUsers = "users"
)

func (c *importCmd) Run(w *world) error {
	files, err := c.sources()
	if err != nil {
		return err
	}
	dst, states, err := c.target(w)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err = c.one(w, f, dst, states); err != nil {
			break
		}
	}
	return errors.Join(err, dst.close())
}

// sources looks at all files before anything is changed.
func (c *importCmd) sources() ([]*source, error) {
	var out []*source
	for _, name := range c.Files {
		s, err := newSource(name, c.Kind)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// target opens what is imported into, and the folder of the files that remember how far it went.
func (c *importCmd) target(w *world) (sink, string, error) {
	if c.Server != "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, "", err
		}
		s, err := newServerSink(w, c.Server, &c.accessFlags)
		return s, filepath.Join(cache, "grebe", "imports"), err
	}
	dir, err := c.dataDir(w)
	if err != nil {
		return nil, "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, "", err
	}
	cat, err := catalog.Open(catalogDir(dir), catalog.Options{})
	if errors.Is(err, catalog.ErrLocked) {
		return nil, "", fmt.Errorf("%w: a server that runs on %s has it to itself: import through it with --server URL, or stop it", catalog.ErrLocked, dir)
	}
	if err != nil {
		return nil, "", err
	}
	return &localSink{cat, dir}, filepath.Join(dir, "imports"), nil
}

// catalogDir is where the catalog of a data_dir is.
func catalogDir(dataDir string) string { return filepath.Join(dataDir, "catalog") }

func (c *importCmd) dataDir(w *world) (string, error) {
	if c.DataDir != "" {
		return c.DataDir, nil
	}
	if c.Config != "" {
		cfg, err := config.Load(config.Source{File: c.Config, Env: w.env})
		if err != nil {
			return "", err
		}
		return cfg.DataDir, nil
	}
	for _, kv := range w.env {
		if dir, ok := strings.CutPrefix(kv, config.EnvName("data_dir")+"="); ok && dir != "" {
			return dir, nil
		}
	}
	return config.Default().DataDir, nil
}

// maxTold bounds the bad lines of a file that are told one by one.
const maxTold = 20

// job is the import of one file.
type job struct {
	c     *importCmd
	w     *world
	src   *source
	dst   sink
	state *importState
	bar   *progressBar
	told  int
}

// errStopped ends an import that the user interrupted.
var errStopped = errors.New("stopped")

func (c *importCmd) one(w *world, src *source, dst sink, states string) error {
	st, err := loadImportState(states, src, dst.name())
	if err != nil {
		return err
	}
	if c.Restart {
		st.begin()
	}
	fmt.Fprintf(w.stderr, "%s: %s (%s) into %s\n", src.path, src.kind, src.why, dst.name())
	if st.Offset > 0 {
		fmt.Fprintf(w.stderr, "Going on at line %d, after %s; --restart begins anew.\n", st.Line+1, inBytes(st.Offset))
	}
	j := &job{c: c, w: w, src: src, dst: dst, state: st, bar: newProgressBar(w, src, st)}
	err = j.run()
	j.bar.done()
	if err == nil {
		j.summary("Done")
		return st.remove()
	}
	if saved := st.save(); saved != nil {
		return errors.Join(err, saved)
	}
	j.summary("Stopped")
	if errors.Is(err, errStopped) {
		fmt.Fprintf(w.stderr, "Stopped at line %d of %s. Run the same command again to go on from there.\n", st.Line, src.path)
		return errReported
	}
	return err
}

// run imports the file from where the state is.
func (j *job) run() error {
	ctx, cancel := context.WithCancel(j.w.ctx)
	chunks, wait, err := j.src.chunks(ctx, j.state.Offset, j.state.Line)
	if err != nil {
		cancel()
		return err
	}
	// The reader ends before the file is closed.
	defer wait()
	defer cancel()
	for ch := range chunks {
		part, ok := <-ch
		if !ok {
			break
		}
		if err := j.apply(part); err != nil {
			return err
		}
		if j.w.ctx.Err() != nil {
			return errStopped
		}
	}
	if j.w.ctx.Err() != nil {
		return errStopped
	}
	return nil
}

// apply imports a part of the file and moves the state behind it, or before the line that stops it.
func (j *job) apply(part *chunk) error {
	if part.err != nil {
		return fmt.Errorf("read %s: %w", j.src.path, part.err)
	}
	bad := part.bad()
	lines := part.lines
	if bad >= 0 && j.c.OnError == "stop" {
		lines = lines[:bad]
	}
	problems, err := j.dst.apply(j.w.ctx, j.src.kind, lines, &j.state.counts)
	if err != nil {
		if j.w.ctx.Err() != nil {
			return errStopped
		}
		return err
	}
	for i := range lines {
		if lines[i].err == nil && problems[i] != nil {
			lines[i].err = problems[i]
		}
		if err := j.tell(&lines[i]); err != nil {
			j.state.Line, j.state.Offset = lines[i].number-1, lines[i].start
			return err
		}
	}
	if len(lines) < len(part.lines) {
		l := &part.lines[len(lines)]
		j.state.Line, j.state.Offset = l.number-1, l.start
		return j.tell(l)
	}
	j.state.Line, j.state.Offset = part.endLine, part.end
	j.bar.update()
	return j.state.saveSometimes()
}

// tell tells what is wrong with a line, if anything, and stops the import where that was asked for.
func (j *job) tell(l *line) error {
	if l.err == nil {
		return nil
	}
	if j.c.OnError == "stop" {
		return fmt.Errorf("%s:%d: %w (--on-error skip passes over bad lines)", j.src.path, l.number, l.err)
	}
	j.state.Failed++
	if j.told++; j.told <= maxTold {
		j.bar.above(fmt.Sprintf("%s:%d: %v", j.src.path, l.number, l.err))
	} else if j.told == maxTold+1 {
		j.bar.above("More bad lines follow; the summary counts them.")
	}
	return nil
}

func (j *job) summary(how string) {
	s := j.state
	fmt.Fprintf(j.w.stdout, "%s: %s: %d lines: %d created, %d replaced, %d deleted, %d unchanged, %d bad; %s\n",
		how, j.src.path, s.Created+s.Replaced+s.Deleted+s.Unchanged+s.Failed, s.Created, s.Replaced, s.Deleted, s.Unchanged, s.Failed, j.bar.rate())
}

// decodeLine reads a line of a kind.
func decodeLine(kind string, in []byte) (catalog.Op, error) {
	if kind == kindUsers {
		m, gone, err := wire.DecodeUserLine(in)
		return catalog.Op{PutUser: m, DeleteUser: gone}, err
	}
	m, gone, err := wire.DecodeItemLine(in)
	return catalog.Op{PutItem: m, DeleteItem: gone}, err
}
