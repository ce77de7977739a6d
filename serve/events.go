package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"weak"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog/filter"
	"grebe/engine"
	"grebe/generate"
	"grebe/internal/human"
	"grebe/internal/wire"
	"grebe/model/hstu"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// events is a model of events: users are sequences of events, items are rows of the checkpoint. It has no texts and
// no codes.
type events struct {
	model  *hstu.Model
	report func(Served) // may be nil
	known  sequences
}

// Events returns the Reader of a model of events. The Model's Runner must run m. report is called for each answered
// request; it may be nil.
func Events(m *hstu.Model, report func(Served)) Reader {
	return &events{model: m, report: report, known: sequences{most: mostSequenced}}
}

func (*events) scoring(*Model) string { return "tasks" }

func (*events) checkOp(m *Model, op string) error {
	if op == "rank" || op == "recommend" {
		return nil
	}
	return Errorf(Unprocessable, "model", "%q is a model of events: it ranks and recommends, and reads no texts", m.Name)
}

// checkUser accepts everyone: history checks users.
func (*events) checkUser(*Model, *grebev1.User) error { return nil }

func (e *events) knows(item string) bool {
	if !e.model.Named() {
		return false
	}
	_, ok := e.model.Row(item)
	return ok
}

// readsTexts is false: items are rows, which change only with the checkpoint.
func (*events) readsTexts() bool { return false }

// policy puts the user first: an item is one row, so caching it as a prefix gains little.
func (*events) policy(*Model) schedule.Policy { return schedule.User }

func (*events) checkBlend(m *Model) error {
	return Errorf(Unprocessable, "prefix", "model %q reads events, which blend does not: want auto, user or item", m.Name)
}

func (e *events) recommends(*Model) bool { return e.model.Config().Retrieval && e.model.Named() }

// history is a user's history as the model reads it.
type history struct {
	tokens  []int32 // contextual rows, then the events; MUST NOT be changed
	content []int32 // of these, where the model has content features
	events  int
	at      hstu.Moment
	note    string // what was left out
}

// leave adds to the note.
func (h *history) leave(out string) { h.note = also(h.note, out) }

// history resolves a user's events for a request with so many candidates. It leaves out items that the model does not
// know. If the history is too long, it leaves out the oldest events, in steps of an eighth of the limit. Between
// steps the prefix stays the same, so cached KV can be used.
func (e *events) history(s *Service, c *call, u *grebev1.User, candidates int) (*history, error) {
	m := e.model
	if u.Tokens != nil {
		return nil, Errorf(Unprocessable, "user.tokens", "model %q takes events or a history", c.model.Name)
	}
	if u.Text != nil && len(u.Events) == 0 && len(u.History) == 0 && len(u.NewEvents) == 0 {
		return nil, Errorf(Unprocessable, "user.text", "model %q takes events or a history", c.model.Name)
	}
	all := e.sequence(s, c, u)
	s.metrics.unknown.Add(float64(all.unknown))
	h := &history{at: hstu.Moment{Query: s.now().Unix(), Events: all.times}, tokens: all.tokens, events: len(all.tokens),
		note: leftOut(all.unknown, "is unknown", "are unknown")}
	content, identity := all.content, all.identity
	if over := h.events - m.MaxEvents(); over > 0 {
		step := max(1, m.MaxEvents()/8)
		cut := min((over+step-1)/step*step, h.events)
		h.tokens, h.events = h.tokens[cut:], h.events-cut
		h.at.Events = h.at.Events[min(cut, len(h.at.Events)):]
		content, identity = content[min(cut*m.Width(), len(content)):], nil
		oldest := fmt.Sprintf("the oldest %d events were", cut)
		if cut == 1 {
			oldest = "the oldest event was"
		}
		h.leave(fmt.Sprintf("%s left out: the model takes %d", oldest, m.MaxEvents()))
	}
	if len(m.Config().Features) > 0 {
		rows, err := m.Context(contextOf(m.Config(), slices.Concat(listed(u), u.NewEvents)), h.events+candidates)
		if err != nil {
			return nil, Errorf(Unprocessable, "user.events", "%v", err)
		}
		h.tokens = append(rows, h.tokens...)
	}
	if !m.Featured() {
		return h, nil
	}
	h.content = content
	if before := h.tokens[:len(h.tokens)-h.events]; len(before) > 0 || identity == nil {
		h.content = append(m.AppendContext(nil, before), content...)
		identity = m.Identify(nil, h.content)
	}
	h.tokens = identity.Tokens()
	return h, nil
}

// sequence reads a user's events: the stored ones once, and those of the request each time.
func (e *events) sequence(s *Service, c *call, u *grebev1.User) *sequence {
	stored := e.stored(s, c, u)
	if len(u.NewEvents) == 0 {
		return stored
	}
	all := &sequence{tokens: make([]int32, 0, len(stored.tokens)+len(u.NewEvents)), unknown: stored.unknown}
	all.tokens, all.times = append(all.tokens, stored.tokens...), slices.Clone(stored.times)
	all.content = append(make([]int32, 0, len(stored.content)+len(u.NewEvents)*e.model.Width()), stored.content...)
	e.read(s, all, u.NewEvents)
	e.identify(all, stored)
	return all
}

// identify finds the identity of a sequence with features that begins with another one, which may be nil.
func (e *events) identify(all, begin *sequence) {
	switch {
	case !e.model.Featured():
	case begin == nil:
		all.identity = e.model.Identify(nil, all.content)
	default:
		all.identity = e.model.Identify(begin.identity, all.content[len(begin.content):])
	}
}

// stored reads a user's events but the new ones.
func (e *events) stored(s *Service, c *call, u *grebev1.User) *sequence {
	// Rows by identifier change with the catalog's items; times are used where all rows are computed again anyway.
	if c.stored == nil || !e.model.Named() || e.model.Config().Recomputes() != "" {
		all := &sequence{}
		e.read(s, all, listed(u))
		e.identify(all, nil)
		return all
	}
	now := asOf{s.items.now(), weak.Make(s.view(nil))}
	known, rest, ok := e.known.get(c.stored)
	if ok && e.model.Featured() && known.asOf != now {
		now, ok = e.unchanged(s, known, now)
		if ok && len(rest) == 0 {
			e.known.renew(c.stored, known, now)
		}
	}
	if ok && len(rest) == 0 {
		return known
	}
	all := &sequence{asOf: now}
	if ok {
		all.tokens, all.content, all.unknown = slices.Clone(known.tokens), slices.Clone(known.content), known.unknown
	} else {
		known, rest = nil, listed(c.stored)
	}
	e.read(s, all, rest)
	e.identify(all, known)
	e.known.put(c.stored, all)
	if now, ok := s.catalog.User(u.Id); !ok || now != c.stored { // it may have been deleted before put
		e.known.forget(u.Id)
	}
	return all
}

// unchanged reports whether the features of a sequence are those of now, and returns the moment for which that is
// known.
func (e *events) unchanged(s *Service, known *sequence, now asOf) (asOf, bool) {
	if known.asOf.view != now.view {
		return now, false
	}
	last, ids, ok := s.items.since(known.asOf.change)
	now.change = last
	if !ok {
		return now, false
	}
	rows := map[int32]bool{}
	for _, id := range ids {
		if row, ok := e.model.Row(id); ok {
			rows[row] = true
		}
	}
	if len(rows) == 0 {
		return now, true
	}
	return now, !slices.ContainsFunc(known.tokens, func(token int32) bool { return rows[e.model.Item(token)] })
}

// shows is true at the first item that the model knows, and also for a user with tokens or only a text: history
// explains those.
func (e *events) shows(s *Service, c *call, u *grebev1.User) bool {
	list := slices.Concat(listed(u), u.NewEvents)
	if len(u.Tokens) > 0 || len(list) == 0 {
		return !bare(u)
	}
	for _, ev := range list {
		if _, ok := s.row(e.model, ev.GetItem(), nil); ok {
			return true
		}
	}
	s.metrics.unknown.Add(float64(len(list)))
	c.note = leftOut(len(list), "is unknown", "are unknown")
	return false
}

// listed returns a user's events, or those of the items of the history.
func listed(u *grebev1.User) []*grebev1.Event {
	list := u.Events
	if len(list) == 0 {
		for _, id := range u.History {
			list = append(list, &grebev1.Event{Item: id})
		}
	}
	return list
}

// read appends events to a sequence.
func (e *events) read(s *Service, to *sequence, list []*grebev1.Event) {
	to.tokens = slices.Grow(to.tokens, len(list))
	timed := e.model.Config().Times != hstu.None
	of := e.featured(s)
	feature := of.row
	for _, ev := range list {
		row, ok := s.row(e.model, ev.GetItem(), nil)
		if !ok {
			to.unknown++
			continue
		}
		token := e.model.Event(row, ev.GetAction())
		to.tokens = append(to.tokens, token)
		if e.model.Featured() {
			of.begin(ev.GetItem(), ev.GetFeatures(), nil)
			to.content = e.model.AppendEvent(to.content, token, feature)
		}
		if timed {
			to.times = append(to.times, ev.GetTime())
		}
	}
}

// contextOf collects the rows of contextual features by name, of the newest event first.
func contextOf(cfg *hstu.Config, events []*grebev1.Event) map[string][]int32 {
	out := map[string][]int32{}
	for _, e := range slices.Backward(events) {
		for i := range cfg.Features {
			f := &cfg.Features[i]
			if v, ok := e.GetFeatures()[f.Name]; ok {
				if row := hstu.RowOfNumber(v, f.Rows); row >= 0 {
					out[f.Name] = append(out[f.Name], row)
				}
			}
		}
	}
	return out
}

// featured finds the content features of events and candidates, one after the other: its own, or those of its item in
// the catalog.
type featured struct {
	features []hstu.ContentFeature
	s        *Service
	view     *generate.View
	id       string
	numbers  map[string]float64         // of an event
	own      map[string]*grebev1.Values // of a candidate
	rows     []int32                    // those of the catalog's item, once it was looked up
	looked   bool
	found    func(name, first string) // x.attribute
}

func (e *events) featured(s *Service) *featured {
	x := &featured{features: e.model.Config().Content, s: s, view: s.view(nil)}
	x.rows, x.found = make([]int32, len(x.features)), x.attribute
	return x
}

// begin goes on to another event or candidate.
func (x *featured) begin(id string, numbers map[string]float64, own map[string]*grebev1.Values) {
	x.id, x.numbers, x.own, x.looked = id, numbers, own, false
}

// row returns the row of a feature, −1 for none.
func (x *featured) row(f *hstu.ContentFeature) int32 {
	if v, ok := x.numbers[f.Name]; ok {
		return hstu.RowOfNumber(v, f.Rows)
	}
	if v, ok := x.own[f.Name]; ok {
		return rowOfFirst(v.GetValues(), f.Rows)
	}
	if !x.looked {
		x.looked = true
		for i := range x.rows {
			x.rows[i] = -1
		}
		x.view.FirstValues(x.s.catalog, x.id, x.found)
	}
	for i := range x.features {
		if f == &x.features[i] {
			return x.rows[i]
		}
	}
	return -1
}

// attribute is an attribute of the catalog's item.
func (x *featured) attribute(name, first string) {
	for i := range x.features {
		if f := &x.features[i]; f.Name == name {
			x.rows[i] = hstu.RowOfText(first, f.Rows)
		}
	}
}

// rowOfFirst returns the row of an attribute's first value, −1 if it has none.
func rowOfFirst(values []string, rows int) int32 {
	if len(values) == 0 {
		return -1
	}
	return hstu.RowOfText(values[0], rows)
}

// row finds an item's row: by id if the checkpoint names its items, else by its identifier, from the request or the
// catalog.
func (s *Service) row(m *hstu.Model, id string, identifier *int32) (int32, bool) {
	if m.Named() {
		return m.Row(id)
	}
	if identifier == nil {
		it, ok := s.item(nil, id)
		if !ok {
			return 0, false
		}
		identifier = &it.Identifier
	}
	return *identifier, *identifier >= 0 && int(*identifier) < m.Items()
}

// noteOf returns the note about a user's history for the response.
func noteOf(m *hstu.Model, h *history) string {
	why := m.Config().Recomputes()
	if why != "" {
		why = "nothing is reused: " + why
	}
	return also(why, h.note)
}

// tokens are those of the user: an item is one row, which is not worth a place.
func (e *events) tokens(s *Service, w *work, user *grebev1.User, candidates []*grebev1.Item) error {
	h, err := e.history(s, w.call, user, len(candidates))
	if err == nil {
		w.user, w.content = h.tokens, h.content
	}
	return err
}

// rank orders candidates by the model's prediction for each.
func (e *events) rank(ctx context.Context, s *Service, w *work, user *grebev1.User,
	candidates []*grebev1.Item) ([]*prompt.Item, *ranking, error) {
	m := e.model
	if len(m.Config().Tasks) == 0 {
		return nil, nil, Errorf(Unprocessable, "", "model %q cannot rank: its checkpoint has no tasks", w.model.Name)
	}
	h, err := e.history(s, w.call, user, len(candidates))
	if err != nil {
		return nil, nil, err
	}
	items, rows := make([]*prompt.Item, len(candidates)), make([]int32, len(candidates))
	w.items = make([][]int32, len(candidates))
	var content, features []int32
	of := e.featured(s)
	for i, c := range candidates {
		row, ok := s.row(m, c.GetId(), c.Identifier)
		if !ok {
			return nil, nil, Errorf(Unprocessable, path{"candidates", i}.String(), "model %q does not know item %s",
				w.model.Name, Quoted(c.GetId()))
		}
		items[i], rows[i], w.items[i] = &prompt.Item{ID: c.GetId()}, row, []int32{m.Candidate(row)}
		if m.Featured() {
			of.begin(c.GetId(), nil, c.GetAttributes())
			content = m.AppendCandidate(content, w.items[i][0], of.row)
			features = append(features, content[len(content)-m.Width()+1:]...)
		}
	}
	if w.policy == schedule.Item && m.Config().Recomputes() != "" {
		return nil, nil, Errorf(Unprocessable, "prefix", "item needs a model without %s", m.Config().Recomputes())
	}
	if w.policy == schedule.Item && m.Featured() { // keys of items tell items apart, not their features
		return nil, nil, Errorf(Unprocessable, "prefix", "item needs a model without content_features")
	}
	w.user = h.tokens
	w.lay = func(order plan.Order, user []int32, items [][]int32) (prompt.Layout, error) {
		l, err := w.model.Prompt.Targets(order, user, items)
		return l, errors.Join(err, m.Annotate(l.Plan, l.User, &h.at), m.Describe(l.Plan, l.User, h.content, content))
	}
	doubts, missing := m.Incomplete(), m.Missing()
	r, err := s.run(ctx, w, true, func(l *prompt.Layout, job *engine.Job) {
		for i := range items {
			job.Hidden = append(job.Hidden, l.Answers+i)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	r.note = noteOf(m, h)
	err = e.predict(s, w.call, r, rows, features, h.at.Query)
	if m.Incomplete() != doubts { // in this request's batch, or in a concurrent one
		r.notes = append(r.notes, noteDefault)
	}
	if m.Missing() != missing {
		r.notes = append(r.notes, "the model's tables have no rows for some ids: default rows were used in their place")
	}
	if err == nil {
		e.served(w.call, user.Id, h, r)
	}
	return items, r, err
}

// noteDefault says that a store of a model's tables failed.
const noteDefault = "rows of the model's tables could not be read: default rows were used in their place"

// Served describes an answered request of a model of events.
type Served struct {
	User      string // "": no id
	Events    int
	Cached    int           // tokens whose KV was cached
	Computing time.Duration // its part of the batch's compute time
	Latency   time.Duration
}

// served reports an answered request.
func (e *events) served(c *call, user string, h *history, r *ranking) {
	if e.report == nil {
		return
	}
	computing := r.result.Compute
	if all := r.result.BatchTokens; all > 0 { // the time is the batch's: take the request's part
		computing = time.Duration(float64(computing) * float64(r.result.Computed) / float64(all))
	}
	e.report(Served{User: user, Events: h.events, Cached: r.result.Cached, Computing: computing,
		Latency: time.Since(c.start)})
}

// predict turns the states of candidates into scores.
func (e *events) predict(s *Service, c *call, r *ranking, rows, features []int32, query int64) error {
	m := e.model
	scored, err := m.Score(r.result.Hidden, rows, features, query)
	if err != nil {
		return s.explain(c, err)
	}
	tasks := m.Config().Tasks
	r.logits, r.scores = make([]float32, len(scored)), make([]float64, len(scored))
	for i := range scored {
		if err := checkLogits(scored[i].Tasks, len(tasks)); err != nil {
			return s.explain(c, err)
		}
		r.logits[i], r.scores[i] = float32(scored[i].Score), scored[i].Score
		if err := checkLogits(r.logits[i:i+1], 1); err != nil {
			return s.explain(c, err)
		}
		byName := make(map[string]float64, len(tasks))
		for t := range tasks {
			byName[tasks[t].Name] = float64(scored[i].Tasks[t])
		}
		r.tasks = append(r.tasks, byName)
	}
	return nil
}

// recommend finds the items that score best after the user's last event, of all items of the model.
func (e *events) recommend(ctx context.Context, s *Service, c *call, id string,
	req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	m := e.model
	if !c.model.Recommends() {
		return nil, Errorf(Unprocessable, "", "model %q cannot recommend: its checkpoint has no retrieval, or no %s",
			c.model.Name,
			hstu.ItemsFile)
	}
	n := int(req.N)
	orDefault(&n, defaultResults)
	if err := checkRange("n", n, 1, wire.MaxResults); err != nil {
		return nil, err
	}
	if err := checkExclude(req.Exclude); err != nil {
		return nil, err
	}
	only, err := filterOf(req.Filter)
	if err != nil {
		return nil, err
	}
	if field := ruled(req); field != "" {
		return nil, Errorf(Unprocessable, field, "model %q reads events: it supports no boost, quota or other rules",
			c.model.Name)
	}
	if user, err := s.cold(c, req); err != nil {
		return nil, err
	} else if user != nil {
		return s.fallBack(ctx, c, id, req, e.listed(s, req, user, only, n))
	}
	user, err := s.whom(c, req.User)
	if err != nil {
		return nil, err
	}
	h, err := e.history(s, c, user, 0)
	if err != nil {
		return nil, err
	}
	if h.events == 0 {
		return nil, Errorf(Unprocessable, "user", "has no events of items that model %q knows", c.model.Name)
	}
	doubts := m.Incomplete()
	r, err := e.last(ctx, s, c, user.Id, h, req.Explain)
	if err != nil {
		return nil, err
	}
	had := hadOf(only)
	without, eligible := excluded(m, req, user), s.eligible(m, only, had)
	start := time.Now()
	if err := checkLogits(r.result.Hidden[0], m.Config().Hidden); err != nil {
		return nil, s.explain(c, fmt.Errorf("the state of the last event: %w", err))
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	found, broken, err := m.Retrieve(ctx, r.result.Hidden[0], n, h.at.Query, without, eligible)
	if err != nil {
		return nil, s.explain(c, err)
	}
	if len(found) == 0 {
		if err := checkAttributes("filter", only, s.catalog); err != nil {
			return nil, err
		}
	}
	_, _, version := s.catalog.Counts()
	resp := &grebev1.RecommendResponse{
		Model: c.model.Name, RequestId: id, Node: s.cfg.Node, Short: len(found) < n, CatalogVersion: version, Usage: usage(r),
		TimingMs: &grebev1.Timing{
			Queue: milliseconds(r.result.Queue), Fetch: milliseconds(r.fetch),
			Compute: milliseconds(r.result.Compute + time.Since(start)),
		},
	}
	if resp.Short {
		resp.ShortReason = shortCatalog // all items were scored
		for i := 0; len(had) > 0 && i < len(without); i++ {
			eligible(without[i]) // Retrieve asked for all others
		}
		resp.Notes = unmatched(only, had.lacking)
	}
	if broken > 0 {
		h.leave(human.Count(broken, "item") + " left out: the model gives scores that are not finite")
		s.log.Warn("items have scores that are not finite: they are never recommended", "model", c.model.Name,
			"items", broken)
	}
	resp.Usage.Note, resp.Parts = noteOf(m, h), r.parts
	if m.Incomplete() != doubts {
		resp.Notes = append(resp.Notes, noteDefault)
	}
	if m.Stale() {
		resp.Notes = append(resp.Notes, "items were found by older rows of their table: it is being read again, or its "+
			"store does not answer")
	}
	for _, f := range found {
		if err := checkLogits([]float32{f.Score}, 1); err != nil {
			return nil, s.explain(c, err)
		}
		resp.Results = append(resp.Results, &grebev1.Recommended{Id: m.Name(f.Item), Score: float64(f.Score)})
	}
	resp.TimingMs.Total = milliseconds(time.Since(c.start))
	e.served(c, user.Id, h, r)
	return resp, nil
}

// listed returns a function that finds the items of a list that a request may get.
func (e *events) listed(s *Service, req *grebev1.RecommendRequest, user *grebev1.User, only filter.Filter,
	n int) func([]generate.Share) (*generate.Result, error) {
	return func(list []generate.Share) (*generate.Result, error) {
		if err := checkAttributes("filter", only, s.catalog); err != nil {
			return nil, err
		}
		without, eligible := excluded(e.model, req, user), s.eligible(e.model, only, nil)
		_, _, version := s.catalog.Counts()
		out := &generate.Result{Version: version}
		for _, x := range list {
			row, ok := e.model.Row(x.ID)
			if _, left := slices.BinarySearch(without, row); !ok || left {
				continue
			}
			if len(out.Items) < n && (eligible == nil || eligible(row)) {
				out.Items = append(out.Items, generate.Item{ID: x.ID, Score: math.Log(x.Share)})
			}
		}
		out.Short = len(out.Items) < n
		return out, nil
	}
}

// last computes the state of a user's last event.
func (e *events) last(ctx context.Context, s *Service, c *call, id string, h *history, explain bool) (*ranking, error) {
	r := &ranking{layout: c.model.Prompt.Generate(h.tokens)}
	l := &r.layout
	if err := errors.Join(e.model.Annotate(l.Plan, l.User, &h.at),
		e.model.Describe(l.Plan, l.User, h.content, nil)); err != nil {
		return nil, s.explain(c, err)
	}
	job := &engine.Job{Plan: l.Plan, Hidden: []int{l.Answers}}
	var err error
	if c.model.Cache == nil {
		if r.result, err = s.do(ctx, c, job); err == nil {
			r.explained(explain, job)
			s.metrics.prompted(c.op, r.result.Computed, &grebev1.Sources{})
		}
		return r, err
	}
	start := time.Now()
	ctx, cancel := c.within(ctx)
	defer cancel()
	visit := c.model.Cache.Generate(id, h.tokens)
	defer func() { // also after an error
		for _, e := range visit.EndPrompt(l, r.result) {
			if e != nil {
				e.Release()
			}
		}
	}()
	visit.AttachPrompt(ctx, l, job)
	r.fetch = time.Since(start)
	r.result, err = s.do(ctx, c, job)
	if c.badKV {
		visit.Discard(l)
	}
	if err == nil {
		r.explained(explain, job)
		r.tiers = r.result.Tiers(job)
		s.metrics.prompted(c.op, r.result.Computed, sources(r.tiers))
	}
	return r, err
}
