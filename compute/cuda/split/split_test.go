package split

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
)

// machine is a GPU that takes the times that it is said to.
type machine struct{ launch, step, unit, part, merge float64 }

func (m machine) time(l Load) float64 {
	return m.launch + m.step*l.Steps + m.unit*l.Units + m.part*l.Parts + m.merge*l.Merged
}

// shapesOf draws shapes: rows behind cached keys, as tiles of 16 tokens.
func shapesOf(r *rand.Rand, n int) []Work {
	var out []Work
	for range n {
		rows, keys := 1+r.IntN(1500), r.IntN(6000)
		w := Work{Heads: 1 + r.IntN(8), Blocks: 132, Parts: 264}
		for at := 0; at < rows; at += 16 {
			steps := (keys+at+16)/128 + 1
			for len(w.Counts) <= steps {
				w.Counts = append(w.Counts, 0)
			}
			w.Counts[steps]++
		}
		out = append(out, w)
	}
	return out
}

func (m machine) measure(r *rand.Rand, works []Work, noise float64) []Measured {
	var out []Measured
	for _, w := range works {
		s := Measured{Work: w}
		for _, c := range Candidates() {
			if l, ok := w.Load(c); ok {
				s.Times = append(s.Times, Timed{c, m.time(l) * (1 + noise*r.NormFloat64())})
			}
		}
		out = append(out, s)
	}
	return out
}

func best(s *Measured) float64 {
	least := math.Inf(1)
	for _, t := range s.Times {
		least = min(least, t.US)
	}
	return least
}

// TestLearns: on GPUs where parts are cheap and where they are dear, what a model chooses for shapes that
// it has not seen is never slower than the fixed split by more than the noise, and close to the best.
func TestLearns(t *testing.T) {
	for name, m := range map[string]machine{
		"cheap parts": {launch: 4, step: 1.5, unit: 1, part: 0.2, merge: 0.05},
		"dear parts":  {launch: 4, step: 0.7, unit: 1, part: 9, merge: 3},
		"slow units":  {launch: 2, step: 0.4, unit: 5, part: 1, merge: 0.5},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		model, err := Train(m.measure(r, shapesOf(r, 60), 0.01))
		if err != nil {
			t.Fatal(err)
		}
		if off := model.Report().Off; off > 0.03 {
			t.Errorf("%s: predictions are off by %.3f", name, off)
		}
		var gain, lost float64
		held := m.measure(r, shapesOf(r, 100), 0)
		for i := range held {
			s := &held[i]
			fixed, _ := s.By(Fixed)
			way := model.Choose(&s.Work)
			chosen, ok := s.By(way)
			if !ok {
				t.Fatalf("%s: shape %d: chose %v, which is not possible", name, i, way)
			}
			if chosen > fixed*1.02 {
				t.Errorf("%s: shape %d: %v takes %.1f µs, the fixed split %.1f", name, i, way, chosen, fixed)
			}
			gain += math.Log(fixed / chosen)
			lost += math.Log(chosen / best(s))
		}
		n := float64(len(held))
		t.Logf("%s: %.3f × faster than fixed, %.3f × the best; %+v", name, math.Exp(gain/n), math.Exp(lost/n),
			model.Report())
		if math.Exp(lost/n) > 1.03 {
			t.Errorf("%s: choices take %.3f × the best", name, math.Exp(lost/n))
		}
	}
}

// TestUselessModel: a model that does worse than the fixed split on what it has not seen chooses that.
func TestUselessModel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	shapes := machine{launch: 4, step: 1, unit: 1, part: 1, merge: 1}.measure(r, shapesOf(r, 40), 0)
	for i := range shapes {
		if i%heldOut == 0 { // the rest of the world is different
			for j := range shapes[i].Times {
				if t := &shapes[i].Times[j]; t.Split != Fixed {
					t.US *= 3
				}
			}
		}
	}
	m, err := Train(shapes)
	if err != nil {
		t.Fatal(err)
	}
	for i := range shapes {
		if s := m.Choose(&shapes[i].Work); s != Fixed {
			t.Fatalf("a model whose report is %+v chooses %v", m.Report(), s)
		}
	}
}

func TestLoads(t *testing.T) {
	// 64 tiles of 10 steps on 132 blocks: the beams of a round.
	w := Work{Counts: make([]int32, 11), Heads: 8, Blocks: 132, Parts: 264}
	w.Counts[10] = 8
	for _, c := range []struct {
		split Split
		want  Load
		ok    bool
	}{
		{Split{Form: Whole}, Load{Steps: 10, Units: 1, Merged: 1, Mean: 640.0 / 132}, true},
		{Split{Even, 6}, Load{Steps: 5, Units: 1, Parts: 1, Merged: 2, Mean: 640.0 / 132}, true},
		{Split{Even, 16}, Load{Steps: 10, Units: 1, Merged: 1, Mean: 640.0 / 132}, true},
		{Split{Even, 2}, Load{}, false}, // 320 parts
	} {
		got, ok := w.Load(c.split)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%v: %+v, %v; want %+v, %v", c.split, got, ok, c.want, c.ok)
		}
	}
	if l, ok := w.Load(Split{Form: Balanced}); !ok || l.Steps != 5 || l.Merged != 2 {
		t.Errorf("balanced: %+v, %v", l, ok)
	}
}

func TestChoosingDoesNotAllocate(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	works := shapesOf(r, 20)
	m, err := Train(machine{launch: 4, step: 1, unit: 1, part: 0.1}.measure(r, works, 0.01))
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		for i := range works {
			m.Choose(&works[i])
		}
	}); n > 0 {
		t.Errorf("choosing allocates %v times", n)
	}
	var none *Model
	if s := none.Choose(&works[0]); s != Fixed {
		t.Errorf("no model chooses %v", s)
	}
	if s := m.Choose(&Work{Blocks: 132}); s != Fixed {
		t.Errorf("for no work %v is chosen", s)
	}
}

func TestFile(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	m, err := Train(machine{launch: 4, step: 1, unit: 1, part: 1}.measure(r, shapesOf(r, 20), 0.01))
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Decode(data)
	if err != nil || *again != *m {
		t.Fatalf("read back %+v, %v; want %+v", again, err, m)
	}
	for _, bad := range [][]byte{nil, data[:len(data)/2], []byte("{}"),
		[]byte(`{"features":"others","weights":[1,2,3,4,5,6]}`),
		bytes.Replace(data, []byte(`"weights":[`), []byte(`"weights":[-1,`), 1),
		[]byte(`{"features":"` + featureNames + `","weights":[0,0,0,0,0,0]}`),
		[]byte(`{"features":"` + featureNames + `","weights":[0,0,0,0,0,-1]}`)} {
		if m, err := Decode(bad); err == nil {
			t.Errorf("%q is a model: %+v", bad, m)
		}
	}
}

func TestBadMeasurements(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	shapes := machine{launch: 4, step: 1}.measure(r, shapesOf(r, 20), 0)
	if _, err := Train(shapes[:1]); err == nil {
		t.Error("a model was fitted to one shape")
	}
	shapes[3].Times[0].US = math.NaN()
	if _, err := Train(shapes); err == nil {
		t.Error("a model was fitted to a time that is no number")
	}
}

func BenchmarkChoose(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	works := shapesOf(r, 50)
	m, err := Train(machine{launch: 4, step: 1, unit: 1, part: 0.1}.measure(r, works, 0.01))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for i := range works {
			m.Choose(&works[i])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(works)), "ns/shape")
}
