package proto

import (
	"math"
	"math/rand/v2"
)

// Embeddings gives the model's embedding of a token; nil for one that it has none of. The slice is read before the
// next call.
type Embeddings func(token int32) []float32

// space is where contexts lie: the rows that tokens add to sums, and the hyperplanes. Rows are made when a token is
// first seen and never change.
type space struct {
	cfg    Config
	frame  frame
	planes []float32      // Planes × Width
	mean   [Width]float32 // of embeddings; taken away from each
	// images has what becomes of embeddings, by scale, and of places: features × Width. Nil: they stay as they are.
	images  []float32
	centred bool
	// rest is what contexts do not predict of tokens' targets, squared, and unknown that of all tokens.
	rest    map[int32]float64
	unknown float64

	rowOf  []int32 // by token; 0, the rows of zeros, for those that were never seen
	tokens []int32 // of rows
	rows   []rows
	floors []float32 // by row: what no context predicts of the error
}

// features is how many numbers a context is before it is an embedding: the sums of plain embeddings, and the place.
const features = Scales*Width + 1

// plainSteps and plainShare make a space of embeddings as they are: contexts that have nothing in common are
// about 1 apart.
const (
	plainSteps = 400
	plainShare = 0.4
)

func newSpace(cfg Config) *space {
	s := &space{cfg: cfg, rows: make([]rows, 1), tokens: []int32{-1}, floors: make([]float32, 1)}
	r := rand.New(rand.NewPCG(cfg.Seed, 0x70726f746f))
	s.planes = make([]float32, Planes*Width)
	for i := range s.planes {
		s.planes[i] = float32(r.NormFloat64())
	}
	s.frame.steps = plainSteps
	return s
}

// centre fixes the mean of embeddings, from tokens: what all of them share tells contexts of many tokens from
// contexts of few and nothing else.
func (s *space) centre(tokens []int32, of Embeddings) {
	var sum [Width]float64
	n := 0
	for _, t := range tokens {
		e := of(t)
		if e == nil {
			continue
		}
		n++
		for i, x := range s.fold(e) {
			sum[i] += float64(x)
		}
	}
	for i := range sum {
		s.mean[i] = float32(sum[i] / float64(max(n, 1)))
	}
	s.centred = true
}

// fold adds up the values of an embedding in Width places, with signs: lengths and angles stay nearly what they are.
func (s *space) fold(e []float32) (out [Width]float32) {
	if len(e) <= Width {
		copy(out[:], e)
		return out
	}
	for i, x := range e {
		h := mix(s.cfg.Seed ^ uint64(i)<<1)
		if h>>63 == 1 {
			x = -x
		}
		out[h%Width] += x
	}
	return out
}

// feature returns a token's embedding, folded, without the mean and of length 1.
func (s *space) feature(e []float32) [Width]float32 {
	u := s.fold(e)
	for i := range u {
		u[i] -= s.mean[i]
	}
	scale(u[:])
	return u
}

// gain is what a token adds to a sum of plain embeddings, so that sums of many have a length of about 1.
func (s *space) gain(j int) float32 {
	left := float64(s.cfg.Left[j])
	return float32(math.Sqrt(1 - left*left))
}

// learn makes rows of tokens that have none.
func (s *space) learn(tokens []int32, of Embeddings) {
	for _, t := range tokens {
		if t < 0 || s.known(t) {
			continue
		}
		e := of(t)
		if e == nil {
			continue
		}
		u := s.feature(e)
		var v sums
		for j := range v {
			gain := s.gain(j)
			for i, x := range u {
				if s.images == nil {
					v[j][i] = x * gain * plainShare
					continue
				}
				addScaled(v[j][:Width], s.images[(j*Width+i)*Width:][:Width], x*gain)
			}
			s.project(&v[j])
		}
		var row rows
		row.round(&v)
		s.insert(t, &row)
	}
}

func addScaled(dst, src []float32, by float32) {
	for i, x := range src {
		dst[i] += float32(x * by)
	}
}

func (s *space) insert(t int32, row *rows) {
	if n := int(t) + 1 - len(s.rowOf); n > 0 {
		s.rowOf = append(s.rowOf, make([]int32, n)...)
	}
	s.rowOf[t] = int32(len(s.rows))
	s.rows = append(s.rows, *row)
	s.tokens = append(s.tokens, t)
	s.floors = append(s.floors, 0)
}

func (s *space) known(t int32) bool { return s.row(t) != 0 }

// row returns the number of a token's row, 0 when it has none.
func (s *space) row(t int32) int32 {
	if uint(t) >= uint(len(s.rowOf)) {
		return 0
	}
	return s.rowOf[t]
}

// project fills in the projections of a vector.
func (s *space) project(v *vector) {
	for p := range Planes {
		var sum float64
		for i, x := range s.planes[p*Width : (p+1)*Width] {
			sum += float64(float64(x) * float64(v[i])) // one rounding each, as everywhere
		}
		v[Width+p] = float32(sum)
	}
}

// scale makes a vector's length 1, unless it is 0 or no number.
func scale(v []float32) {
	var sum float64
	for _, x := range v {
		sum += float64(float64(x) * float64(x))
	}
	if length := math.Sqrt(sum); length > 0 && !math.IsInf(length, 1) && !math.IsNaN(length) {
		for i := range v {
			v[i] = float32(float64(v[i]) / length)
		}
		return
	}
	clear(v)
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// placesKnown is for how many places the logarithm is looked up.
const placesKnown = 8192

var placeLogs = func() (out [placesKnown]float32) {
	for i := range out {
		out[i] = placeLog(i)
	}
	return out
}()

func placeLog(i int) float32 { return float32(math.Log2(1 + float64(i)/16)) }

// place is how far a place in a history lies along the direction of places.
func place(i int) float32 {
	if i < placesKnown {
		return placeLogs[i]
	}
	return placeLog(i)
}
