package engine

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/plan"
)

// panicky is a model that panics in the middle of a pass, if told so.
type panicky struct {
	Model
	now bool
}

func (p *panicky) Forward(r compute.Runner, b *compute.Batch, keep []int32) error {
	if p.now {
		_ = r.Begin(b)
		panic("in the middle")
	}
	return p.Model.Forward(r, b, keep)
}

// A panic in a pass gives back the memory that the pass took, and the engine computes the next one as ever.
func TestAPanicInAPass(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	e := newTiny(t, dev, "f32", Options{})
	m := &panicky{Model: e.model}
	e.model = m
	tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), 40)
	ask := func() *Result {
		j := &Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}}, Segments: keeping(true),
			Want: []Want{{Segment: 0, IDs: []int32{1, 2, 3}}}}
		r, err := e.Do(t.Context(), j)
		if err != nil {
			t.Fatal(err)
		}
		r.Kept[0].Release()
		return r
	}
	want := ask().Logits
	for range 3 {
		m.now = true
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
			}()
			ask()
		}()
		m.now = false
		if used := e.pool.Stats().Used; used != 0 {
			t.Fatalf("%d bytes of the cache are in use after a panic", used)
		}
		if got := ask().Logits; !reflect.DeepEqual(got, want) {
			t.Errorf("after a panic %v, want %v", got, want)
		}
	}
}
