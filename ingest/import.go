// Package ingest imports items, users and embedding rows from files into a catalog and its tables. It writes to a data
// folder that this process has to itself, or through a running server.
package ingest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"grebe/catalog"
	"grebe/generate"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/human"
	"grebe/internal/wire"
)

// Import imports NDJSON files. At most one of Server, Config and DataDir is set; with none it uses the default folder.
type Import struct {
	Files   []string
	Server  string // import through this server
	Config  string // import into this configuration's data_dir
	DataDir string
	Kind    string // "items" or "users"; "": guessed from the name or content
	Skip    bool   // skip bad lines instead of stopping
	Restart bool   // begin at the start of each file, even if part of it was imported before
	Force   bool   // import even if a model is left with fewer than half of its items
	Access  *cli.AccessFlags
	// Codes returns the models of a configuration that generate items, with how many of the catalog's items each can
	// generate.
	Codes func(*config.Config, *catalog.Catalog) ([]generate.Codes, error)
}

// Kinds of files.
const (
	kindItems = "items"
	kindUsers = "users"
)

// Run imports the files as one version of the catalog.
func (c *Import) Run(w *cli.World) error {
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
func (c *Import) all(w *cli.World, files []*source, dst sink, states string) error {
	target, err := dst.identity(w.Ctx)
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
	if err := dst.end(w.Ctx); err != nil {
		return err
	}
	for _, j := range jobs {
		if err := j.state.remove(); err != nil {
			return err
		}
	}
	return nil
}

// check reports what the import would do to the models, before it changes anything.
func (c *Import) check(w *cli.World, files []*source, dst sink) error {
	var items []*source
	for _, f := range files {
		if f.kind == kindItems {
			items = append(items, f)
		}
	}
	if len(items) == 0 {
		return nil
	}
	impacts, err := dst.forecast(w.Ctx, items)
	if err != nil {
		return err
	}
	var halved []string
	for _, m := range impacts {
		if text := m.Warning(); text != "" {
			fmt.Fprintln(w.Stderr, "Warning: "+text)
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

// sources opens and checks all files before anything is changed.
func (c *Import) sources() ([]*source, error) {
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

// target opens the destination, and returns the folder of the files that record the progress.
func (c *Import) target(w *cli.World) (sink, string, error) {
	if c.Server != "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, "", err
		}
		s, err := newServerSink(w, c.Server, c.Access)
		return s, filepath.Join(cache, "grebe", "imports"), err
	}
	dir, err := DataDir(c.DataDir, c.Config, w.Env)
	if err != nil {
		return nil, "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, "", err
	}
	// Only a server can drop the KV of users deleted here. The next one to start does it.
	cat, err := catalog.Open(datadir.Catalog(dir), catalog.Options{TrackDeletions: true, TrackUnknown: true})
	if errors.Is(err, catalog.ErrLocked) {
		return nil, "", fmt.Errorf("%w: a server runs on %s: import through it with --server URL, or stop it", catalog.ErrLocked, dir)
	}
	if err != nil {
		return nil, "", err
	}
	return &localSink{c: cat, dir: dir, config: c.Config, codes: c.Codes, w: w}, datadir.Imports(dir), nil
}

// DataDir returns the data folder that a flag, a configuration or the environment names, in this order.
func DataDir(flag, file string, env []string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if file != "" {
		cfg, err := config.Load(config.Source{File: file, Env: env})
		if err != nil {
			return "", err
		}
		return cfg.DataDir, nil
	}
	for _, kv := range env {
		if dir, ok := strings.CutPrefix(kv, config.EnvName("data_dir")+"="); ok && dir != "" {
			return dir, nil
		}
	}
	return config.Default().DataDir, nil
}

// maxTold is the number of bad lines of a file that are reported one by one.
const maxTold = 20

// job is the import of one file.
type job struct {
	c     *Import
	w     *cli.World
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
	fmt.Fprintf(w.Stderr, "%s: %s (%s) into %s\n", j.src.path, j.src.kind, j.src.why, j.dst.name())
	if st.Offset > 0 {
		fmt.Fprintf(w.Stderr, "Going on at line %d, after %s; --restart begins anew.\n", st.Line+1, human.Bytes(st.Offset))
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
		fmt.Fprintf(w.Stderr, "Stopped at line %d of %s. Run the same command again to go on from there.\n", st.Line, j.src.path)
		return cli.ErrReported
	}
	return err
}

// run imports the file from the state's offset on.
func (j *job) run() error {
	err := j.src.parts(j.w.Ctx, j.state, func(part *chunk) error {
		if err := j.apply(part); err != nil {
			return err
		}
		return j.w.Ctx.Err()
	})
	if ended := j.w.Ctx.Err(); ended != nil && (err == nil || errors.Is(err, ended)) {
		return errStopped
	}
	return err
}

// apply imports a part of the file and moves the state to its end, or to the line that stops the import.
func (j *job) apply(part *chunk) error {
	bad := part.bad()
	lines := part.lines
	if bad >= 0 && !j.c.Skip {
		lines = lines[:bad]
	}
	problems, err := j.dst.apply(j.w.Ctx, j.src.kind, lines, &j.state.counts)
	if err != nil {
		if j.w.Ctx.Err() != nil {
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

// tell reports a bad line, and stops the import unless bad lines are skipped.
func (j *job) tell(l *line) error {
	if l.err == nil {
		return nil
	}
	if !j.c.Skip {
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
	fmt.Fprintf(j.w.Stdout, "%s: %s: %d lines: %d created, %d replaced, %d deleted, %d unchanged, %d bad; %s\n",
		how, j.src.path, s.Created+s.Replaced+s.Deleted+s.Unchanged+s.Failed, s.Created, s.Replaced, s.Deleted, s.Unchanged, s.Failed, j.bar.rate())
}

// decodeLine decodes a line of a kind.
func decodeLine(kind string, in []byte) (catalog.Op, error) {
	if kind == kindUsers {
		m, gone, err := wire.DecodeUserLine(in)
		return catalog.Op{PutUser: m, DeleteUser: gone}, err
	}
	m, gone, err := wire.DecodeItemLine(in)
	return catalog.Op{PutItem: m, DeleteItem: gone}, err
}
