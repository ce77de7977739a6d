package serve

import (
	"context"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/generate"
	"grebe/kv/disk"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve/tracing"
)

// Runner runs the jobs of a model. An engine.Engine is one.
type Runner interface {
	Do(context.Context, *engine.Job) (*engine.Result, error)
}

// Kind says how a model scores.
type Kind uint8

const (
	// Identifier scores by the logits of the candidates' identifiers after one instruction.
	Identifier Kind = iota
	// Pointwise scores each candidate by the logits of Yes and No after its own instruction.
	Pointwise
)

func (k Kind) String() string {
	if k == Pointwise {
		return "pointwise"
	}
	return "identifier"
}

// Scoring says how a model scores, and by which tokens.
type Scoring struct {
	Kind    Kind
	Yes, No int32 // of Pointwise
}

// Model is one model to serve.
type Model struct {
	Name   string
	Runner Runner
	// Admit takes a place for a request before anything is computed for it, as dispatch.Dispatcher does; nil: everyone is let in.
	Admit    func(kind dispatch.Kind, size int, deadline time.Time) (*dispatch.Place, error)
	Prompt   *prompt.Builder
	Cache    *reuse.Cache        // nil: everything is computed
	Disk     *disk.Store         // what is kept below memory; nil: nothing
	Generate *generate.Generator // nil: the model has no codes, and cannot recommend
	Scoring  Scoring
	Orders   schedule.Orders // that prefix auto may choose, those of Cache; empty: both
	// Blend is nil, or says how prompts are blended; without a Cache nothing is, and they are computed whole.
	Blend *reuse.Blend
	// Reads says what kind of model it is: Texts or Events; nil: Texts.
	Reads     Reader
	Vocab     int // tokens that the model knows
	Positions int // positions that it has; 0: do not check
	// Shown by /v1/models.
	Architecture, DType string
	// Version names the checkpoint, and Origin is the folder where it was: a Loader opens it again from there.
	Version, Origin string
	// Retire frees all of it, once it serves no more; nil: nothing is to be freed. When ctx ends it leaves what it keeps on
	// disk for later, and MUST return soon.
	Retire func(ctx context.Context) error
}

// reads returns the model's kind.
func (m *Model) reads() Reader {
	if m.Reads == nil {
		return Texts()
	}
	return m.Reads
}

// scoresBy names the way in which the model scores: identifier, pointwise or, of a model of events, tasks.
func (m *Model) scoresBy() string { return m.reads().scoring(m) }

// ReadsTexts reports whether users and items are texts to the model.
func (m *Model) ReadsTexts() bool { return m.reads().readsTexts() }

// Recommends reports whether the model can recommend.
func (m *Model) Recommends() bool { return m.reads().recommends(m) }

// Reader is a kind of model: what it reads of users and items, and so how it ranks and recommends.
type Reader interface {
	ranker
	recommender
	// scoring names the way in which a model scores.
	scoring(m *Model) string
	// checkOp refuses an operation that the kind does not have.
	checkOp(m *Model, op string) error
	// checkUser refuses a user of whom a model would read nothing.
	checkUser(m *Model, u *grebev1.User) error
	// knows reports whether the checkpoint has an item that the catalog need not have.
	knows(item string) bool
	// readsTexts reports whether items are texts. Their KV can be computed ahead, and goes when a text changes.
	readsTexts() bool
}

// ranker orders candidates for a user.
type ranker interface {
	// policy is the order of a prompt whose request leaves it open.
	policy(m *Model) schedule.Policy
	// checkBlend refuses prefix: blend where nothing can be blended.
	checkBlend(m *Model) error
	rank(ctx context.Context, s *Service, w *work, user *grebev1.User, candidates []*grebev1.Item) ([]*prompt.Item, *ranking, error)
}

// recommender finds items for a user.
type recommender interface {
	recommends(m *Model) bool
	recommend(ctx context.Context, s *Service, c *call, id string, req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error)
}

// trace has the model's passes traced.
func (m *Model) trace(t *tracing.Tracer) {
	if t == nil {
		return
	}
	m.Runner = runner(t.Rounds(m.Runner.Do))
	if m.Generate != nil {
		m.Generate.Do = t.Rounds(m.Generate.Do)
	}
}

// runner is a function that runs jobs.
type runner tracing.Do

// Do implements Runner.
func (r runner) Do(ctx context.Context, job *engine.Job) (*engine.Result, error) { return r(ctx, job) }
