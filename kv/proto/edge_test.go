package proto

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func encoded(t *testing.T, x *Index) []byte {
	t.Helper()
	var out sink
	if err := x.encode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// taught is a small world with a teacher: its vectors are those of the token before.
func taught(w *world) Model {
	m := w.model()
	m.Teacher = func(_ context.Context, tokens []int32, at []int) ([][]float32, error) {
		out := make([][]float32, len(at))
		for i, a := range at {
			out[i] = w.embeddings[tokens[max(a-1, 0)]]
		}
		return out, nil
	}
	return m
}

// Extending an index makes another one: the old one stays as it is, to the byte.
func TestExtendLeavesTheOldOne(t *testing.T) {
	w := newWorld(1, 60, 64)
	for name, m := range map[string]Model{"plain": w.model(), "taught": taught(w)} {
		x := mustBuild(t, Config{Radius: 0.6, Most: 1024, Lessons: 500}, w, m)
		before := encoded(t, x)
		y, err := Extend(context.Background(), x, 4096, m, newWorld(3, 60, 64), nil)
		if err != nil {
			t.Fatal(err)
		}
		y.Remove(y.Prototype(0).Source)
		if !bytes.Equal(encoded(t, x), before) {
			t.Errorf("%s: the old index changed", name)
		}
		if x.Config().Most != 1024 || y.Config().Most != 4096 {
			t.Errorf("%s: %d and %d prototypes at most, want 1024 and 4096", name, x.Config().Most, y.Config().Most)
		}
		if _, err := Extend(context.Background(), x, 100, m, w, nil); err == nil {
			t.Errorf("%s: half a page of prototypes was taken", name)
		}
	}
}

// Histories that occur once have nothing in common: their index is empty, and can be kept and extended.
func TestEmptyIndex(t *testing.T) {
	one := newWorld(1, 1, 64)
	x := mustBuild(t, Config{Radius: 0.01}, one, one.model())
	if x.Len() != 0 || len(x.Generations()) != 0 || len(x.dead) != 0 {
		t.Fatalf("%d prototypes, %d generations", x.Len(), len(x.Generations()))
	}
	name := filepath.Join(t.TempDir(), "empty")
	if err := x.Write(name); err != nil {
		t.Fatal(err)
	}
	y, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	out := make([]Match, len(one.histories[0]))
	y.Match(new(Scratch), one.histories[0], 0, 1, out)
	for i, m := range out {
		if m.Prototype != -1 || m.Drift != 1 {
			t.Errorf("token %d: %+v", i, m)
		}
	}
	w := newWorld(1, 60, 64)
	z, err := Extend(context.Background(), y, 1<<16, w.model(), w, nil)
	if err != nil || z.Len() == 0 || len(z.Generations()) != 1 || z.Generations()[0].First != 0 {
		t.Errorf("%v: %d prototypes", err, z.Len())
	}
	if pages := len(z.dead); pages != (z.Len()+Page-1)/Page {
		t.Errorf("%d pages of %d prototypes", pages, z.Len())
	}
}

// Gaps behind generations are no prototypes of anybody.
func TestGapsAreNobodys(t *testing.T) {
	w := newWorld(1, 60, 64)
	x := mustBuild(t, Config{Radius: 0.6, Most: 1024}, w, w.model())
	for x.Len()%Page == 0 { // a generation that ends within a page
		w = newWorld(1, w.Len()-1, 64)
		x = mustBuild(t, Config{Radius: 0.6, Most: 1024}, w, w.model())
	}
	y, err := Extend(context.Background(), x, 4096, w.model(), newWorld(3, 60, 64), nil)
	if err != nil {
		t.Fatal(err)
	}
	gap := y.Prototype(x.Len())
	if gap.Count != 0 || gap.Token != -1 {
		t.Fatalf("behind the first generation is %+v", gap)
	}
	if pages := y.Remove(gap.Source); len(pages) != 0 {
		t.Errorf("pages %v were removed for nobody", pages)
	}
	if pages := y.Remove(^uint64(0)); len(pages) != 0 {
		t.Errorf("pages %v were removed for one who is not there", pages)
	}
	source := y.Prototype(0).Source
	if pages := y.Remove(source); len(pages) == 0 {
		t.Error("nothing was removed")
	}
	if pages := y.Remove(source); len(pages) != 0 {
		t.Errorf("pages %v were removed twice", pages)
	}
}

// breaking is a world whose histories cannot be read from some call on, or are shorter from then on.
type breaking struct {
	*world
	calls, from int
	shorter     bool
}

var errUnreadable = errors.New("unreadable")

func (b *breaking) History(i int) ([]int32, uint64, error) {
	b.calls++
	tokens, source, err := b.world.History(i)
	if b.calls > b.from {
		if b.shorter {
			return tokens[:0], source, err
		}
		return nil, 0, errUnreadable
	}
	return tokens, source, err
}

// Histories that cannot be read any more end a build with an error, whatever it does at that time.
func TestHistoriesThatCannotBeRead(t *testing.T) {
	w := newWorld(1, 30, 64)
	whole := &breaking{world: w, from: math.MaxInt}
	if _, err := Build(context.Background(), Config{Radius: 0.6}, w.model(), whole, nil); err != nil {
		t.Fatal(err)
	}
	for from := 0; from < whole.calls; from += 7 {
		b := &breaking{world: w, from: from}
		if _, err := Build(context.Background(), Config{Radius: 0.6}, w.model(), b, nil); !errors.Is(err, errUnreadable) {
			t.Errorf("after %d of %d calls: %v", from, whole.calls, err)
		}
	}
	b := &breaking{world: w, from: 5 * w.Len(), shorter: true} // tokens, contexts, clusters, centres, representatives
	_, err := Build(context.Background(), Config{Radius: 0.6}, w.model(), b, nil)
	if err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("histories that become shorter: %v", err)
	}
}

// A build shows how far it is, in each of its parts.
func TestProgress(t *testing.T) {
	w := newWorld(1, 20, 64)
	done := map[string]int{}
	_, err := Build(context.Background(), Config{Radius: 0.6}, w.model(), w, func(part string, n, of int) {
		if n != done[part]+1 || of != w.Len() {
			t.Errorf("%s: %d of %d after %d", part, n, of, done[part])
		}
		done[part] = n
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"tokens", "contexts", "clusters", "centres", "representatives"} {
		if done[part] != w.Len() {
			t.Errorf("%s: %d of %d", part, done[part], w.Len())
		}
	}
}

// A teacher's error, and vectors that teach nothing, end a build.
func TestTeacherFails(t *testing.T) {
	w := newWorld(1, 30, 64)
	m := w.model()
	m.Teacher = func(context.Context, []int32, []int) ([][]float32, error) { return nil, errUnreadable }
	if _, err := Build(context.Background(), Config{Radius: 0.6}, m, w, nil); !errors.Is(err, errUnreadable) {
		t.Errorf("a teacher that fails: %v", err)
	}
}

// Numbers at the borders of what a configuration may hold are taken, and those beyond are not.
func TestConfigBorders(t *testing.T) {
	good := Config{}.withDefaults()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	if good.Most != 65536 || good.Least != 2 || good.Lessons != 16384 || good.Radius != 0.1 || good.Left != DefaultLeft {
		t.Errorf("defaults %+v", good)
	}
	for name, c := range map[string]struct {
		change func(c *Config)
		ok     bool
	}{
		"a page": {func(c *Config) { c.Most = 64 }, true}, "no page": {func(c *Config) { c.Most = 0 }, false},
		"most": {func(c *Config) { c.Most = 1 << 28 }, true}, "more": {func(c *Config) { c.Most = 1<<28 + 64 }, false},
		"part of a page": {func(c *Config) { c.Most = 65 }, false}, "one history": {func(c *Config) { c.Least = 1 }, true},
		"no history": {func(c *Config) { c.Least = 0 }, false}, "a lesson": {func(c *Config) { c.Lessons = 1 }, true},
		"no lesson": {func(c *Config) { c.Lessons = 0 }, false}, "left 0": {func(c *Config) { c.Left[2] = 0 }, true},
		"left 1":   {func(c *Config) { c.Left[2] = 1 }, false},
		"left NaN": {func(c *Config) { c.Left[0] = float32(math.NaN()) }, false},
		"radius 0": {func(c *Config) { c.Radius = 0 }, true}, "radius 1": {func(c *Config) { c.Radius = 1 }, true},
		"radius above": {func(c *Config) { c.Radius = 1.001 }, false},
		"radius below": {func(c *Config) { c.Radius = -0.001 }, false},
	} {
		cfg := good
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Numbers of a file that lookups would follow out of their tables are refused, though the file's sums fit them.
func TestHostileNumbers(t *testing.T) {
	w := newWorld(1, 60, 64)
	x := mustBuild(t, Config{Radius: 0.6}, w, w.model())
	data := encoded(t, x)
	for name, change := range map[string]func(y *Index){
		"a token that has no row":     func(y *Index) { y.prototypes[3].Token = firstNum + 1e6 },
		"a negative token":            func(y *Index) { y.prototypes[3].Token = -1 },
		"a row of a negative token":   func(y *Index) { y.space.tokens[2] = -1 },
		"a generation of none":        func(y *Index) { y.parts[0].Len = 0 },
		"a generation that is longer": func(y *Index) { y.parts[0].Len++ },
		"a generation behind the end": func(y *Index) { y.parts[0].First = (y.Len()/Page + 1) * Page },
		"generations that overlap":    func(y *Index) { y.parts = append(y.parts, y.parts[0]) },
		"an endless step":             func(y *Index) { y.space.frame.steps = float32(math.Inf(1)) },
		"no step":                     func(y *Index) { y.space.frame.steps = float32(math.NaN()) },
	} {
		y, err := decode(slices.Clone(data))
		if err != nil {
			t.Fatal(err)
		}
		change(y)
		if _, err := decode(encoded(t, y)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	y, err := decode(slices.Clone(data))
	if err != nil {
		t.Fatal(err)
	}
	y.parts[0].Len = 1
	if _, err := decode(encoded(t, y)); err != nil {
		t.Errorf("a generation of one prototype: %v", err)
	}
	cuts := map[string][]byte{"empty": nil, "short": data[:headBytes-1], "the head alone": data[:headBytes]}
	for name, data := range cuts {
		file := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(file); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a folder was opened")
	}
}
