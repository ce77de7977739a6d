package rollout

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// world is a cluster whose nodes do what a test says.
type world struct {
	nodes map[string]*Found
	want  map[string]string // version that a node's configuration names
	fails map[string]string // nodes whose reload fails, with the reason
	dies  map[string]bool   // nodes that vanish during their turn
	stuck map[string]bool   // nodes that cannot go back
	turns []string
}

func newWorld(n int, version, want string) *world {
	w := &world{nodes: map[string]*Found{}, want: map[string]string{}, fails: map[string]string{}, dies: map[string]bool{},
		stuck: map[string]bool{}}
	for i := range n {
		id := fmt.Sprint("n", i+1)
		w.nodes[id], w.want[id] = &Found{ID: id, Boot: "b", Version: version}, want
	}
	return w
}

func (w *world) found() (out []Found) {
	for i := range len(w.nodes) {
		out = append(out, *w.nodes[fmt.Sprint("n", i+1)])
	}
	return out
}

// turn does what a node does in its turn.
func (w *world) turn(id string, back bool) Result {
	n := w.nodes[id]
	w.turns = append(w.turns, fmt.Sprint(id, map[bool]string{true: " back"}[back]))
	switch {
	case n.Away || w.dies[id]:
		n.Away = true
		return Result{Error: "it does not answer"}
	case back && (w.stuck[id] || n.Before == ""):
		return Result{Version: n.Version, Error: "its files are gone"}
	case back:
		n.Version, n.Before = n.Before, n.Version
	case w.fails[id] != "":
		return Result{Version: n.Version, Error: w.fails[id]}
	case w.want[id] == n.Version:
		return Result{Version: n.Version, Unchanged: true, Error: "unchanged"}
	default:
		n.Version, n.Before = w.want[id], n.Version
	}
	return Result{Version: n.Version}
}

// drive runs a change to its end, or for some turns if most is not 0.
func (w *world) drive(t *testing.T, r *Record, most int) {
	t.Helper()
	for i := 0; most == 0 || i < most; i++ {
		id, back, ok := r.Next()
		if !ok {
			return
		}
		if i > 3*len(r.Nodes) {
			t.Fatalf("no end: %+v", r)
		}
		stored, err := Decode(r.Encode())
		if err != nil || !reflect.DeepEqual(stored, *r) {
			t.Fatalf("stored as %+v, want %+v: %v", stored, *r, err)
		}
		r.Ended(w.turn(id, back))
	}
}

func (w *world) reload(t *testing.T, driver string) *Record {
	t.Helper()
	r, err := Reload("m", driver, "b", w.found())
	if err != nil {
		t.Fatal(err)
	}
	w.drive(t, r, 0)
	return r
}

func (w *world) expect(t *testing.T, r *Record, state, versions, turns string) {
	t.Helper()
	var got []string
	for _, n := range w.found() {
		if !n.Away {
			got = append(got, n.Version)
		}
	}
	if r.State != state || strings.Join(got, " ") != versions || strings.Join(w.turns, ", ") != turns {
		t.Errorf("ended %s (%s) with versions %v after %q; want %s, %s, %q", r.State, r.Error, got, w.turns, state, versions,
			turns)
	}
}

func TestReload(t *testing.T) {
	t.Run("one after the other, the driver first", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.expect(t, w.reload(t, "n2"), Done, "new new new", "n2, n1, n3")
	})
	t.Run("those that compute nothing come last", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.nodes["n1"].Rests = true
		w.expect(t, w.reload(t, "n1"), Done, "new new new", "n2, n3, n1")
	})
	t.Run("the first fails", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.fails["n1"] = "NaN"
		r := w.reload(t, "n1")
		w.expect(t, r, Failed, "old old old", "n1")
		if r.Error != "n1: NaN" {
			t.Errorf("it says %q", r.Error)
		}
	})
	t.Run("the last fails", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.fails["n3"] = "no memory"
		w.expect(t, w.reload(t, "n1"), RolledBack, "old old old", "n1, n2, n3, n2 back, n1 back")
	})
	t.Run("a node vanishes in its turn", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.dies["n2"] = true
		w.expect(t, w.reload(t, "n1"), RolledBack, "old old", "n1, n2, n1 back")
	})
	t.Run("a node is away from the start", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.nodes["n2"].Away = true
		r := w.reload(t, "n1")
		w.expect(t, r, Done, "new new", "n1, n3")
		if r.Nodes[1].State != Away {
			t.Errorf("n2 is %s", r.Nodes[1].State)
		}
	})
	t.Run("a node has other files", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.want["n2"] = "other"
		r := w.reload(t, "n1")
		w.expect(t, r, RolledBack, "old old old", "n1, n2, n2 back, n1 back")
		if !strings.Contains(r.Error, "same files") {
			t.Errorf("it says %q", r.Error)
		}
	})
	t.Run("a node has not got the files", func(t *testing.T) {
		w := newWorld(2, "old", "new")
		w.want["n2"] = "old"
		w.expect(t, w.reload(t, "n1"), RolledBack, "old old", "n1, n2, n1 back")
	})
	t.Run("a node cannot return", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		w.fails["n3"], w.stuck["n2"] = "no memory", true
		r := w.reload(t, "n1")
		w.expect(t, r, Failed, "old new old", "n1, n2, n3, n2 back, n1 back")
		if r.Nodes[1].State != Stuck || r.Nodes[1].Error != "its files are gone" {
			t.Errorf("n2: %+v", r.Nodes[1])
		}
	})
	t.Run("all have it", func(t *testing.T) {
		w := newWorld(2, "new", "new")
		w.expect(t, w.reload(t, "n1"), Failed, "new new", "n1, n2")
	})
	t.Run("interrupted", func(t *testing.T) {
		w := newWorld(3, "old", "new")
		r, err := Reload("m", "n1", "b", w.found())
		if err != nil {
			t.Fatal(err)
		}
		w.drive(t, r, 2)
		r.Interrupt("asked for")
		w.drive(t, r, 0)
		w.expect(t, r, RolledBack, "old old old", "n1, n2, n2 back, n1 back")
	})
}

// A driver dies between two turns. A second call finishes what it began, or takes it back.
func TestSecondCallFinishes(t *testing.T) {
	begun := func() (*world, *Record) {
		w := newWorld(3, "old", "new")
		r, err := Reload("m", "n1", "b", w.found())
		if err != nil {
			t.Fatal(err)
		}
		w.drive(t, r, 2)
		w.turns = nil
		return w, r
	}
	w, _ := begun()
	w.expect(t, w.reload(t, "n3"), Done, "new new new", "n3, n1, n2")

	w, _ = begun()
	w.fails["n3"] = "no memory" // then those that the dead driver had changed go back too
	w.expect(t, w.reload(t, "n1"), RolledBack, "old old old", "n1, n2, n3, n2 back, n1 back")

	w, r := begun()
	back, err := Rollback("m", "n3", "b", w.found(), *r)
	if err != nil {
		t.Fatal(err)
	}
	w.drive(t, back, 0)
	w.expect(t, back, Done, "old old old", "n1 back, n2 back")
}

func TestRollback(t *testing.T) {
	w := newWorld(3, "old", "new")
	w.reload(t, "n1")
	w.turns, w.stuck["n2"] = nil, true
	r, err := Rollback("m", "n1", "b", w.found(), Record{})
	if err != nil {
		t.Fatal(err)
	}
	w.drive(t, r, 0)
	w.expect(t, r, Failed, "old new old", "n1 back, n2 back, n3 back") // the others return all the same
	// Now n1 and n3 could return to new as well. The change before says what was wanted.
	w.turns, w.stuck["n2"] = nil, false
	r, err = Rollback("m", "n1", "b", w.found(), *r)
	if err != nil {
		t.Fatal(err)
	}
	w.drive(t, r, 0)
	w.expect(t, r, Done, "old old old", "n2 back")
}

func TestRollbackTarget(t *testing.T) {
	for _, c := range []struct{ nodes, want string }{
		{"b<a b<a", "a"},
		{"b<a a", "a"},
		{"b<a a<z", "a"},
		{"b<a a<z a<b", "a"}, // two serve a already
		{"b b", ""},
		{"b<a c", ""},
		{"b<a c<z", ""},
	} {
		var found []Found
		for i, s := range strings.Fields(c.nodes) {
			v, before, _ := strings.Cut(s, "<")
			found = append(found, Found{ID: fmt.Sprint("n", i+1), Version: v, Before: before})
		}
		got, err := target(found, Record{})
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v; want %q", c.nodes, got, err, c.want)
		}
	}
}

// Whatever fails: if the change is done or rolled back, all nodes that answer serve one version.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(1+r.IntN(5), "old", "new")
		for id := range w.nodes {
			switch r.IntN(12) {
			case 0:
				w.fails[id] = "no memory"
			case 1:
				w.dies[id] = true
			case 2:
				w.want[id] = "other"
			case 3:
				w.stuck[id] = true
			case 4:
				w.nodes[id].Away = true
			}
		}
		rec, err := Reload("m", "n1", "b", w.found())
		if err != nil {
			continue // nobody answers
		}
		if r.IntN(3) == 0 { // the driver dies, and another member tries again
			w.drive(t, rec, 1+r.IntN(2))
			if rec, err = Reload("m", "n2", "b", w.found()); err != nil {
				continue
			}
		}
		w.drive(t, rec, 0)
		versions := map[string]bool{}
		for _, n := range w.found() {
			if !n.Away {
				versions[n.Version] = true
			}
		}
		if rec.State == Running || (rec.State == Done || rec.State == RolledBack) && len(versions) > 1 {
			t.Fatalf("seed %d: ended %s (%s) with %v: %+v", seed, rec.State, rec.Error, versions, rec.Nodes)
		}
	}
}
