package proto

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// world is a small language: sentences of a few kinds, with words that vary, and numbers.
type world struct {
	histories  [][]int32
	embeddings [][]float32
}

const (
	words    = 300
	firstNum = 250 // from here on tokens are numbers
)

func newWorld(seed uint64, users, width int) *world {
	r := rand.New(rand.NewPCG(7, 7)) // the language is the same in all worlds
	w := &world{}
	for range words {
		e := make([]float32, width)
		for i := range e {
			e[i] = float32(r.NormFloat64()) + 0.3
		}
		w.embeddings = append(w.embeddings, e)
	}
	sentences := make([][]int32, 60)
	for i := range sentences {
		for range 5 + r.IntN(8) {
			sentences[i] = append(sentences[i], int32(r.IntN(firstNum)))
		}
	}
	r = rand.New(rand.NewPCG(seed, 8))
	for range users {
		var h []int32
		for range 4 + r.IntN(12) {
			s := sentences[r.IntN(len(sentences))]
			for _, t := range s {
				if r.IntN(12) == 0 {
					t = int32(r.IntN(firstNum))
				}
				h = append(h, t)
			}
			h = append(h, int32(firstNum+r.IntN(words-firstNum)))
		}
		w.histories = append(w.histories, h)
	}
	return w
}

func (w *world) Len() int { return len(w.histories) }
func (w *world) History(i int) ([]int32, uint64, error) {
	return w.histories[i], mix(uint64(i)), nil
}

func (w *world) model() Model {
	return Model{Digest: [32]byte{1}, Natural: func(t int32) bool { return t < firstNum },
		Embeddings: func(t int32) []float32 {
			if int(t) >= len(w.embeddings) {
				return nil
			}
			return w.embeddings[t]
		}}
}

func mustBuild(t *testing.T, cfg Config, w *world, m Model) *Index {
	t.Helper()
	x, err := Build(context.Background(), cfg, m, w, nil)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestKernelsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	fill := func(v []float32) {
		for i := range v {
			v[i] = float32(r.NormFloat64() * 0.2)
		}
	}
	for range 50 {
		var a, added sums
		f := frame{steps: 300}
		var thresholds [Planes]float32
		for j := range a {
			fill(a[j][:])
			fill(added[j][:])
		}
		fill(f.base[:])
		fill(f.places[:])
		fill(thresholds[:])
		thresholds[3] = f.at(&a, Width+3, 1.5) // equal is not above
		var row rows
		row.round(&added)
		b := a
		left := [Scales]float32{0.5, 0.9, 0.99}
		var one, two [Width]int8
		p, q := express(&a, &f, 1.5, &thresholds, &one), expressGo(&b, &f, 1.5, &thresholds, &two)
		if p != q || one != two {
			t.Fatalf("sketches %x and %x; vectors\n%v\n%v", p, q, one, two)
		}
		advance(&a, &row, &left)
		advanceGo(&b, &row, &left)
		if a != b {
			t.Fatal("sums differ after the same token")
		}
		var other [Width]int8
		for i := range other {
			other[i] = int8(r.IntN(256) - 128)
		}
		if d, e := distance(&one, &other), distanceGo(&one, &other); d != e {
			t.Fatalf("distances %d and %d", d, e)
		}
	}
}

// exact is the search without tables.
func exact(x *Index, vector *[Width]int8, token int32) (best int32, number int) {
	best, number = math.MaxInt32, -1
	for i := range x.prototypes {
		if x.prototypes[i].Token != token || !x.alive(i) {
			continue
		}
		if d := distance(vector, &x.vectors[i]); d < best {
			best, number = d, i
		}
	}
	return best, number
}

func TestMatchAgainstExactSearch(t *testing.T) {
	cfg := Config{Radius: 0.6, Most: 1 << 14}
	x := mustBuild(t, cfg, newWorld(1, 300, 64), newWorld(1, 0, 64).model())
	unseen := newWorld(2, 20, 64)
	var s Scratch
	found, nearest, natural := 0, 0, 0
	for _, h := range unseen.histories {
		out := make([]Match, len(h))
		x.Match(&s, h, 0, 1, out)
		var before sums
		for i, token := range h {
			row := x.space.row(token)
			if token < firstNum {
				natural++
			}
			var v [Width]int8
			express(&before, &x.space.frame, place(i), &x.thresholds[row], &v)
			x.advance(&before, token)
			best, number := exact(x, &v, token)
			within := number >= 0
			got := out[i]
			switch {
			case got.Prototype >= 0 && token >= firstNum:
				t.Fatalf("token %d is a number, but prototype %d stands in for it", token, got.Prototype)
			case got.Prototype >= 0 && x.Prototype(int(got.Prototype)).Token != token:
				t.Fatalf("prototype %d of token %d stands in for token %d", got.Prototype, x.Prototype(int(got.Prototype)).Token,
					token)
			case got.Prototype >= 0 && (!within || got.Drift < x.space.drift(best, row)):
				t.Fatalf("a match with drift %v, but the nearest is %d steps away", got.Drift, best)
			}
			if !within {
				continue
			}
			found++
			if got.Prototype >= 0 && got.Drift == x.space.drift(best, row) {
				nearest++
			}
		}
	}
	t.Logf("%d of %d tokens have a prototype, %d of them got the nearest", found, natural, nearest)
	if found < natural/3 || nearest < found*95/100 {
		t.Errorf("%d of %d tokens have a prototype, %d of them got the nearest: want a third, and 95 %%", found, natural,
			nearest)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	w := newWorld(1, 100, 64)
	x := mustBuild(t, Config{Radius: 0.6}, w, w.model())
	var s Scratch
	h := w.histories[5]
	out := make([]Match, len(h))
	if n := testing.AllocsPerRun(20, func() { x.Match(&s, h, 3, 1, out) }); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
	for i, m := range out[:3] {
		if m.Prototype != -1 {
			t.Errorf("token %d lies before the first one asked for, but has prototype %d", i, m.Prototype)
		}
	}
}

// An occurrence that represents a cluster finds itself, without drift.
func TestRepresentativesFindThemselves(t *testing.T) {
	w := newWorld(1, 200, 64)
	x := mustBuild(t, Config{Radius: 0.6}, w, w.model())
	if x.Len() < 500 {
		t.Fatalf("%d prototypes", x.Len())
	}
	bySource := map[uint64][]int32{}
	for i, h := range w.histories {
		bySource[mix(uint64(i))] = h
	}
	var s Scratch
	for i := range x.Len() {
		p := x.Prototype(i)
		h := bySource[p.Source]
		if h[p.Place] != p.Token || p.Count < 2 {
			t.Fatalf("prototype %d: %+v, but its history has token %d there", i, p, h[p.Place])
		}
		if i%37 != 0 {
			continue
		}
		out := make([]Match, len(h))
		x.Match(&s, h, 0, 1, out)
		if out[p.Place].Drift != 0 {
			t.Errorf("prototype %d is matched by %d with drift %v", i, out[p.Place].Prototype, out[p.Place].Drift)
		}
	}
}

func TestSameHistoriesSameIndex(t *testing.T) {
	w := newWorld(1, 100, 64)
	a, b := mustBuild(t, Config{Radius: 0.6}, w, w.model()), mustBuild(t, Config{Radius: 0.6}, w, w.model())
	if a.parts[0].Digest != b.parts[0].Digest || a.Len() != b.Len() {
		t.Error("two builds of the same histories differ")
	}
	w.histories[0][0]++
	c := mustBuild(t, Config{Radius: 0.6}, w, w.model())
	if c.Len() == a.Len() && c.parts[0].Digest == a.parts[0].Digest {
		t.Error("another history makes the same index")
	}
}

func TestExtend(t *testing.T) {
	w := newWorld(1, 150, 64)
	x := mustBuild(t, Config{Radius: 0.6, Most: 1024}, w, w.model())
	if x.Len() > 1024 {
		t.Fatalf("%d prototypes of at most 1024", x.Len())
	}
	more := newWorld(3, 150, 64)
	y, err := Extend(context.Background(), x, 4096, w.model(), more, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(y.parts) != 2 || y.parts[1].First%Page != 0 || y.Len() <= x.Len() {
		t.Fatalf("%d prototypes in %+v after %d", y.Len(), y.parts, x.Len())
	}
	for i := range x.Len() {
		if x.Prototype(i) != y.Prototype(i) || x.vectors[i] != y.vectors[i] || x.sketches[i] != y.sketches[i] {
			t.Fatalf("prototype %d changed from %+v to %+v", i, x.Prototype(i), y.Prototype(i))
		}
	}
	var s Scratch
	better := 0
	for _, h := range newWorld(4, 30, 64).histories {
		a, b := make([]Match, len(h)), make([]Match, len(h))
		x.Match(&s, h, 0, 1, a)
		y.Match(&s, h, 0, 1, b)
		for i := range h {
			if b[i].Prototype >= 0 && a[i].Prototype < 0 {
				better++
			}
		}
	}
	if better == 0 {
		t.Error("what was added matches nothing")
	}
	m := w.model()
	m.Digest[0]++
	if _, err := Extend(context.Background(), x, 4096, m, more, nil); err == nil {
		t.Error("an index of another model was extended")
	}
}

// The teacher's vectors depend on how a history begins, and on nothing else: contexts that were taught go by that.
func TestTeacher(t *testing.T) {
	begin := func(w *world) *world {
		for i := range w.histories {
			w.histories[i] = append([]int32{int32(firstNum + i%4)}, w.histories[i]...)
		}
		return w
	}
	w, unseen := begin(newWorld(1, 300, Width)), begin(newWorld(2, 40, Width))
	m := w.model()
	m.Teacher = func(_ context.Context, tokens []int32, at []int) ([][]float32, error) {
		out := make([][]float32, len(at))
		for i := range at {
			out[i] = w.embeddings[tokens[0]]
		}
		return out, nil
	}
	agree := func(x *Index) (share float64) {
		begins := map[uint64]int32{}
		for i, h := range w.histories {
			begins[mix(uint64(i))] = h[0]
		}
		var s Scratch
		same, all := 0, 0
		for _, h := range unseen.histories {
			out := make([]Match, len(h))
			x.cover(&s, h, out)
			for i := range h {
				if out[i].Prototype < 0 {
					continue
				}
				all++
				if begins[x.Prototype(int(out[i].Prototype)).Source] == h[0] {
					same++
				}
			}
		}
		return float64(same) / float64(max(all, 1))
	}
	plain, taught := agree(mustBuild(t, Config{Radius: 0.7}, w, w.model())),
		agree(mustBuild(t, Config{Radius: 1, Lessons: 3000}, w, m))
	t.Logf("matches in histories that begin alike: %.3f plain, %.3f taught", plain, taught)
	if taught < plain+0.25 {
		t.Errorf("matches in histories that begin alike: %.3f plain, %.3f taught", plain, taught)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]Config{
		"pages": {Most: 100}, "radius": {Radius: 2}, "no number": {Radius: float32(math.NaN())},
		"left": {Left: [Scales]float32{1, 0, 0}}, "least": {Least: -1},
	} {
		if _, err := Build(context.Background(), c, newWorld(1, 0, 64).model(), newWorld(1, 1, 64), nil); err == nil {
			t.Errorf("%s: %+v was taken", name, c)
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newWorld(1, 50, 64)
	_, err := Build(ctx, Config{}, w.model(), w, func(part string, done, _ int) {
		if part == "clusters" && done == 10 {
			cancel()
		}
	})
	if err != context.Canceled {
		t.Errorf("a cancelled build ended with %v", err)
	}
}
