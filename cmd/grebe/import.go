package main

import (
	"cmp"
	"crypto/rand"
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
	Force   bool     `help:"Import even if a model is left with fewer than half of the items that it can generate."`
	accessFlags
}

func (importCmd) Help() string {
	return `An import becomes one version of the catalog, which POST /v1/catalog:rollback undoes. One that was stopped
goes on where it was when the same command is run again. Bad lines are reported with number and reason.

Before anything changes the items are checked against the models: those of the server, or of -c. Codes that
a model does not have are reported. An import that would leave a model with fewer than half of the items
that it can generate stops; --force lets it go on.

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
	return errors.Join(c.all(w, files, dst, states), dst.close())
}

// all imports the files as one version.
func (c *importCmd) all(w *world, files []*source, dst sink, states string) error {
	target, err := dst.identity(w.ctx)
	if err != nil {
		return err
	}
	jobs := make([]*job, len(files))
	id := ""
	for i, src := range files {
		st, err := loadImportState(states, src, target)
		if err != nil {
			return err
		}
		if c.Restart {
			st.begin()
		}
		id = cmp.Or(id, st.Import)
		jobs[i] = &job{c: c, w: w, src: src, dst: dst, state: st}
	}
	if err := c.check(w, files, dst); err != nil {
		return err
	}
	if err := dst.begin(cmp.Or(id, rand.Text()), id != ""); err != nil {
		return err
	}
	for _, j := range jobs {
		j.state.Import = dst.importID()
		if err := j.all(); err != nil {
			return err
		}
	}
	if err := dst.end(w.ctx); err != nil {
		return err
	}
	for _, j := range jobs {
		if err := j.state.remove(); err != nil {
			return err
		}
	}
	return nil
}

// check says what the import would do to the models before it does it.
func (c *importCmd) check(w *world, files []*source, dst sink) error {
	var items []*source
	for _, f := range files {
		if f.kind == kindItems {
			items = append(items, f)
		}
	}
	if len(items) == 0 {
		return nil
	}
	impacts, err := dst.forecast(w.ctx, items)
	if err != nil {
		return err
	}
	var halved []string
	for _, m := range impacts {
		if text := m.Warning(); text != "" {
			fmt.Fprintln(w.stderr, "Warning: "+text)
		}
		if m.Halves() {
			halved = append(halved, fmt.Sprintf("model %q would be left with %d of the %d items that it can generate", m.Model, m.After, m.Before))
		}
	}
	if len(halved) > 0 && !c.Force {
		return fmt.Errorf("nothing was imported: %s. If this is what you want, run it again with --force", strings.Join(halved, "; "))
	}
	return nil
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
	// Only a server can find what is cached of users who are deleted here: the next one to start does.
	cat, err := catalog.Open(catalogDir(dir), catalog.Options{TrackDeletions: true, TrackUnknown: true})
	if errors.Is(err, catalog.ErrLocked) {
		return nil, "", fmt.Errorf("%w: a server that runs on %s has it to itself: import through it with --server URL, or stop it", catalog.ErrLocked, dir)
	}
	if err != nil {
		return nil, "", err
	}
	return &localSink{c: cat, dir: dir, config: c.Config, w: w}, importsDir(dir), nil
}

// catalogDir is where the catalog of a data_dir is.
func catalogDir(dataDir string) string { return filepath.Join(dataDir, "catalog") }

// importsDir is where imports into a data_dir keep how far they are.
func importsDir(dataDir string) string { return filepath.Join(dataDir, "imports") }

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

// all imports a file. Its state stays until the whole import is done.
func (j *job) all() error {
	w, st := j.w, j.state
	fmt.Fprintf(w.stderr, "%s: %s (%s) into %s\n", j.src.path, j.src.kind, j.src.why, j.dst.name())
	if st.Offset > 0 {
		fmt.Fprintf(w.stderr, "Going on at line %d, after %s; --restart begins anew.\n", st.Line+1, inBytes(st.Offset))
	}
	j.bar = newProgressBar(w, j.src, st)
	err := j.run()
	j.bar.done()
	if saved := st.save(j.src); saved != nil {
		return errors.Join(err, saved)
	}
	if err == nil {
		j.summary("Done")
		return nil
	}
	j.summary("Stopped")
	if errors.Is(err, errStopped) {
		fmt.Fprintf(w.stderr, "Stopped at line %d of %s. Run the same command again to go on from there.\n", st.Line, j.src.path)
		return errReported
	}
	return err
}

// run imports the file from where the state is.
func (j *job) run() error {
	err := j.src.parts(j.w.ctx, j.state, func(part *chunk) error {
		if err := j.apply(part); err != nil {
			return err
		}
		return j.w.ctx.Err()
	})
	if ended := j.w.ctx.Err(); ended != nil && (err == nil || errors.Is(err, ended)) {
		return errStopped
	}
	return err
}

// apply imports a part of the file and moves the state behind it, or before the line that stops it.
func (j *job) apply(part *chunk) error {
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
			j.state.Line, j.state.Offset, j.state.Digest = lines[i].number-1, lines[i].start, ""
			return err
		}
	}
	if len(lines) < len(part.lines) {
		l := &part.lines[len(lines)]
		j.state.Line, j.state.Offset, j.state.Digest = l.number-1, l.start, ""
		return j.tell(l)
	}
	j.state.Line, j.state.Offset, j.state.Digest = part.endLine, part.end, part.digest
	j.bar.update()
	return j.state.saveSometimes(j.src)
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
