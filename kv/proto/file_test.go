package proto

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func written(t *testing.T) (x *Index, w *world, name string) {
	t.Helper()
	w = newWorld(1, 120, 64)
	x = mustBuild(t, Config{Radius: 0.6}, w, w.model())
	name = filepath.Join(t.TempDir(), "pool.proto")
	if err := x.Write(name); err != nil {
		t.Fatal(err)
	}
	return x, w, name
}

func TestFile(t *testing.T) {
	x, w, name := written(t)
	y, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	if y.Len() != x.Len() || y.Model() != x.Model() || y.Config() != x.Config() ||
		!slices.Equal(y.Generations(), x.Generations()) {
		t.Fatalf("%d prototypes were written and %d read", x.Len(), y.Len())
	}
	var s Scratch
	for _, h := range newWorld(2, 20, 64).histories {
		a, b := make([]Match, len(h)), make([]Match, len(h))
		x.Match(&s, h, 0, 1, a)
		y.Match(&s, h, 0, 1, b)
		if !slices.Equal(a, b) {
			t.Fatal("what was read matches otherwise than what was written")
		}
	}
	again := filepath.Join(filepath.Dir(name), "again")
	if err := y.Write(again); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(name)
	b, _ := os.ReadFile(again)
	if !slices.Equal(a, b) {
		t.Error("a file that was read and written is another one")
	}
	if _, err := Extend(context.Background(), y, 1<<16, w.model(), newWorld(5, 50, 64), nil); err != nil {
		t.Errorf("an index of a file cannot be extended: %v", err)
	}
	if _, err := Open(name + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Every flipped bit, cut and appended byte is noticed.
func TestDamagedFile(t *testing.T) {
	_, _, name := written(t)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		bad := slices.Clone(data)
		switch r.IntN(4) {
		case 0:
			bad = bad[:r.IntN(len(bad))]
		case 1:
			bad = append(bad, make([]byte, 1+r.IntN(100))...)
		case 2:
			bad[r.IntN(headBytes)] ^= 1 << r.IntN(8)
		default:
			bad[headBytes+r.IntN(len(bad)-headBytes)] ^= 1 << r.IntN(8)
		}
		if _, err := decode(bad); err == nil && !slices.Equal(withoutPadding(bad), withoutPadding(data)) {
			t.Fatal("a damaged file was taken")
		}
	}
}

// withoutPadding leaves out what no sum covers.
func withoutPadding(data []byte) []byte {
	x, err := decode(data)
	if err != nil {
		return data
	}
	var out sink
	if err := x.encode(&out); err != nil {
		return data
	}
	return out
}

type sink []byte

func (s *sink) Write(p []byte) (int, error) { *s = append(*s, p...); return len(p), nil }

// A file with right sums and wrong numbers is an error too, and nothing is read beyond it.
func TestHostileFile(t *testing.T) {
	encode := func(change func(x *Index)) error {
		w := newWorld(1, 60, 64)
		x := mustBuild(t, Config{Radius: 0.6}, w, w.model())
		change(x)
		var out sink
		if err := x.encode(&out); err != nil {
			t.Fatal(err)
		}
		_, err := decode(out)
		return err
	}
	for name, change := range map[string]func(x *Index){
		"token outside":      func(x *Index) { x.prototypes[3].Token = 1 << 20 },
		"negative place":     func(x *Index) { x.prototypes[3].Place = -1 },
		"two rows of one":    func(x *Index) { x.space.tokens[2] = x.space.tokens[1] },
		"large token":        func(x *Index) { x.space.tokens[2] = maxTokens },
		"generation between": func(x *Index) { x.parts[0].First = 7 },
		"generation outside": func(x *Index) { x.parts[0].Len = 1 << 40 },
		"radius":             func(x *Index) { x.space.cfg.Radius = -1 },
		"steps":              func(x *Index) { x.space.frame.steps = 0 },
	} {
		if err := encode(change); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := encode(func(*Index) {}); err != nil {
		t.Error(err)
	}
}

func TestRemove(t *testing.T) {
	x, w, name := written(t)
	source := x.Prototype(70).Source
	pages := x.Remove(source)
	if !slices.Contains(pages, 1) || x.Alive(1) {
		t.Fatalf("pages %v were removed, without that of prototype 70", pages)
	}
	if err := x.Write(name); err != nil {
		t.Fatal(err)
	}
	y, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Close()
	for i := range y.Len() {
		if p := y.Prototype(i); p.Source == source || slices.Contains(pages, i/Page) &&
			(p != Prototype{} || y.vectors[i] != [Width]int8{}) {
			t.Fatalf("the file still has prototype %d, %+v, of a page that was removed", i, p)
		}
	}
	var s Scratch
	for i, h := range w.histories {
		out := make([]Match, len(h))
		y.Match(&s, h, 0, 1, out)
		for _, m := range out {
			if m.Prototype >= 0 && (y.Prototype(int(m.Prototype)).Source == source ||
				slices.Contains(pages, int(m.Prototype)/Page)) {
				t.Fatalf("history %d still matches prototype %d", i, m.Prototype)
			}
		}
	}
}
