package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"grebe/compute/cuda"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/generate"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
	_ "grebe/model/llama"
	_ "grebe/model/qwen"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve"
)

// open loads the checkpoint that mc names and everything that runs it.
func (m *Model) open(ctx context.Context, cfg *config.Config, mc *config.Model) (serve.Model, error) {
	if hstu.Is(mc.Path) {
		return m.openEvents(ctx, cfg, mc)
	}
	var none serve.Model
	start := time.Now()
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return none, err
	}
	tok, err := OpenTokenizer(mc.Path)
	if err != nil {
		return none, err
	}
	builder, err := newBuilder(mc, tok, described.Vocab)
	if err != nil {
		return none, err
	}
	scoring, err := scoringOf(&mc.Scoring, tok)
	if err != nil {
		return none, err
	}
	generates := builder.Depth() > 0
	c, err := m.openCheckpoint(mc, generates, func() (*checkpoint, error) { return m.loadTexts(ctx, cfg, mc, generates) })
	if err != nil {
		return none, err
	}
	weights, d := c.weights, c.queue
	policy, orders, err := prefixOf(cfg, mc)
	if err != nil {
		return none, err
	}
	var cache *reuse.Cache
	if m.memory.store != nil {
		opt := m.options(d, weights.Shape())
		opt.Policy, opt.Orders = policy, orders
		cache = m.openCache(builder, opt, doing(cfg, d))
	}
	blending, err := m.openBlend(cfg, mc, weights, cache)
	if err != nil {
		return none, err
	}
	var generator *generate.Generator
	if generates {
		generator = &generate.Generator{Prompt: builder, Do: d.Do, Cache: cache, Shape: weights.Shape(),
			Widths: mc.Codes.BeamWidths}
		m.target = &generate.Target{Name: mc.Name, Generator: generator, Model: weights}
	}
	m.app.log.Info("model loaded", "model", mc.Name, "architecture", described.Architecture, "dtype", weights.DType(),
		"kv", weights.Shape().KV,
		"checkpoint", human.Bytes(weights.CheckpointBytes()), "weights", human.Bytes(weights.Bytes()),
		"seconds", human.Seconds(time.Since(start)))
	return serve.Model{
		Name: mc.Name, Runner: d, Queue: d, Admit: d.Admit, Prompt: builder, Cache: cache, Disk: m.memory.disk,
		Reads: serve.Texts(), Generate: generator, Scoring: scoring,
		Orders: orders, Blend: blending, Vocab: weights.Vocab(), Positions: weights.MaxPositions(),
		Architecture: described.Architecture,
		DType:        weights.DType().String(),
	}, nil
}

// openDispatcher opens a model's engines, measures them and puts a queue in front of them.
func (m *Model) openDispatcher(ctx context.Context, cfg *config.Config,
	replicas []replica) (*dispatch.Dispatcher, error) {
	end := m.app.phase("engines", "model", m.config.Name)
	engines, asides, err := m.openEngines(cfg, replicas, m.memory.store)
	if err != nil {
		return nil, err
	}
	end()
	like := m.like
	m.like = nil
	times, err := m.measure(ctx, engines[0], replicas[0].model.MaxPositions(), like)
	if err != nil {
		return nil, err
	}
	rest(cfg, engines)
	d, err := dispatch.New(engines, dispatch.Options{
		Queue: cfg.Engine.Queue, SLO: time.Duration(cfg.SLOMillis) * time.Millisecond, Model: times, Like: like,
		Lost:     m.app.noteLost,
		Panicked: m.app.notePanic, Record: m.app.record.Room("dispatch"), Aside: asides,
		Turns: m.app.turnsOf(len(engines), replicas),
	})
	if err != nil {
		return nil, err
	}
	m.closers.add(d.Close)
	m.queue = d
	if t := m.memory.tenant; t != nil {
		t.SetLoad(d)
	}
	return d, nil
}

// profile returns the prefill times of an engine. If a checkpoint of the same shape serves, its times are known better
// than a measurement tells, and that would slow it down: both compute on the same device.
func profile(ctx context.Context, e dispatch.Engine, positions int,
	like *dispatch.Dispatcher) (schedule.PrefillModel, error) {
	if like != nil {
		return like.Model(), dispatch.Prepare(ctx, e, positions)
	}
	return dispatch.Profile(ctx, e, positions)
}

// measure prepares an engine and returns its prefill times.
func (m *Model) measure(ctx context.Context, e dispatch.Engine, positions int,
	like *dispatch.Dispatcher) (schedule.PrefillModel, error) {
	if prepares(e) && like == nil {
		end := m.app.phase("sizes of batches", "model", m.config.Name)
		if err := dispatch.Prepare(ctx, e, positions); err != nil {
			return schedule.PrefillModel{}, err
		}
		end()
	}
	defer m.app.phase("times of batches", "model", m.config.Name)()
	return profile(ctx, e, positions, like)
}

// prepares reports whether an engine prepares for sizes of batches, as a GPU's does.
func prepares(e dispatch.Engine) bool {
	s, ok := e.(interface{ Sizes(most int) []int })
	return ok && len(s.Sizes(math.MaxInt32)) > 0
}

// openEngines opens one engine per worker. Workers are assigned to replicas in turn. Those of one replica share its
// weights and GPU, or divide the cores. A worker that is no GPU also has an engine for jobs in the background, which
// takes no memory until it runs one. A GPU's batch cannot pause: all its layers are launched at once.
func (m *Model) openEngines(cfg *config.Config, replicas []replica,
	store *kv.Store) ([]dispatch.Engine, []dispatch.Pauser, error) {
	var out []dispatch.Engine
	var asides []dispatch.Pauser
	for i := range cfg.Workers {
		r := &replicas[i%len(replicas)]
		dev, err := m.workerDevice(cfg, r, i)
		if err != nil {
			return nil, nil, err
		}
		open := func() (*engine.Engine, error) {
			e, err := engine.New(r.model, dev, engine.Options{MaxTokens: cfg.Engine.MaxTokens, Cache: store, Now: time.Now})
			if err == nil {
				m.closers.add(e.Close)
			}
			return e, err
		}
		e, err := open()
		if err != nil {
			return nil, nil, err
		}
		out = append(out, e)
		if _, gpu := dev.(cuda.Device); gpu || !cfg.Computes() {
			continue
		}
		e, err = open()
		if err != nil {
			return nil, nil, err
		}
		asides = append(asides, e)
	}
	return out, asides, nil
}

// OpenTokenizer reads the checkpoint's tokenizer.json. It returns nil if there is none.
func OpenTokenizer(dir string) (prompt.Tokenizer, error) {
	name := filepath.Join(dir, "tokenizer.json")
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	t, err := tokenizer.Load(name)
	if err != nil {
		return nil, err
	}
	return t, nil
}

// newBuilder makes a prompt builder.
func newBuilder(mc *config.Model, tok prompt.Tokenizer, vocab int) (*prompt.Builder, error) {
	c := promptConfig(mc)
	if mc.ReadsChatTemplate() {
		var err error
		if c.ChatTemplate.Source, c.ChatTemplate.Tokens, err = tokenizer.ChatTemplate(mc.Path); err != nil {
			return nil, err
		}
	}
	return prompt.New(c, tok, vocab)
}

func promptConfig(mc *config.Model) prompt.Config {
	text := func(t config.Text) prompt.Text { return prompt.Text(t) }
	p := &mc.Prompt
	return prompt.Config{
		Preamble: text(p.Preamble), LeadIn: text(p.LeadIn), Instruction: text(p.Instruction),
		GenerateInstruction: text(p.GenerateInstruction),
		User:                p.User, Query: p.Query, Completion: p.Completion, ChatMessage: p.ChatMessage, ChatEnd: p.ChatEnd,
		Item: p.Item, History: p.History, HistoryItem: p.HistoryItem, Separator: p.Separator,
		Codes: prompt.Codes{FirstToken: mc.Codes.FirstToken, Size: mc.Codes.Size, Pattern: mc.Codes.Pattern},
	}
}

func scoringOf(c *config.Scoring, tok prompt.Tokenizer) (serve.Scoring, error) {
	if c.Kind != "pointwise" {
		return serve.Scoring{Kind: serve.Identifier}, nil
	}
	yes, err := answer("yes", c.Yes, tok)
	if err != nil {
		return serve.Scoring{}, err
	}
	no, err := answer("no", c.No, tok)
	return serve.Scoring{Kind: serve.Pointwise, Yes: yes, No: no}, err
}

// answer returns the single token that stands for an answer in pointwise scoring.
func answer(key string, t config.Token, tok prompt.Tokenizer) (int32, error) {
	if t.ByID {
		return t.ID, nil
	}
	if tok == nil {
		return 0, fmt.Errorf("scoring.%s: the text %s needs the checkpoint's tokenizer.json, which is missing: give the "+
			"token's number", key, t)
	}
	id, ok := tok.TokenID(t.Text)
	if !ok {
		return 0, fmt.Errorf("scoring.%s: %s is not one token of the vocabulary: give a text that is, or a token's number "+
			"(grebe doctor checks it)", key, t)
	}
	return id, nil
}

// telling returns a callback that reports the progress of loading, and logs it every few seconds.
func (a *App) telling(ctx context.Context, model string, progress func(string, int64, int64)) func(done, total int64) {
	last := time.Now()
	return func(done, total int64) {
		if progress != nil {
			progress(model, done, total)
		}
		if time.Since(last) < 3*time.Second || ctx.Err() != nil {
			return
		}
		last = time.Now()
		a.log.Info("loading", "model", model, "percent", 100*done/max(total, 1))
	}
}
