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

// Runner runs the jobs of a model, as engine.Engine does.
type Runner interface {
	Do(context.Context, *engine.Job) (*engine.Result, error)
}

// Kind is the way in which a model scores.
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

// Scoring is a model's kind of scoring and its tokens.
type Scoring struct {
	Kind    Kind
	Yes, No int32 // for Pointwise
}

// Model is one model to serve.
type Model struct {
	Name   string
	Runner Runner
	Queue  *dispatch.Dispatcher // that Runner and Admit are of; nil: of none
	// Admit takes a place for a request before anything is computed for it, as dispatch.Dispatcher does; nil: all
	// requests are admitted.
	Admit    func(kind dispatch.Kind, size int, deadline time.Time) (*dispatch.Place, error)
	Prompt   *prompt.Builder
	Cache    *reuse.Cache        // nil: everything is computed
	Disk     *disk.Store         // KV on disk; nil: none
	Generate *generate.Generator // nil: the model has no codes and cannot recommend
	Scoring  Scoring
	Orders   schedule.Orders // that prefix auto may choose; those of Cache; empty: both
	// Blend configures blended prompts; nil: there are none. Without a Cache blended prompts are computed whole.
	Blend *reuse.Blend
	// Reads is the kind of model: Texts or Events; nil: Texts.
	Reads     Reader
	Vocab     int // size of the vocabulary
	Positions int // most positions of a prompt; 0: not checked
	// Shown by /v1/models.
	Architecture, DType string
	Version             string // of the checkpoint and its settings
	// Reopen opens the same checkpoint with the same settings after it was retired. It is like Open of a Loader; nil:
	// it cannot be opened again.
	Reopen func(ctx context.Context, progress func(done, total int64)) (*Model, error)
	// Retire frees the model once it serves no more; nil: nothing to free. When ctx ends, Retire leaves KV on disk
	// for later and MUST return soon.
	Retire func(ctx context.Context) error
}

// reads returns the model's kind.
func (m *Model) reads() Reader {
	if m.Reads == nil {
		return Texts()
	}
	return m.Reads
}

// scoresBy names the kind of scoring: identifier, pointwise or, for a model of events, tasks.
func (m *Model) scoresBy() string { return m.reads().scoring(m) }

// ReadsTexts reports whether the model reads users and items as texts.
func (m *Model) ReadsTexts() bool { return m.reads().readsTexts() }

// Recommends reports whether the model can recommend.
func (m *Model) Recommends() bool { return m.reads().recommends(m) }

// Reader is a kind of model: what it reads of users and items, and how it ranks and recommends.
type Reader interface {
	ranker
	recommender
	// scoring names the model's kind of scoring.
	scoring(m *Model) string
	// checkOp refuses an operation that the kind does not have.
	checkOp(m *Model, op string) error
	// checkUser refuses a user of whom the model would read nothing.
	checkUser(m *Model, u *grebev1.User) error
	// knows reports whether the checkpoint has an item, which the catalog need not have.
	knows(item string) bool
	// readsTexts reports whether items are texts. Their KV can be computed ahead, and is removed when a text changes.
	readsTexts() bool
}

// ranker orders candidates for a user.
type ranker interface {
	// policy returns the policy for prefix auto.
	policy(m *Model) schedule.Policy
	// checkBlend refuses prefix blend if the model cannot blend.
	checkBlend(m *Model) error
	// tokens sets the tokens of a request's user and candidates.
	tokens(s *Service, w *work, user *grebev1.User, candidates []*grebev1.Item) error
	rank(ctx context.Context, s *Service, w *work, user *grebev1.User, candidates []*grebev1.Item) ([]*prompt.Item,
		*ranking, error)
}

// recommender finds items for a user.
type recommender interface {
	// shows reports whether the model reads anything of a user. If not, it notes what is left out.
	shows(s *Service, c *call, u *grebev1.User) bool
	recommends(m *Model) bool
	recommend(ctx context.Context, s *Service, c *call, id string,
		req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error)
}

// trace traces the model's jobs.
func (m *Model) trace(t *tracing.Tracer) {
	if t == nil {
		return
	}
	m.Runner = runner(t.Rounds(m.Runner.Do))
	if m.Generate != nil {
		m.Generate.Do = t.Rounds(m.Generate.Do)
	}
}

// runner is a function as a Runner.
type runner tracing.Do

// Do implements Runner.
func (r runner) Do(ctx context.Context, job *engine.Job) (*engine.Result, error) { return r(ctx, job) }
