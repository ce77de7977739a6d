package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/wire"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
)

// maxText bounds the bytes of one text, because tokenising cannot be interrupted.
const maxText = 1 << 20

// call is one request in flight.
type call struct {
	op       string
	start    time.Time
	deadline time.Duration
	slot     *slot
	model    *checkpoint   // held until the answer is ready
	stored   *grebev1.User // of the catalog, if the request names one
	note     string        // what was left out of the user's history
	badKV    bool          // cached KV gave answers that are not finite, and without it they are
}

// begin starts a call. A deadline of 0 means the server's default. The caller MUST release the model.
func (s *Service) begin(op, model string, deadline int32) (_ *call, err error) {
	times := s.times.Load()
	c := &call{op: op, start: time.Now(), deadline: times.usual}
	if c.slot, err = s.slot(model); err != nil {
		return nil, err
	}
	c.model = c.slot.take()
	defer func() {
		if err != nil {
			c.slot.release(c.model)
		}
	}()
	if err := c.model.reads().checkOp(c.model.Model, op); err != nil {
		return nil, err
	}
	if deadline != 0 {
		c.deadline = time.Duration(deadline) * time.Millisecond
	}
	if c.deadline < 0 || c.deadline > times.longest {
		return nil, Errorf(InvalidArgument, "deadline_ms", "%d is not between 1 and %d", deadline,
			times.longest.Milliseconds())
	}
	return c, nil
}

// slot finds a model by name. The name may be empty if there is only one model.
func (s *Service) slot(name string) (*slot, error) {
	if name == "" && len(s.served) == 1 {
		return s.served[0], nil
	}
	if m := s.models[name]; m != nil {
		return m, nil
	}
	if name == "" {
		return nil, Errorf(InvalidArgument, "model", "is missing: give one of %s", s.names())
	}
	return nil, Errorf(NotFound, "model", "no model %s: there are %s", Quoted(name), s.names())
}

// names lists the first ten models, for messages.
func (s *Service) names() string {
	var names []string
	for i, m := range s.served {
		if i == 10 {
			names = append(names, "…")
			break
		}
		names = append(names, Quoted(m.name))
	}
	return strings.Join(names, ", ")
}

// compatibleModel translates a model name of another server's client: clients of SGLang send "default".
func (s *Service) compatibleModel(name string) string {
	if name == "default" && s.models[name] == nil {
		return ""
	}
	return name
}

// within returns ctx with the call's deadline.
func (c *call) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, c.start.Add(c.deadline))
}

// do runs a job within the call's deadline and records metrics.
func (s *Service) do(ctx context.Context, c *call, job *engine.Job) (*engine.Result, error) {
	err := c.checkPositions(job.Plan)
	if err != nil && job.LeaveBeside() {
		err = c.checkPositions(job.Plan)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, AsError(err)
	}
	res, err := c.model.Runner.Do(ctx, job)
	if errors.Is(err, engine.ErrTooLarge) && job.LeaveBeside() { // leave out what only later requests would use
		res, err = c.model.Runner.Do(ctx, job)
	}
	if errors.Is(err, kv.ErrFull) { // no memory to load cached KV: compute everything
		job.Segments = nil
		res, err = c.model.Runner.Do(ctx, job)
	}
	if err != nil {
		return nil, s.explain(c, err)
	}
	if err = checkResult(job, res); err != nil {
		releaseKept(res)
		if job.Blend != nil || !job.Reuses() {
			return nil, s.explain(c, err)
		}
		s.log.Warn("scores from cached KV are not finite: computing the request without the cache", "op", c.op,
			"model", c.model.Name,
			"error", err)
		job.Segments, job.Once = nil, false
		if res, err = c.model.Runner.Do(ctx, job); err != nil {
			return nil, s.explain(c, err)
		}
		if err = checkResult(job, res); err != nil {
			releaseKept(res)
			return nil, s.explain(c, err)
		}
		c.badKV = true
	}
	s.metrics.ran(res)
	if time.Since(c.start) <= c.deadline {
		s.metrics.sloOK.WithLabelValues(c.op).Inc()
	}
	return res, nil
}

// releaseKept releases the KV of a job whose answers are not finite, which is not kept.
func releaseKept(res *engine.Result) {
	for _, e := range res.Kept {
		if e != nil {
			e.Release()
		}
	}
}

// explain turns an error of the engine into one for the client. It logs internal errors.
func (s *Service) explain(c *call, err error) error {
	e := AsError(err)
	if errors.Is(err, dispatch.ErrShed) {
		return Errorf(Exhausted, "", "the request is predicted to miss its deadline of %d ms: ask again later, or with a "+
			"longer deadline_ms",
			c.deadline.Milliseconds())
	}
	if errors.Is(err, engine.ErrNoMemory) {
		s.log.Warn("the device has no memory left for a request, even alone", "op", c.op, "model", c.model.Name, "error", err)
	}
	if e.code == Internal {
		s.log.Error("a job failed", "op", c.op, "model", c.model.Name, "error", err)
	}
	return e
}

// checkResult checks that a job's answers are complete and finite.
func checkResult(job *engine.Job, res *engine.Result) error {
	if len(res.Logits) != len(job.Want) {
		return fmt.Errorf("%d answers for %d questions", len(res.Logits), len(job.Want))
	}
	for i, logits := range res.Logits {
		if err := checkLogits(logits, len(job.Want[i].IDs)); err != nil {
			return err
		}
	}
	for i, state := range res.Hidden {
		if err := checkLogits(state, len(state)); err != nil {
			return fmt.Errorf("state of segment %d: %w", job.Hidden[i], err)
		}
	}
	return nil
}

// checkLogits keeps NaN and infinity out of responses.
func checkLogits(logits []float32, want int) error {
	if len(logits) != want {
		return fmt.Errorf("%d logits for %d tokens", len(logits), want)
	}
	for i, l := range logits {
		if f := float64(l); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("logit %d is %v", i, l)
		}
	}
	return nil
}

func (c *call) checkPositions(p *plan.Plan) error {
	end := 0
	for i := range p.Segments {
		end = max(end, p.Segments[i].Start+len(p.Segments[i].Tokens))
	}
	return c.checkEnd(end)
}

// checkEnd checks that a prompt ends within the model's positions.
func (c *call) checkEnd(end int) error {
	if c.model.Positions > 0 && end > c.model.Positions {
		return Errorf(TooLarge, "", "the prompt takes %d positions, but the model has %d", end, c.model.Positions)
	}
	return nil
}

// whom returns the user of a request: as given in it, or from the catalog.
func (s *Service) whom(c *call, m *grebev1.User) (*grebev1.User, error) {
	if m == nil {
		return nil, Errorf(InvalidArgument, "user", "is missing")
	}
	if m.Text != nil || m.Tokens != nil || m.History != nil || m.Events != nil {
		if err := c.model.reads().checkUser(c.model.Model, m); err != nil {
			return nil, err
		}
		if err := checkNew(m, m.NewEvents); err != nil {
			return nil, err
		}
		return m, c.checkInput(path{"user", -1}, m.Text, m.Tokens)
	}
	if m.Id == "" {
		return nil, Errorf(InvalidArgument, "user", "give id, history, text or tokens")
	}
	known, ok, err := s.known(c, m.Id)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, Errorf(InvalidArgument, "user.id", "no user %s: put it into the catalog, or send its history or text",
			Quoted(m.Id))
	}
	if s.cfg.Users == nil { // a store of its own returns another message each time
		c.stored = known
	}
	return withNew(known, m.NewEvents), checkNew(known, m.NewEvents)
}

// withNew returns a stored user with the new events of a request.
func withNew(u *grebev1.User, events []*grebev1.Event) *grebev1.User {
	if len(events) == 0 {
		return u
	}
	return &grebev1.User{Id: u.Id, History: u.History, Text: u.Text, Tokens: u.Tokens, Events: u.Events, NewEvents: events}
}

// checkNew refuses new events of a user whose prompt they cannot follow.
func checkNew(u *grebev1.User, events []*grebev1.Event) error {
	if len(events) > 0 && u.Tokens != nil {
		return Errorf(Unprocessable, "user.new_events", "the user has tokens, which no event can follow")
	}
	return nil
}

// userTokens returns the tokens of a request's user.
func (s *Service) userTokens(c *call, m *grebev1.User) ([]int32, error) {
	tokens, err := c.model.Prompt.UserTokens(s.resolved(c, m))
	if err != nil {
		return nil, promptError("user", err)
	}
	return tokens, nil
}

// resolved resolves a user, and counts and notes the items that the prompt leaves out.
func (s *Service) resolved(c *call, m *grebev1.User) *prompt.User {
	u, unknown := s.resolve(c, m)
	bare, lack := c.model.Prompt.Unlisted(u)
	s.metrics.unknown.Add(float64(unknown + bare))
	c.note = also(leftOut(unknown, "is unknown", "are unknown"), leftOut(bare, "has no "+lack, "have no "+lack))
	return u
}

// leftOut is the note about items of a history that are not in the prompt; "": there are none.
func leftOut(n int, is, are string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 item of the history was left out: it " + is
	}
	return fmt.Sprintf("%d items of the history were left out: they %s", n, are)
}

// also joins two notes, each of which may be empty.
func also(note, more string) string {
	if note == "" || more == "" {
		return note + more
	}
	return note + "; " + more
}

// resolve looks up the items of a user's history, as the model sees them. unknown counts those that the catalog does
// not have.
func (s *Service) resolve(c *call, m *grebev1.User) (u *prompt.User, unknown int) {
	v := s.view(c.model.Model)
	if v == nil {
		return s.catalog.Resolve(m)
	}
	return catalog.ResolveWith(m, func(id string) (*prompt.Item, bool) { return v.Item(s.catalog, id) })
}

// candidate returns candidate i: as given in the request, or from the catalog.
func (s *Service) candidate(c *call, i int, m *grebev1.Item) (*prompt.Item, error) {
	field := path{"candidates", i}
	if m == nil {
		m = &grebev1.Item{}
	}
	if m.Text != nil || m.Tokens != nil || len(m.Attributes) > 0 {
		return catalog.Item(m), c.checkInput(field, m.Text, m.Tokens)
	}
	if m.Id == "" {
		return nil, Errorf(InvalidArgument, field.String(), "give id, text or tokens")
	}
	it, ok := s.item(c.model.Model, m.Id)
	if !ok {
		return nil, Errorf(InvalidArgument, field.String()+".id", "no item %s", Quoted(m.Id))
	}
	if m.Identifier != nil {
		own := *it
		own.Identifier = *m.Identifier
		return &own, nil
	}
	return it, nil
}

// itemTokens returns the tokens of a candidate. It has at least one.
func (c *call) itemTokens(i int, it *prompt.Item) ([]int32, error) {
	ids, err := c.model.Prompt.ItemTokens(it)
	if err != nil {
		return nil, promptError(path{"candidates", i}.String(), err)
	}
	if len(ids) == 0 {
		return nil, Errorf(InvalidArgument, path{"candidates", i}.String(), "has no tokens")
	}
	return ids, nil
}

// promptError explains why a user or an item has no tokens.
func promptError(field string, err error) error {
	if errors.Is(err, prompt.ErrTooLarge) {
		return Errorf(TooLarge, field, "%v", err)
	}
	return Errorf(Unprocessable, field, "%v", err)
}

// path names an element of a list in the request, or the field itself if index is negative. It is made for every
// candidate and formatted only for errors.
type path struct {
	name  string
	index int
}

func (p path) String() string {
	if p.index < 0 {
		return p.name
	}
	return fmt.Sprintf("%s[%d]", p.name, p.index)
}

// checkInput checks a text and tokens of a request.
func (c *call) checkInput(field path, text *string, tokens []int32) error {
	if text != nil && len(*text) > maxText {
		return Errorf(TooLarge, field.String()+".text", "%d bytes, at most %d", len(*text), maxText)
	}
	return c.checkTokens(field, ".tokens", tokens)
}

// checkTokens checks tokens in the field, or in a field inside it.
func (c *call) checkTokens(field path, inside string, tokens []int32) error {
	for i, id := range tokens {
		if id < 0 || int(id) >= c.model.Vocab {
			return Errorf(InvalidArgument, fmt.Sprintf("%s%s[%d]", field, inside, i), "%d is outside the vocabulary of %d", id,
				c.model.Vocab)
		}
	}
	return nil
}

func checkCount(field string, n int) error {
	if n < 1 || n > wire.MaxCandidates {
		return Errorf(InvalidArgument, field, "%d elements, want 1 to %d", n, wire.MaxCandidates)
	}
	return nil
}

// usage counts the tokens of a plan that ran.
func usage(r *ranking) *grebev1.Usage {
	u := promptUsage(r.layout.Plan, r.result.Cached, r.tiers)
	u.ComputedTokens = int32(r.result.Computed)
	return u
}

// promptUsage counts the tokens of a plan. cached is the number of cached tokens, at their number per tier.
func promptUsage(p *plan.Plan, cached int, at [plan.NumTiers]int) *grebev1.Usage {
	u := &grebev1.Usage{
		PromptTokens: int32(p.Tokens()), CachedTokens: int32(cached),
		BySource: sources(at),
	}
	for i := range p.Segments {
		n := int32(len(p.Segments[i].Tokens))
		switch p.Segments[i].Kind {
		case plan.User:
			u.UserTokens += n
		case plan.Item:
			u.ItemTokens += n
		default:
			u.InstructionTokens += n
		}
	}
	return u
}

// sources counts cached tokens by tier.
func sources(at [plan.NumTiers]int) *grebev1.Sources {
	return &grebev1.Sources{
		Device: int32(at[plan.Device]), Host: int32(at[plan.Host]), Disk: int32(at[plan.Disk]), Peer: int32(at[plan.Peer]),
	}
}

// compatibleUsage counts the tokens of a prompt in the form of other servers.
func compatibleUsage(p *plan.Plan, cached int) *grebev1.CompatibleUsage {
	n := int32(p.Tokens())
	return &grebev1.CompatibleUsage{
		PromptTokens: n, TotalTokens: n, CachedTokens: int32(cached),
		PromptTokensDetails: &grebev1.PromptDetails{CachedTokens: int32(cached)},
	}
}

// layoutError explains why a prompt cannot be laid out.
func (c *call) layoutError(err error) error {
	if errors.Is(err, prompt.ErrNoInstruction) {
		return Errorf(Unprocessable, "model", "%v: set models[].prompt.instruction of %s", err, Quoted(c.model.Name))
	}
	return err
}

// Quoted quotes a name from a request for a message, and shortens a long one.
func Quoted(s string) string {
	if len(s) > 64 {
		return fmt.Sprintf("%.64q…", s)
	}
	return fmt.Sprintf("%q", s)
}

// arrivedKey is the context key of the time that a request arrived.
type arrivedKey struct{}

// Arrived stores the time that a request arrived completely. Its deadline counts from then.
func Arrived(ctx context.Context, at time.Time) context.Context {
	return context.WithValue(ctx, arrivedKey{}, at)
}

// entered takes a place in the queue of the engines and calls answer. It refuses a request that is predicted to miss
// its deadline, before texts are looked up and tokenised.
func entered[R any](ctx context.Context, c *call, kind dispatch.Kind, size int,
	answer func(context.Context) (R, error)) (R, error) {
	if at, ok := ctx.Value(arrivedKey{}).(time.Time); ok {
		c.start = at
	}
	if end, ok := ctx.Deadline(); ok && forwarded(ctx) { // what the process that it came from has left
		c.deadline = min(c.deadline, max(0, end.Sub(c.start)))
	}
	if c.model.Admit == nil || dispatch.InBackground(ctx) && c.model.Queue.Pauses() { // it delays nobody
		return answer(ctx)
	}
	place, err := c.model.Admit(kind, size, c.start.Add(c.deadline))
	if err != nil {
		var none R
		return none, err
	}
	defer place.Leave()
	return answer(place.Within(ctx))
}
