package app

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app/doctor"
	"grebe/catalog"
	"grebe/embed"
	"grebe/index"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/model/safetensors"
	"grebe/reuse"
)

// damages are the ways to damage a file.
var damages = []struct {
	name string
	do   func(data []byte) []byte // nil: the file is removed
}{
	{"flip the first byte", flipAt(0, 1)},
	{"flip a byte in the first quarter", flipAt(1, 4)},
	{"flip the middle byte", flipAt(1, 2)},
	{"flip a byte in the last quarter", flipAt(3, 4)},
	{"flip the last byte", flipAt(1, 1)},
	{"truncate", func(data []byte) []byte { return data[:len(data)/2] }},
	{"append", func(data []byte) []byte { return append(data, "some bytes that do not belong here"...) }},
	{"delete", nil},
}

func flipAt(part, of int) func([]byte) []byte {
	return func(data []byte) []byte {
		if len(data) > 0 {
			data[min(len(data)-1, len(data)*part/of)] ^= 0x10
		}
		return data
	}
}

// remedy matches the remedies that an error at start names.
var remedy = regexp.MustCompile(`grebe doctor --repair|remove it|remove the|restore`)

// dataKinds are all files that Grebe writes below data_dir, with N for numbers and digests. Unfinished files, which end
// in durable.PartSuffix, are not included: a start removes them.
var dataKinds = []string{
	"catalog.loaded.json", "catalog.loaded-N.lines",
	"catalog/LOCK", "catalog/MANIFEST-N", "catalog/N.log", "catalog/N.sst", "catalog/OPTIONS-N", "catalog/ledger",
	"catalog/marker.format-version.N.N", "catalog/marker.manifest.N.MANIFEST-N",
	"importance/m.importance",
	"imports/N.json",
	"kv/m/LOCK", "kv/m/N.seg",
	"prototypes/m.proto",
	"tables.damaged-N", // a whole folder that grebe doctor --repair put aside
	"tables/LOCK", "tables/MANIFEST-N", "tables/N.log", "tables/N.sst", "tables/OPTIONS-N", "tables/ledger",
	"tables/marker.format-version.N.N", "tables/marker.manifest.N.MANIFEST-N",
	"versions/activated.copy.json", "versions/activated.json", "versions/index-N-N", "versions/items-N", "versions/log-N",
}

// damageWorld is a data folder that a killed server left, and what it had acknowledged.
type damageWorld struct {
	*reloadWorld
	left  string
	want  string // the catalog, and answers that depend only on it
	picks string // items generated from the activated version
	rows  string
	users string // file whose import stopped at its last line
}

const importedUsers = 5

func newDamageWorld(t *testing.T) *damageWorld {
	t.Helper()
	w := &damageWorld{reloadWorld: newReloadWorld(t,
		config.Setting{Path: "tables[0].name", Value: "rows"}, config.Setting{Path: "tables[0].dim", Value: "4"},
		config.Setting{Path: "tables[0].timeout_ms", Value: "60000"})}
	w.left = filepath.Join(t.TempDir(), "left")
	w.users = filepath.Join(w.dir, "more-users.ndjson")
	for run := range 3 { // the next start moves logs of a run to tables
		s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w.change(t, s, run)
		switch run {
		case 1:
			w.index(t, s)
		case 2:
			s.keeper.Renew()
			if err := s.keeper.Rollback(""); err != nil {
				t.Fatal(err)
			}
			w.want, w.picks, w.rows = w.state(t, s), w.generated(t, s), w.tableRows(t, s)
			if err := os.CopyFS(w.left, os.DirFS(w.cfg.DataDir)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		switch run {
		case 0:
			w.repair(t)
		case 1:
			w.stopImport(t)
		}
	}
	return w
}

// index makes prototypes and importance, as grebe index does.
func (w *damageWorld) index(t *testing.T, s *App) {
	t.Helper()
	m := &s.first[0]
	learned := index.Importance{Prompts: 2, Candidates: 4}
	world := &cli.World{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}
	if err := learned.Learn(world, s.catalog, m, w.cfg.Models[0].Blend.Layers, w.cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	set, err := safetensors.Open(w.cfg.Models[0].Path)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	pool := &reuse.Pool{Users: []string{"u0", "u1", "u2"}, Bytes: 1 << 20}
	pool.History = func(i int) ([]int32, error) { // the same except for the first token
		tokens := []int32{int32(300 + i)}
		for k := range 100 {
			tokens = append(tokens, int32(310+k%10))
		}
		return tokens, nil
	}
	if pool.Embeddings, err = index.EmbeddingsOf(set); err != nil {
		t.Fatal(err)
	}
	built, err := m.Cache.BuildPrototypes(t.Context(), m.Runner.Do, reuse.PrototypesFile(w.cfg.DataDir, m.Name), pool)
	if err != nil || built.Prototypes == 0 {
		t.Fatalf("%+v, %v", built, err)
	}
}

// repair removes a manifest of the tables and repairs them: nothing is lost, and the damaged files are set aside.
func (w *damageWorld) repair(t *testing.T) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(datadir.Tables(w.cfg.DataDir), "MANIFEST-*"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	if report := doctor.Repair(w.cfg.DataDir); report.Failed() {
		t.Fatal(report)
	}
}

// stopImport imports a file of users whose last line is bad.
func (w *damageWorld) stopImport(t *testing.T) {
	t.Helper()
	w.writeUsers(t, "no user")
	w.imports(t, cli.Failed)
}

func (w *damageWorld) writeUsers(t *testing.T, last string) {
	t.Helper()
	var lines []string
	for i := range importedUsers {
		lines = append(lines, fmt.Sprintf(`{"id":"imported%d","tokens":[1,2,%d]}`, i, 3+i))
	}
	if err := os.WriteFile(w.users, []byte(strings.Join(append(lines, last), "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *damageWorld) imports(t *testing.T, want int) {
	t.Helper()
	c := &ingest.Import{Files: []string{w.users}, Kind: "users", DataDir: w.cfg.DataDir}
	err := c.Run(&cli.World{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard})
	if got := err == nil; got != (want == cli.Done) {
		t.Fatalf("import: %v", err)
	}
}

// resume continues the import, whose file is now correct, and returns what is wrong with the result.
func (w *damageWorld) resume(t *testing.T) string {
	t.Helper()
	w.writeUsers(t, `{"id":"the last","tokens":[9]}`)
	defer w.writeUsers(t, "no user")
	w.imports(t, cli.Done)
	c, err := catalog.Open(datadir.Catalog(w.cfg.DataDir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, last := c.User("the last")
	for i := range importedUsers {
		if _, ok := c.User(fmt.Sprint("imported", i)); !ok || !last {
			return "lines of a file were not imported"
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return ""
}

// change makes changes of every kind.
func (w *damageWorld) change(t *testing.T, s *App, run int) {
	t.Helper()
	s.server.SetReady(true)
	for i := range 12 {
		id := fmt.Sprintf("n%d-%d", run, i)
		identifier := int32(1500 + 12*run + i)
		_, err := s.catalog.PutItem(&grebev1.Item{Id: id, Tokens: []int32{int32(20 + i)}, Identifier: &identifier,
			Codes: []int32{int32(i % 8), int32(i % 8)}})
		if err == nil {
			_, err = s.catalog.PutUser(&grebev1.User{Id: "w" + id, Tokens: []int32{5, 6, int32(7 + i)}})
		}
		if err != nil {
			t.Fatal(err)
		}
		row := []float32{float32(run), float32(i), 1, 2}
		if err := s.tables.Table("rows").Put(t.Context(), []uint64{uint64(100*run + i)}, embed.Bytes(row)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.catalog.DeleteUser(fmt.Sprintf("wn%d-3", run)); err != nil {
		t.Fatal(err)
	}
	for n := range 8 {
		if _, err := w.ranked(t, s, n); err != nil {
			t.Fatal(err)
		}
	}
}

const blended = 102 // number of a request

func (w *damageWorld) ranked(t *testing.T, s *App, n int) (string, error) {
	req := &grebev1.RankRequest{User: &grebev1.User{Id: fmt.Sprintf("u%d", n%reloadUsers)},
		Prefix: []string{"user", "item"}[n%2]}
	if n == blended {
		req.Prefix = "blend"
	}
	for i := range 6 {
		req.Candidates = append(req.Candidates, &grebev1.Item{Id: fmt.Sprintf("i%d", (n*5+i*3)%reloadItems)})
	}
	resp, err := s.service.Rank(t.Context(), req)
	if err != nil {
		return "", err
	}
	out, err := json.Marshal(resp.Results)
	return string(out), err
}

// state returns everything that a server knows of its catalog, and some answers.
func (w *damageWorld) state(t *testing.T, s *App) string {
	t.Helper()
	var b strings.Builder
	items, _ := s.catalog.ItemIDs("", 1<<20, false)
	slices.Sort(items)
	for _, id := range items {
		item, _ := s.catalog.Item(id)
		fmt.Fprintln(&b, id, item)
	}
	users, _ := s.catalog.UserIDs("", 1<<20, false)
	slices.Sort(users)
	for _, id := range users {
		user, _ := s.catalog.User(id)
		text, err := json.Marshal(user)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s\n", id, text)
	}
	for n := range 4 {
		answer, err := w.ranked(t, s, n)
		fmt.Fprintln(&b, answer, err)
	}
	_, err := w.ranked(t, s, blended) // its answer depends on learned importance
	fmt.Fprintln(&b, err)
	return b.String()
}

// generated returns the recommendations to some users.
func (w *damageWorld) generated(t *testing.T, s *App) string {
	t.Helper()
	var b strings.Builder
	for n := range 3 {
		resp, err := s.service.Recommend(t.Context(), &grebev1.RecommendRequest{
			User: &grebev1.User{Id: fmt.Sprint("u", n)}, N: 60, BeamWidth: 64})
		text, _ := json.Marshal(resp.GetResults())
		fmt.Fprintf(&b, "%s %v\n", text, err)
	}
	return b.String()
}

func (w *damageWorld) tableRows(t *testing.T, s *App) string {
	t.Helper()
	var keys []uint64
	for k := range uint64(300) {
		keys = append(keys, k)
	}
	rows := make([]float32, 4*len(keys))
	s.tables.Table("rows").Gather(t.Context(), keys, embed.Bytes(rows))
	return fmt.Sprint(rows)
}

var numbers = regexp.MustCompile(`[0-9a-f]{16,}|[0-9]+`)

// kinds returns one file of each kind in the folder, or all files. Files whose names differ only in numbers are of one
// kind. It checks that the kinds are exactly dataKinds.
func (w *damageWorld) kinds(t *testing.T, all bool) []string {
	t.Helper()
	byKind := map[string][]string{}
	err := filepath.WalkDir(w.left, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(w.left, path)
		kind := numbers.ReplaceAllString(name, "N")
		if dir, _, ok := strings.Cut(kind, string(filepath.Separator)); ok && strings.HasSuffix(dir, ".damaged-N") {
			kind = dir
		}
		byKind[kind] = append(byKind[kind], name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(byKind)); !slices.Equal(got, slices.Sorted(slices.Values(dataKinds))) {
		t.Fatalf("the data folder has files of the kinds %q; known are %q: a new kind needs damage that it survives", got,
			dataKinds)
	}
	var out []string
	for kind, names := range byKind {
		slices.SortFunc(names, func(a, b string) int { return cmp.Compare(w.size(t, b), w.size(t, a)) })
		if out = append(out, names[0]); all && !strings.HasSuffix(kind, ".damaged-N") {
			out = append(out, names[1:]...)
		}
	}
	slices.Sort(out)
	return out
}

func (w *damageWorld) size(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(w.left, name))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// start starts a server on the configuration's folder and returns the outcome.
func (w *damageWorld) start(t *testing.T) (outcome string, problem string) {
	t.Helper()
	var log syncBuffer
	s,
		err := Load(t.Context(), w.cfg, Options{Log: slog.New(
		slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		if !remedy.MatchString(err.Error()) {
			return "refused", fmt.Sprintf("refused without a remedy: %v", err)
		}
		return "refused", ""
	}
	s.server.SetReady(true)
	state, picks, rows := w.state(t, s), w.generated(t, s), w.tableRows(t, s)
	told := log.String() + strings.Join(s.tables.Problems(), "\n")
	if err := s.Close(); err != nil {
		return "closed", fmt.Sprintf("Close: %v", err)
	}
	switch {
	case state != w.want:
		return "changed", fmt.Sprintf("started with another catalog or other answers; the log says %q", told)
	case picks != w.picks && told == "":
		return "changed", "started with another version of the catalog, and does not tell"
	case rows != w.rows && told == "":
		return "changed", "started with other rows of a table, and does not tell"
	case told != "":
		return "reported", ""
	}
	return "no change", ""
}

// After any damage to one file of the data folder, a start has everything that was acknowledged, or reports what is
// missing, or refuses and names a remedy that works. By default a sample of files and damages runs. GREBE_DAMAGE=all
// runs all of them; a part of a name runs those files.
func TestDamageOfTheDataFolder(t *testing.T) {
	part := os.Getenv("GREBE_DAMAGE")
	every := part != ""
	w := newDamageWorld(t)
	outcomes := map[string]int{}
	n := 0
	for _, name := range w.kinds(t, every) {
		if every && part != "all" && !strings.Contains(name, part) {
			continue
		}
		for _, damage := range damages {
			if n++; !every && n%13 != 0 {
				continue
			}
			if err := os.RemoveAll(w.cfg.DataDir); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(w.cfg.DataDir, os.DirFS(w.left)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(w.cfg.DataDir, name)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			before := bytes.Clone(data)
			if damage.do == nil {
				err = os.Remove(path)
			} else if data = damage.do(data); !bytes.Equal(data, before) {
				err = os.WriteFile(path, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			outcome, problem := w.start(t)
			if outcome == "refused" && problem == "" {
				report := doctor.Repair(w.cfg.DataDir)
				var text strings.Builder
				if err := report.Print(&text); err != nil {
					t.Fatal(err)
				}
				if report.Failed() {
					problem = "the repair failed:\n" + text.String()
				} else if again, still := w.start(t); again == "refused" {
					problem = fmt.Sprintf("refused after a repair: %s\n%s", still, text.String())
				} else if still != "" && !strings.Contains(text.String(), "lost:") && again == "changed" {
					problem = fmt.Sprintf("a repair lost something and does not tell: %s\n%s", still, text.String())
				}
			}
			if strings.HasPrefix(name, "imports") && problem == "" {
				problem = w.resume(t)
			}
			outcomes[outcome]++
			if problem != "" {
				t.Errorf("%s: %s: %s", name, damage.name, problem)
			}
			if every {
				t.Logf("%-60s %-34s %s", name, damage.name, outcome)
			}
		}
	}
	t.Logf("%v", outcomes)
}
