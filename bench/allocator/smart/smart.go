// Package smart is HLEM's SmartAllocator (HLM-3), a learned controller of the share of memory that embeddings get.
// grebe-bench compares it with the others. grebe serves with alloc.Climb, which is better on workloads that neither
// was tuned on.
package smart

import (
	_ "embed"
	"math"
	"math/rand/v2"

	"grebe/alloc"
	"grebe/bench/allocator/net"
)

// Deltas are the changes that the policy chooses from (HLM-3).
var Deltas = [...]float64{-0.06, -0.04, -0.02, 0, 0.02, 0.04, 0.06}

// Features is the number of inputs of the policy.
const Features = 7

// longest is the length of a history whose feature is 1.
const longest = 15000

// Vector sets x to the inputs of the policy, each between 0 and 1.
func Vector(s *alloc.State, x *[Features]float64, slo float64) {
	*x = [Features]float64{s.Hot, s.KVHit, s.EmbHit, s.Events / longest, s.Late, s.Alpha, s.P99 / (2 * slo)}
	for i, v := range x {
		x[i] = min(max(v, 0), 1)
	}
}

// PolicySizes are the sizes of the policy's layers: two hidden ones of 64 and 128 units.
func PolicySizes() []int { return []int{Features, 64, 128, len(Deltas)} }

// policyFile was written by `grebe-bench train allocator`.
//
//go:embed policy.bin
var policyFile []byte

// Policy is the base policy. PPO trains it as a distribution of changes.
type Policy struct{ net *net.Net }

// TrainedPolicy returns the policy in policyFile.
func TrainedPolicy() (*Policy, error) { return ReadPolicy(policyFile) }

// ReadPolicy reads a policy.
func ReadPolicy(b []byte) (*Policy, error) {
	n, err := net.Read(b, PolicySizes()...)
	if err != nil {
		return nil, err
	}
	return &Policy{n}, nil
}

// Clone returns the same policy for another goroutine.
func (p *Policy) Clone() *Policy { return &Policy{p.net.Clone()} }

// Choose returns the change of the share: of Deltas the one nearest to the mean of the policy's distribution. Where the
// share is right the distribution is about as much for more as for less. Its most likely change is still one of the
// large ones there, so choosing that would go back and forth for ever.
func (p *Policy) Choose(x *[Features]float64) float64 {
	out := p.net.Forward(x[:])
	top := math.Inf(-1)
	for _, v := range out {
		top = max(top, v)
	}
	sum, mean := 0.0, 0.0
	for i, v := range out {
		chance := math.Exp(v - top)
		sum += chance
		mean += chance * Deltas[i]
	}
	best := 0
	for i := range Deltas {
		if math.Abs(Deltas[i]-mean/sum) < math.Abs(Deltas[best]-mean/sum) {
			best = i
		}
	}
	return Deltas[best]
}

// Config turns parts of it on and off.
type Config struct {
	SLO       float64 // milliseconds
	NoAdapter bool
	NoRescue  bool
	// RescueStep is how far the share moves towards KV in a burst; 0.06. The paper leaves it open.
	RescueStep float64
	Seed       uint64 // for the adapter's random numbers
}

// Allocator is the SmartAllocator: a frozen policy, an adapter that adds a learnt correction, and a recovery controller
// that overrides both in a burst. Decide is the decision loop, Learn the learning loop.
//
// What the paper leaves open:
//   - The adapter's five inputs are hot share, KV hits, embedding hits, the share of embeddings and P99. Its output
//     goes through a hyperbolic tangent and is at most 0.02.
//   - Its loss is the square of the distance to a target: after a move, the direction in which latency would have
//     fallen. Where P99 rose after a move the target is the other way, where it fell the same way, 0.02 at most and all
//     of it if P99 changed by a few tenths of the SLO.
//   - In a burst with a hot share above 0.2 the share moves by RescueStep towards KV. With fewer hot users it stays.
//   - The deviation of P99 counts as at least a fiftieth of the SLO, so that small changes in a calm
//     time do not count as a burst.
type Allocator struct {
	cfg     Config
	policy  *Policy
	adapter *net.Net
	rng     *rand.Rand

	x       [Features]float64
	in      [adapterInputs]float64
	recent  [burstEpochs]float64 // P99 of the last epochs
	epochs  int
	average float64 // EMA of P99
	rate    float64 // learning rate of the last epoch

	before sample // the last decision, until its outcome is known
	replay []sample
	next   int // the oldest, once there are replaySize
}

type sample struct {
	x      [adapterInputs]float64
	moved  float64 // change of the share
	p99    float64 // before it
	target float64
}

const (
	adapterInputs = 5
	adapterReach  = 0.02
	adapterRate   = 1e-3 // η₀
	replaySize    = 1000
	replayBatch   = 32
	burstEpochs   = 10
	burstHot      = 0.2
)

// New returns the allocator around a policy.
func New(p *Policy, cfg Config) *Allocator {
	if cfg.RescueStep == 0 {
		cfg.RescueStep = 0.06
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 0xADA))
	return &Allocator{cfg: cfg, policy: p, rng: r, adapter: net.New(r, 0, adapterInputs, 16, 1),
		replay: make([]sample, 0, replaySize)}
}

// Decide chooses the next share. It allocates nothing.
func (s *Allocator) Decide(o *alloc.Observation) alloc.Decision {
	Vector(&o.State, &s.x, s.cfg.SLO)
	s.complete(o.P99)
	burst := s.burst(o.P99)
	d := alloc.Decision{From: o.Alpha, Base: s.policy.Choose(&s.x)}
	s.in = [adapterInputs]float64{s.x[0], s.x[1], s.x[2], s.x[5], s.x[6]}
	if !s.cfg.NoAdapter {
		d.Residual = adapterReach * math.Tanh(s.adapter.Forward(s.in[:])[0])
	}
	change := d.Base + d.Residual
	if burst && !s.cfg.NoRescue {
		d.Recovery = true
		change = 0
		if o.Hot > burstHot {
			change = -s.cfg.RescueStep
		}
	}
	d.To = alloc.Clip(o.Alpha + change)
	s.before = sample{x: s.in, moved: d.To - d.From, p99: o.P99}
	return d
}

// burst notes a P99 and reports whether it is far above the last ones.
func (s *Allocator) burst(p99 float64) bool {
	n := min(s.epochs, burstEpochs)
	mean, square := 0.0, 0.0
	for _, v := range s.recent[:n] {
		mean += v / float64(n)
	}
	for _, v := range s.recent[:n] {
		square += (v - mean) * (v - mean) / float64(n)
	}
	if s.epochs == 0 {
		s.average = p99
	}
	sigma := max(math.Sqrt(square), s.cfg.SLO/50)
	out := n == burstEpochs && p99 > s.average+3*sigma
	s.rate = adapterRate * math.Abs(p99-s.average) / s.cfg.SLO
	s.average += (p99 - s.average) * 2 / (burstEpochs + 1)
	s.recent[s.epochs%burstEpochs] = p99
	s.epochs++
	return out
}

// complete adds the last decision and its outcome to the replay buffer.
func (s *Allocator) complete(p99 float64) {
	b := s.before
	if b.moved == 0 {
		return
	}
	rise := math.Tanh((p99 - b.p99) / (0.1 * s.cfg.SLO))
	b.target = -adapterReach * rise * math.Copysign(1, b.moved)
	if len(s.replay) < replaySize {
		s.replay = append(s.replay, b)
		return
	}
	s.replay[s.next] = b
	s.next = (s.next + 1) % replaySize
}

// Learn trains the adapter with samples of the replay buffer. It should run outside of the serving path.
func (s *Allocator) Learn() {
	if s.cfg.NoAdapter || len(s.replay) == 0 || s.rate == 0 {
		return
	}
	for range replayBatch {
		b := &s.replay[s.rng.IntN(len(s.replay))]
		y := math.Tanh(s.adapter.Forward(b.x[:])[0])
		s.adapter.Backward([]float64{2 * (y - b.target/adapterReach) * (1 - y*y)})
	}
	s.adapter.Descend(s.rate)
}
