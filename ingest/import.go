// Package ingest imports items, users and embedding rows from files into a catalog and its tables. It writes to a data
// folder that this process has to itself, or through a running server.
package ingest

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/catalog"
	"grebe/generate"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/human"
)

// Import imports files. At most one of Server, Config and DataDir is set; with none it uses the default folder.
type Import struct {
	Files   []string // "-" is standard input; none with From
	Server  string   // import through this server
	Config  string   // import into this configuration's data_dir
	DataDir string
	Kind    string // "items", "users" or "events"; "": guessed from name, columns or content
	// From is the address of a database, without a password, or env:NAME of a variable that has it. Query runs there.
	From, Query  string
	PasswordFile string // has the database's password; "": the variable GREBE_SQL_PASSWORD

	Format    string // "ndjson", "csv", "tsv" or "parquet"; "": as the name says
	Separator string // between cells of CSV; "": as the format says
	Map       string // FIELD=COLUMN,…; "": columns have the names of fields
	Lists     string // between elements of a list in one cell; "": a cell is one element, unless it is a JSON list
	LastWins  bool   // of records with the same id the last one counts; else they are bad
	Skip      bool   // skip bad records instead of stopping
	Restart   bool   // begin at the start of each file, even if part of it was imported before
	DryRun    bool   // report what would change, and change nothing
	Force     bool   // import even if a model is left with fewer than half of its items
	Access    *cli.AccessFlags
	// Codes returns the models of a configuration that generate items, with how many of the catalog's items each can
	// generate.
	Codes func(*config.Config, *catalog.Catalog) ([]generate.Codes, error)

	applied func(line int64) // tests hear of every part that is durable
}

// Kinds of files.
const (
	kindItems  = "items"
	kindUsers  = "users"
	kindEvents = "events"
)

// Run imports the files as one version of the catalog.
func (c *Import) Run(w *cli.World) (err error) {
	files, err := c.sources(w)
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.close())
		}
	}()
	if err != nil {
		return err
	}
	if err := c.usersElsewhere(w, files); err != nil {
		return err
	}
	dst, states, err := c.target(w)
	if err != nil {
		return err
	}
	if c.DryRun {
		return errors.Join(c.dryRun(w, files, dst), dst.close())
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
	var ids *seen
	if !c.LastWins {
		ids = newSeen()
		defer ids.close()
	}
	for i, src := range files {
		st, err := loadImportState(states, src, target)
		if err != nil {
			return err
		}
		if c.Restart {
			st.begin()
		}
		id = cmp.Or(id, st.Import)
		jobs[i] = &job{c: c, w: w, src: src, dst: dst, state: st, ids: ids}
	}
	if err := c.check(w, files, dst); err != nil {
		return err
	}
	if id == "" { // else the import was begun before, and may have put what is there
		items, users, err := dst.stored(w.Ctx)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			j.items, j.users = items, users
		}
	}
	if err := dst.begin(cmp.Or(id, rand.Text()), id != ""); err != nil {
		return err
	}
	base := int64(0)
	for _, j := range jobs {
		j.state.Import = dst.importID()
		if ids != nil {
			ids.next(j.src, base)
		}
		if err := j.all(); err != nil {
			return err
		}
		base += j.state.Line
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
	if w.Ctx.Err() != nil {
		return errors.New("stopped while the items were checked against the models: run the same command again")
	}
	if err != nil {
		return err
	}
	var halved []string
	for _, m := range impacts {
		if text := m.Warning(); text != "" {
			fmt.Fprintln(w.Stderr, "Warning: "+text)
		}
		switch {
		case !m.Halves() && m.After < m.Before:
			fmt.Fprintf(w.Stderr, "Warning: model %q can generate %s, and after this import %d.\n", m.Model,
				human.Count(m.Before, "item"), m.After)
		case m.Halves():
			halved = append(halved, fmt.Sprintf("model %q would be left with %d of the %s that it can generate", m.Model,
				m.After, human.Count(m.Before, "item")))
		}
	}
	if len(halved) > 0 && !c.Force {
		return fmt.Errorf("nothing was imported: %s. If this is what you want, run it again with --force",
			strings.Join(halved, "; "))
	}
	return nil
}

// sources opens and checks all files before anything is changed.
func (c *Import) sources(w *cli.World) ([]*source, error) {
	how := reading{kind: c.Kind, format: c.Format, separator: c.Separator, fields: c.Map, lists: c.Lists, stdin: w.Stdin}
	var out []*source
	if c.From != "" {
		if len(c.Files) > 0 {
			return nil, cli.Usagef("--from imports the rows of a query: name no files beside it")
		}
		s, err := c.query(w)
		if err != nil {
			return nil, err
		}
		return []*source{s}, nil
	}
	if len(c.Files) == 0 {
		return nil, cli.Usagef("name files to import, or a database with --from")
	}
	for _, name := range c.Files {
		s, err := newSource(name, how)
		if err != nil {
			return out, err
		}
		out = append(out, s)
	}
	// A user is replaced as a whole: events come after the users.
	order := []string{kindItems, kindUsers, kindEvents}
	slices.SortStableFunc(out, func(a, b *source) int {
		return slices.Index(order, a.kind) - slices.Index(order, b.kind)
	})
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
	if err := datadir.Check(dir); err != nil {
		return nil, "", err
	}
	cat, err := c.catalog(datadir.Catalog(dir))
	if errors.Is(err, catalog.ErrLocked) {
		return nil, "", fmt.Errorf("%w: a server runs on %s: import through it with --server URL, or stop it",
			catalog.ErrLocked, dir)
	}
	if err != nil {
		return nil, "", err
	}
	return &localSink{c: cat, dir: dir, config: c.Config, codes: c.Codes, w: w}, datadir.Imports(dir), nil
}

// catalog opens a folder's catalog. For a dry run, a folder that does not exist is an empty catalog and is not made.
func (c *Import) catalog(dir string) (*catalog.Catalog, error) {
	if _, err := os.Stat(dir); c.DryRun && errors.Is(err, fs.ErrNotExist) {
		return catalog.New(catalog.Options{}), nil
	}
	// Only a server can drop the KV of users deleted here. The next one to start does it.
	return catalog.Open(dir, catalog.Options{TrackDeletions: true, TrackUnknown: true})
}

// usersElsewhere refuses users and events for a folder of a configuration whose users lie in a store.
func (c *Import) usersElsewhere(w *cli.World, files []*source) error {
	if c.Config == "" {
		return nil
	}
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil || cfg.Cluster.UserAddresses() == nil {
		return err
	}
	for _, f := range files {
		if f.kind != "items" {
			return fmt.Errorf("%s has %s, and cluster.users keeps them in a store: import them through a running server, with "+
				"--server URL", f.path, f.kind)
		}
	}
	return nil
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
	ids   *seen // nil: an id may come twice
	left  *left // of a dry run: what earlier records leave behind
	bar   *progressBar
	told  int
	// What the catalog had before the import; 0 if it is continued.
	items, users int64
}

// errStopped ends an import that the user interrupted.
var errStopped = errors.New("stopped")

// all imports a file. Its state stays until the whole import is done.
func (j *job) all() error {
	w, st := j.w, j.state
	fmt.Fprintf(w.Stderr, "%s: %s (%s) into %s\n", j.src.path, j.src.kind, j.src.why, j.dst.name())
	if j.src.table != nil {
		if names := j.src.table.ignored(); len(names) > 0 {
			fmt.Fprintf(w.Stderr, "Columns that --map does not name: %s\n", strings.Join(names, ", "))
		}
	}
	j.src.warnEmptied(w.Stderr, j.items, j.users)
	if st.Offset > 0 {
		fmt.Fprintf(w.Stderr, "Continuing at %s %d; --restart starts over.\n", j.src.unit, st.Line+1)
	}
	j.bar = newProgressBar(w, j.src, st)
	err := j.run()
	j.bar.done()
	if saved := st.save(j.src); saved != nil {
		return errors.Join(err, saved)
	}
	if err == nil {
		j.summary()
		st.warn(w.Stderr, j.src)
		return nil
	}
	j.stopped()
	if errors.Is(err, errStopped) {
		fmt.Fprintln(w.Stderr, "Run the same command again to go on from there.")
		return cli.ErrReported
	}
	return err
}

// run imports the file from the state's offset on.
func (j *job) run() error {
	err := j.src.parts(j.w.Ctx, j.prepare, func(part *chunk) error {
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

// prepare does what a good record needs before it is applied. It is safe for concurrent use.
func (j *job) prepare(l *line) {
	if prepare := j.dst.preparer(); prepare != nil {
		prepare(&l.op)
	}
}

// apply imports a part of the file and moves the state to its end, or to the record that stops the import.
func (j *job) apply(part *chunk) error {
	j.state.read = part.read
	lines := j.fresh(part)
	if len(lines) == 0 && part.end <= j.state.Offset {
		return nil
	}
	all := len(lines)
	if !j.c.Skip {
		if bad := slices.IndexFunc(lines, func(l line) bool { return l.err != nil }); bad >= 0 {
			lines = lines[:bad]
		}
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
			return err
		}
		j.state.empty(&lines[i])
	}
	if len(lines) < all {
		return j.tell(&lines[:all][len(lines)])
	}
	j.state.Line, j.state.Offset, j.state.Digest = part.endLine, part.end, part.digest
	if j.c.applied != nil {
		j.c.applied(part.endLine)
	}
	j.bar.update()
	return j.state.saveSometimes(j.src)
}

// fresh returns the records that were not imported before, and marks those with an id that came before as bad.
func (j *job) fresh(part *chunk) []line {
	old := 0
	for i := range part.lines {
		l := &part.lines[i]
		if l.start < j.state.Offset {
			old = i + 1
		}
		if l.err == nil && j.ids != nil {
			l.err = j.ids.check(l)
		}
	}
	return part.lines[old:]
}

// tell reports a bad line, and stops the import unless bad lines are skipped.
func (j *job) tell(l *line) error {
	if l.err == nil {
		return nil
	}
	if !j.c.Skip {
		j.state.Line, j.state.Offset, j.state.Digest = l.number-1, l.start, ""
		return fmt.Errorf("%s:%d: %w (correct it and run the same command again, or skip bad %ss with --on-error skip)",
			j.src.path, l.number, l.err, j.src.unit)
	}
	j.list(l)
	return nil
}

// list counts a bad record, and prints the first ones.
func (j *job) list(l *line) {
	j.state.Failed++
	if j.told++; j.told <= maxTold {
		j.bar.above(fmt.Sprintf("%s:%d: %v", j.src.path, l.number, l.err))
	} else if j.told == maxTold+1 {
		j.bar.above("More bad lines follow; the summary counts them.")
	}
}

// stopped reports the first record that is not in the catalog, and what was written before it.
func (j *job) stopped() {
	s := j.state
	written := "nothing was written"
	if n := s.counts; n.total() > n.Failed {
		written = fmt.Sprintf("%d created, %d replaced, %d deleted, %d unchanged", n.Created, n.Replaced, n.Deleted,
			n.Unchanged)
	}
	if s.Failed > 0 {
		written += fmt.Sprintf(", %d bad", s.Failed)
	}
	fmt.Fprintf(j.w.Stdout, "Stopped at %s %d of %s; before it %s\n", j.src.unit, s.Line+1, j.src.path, written)
}

func (j *job) summary() {
	s := j.state
	runs := ""
	if j.bar.first > 0 {
		runs = fmt.Sprintf(" (totals of all runs; this one read %s)", human.Count(s.Line-j.bar.first, j.src.unit))
	}
	fmt.Fprintf(j.w.Stdout, "Done: %s: %s: %d created, %d replaced, %d deleted, %d unchanged, %d bad; %s%s\n",
		j.src.path, human.Count(s.total(), j.src.unit), s.Created, s.Replaced, s.Deleted, s.Unchanged, s.Failed,
		j.bar.rate(), runs)
}

// empty counts an item that a model of texts knows nothing of.
func (n *counts) empty(l *line) {
	if it := l.op.PutItem; l.err == nil && it != nil && it.GetText() == "" && len(it.Tokens)+len(it.Codes) == 0 {
		n.Empty++
	}
}

// warn reports the records of a file that are good but of little use.
func (n *counts) warn(w io.Writer, src *source) {
	if n.Empty > 0 {
		fmt.Fprintf(w, "Warning: %s: %s without text: models of texts see empty items, unless prompt.item has other fields\n",
			src.path, human.Count(n.Empty, "item"))
	}
	if text := n.Unknown.Warning(); text != "" {
		fmt.Fprintf(w, "Warning: %s: %s\n", src.path, text)
	}
}
