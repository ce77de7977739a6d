package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"slices"
	"time"
	"unicode"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve/tracing"
)

// Rank orders candidates for a user.
func (s *Service) Rank(ctx context.Context, req *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	describe := func(c *call, a *Asked) error { return s.describeRank(c, a, req) }
	return routed(ctx, s, "rank", req.Model, req.DeadlineMs, req, describe, s.rankHere)
}

func (s *Service) rankHere(ctx context.Context, req *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	defer s.serving(req.User.GetId())()
	resp, err := on(s, "rank", req.Model, req.DeadlineMs, func(c *call) (*grebev1.RankResponse, error) {
		return entered(ctx, c, dispatch.Single, len(req.Candidates),
			func(ctx context.Context) (*grebev1.RankResponse, error) {
				return s.rank(ctx, c, req)
			})
	})
	if err == nil {
		s.noteHot(req.User.GetId(), req.Candidates)
	}
	return resp, err
}

// rank orders candidates with the call's model.
func (s *Service) rank(ctx context.Context, c *call, req *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	id, err := requestID(req.RequestId)
	if err != nil {
		return nil, err
	}
	tracing.Named(ctx, id, c.model.Name)
	policy, err := s.policy(c, req.Prefix)
	if err != nil {
		return nil, err
	}
	budget, err := c.budget(req)
	if err != nil {
		return nil, err
	}
	if err := checkCount("candidates", len(req.Candidates)); err != nil {
		return nil, err
	}
	if req.TopK < 0 {
		return nil, Errorf(InvalidArgument, "top_k", "%d is negative", req.TopK)
	}
	user, err := s.whom(c, req.User)
	if err != nil {
		return nil, err
	}
	w := &work{call: c, policy: policy, userID: user.Id, explain: req.Explain,
		blend: req.Prefix == "blend", budget: budget}
	w.auto = req.Prefix == "" || req.Prefix == "auto"
	items, r, err := c.model.reads().rank(ctx, s, w, user, req.Candidates)
	if err != nil {
		return nil, err
	}
	if c.op == "rank" { // not for probes of a checkpoint
		s.metrics.prefix.WithLabelValues(r.prefix).Inc()
	}
	resp := &grebev1.RankResponse{
		Model: c.model.Name, RequestId: id, Prefix: r.prefix, PrefixReason: w.reason(r), Node: s.cfg.Node,
		Usage: r.usage(),
		TimingMs: &grebev1.Timing{
			Queue: milliseconds(r.result.Queue), Fetch: milliseconds(r.fetch), Compute: milliseconds(r.result.Compute),
		},
	}
	resp.Usage.Note, resp.Notes = r.note, r.notes
	name(r.parts, items)
	resp.Parts = r.parts
	for _, i := range r.best(int(req.TopK)) {
		resp.Results = append(resp.Results, &grebev1.Ranked{
			Index: int32(i), Id: items[i].ID, Score: r.scores[i], Logit: r.logits[i], Tasks: r.tasksOf(i),
		})
	}
	resp.TimingMs.Total = milliseconds(time.Since(c.start))
	return resp, nil
}

// work is a ranking to compute.
type work struct {
	*call
	policy  schedule.Policy
	user    []int32
	content []int32 // of the user's tokens, where a model of events has content features
	userID  string  // may be empty
	items   [][]int32
	// explain requests the sources of the prompt's parts.
	explain bool
	// blend requests a blended prompt; auto leaves the choice to the server. A nil budget is the model's.
	blend, auto bool
	budget      *blend.Budget
	// lay lays out the prompt; nil: the layout of the model's scoring.
	lay func(order plan.Order, user []int32, items [][]int32) (prompt.Layout, error)
}

// ranking is the result of a job: a logit and a score for each item.
type ranking struct {
	prefix string
	reason string // why this prefix, in a word
	layout prompt.Layout
	result *engine.Result
	fetch  time.Duration      // time to find and pin cached KV
	tiers  [plan.NumTiers]int // cached tokens by tier
	logits []float32
	scores []float64
	parts  []*grebev1.Part      // if explain is set
	tasks  []map[string]float64 // for a model of events, per item
	note   string
	notes  []string // why the answer is degraded
	// account has the sources of a blended prompt's tokens; nil for other prompts.
	account *reuse.Account
}

// explained sets the sources of the prompt of a job that ran, if they are asked for.
func (r *ranking) explained(asked bool, job *engine.Job) {
	if asked {
		r.parts = accountOf(&r.layout, job, r.result)
	}
}

func (r *ranking) tasksOf(i int) map[string]float64 {
	if r.tasks == nil {
		return nil
	}
	return r.tasks[i]
}

// best returns the indices of the n best items, best first, with ties in input order. It returns all if n is 0.
func (r *ranking) best(n int) []int {
	idx := make([]int, len(r.logits))
	for i := range idx {
		idx[i] = i
	}
	slices.SortStableFunc(idx, func(a, b int) int {
		if c := cmp.Compare(r.logits[b], r.logits[a]); c != 0 || r.tasks == nil {
			return c
		}
		return cmp.Compare(r.scores[b], r.scores[a]) // for a model of events the logit is the rounded score
	})
	if n > 0 && n < len(idx) {
		idx = idx[:n]
	}
	return idx
}

// rankItems runs a ranking by the model's kind of scoring.
func (s *Service) rankItems(ctx context.Context, w *work, items []*prompt.Item) (*ranking, error) {
	var identifiers []int32
	if w.model.Scoring.Kind == Identifier {
		var err error
		if identifiers, err = w.identifiers(items); err != nil {
			return nil, err
		}
	}
	w.items = make([][]int32, len(items))
	for i, it := range items {
		err := w.alive(ctx)
		if err != nil {
			return nil, err
		}
		if w.items[i], err = w.itemTokens(i, it); err != nil {
			return nil, err
		}
	}
	if identifiers != nil {
		return s.rankByIdentifier(ctx, w, identifiers)
	}
	return s.rankPointwise(ctx, w)
}

// run lays out a ranking, attaches cached KV and computes the rest. ask sets which results of the job are wanted.
func (s *Service) run(ctx context.Context, w *work, pointwise bool,
	ask func(l *prompt.Layout, job *engine.Job)) (*ranking, error) {
	cache, start := w.model.Cache, time.Now()
	ctx, cancel := w.within(ctx)
	defer cancel()
	if w.blend {
		var visit *reuse.Blended
		if cache != nil {
			visit = cache.BeginBlend(w.asked(pointwise))
		}
		return s.runBlended(ctx, w, visit, start, ask)
	}
	var visit *reuse.Visit
	order := fixedOrder(w.policy)
	if cache != nil {
		visit = cache.Begin(w.asked(pointwise))
		if w.pays(pointwise, visit) {
			return s.runBlended(ctx, w, cache.BlendInstead(visit), start, ask)
		}
		order = visit.Order()
	}
	r := &ranking{prefix: order.String(), reason: "no-cache"}
	if visit != nil { // also after an error
		r.reason = visit.Decision.Reason.String()
		defer func() { visit.End(&r.layout, r.result) }()
	}
	if w.policy == schedule.None {
		r.prefix = "none"
	}
	lay := w.model.Prompt.Rank
	if pointwise {
		lay = w.model.Prompt.Pointwise
	}
	if w.lay != nil {
		lay = w.lay
	}
	var err error
	r.layout, err = lay(order, w.user, w.items)
	job := &engine.Job{Plan: r.layout.Plan}
	if err == nil {
		ask(&r.layout, job)
		if visit != nil {
			visit.Attach(ctx, &r.layout, job)
			r.fetch = time.Since(start)
			s.cfg.Tracer.Stage(ctx, "fetch", start, r.fetch)
		}
		r.result, err = s.do(ctx, w.call, job)
		if visit != nil && w.call.badKV {
			visit.Discard(&r.layout)
		}
	} else {
		err = w.layoutError(err)
	}
	if err == nil {
		r.explained(w.explain, job)
		r.tiers = r.result.Tiers(job)
		s.metrics.prompted(w.call.op, r.result.Computed, sources(r.tiers))
	}
	return r, err
}

// asked describes a ranking for the cache.
func (w *work) asked(pointwise bool) *reuse.Request {
	return &reuse.Request{
		UserID: w.userID, User: w.user, Items: w.items, Pointwise: pointwise, Policy: w.policy,
		Slack: time.Until(w.start.Add(w.deadline)),
	}
}

// reason returns why a ranking's prefix was used.
func (w *work) reason(r *ranking) string {
	if !w.auto {
		return "requested"
	}
	return r.reason
}

// fixedOrder returns the order of a policy if there is no cache.
func fixedOrder(p schedule.Policy) plan.Order {
	if p == schedule.Item {
		return plan.ItemFirst
	}
	return plan.UserFirst
}

// identifiers returns the items' identifiers. Each item must have one, and they must differ.
func (c *call) identifiers(items []*prompt.Item) ([]int32, error) {
	ids := make([]int32, len(items))
	first := make(map[int32]int, len(items))
	for i, it := range items {
		id := it.Identifier
		if id < 0 {
			return nil, Errorf(Unprocessable, path{"candidates", i}.String()+".identifier",
				"is missing: model %q scores by identifier; give the item one, or set scoring: {kind: pointwise, …} for the model",
				c.model.Name)
		}
		if int(id) >= c.model.Vocab {
			return nil, Errorf(Unprocessable, path{"candidates", i}.String()+".identifier", "%d is outside the vocabulary of %d",
				id, c.model.Vocab)
		}
		if j, dup := first[id]; dup {
			return nil, Errorf(Unprocessable, path{"candidates", i}.String()+".identifier",
				"%d is the identifier of candidates[%d] too", id, j)
		}
		first[id], ids[i] = i, id
	}
	return ids, nil
}

// rankByIdentifier computes the logits of all identifiers at once. Scores are their softmax.
func (s *Service) rankByIdentifier(ctx context.Context, w *work, identifiers []int32) (*ranking, error) {
	r, err := s.run(ctx, w, false, func(l *prompt.Layout, job *engine.Job) {
		job.Want = []engine.Want{{Segment: l.Answers, IDs: identifiers}}
	})
	if err != nil {
		return nil, err
	}
	r.logits, r.scores = r.result.Logits[0], softmax(r.result.Logits[0])
	return r, nil
}

// rankPointwise computes yes and no at each item's discriminant. The logit is their difference, the score the
// probability of yes against no.
func (s *Service) rankPointwise(ctx context.Context, w *work) (*ranking, error) {
	ids := []int32{w.model.Scoring.Yes, w.model.Scoring.No}
	r, err := s.run(ctx, w, true, func(l *prompt.Layout, job *engine.Job) {
		job.Want = make([]engine.Want, len(w.items))
		for i := range job.Want {
			job.Want[i] = engine.Want{Segment: l.Answers + i, IDs: ids}
		}
	})
	if err != nil {
		return nil, err
	}
	r.logits, r.scores = make([]float32, len(w.items)), make([]float64, len(w.items))
	for i, yn := range r.result.Logits {
		r.logits[i] = yn[0] - yn[1]
		r.scores[i] = softmax(yn)[0]
	}
	return r, nil
}

// softmax returns the probabilities of finite logits.
func softmax(logits []float32) []float64 {
	out := make([]float64, len(logits))
	total := logSumExp(logits)
	for i, l := range logits {
		out[i] = math.Exp(float64(l) - total)
	}
	return out
}

// logSumExp returns log Σ exp(logits).
func logSumExp(logits []float32) float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}

// policy parses the prefix of a request.
func (s *Service) policy(c *call, prefix string) (schedule.Policy, error) {
	switch prefix {
	case "", "auto":
		return c.model.reads().policy(c.model.Model), nil
	case "user":
		return schedule.User, nil
	case "item":
		return schedule.Item, nil
	case "none":
		return schedule.None, nil
	case "blend":
		return schedule.User, c.model.reads().checkBlend(c.model.Model)
	}
	return 0, Errorf(InvalidArgument, "prefix", "%s: want auto, user, item, none or blend", Quoted(prefix))
}

// requestID checks a client's request id, or makes one.
func requestID(id string) (string, error) {
	if id == "" {
		var b [8]byte
		rand.Read(b[:]) // never fails
		return hex.EncodeToString(b[:]), nil
	}
	if len(id) > 128 {
		return "", Errorf(InvalidArgument, "request_id", "%d bytes, at most 128", len(id))
	}
	for _, r := range id {
		if !unicode.IsPrint(r) {
			return "", Errorf(InvalidArgument, "request_id", "has a character that is not printable")
		}
	}
	return id, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
