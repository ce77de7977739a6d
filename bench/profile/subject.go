package profile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"grebe/bench/weights"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
)

const (
	question   = 32   // tokens of the instruction
	maxRows    = 9216 // of a decoder's batch
	eventItems = 5000 // of the model of events
)

// identifiers are the tokens whose logits a ranking wants.
var identifiers = func() []int32 {
	out := make([]int32, 100)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}()

// subject is a model of random weights behind an engine with a cache.
type subject struct {
	device compute.Device
	engine *engine.Engine
	prompt *prompt.Builder
	shape  compute.Shape
	vocab  int
	events *hstu.Model // nil: it is a decoder
	rand   *rand.Rand
	free   int64 // of the device's memory, when weights and runner are there
	close  []func() error
}

// open packs the weights of a model on a device. The caller MUST call shut, also after an error.
func open(d compute.Device, m *Model, seed uint64) (s *subject, err error) {
	s = &subject{device: d, rand: rand.New(rand.NewPCG(seed, 4))}
	rows, config := maxRows, prompt.Config{Instruction: prompt.Text{Tokens: make([]int32, question)}}
	var em engine.Model
	if m.Events > 0 {
		rows, config = max(8*(2000+100), m.Events+100), prompt.Config{}
		if err := s.openEvents(m, seed); err != nil {
			return s, err
		}
		em, s.vocab = s.events, s.events.Vocab()
	} else {
		em, err = weights.Decoder(d, m.Shape, weights.Options{
			Vocab: m.Vocab, Positions: 16384, Bias: m.Bias, Norms: m.Norms, Seed: seed})
		if err != nil {
			return s, fmt.Errorf("weights: %w", err)
		}
		s.vocab = m.Vocab
	}
	s.shape = em.Shape()
	pages, err := pool.Over(d.Memory(), s.room(m), 64<<10)
	if err != nil {
		return s, fmt.Errorf("memory for KV: %w", err)
	}
	store := kv.New(s.shape, pages)
	s.close = append(s.close, pages.Close, func() error { store.Close(); return nil })
	if s.engine, err = engine.New(em, d, engine.Options{MaxTokens: rows, Cache: store, Now: time.Now}); err != nil {
		return s, err
	}
	s.close = append(s.close, s.engine.Close)
	s.free, _ = d.Memory().Sizes()
	s.free += s.room(m)
	s.prompt, err = prompt.New(config, nil, s.vocab)
	return s, err
}

// openEvents opens a model of events from a checkpoint that is written for it.
func (s *subject) openEvents(m *Model, seed uint64) error {
	dir, err := os.MkdirTemp("", "grebe-profile-")
	if err != nil {
		return err
	}
	s.close = append(s.close, func() error { return os.RemoveAll(dir) })
	sh := &m.Shape
	err = hstutest.Write(dir, hstutest.Spec{Hidden: sh.Hidden, Layers: sh.Layers, Heads: sh.Heads, HeadDim: sh.HeadDim,
		Items:     eventItems,
		MaxSeqLen: m.Events + 200, DType: compute.BF16, Seed: seed})
	if err != nil {
		return err
	}
	if s.events, err = hstu.Open(dir, s.device, model.Options{DType: "bf16"}); err != nil {
		return err
	}
	s.close = append(s.close, s.events.Close)
	return nil
}

// room is memory for the KV of the largest batch.
func (s *subject) room(m *Model) int64 {
	tokens := 32 << 10
	if m.Events > 0 {
		tokens = 10 * m.Events
	}
	return int64(s.shape.ChunkBytes(tokens, false)) + 64<<20
}

func (s *subject) shut() error {
	var errs []error
	for _, f := range slices.Backward(s.close) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// tokens draws n tokens, or events.
func (s *subject) tokens(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		if s.events != nil {
			out[i] = s.events.Event(s.rand.Int32N(eventItems), s.rand.Int32N(8))
			continue
		}
		out[i] = s.rand.Int32N(int32(s.vocab))
	}
	return out
}

// lay lays out a request.
func (s *subject) lay(w *work, user []int32, items [][]int32) (prompt.Layout, error) {
	if s.events != nil {
		return s.prompt.Targets(plan.UserFirst, user, items)
	}
	return s.prompt.Rank(w.order, user, items)
}
