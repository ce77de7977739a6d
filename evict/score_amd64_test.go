//go:build !noasm

package evict

import (
	"math"
	"math/rand/v2"
	"testing"
)

// anyTrees makes a model of random trees. Some nodes are cut at values that samples have.
func anyTrees(r *rand.Rand, trees, depth int, values []float32) *Model {
	m := &Model{depth: depth, base: r.Float32()}
	for range trees * (1<<depth - 1) {
		m.feature = append(m.feature, uint8(r.IntN(Features)))
		m.threshold = append(m.threshold, values[r.IntN(len(values))])
	}
	for range trees << depth {
		m.leaf = append(m.leaf, float32(r.NormFloat64()))
	}
	m.index()
	return m
}

// The assembly gives the same bits as Go: for all depths, numbers of trees and samples, and for floats of every kind.
func TestWidePredictionsAreThePlainOnes(t *testing.T) {
	if !wide {
		t.Skip("this processor has no AVX-512")
	}
	r := rand.New(rand.NewPCG(11, 11))
	odd := []float32{0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)),
		float32(math.Inf(-1)),
		float32(math.NaN()), math.Float32frombits(0xffc00001), math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 64,
		-64}
	for range 20 {
		odd = append(odd, float32(r.NormFloat64()))
	}
	for round := range 400 {
		trees, n := 1+r.IntN(70), 1+r.IntN(3*batch)
		m := anyTrees(r, trees, 1+round%(wideDepth+1), odd)
		if (m.wide != nil) != (m.depth <= wideDepth) {
			t.Fatalf("depth %d: in assembly: %v", m.depth, m.wide != nil)
		}
		xs, got, want := make([]Sample, n), make([]float32, n+1), make([]float32, n)
		for i := range xs {
			for f := range xs[i] {
				xs[i][f] = odd[r.IntN(len(odd))]
			}
		}
		got[n] = 7
		m.Predict(xs, got)
		for i := 0; i < n; i += batch {
			end := min(i+batch, n)
			m.predictPlain(xs[i:end], want[i:end])
		}
		for i := range xs {
			one, plain := m.one(&xs[i]), m.onePlain(&xs[i])
			if got[i] != want[i] || one != want[i] || plain != want[i] {
				t.Fatalf("%d trees of depth %d, sample %d of %d: %v in a batch and %v alone, in Go %v and %v", trees, m.depth, i, n,
					got[i], one, want[i], plain)
			}
		}
		if got[n] != 7 {
			t.Fatalf("%d samples: wrote beyond", n)
		}
	}
}

// More trees than one sample's kernel has room for are walked in Go.
func TestManyTrees(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 12))
	m := anyTrees(r, mostGroups*lanes+5, 4, []float32{.25, .5, .75})
	xs, out := make([]Sample, 3), make([]float32, 3)
	for i := range xs {
		for f := range xs[i] {
			xs[i][f] = r.Float32()
		}
	}
	m.Predict(xs, out)
	for i := range xs {
		if got := m.one(&xs[i]); got != out[i] {
			t.Errorf("sample %d: %v alone, %v in a batch", i, got, out[i])
		}
	}
}
