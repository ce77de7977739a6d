package allocator

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"grebe/alloc"
	"grebe/bench/allocator/net"
	"grebe/bench/allocator/smart"
	"grebe/workload/regime"
)

// TrainOptions say how the base policy is trained. Zero values mean the defaults, with which the embedded policy was
// made.
type TrainOptions struct {
	Rounds   int    // of serving and learning; 100
	Episodes int    // workloads served per round; 8
	Seed     uint64 // 1
}

func (o TrainOptions) orDefaults() TrainOptions {
	if o.Rounds == 0 {
		o.Rounds = 100
	}
	if o.Episodes == 0 {
		o.Episodes = 8
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	return o
}

// What PPO is run with (Schulman et al., 2017; their names).
const (
	gamma     = 0.95 // discount per epoch
	lambda    = 0.9  // of the advantages' estimator
	clipRatio = 0.2
	passes    = 4
	minibatch = 64
	entropy   = 0.01 // weight of the choices' entropy; falls to a tenth
	learning  = 1e-3 // falls to a tenth
	maxNorm   = 0.5

	warmEpochs = 6  // served before an episode's first decision
	decisions  = 48 // of an episode
	worst      = -3 // a reward is at least this: an epoch in a jam teaches no more than that it was one
)

// step is one decision and what came of it.
type step struct {
	x         [smart.Features]float64
	action    int
	logp      float64
	value     float64
	reward    float64
	advantage float64
	target    float64
}

// Reward is that of HLM-3: the share of requests within the SLO, less how far P99 is beyond it.
func reward(s *alloc.State) float64 {
	return max(1-s.Late-max(0, s.P99-SLO)/SLO, worst)
}

// Train trains the base policy by PPO on workloads of the family of the named ones, seeded: the same options and costs
// give the same bytes on the same architecture. It returns the policy as smart.ReadPolicy reads it.
func Train(ctx context.Context, opt TrainOptions, log io.Writer) ([]byte, error) {
	opt = opt.orDefaults()
	cost, err := Costs("derived")
	if err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(opt.Seed, 0x990))
	actor := net.New(r, 0.01, smart.PolicySizes()...)
	critic := net.New(r, 1, smart.Features, 64, 128, 1)
	fmt.Fprintf(log, "policy of %d and critic of %d parameters\n", actor.Parameters(), critic.Parameters())
	for round := range opt.Rounds {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		episodes := make([][]step, opt.Episodes)
		err := each(opt.Episodes, func(i int) error {
			var err error
			episodes[i], err = episode(cost, actor.Clone(), critic.Clone(), opt.Seed<<32+uint64(round*opt.Episodes+i))
			return err
		})
		if err != nil {
			return nil, err
		}
		mean := 0.0
		for _, e := range episodes {
			for i := range e {
				mean += e[i].reward / float64(len(e)*len(episodes))
			}
		}
		steps := slices.Concat(episodes...)
		kept := improve(r, actor, critic, steps, 1-0.9*float64(round)/float64(opt.Rounds))
		fmt.Fprintf(log, "round %3d of %d: mean reward %.4f, entropy %.3f\n", round+1, opt.Rounds, mean, kept)
	}
	return actor.AppendBinary(nil), nil
}

// episode serves a workload, decisions drawn from the actor.
func episode(cost *Cost, actor, critic *net.Net, seed uint64) ([]step, error) {
	r := rand.New(rand.NewPCG(seed, 0xE9))
	spec := regime.Training(seed, warmEpochs+decisions+1)
	alpha := alloc.MinShare + (alloc.MaxShare-alloc.MinShare)*r.Float64()
	n, err := newNode(cost, &spec, alpha)
	if err != nil {
		return nil, err
	}
	for range warmEpochs {
		n.next()
	}
	o := n.observe(alpha)
	steps := make([]step, decisions)
	for i := range steps {
		s := &steps[i]
		smart.Vector(&o.State, &s.x, SLO)
		p := softmax(actor.Forward(s.x[:]))
		s.action = draw(p[:], r.Float64())
		s.logp = math.Log(p[s.action])
		s.value = critic.Forward(s.x[:])[0]
		alpha = alloc.Clip(alpha + smart.Deltas[s.action])
		n.move(float64(n.epoch)*regime.EpochSeconds, alpha)
		n.next()
		o = n.observe(alpha)
		s.reward = reward(&o.State)
	}
	var x [smart.Features]float64
	smart.Vector(&o.State, &x, SLO)
	estimate(steps, critic.Forward(x[:])[0])
	return steps, nil
}

// estimate fills in advantages and targets, from the value of what follows the last step back to the first.
func estimate(steps []step, after float64) {
	advantage := 0.0
	for i := len(steps) - 1; i >= 0; i-- {
		s := &steps[i]
		advantage = s.reward + gamma*after - s.value + gamma*lambda*advantage
		s.advantage, s.target = advantage, advantage+s.value
		after = s.value
	}
}

// improve runs PPO's passes over the steps, with rates times decay, and returns the mean entropy of the last one.
func improve(r *rand.Rand, actor, critic *net.Net, steps []step, decay float64) float64 {
	mean, square := 0.0, 0.0
	for i := range steps {
		mean += steps[i].advantage / float64(len(steps))
	}
	for i := range steps {
		d := steps[i].advantage - mean
		square += d * d / float64(len(steps))
	}
	scale := 1 / (math.Sqrt(square) + 1e-8)
	kept := 0.0
	for range passes {
		kept = 0
		order := r.Perm(len(steps))
		for len(order) > 0 {
			batch := order[:min(minibatch, len(order))]
			order = order[len(batch):]
			for _, i := range batch {
				s := &steps[i]
				kept += learn(actor, critic, s, (s.advantage-mean)*scale, entropy*decay, 1/float64(len(batch)))
			}
			actor.Step(learning*decay, maxNorm)
			critic.Step(learning*decay, maxNorm)
		}
	}
	return kept / float64(len(steps))
}

// learn adds the gradients of one step, weighted, and returns the entropy of the actor's choice there, which counts
// as much as it is curious.
func learn(actor, critic *net.Net, s *step, advantage, curious, weight float64) float64 {
	p := softmax(actor.Forward(s.x[:]))
	ratio := math.Exp(math.Log(p[s.action]) - s.logp)
	push := -advantage * ratio // gradient of −advantage·ratio by the logarithm of the chance
	if advantage > 0 && ratio > 1+clipRatio || advantage < 0 && ratio < 1-clipRatio {
		push = 0
	}
	h := 0.0
	for _, q := range p {
		h -= q * math.Log(q)
	}
	var g [len(smart.Deltas)]float64
	for i, q := range p {
		hit := 0.0
		if i == s.action {
			hit = 1
		}
		g[i] = weight * (push*(hit-q) + curious*q*(math.Log(q)+h))
	}
	actor.Backward(g[:])
	v := critic.Forward(s.x[:])[0]
	critic.Backward([]float64{weight * (v - s.target)})
	return h
}

func softmax(x []float64) (p [len(smart.Deltas)]float64) {
	top, sum := slices.Max(x), 0.0
	for i, v := range x {
		p[i] = math.Exp(v - top)
		sum += p[i]
	}
	for i := range p {
		p[i] = max(p[i]/sum, 1e-12)
	}
	return p
}

// draw returns the index where the sum of chances passes u.
func draw(p []float64, u float64) int {
	for i, q := range p {
		if u -= q; u < 0 {
			return i
		}
	}
	return len(p) - 1
}
