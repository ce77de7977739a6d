package server

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"grebe/internal/wire"
	"grebe/serve"
	"grebe/server/dashboard"
	"grebe/server/guard"
)

// reply is the answer of a handler. Zero values mean 200 and JSON.
type reply struct {
	status int
	kind   string // content type
	body   []byte
	policy string                // Content-Security-Policy; empty: not a page
	stream func(io.Writer) error // writes a body of any length instead of body
	openAI bool                  // an error has the form of OpenAI's API
}

// handler answers a request. id is the last part of the path, if the route has an id.
type handler func(s *Server, r *http.Request, id string) (reply, error)

// route is a path and the handlers of its methods.
type route struct {
	op      string
	role    guard.Role // role that a key needs; empty: no key needed
	open    bool       // answers before the server is ready, and takes no slot
	stream  bool       // reads a body of any length, in pieces
	list    bool       // makes a long list: one request at a time
	openAI  bool       // errors have the form of OpenAI's API
	methods map[string]handler
}

var routes = map[string]*route{
	"/":             {op: "page", open: true, methods: map[string]handler{"GET": (*Server).page}},
	"/openapi.json": {op: "openapi", open: true, methods: map[string]handler{"GET": (*Server).getOpenAPI}},
	"/v1/rank":      {op: "rank", role: guard.Serve, methods: map[string]handler{"POST": (*Server).postRank}},
	"/v1/recommend": {op: "recommend", role: guard.Serve,
		methods: map[string]handler{"POST": (*Server).postRecommend}},
	"/v1/score":  {op: "score", role: guard.Serve, methods: map[string]handler{"POST": (*Server).postScore}},
	"/v1/rerank": {op: "rerank", role: guard.Serve, methods: map[string]handler{"POST": (*Server).postRerank}},
	"/score":     {op: "score", role: guard.Serve, methods: map[string]handler{"POST": (*Server).postScore}},
	"/rerank":    {op: "rerank", role: guard.Serve, methods: map[string]handler{"POST": (*Server).postRerank}},
	"/v2/rerank": {op: "rerank", role: guard.Serve,
		methods: map[string]handler{"POST": (*Server).postRerankCohere}},
	"/v1/completions": {op: "completions", role: guard.Serve, openAI: true,
		methods: map[string]handler{"POST": (*Server).postCompletion}},
	"/v1/chat/completions": {op: "completions", role: guard.Serve, openAI: true,
		methods: map[string]handler{"POST": (*Server).postChat}},
	"/v1/models": {op: "models", role: guard.Serve, methods: map[string]handler{"GET": (*Server).getModels}},
	"/v1/items:batch": {op: "items", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postItems}},
	"/v1/items:check": {op: "items", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postCheckItems}},
	"/v1/users:check": {op: "users", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postCheckUsers}},
	"/v1/events:check": {op: "users", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postCheckEvents}},
	"/v1/items:index": {op: "items", role: guard.Catalog, methods: indexMethods},
	"/v1/users:batch": {op: "users", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postUsers}},
	"/v1/events:batch": {op: "users", role: guard.Catalog, stream: true,
		methods: map[string]handler{"POST": (*Server).postEventsBatch}},
	"/v1/items": {op: "items", role: guard.Catalog, list: true,
		methods: map[string]handler{"GET": (*Server).listItems}},
	"/v1/users": {op: "users", role: guard.Catalog, list: true,
		methods: map[string]handler{"GET": (*Server).listUsers}},
	"/v1/hot": {op: "catalog", role: guard.Admin, list: true,
		methods: map[string]handler{"GET": (*Server).getHot}},
	"/v1/catalog": {op: "catalog", role: guard.Catalog, methods: map[string]handler{"GET": (*Server).getCatalog}},
	"/v1/catalog:activate": {op: "catalog", role: guard.Catalog,
		methods: map[string]handler{"POST": (*Server).postActivate}},
	"/v1/catalog:rollback": {op: "catalog", role: guard.Catalog,
		methods: map[string]handler{"POST": (*Server).postRollback}},
	"/v1/batches": {op: "batches", role: guard.Serve, stream: true,
		methods: map[string]handler{"POST": (*Server).postBatches}},
	"/v1/backup": {op: "backup", role: guard.Admin, methods: map[string]handler{"GET": (*Server).getBackup}},
	"/v1/cluster": {op: "cluster", role: guard.Admin, open: true,
		methods: map[string]handler{"GET": (*Server).getCluster}},
	"/v1/history": {op: "metrics", role: guard.Admin, open: true,
		methods: map[string]handler{"GET": (*Server).getHistory}},
	"/metrics": {op: "metrics", role: guard.Admin, open: true,
		methods: map[string]handler{"GET": (*Server).getMetrics}},
	"/v2/health/live":  {op: "health", open: true, methods: map[string]handler{"GET": (*Server).getLive}},
	"/v2/health/ready": {op: "health", open: true, methods: map[string]handler{"GET": (*Server).getReady}},
	"/health":          {op: "health", open: true, methods: map[string]handler{"GET": (*Server).getReady}},
	"/livez":           {op: "health", open: true, methods: map[string]handler{"GET": (*Server).getLive}},
	"/readyz":          {op: "health", open: true, methods: map[string]handler{"GET": (*Server).getReady}},
}

// routesByID are routes that end with an id.
var routesByID = map[string]*route{
	"/v1/items/": {op: "items", role: guard.Catalog, methods: map[string]handler{
		"GET": (*Server).getItem, "PUT": (*Server).putItem, "DELETE": (*Server).deleteItem}},
	"/v1/models/": {op: "models", role: guard.Serve, methods: map[string]handler{"GET": (*Server).getModel}},
	"/v1/tables/": {op: "tables", role: guard.Catalog, methods: map[string]handler{
		"GET": (*Server).getRows, "POST": (*Server).postRows}},
	"/v1/batches/": {op: "batches", role: guard.Serve, methods: map[string]handler{
		"GET": (*Server).getBatch, "DELETE": (*Server).deleteBatch}},
	"/v1/users/": {op: "users", role: guard.Catalog, methods: map[string]handler{
		"GET": (*Server).getUser, "PUT": (*Server).putUser, "DELETE": (*Server).deleteUser}},
}

// assets is the path of the dashboard's files.
const assets = "/assets/"

var assetRoute = &route{op: "page", open: true, methods: map[string]handler{"GET": (*Server).asset}}

// eventsRoute is /v1/users/{id}/events.
var eventsRoute = &route{op: "events", role: guard.Catalog, methods: map[string]handler{"POST": (*Server).postEvents}}

// modelVerbs are the routes /v1/models/{name}:verb.
var modelVerbs = map[string]*route{
	":reload":   {op: "reload", role: guard.Admin, methods: map[string]handler{"POST": (*Server).postReload}},
	":rollback": {op: "reload", role: guard.Admin, methods: map[string]handler{"POST": (*Server).postRollbackModel}},
}

var noRoute = &route{op: "other", open: true}

// findRoute returns the route of a path and the id in it. The id is escaped in the path, so it may contain slashes.
func findRoute(u *url.URL) (*route, string) {
	path := u.EscapedPath()
	if rt := routes[path]; rt != nil {
		return rt, ""
	}
	if file, ok := strings.CutPrefix(path, assets); ok && dashboard.Has(file) {
		return assetRoute, file
	}
	if strings.HasPrefix(path, nodes) {
		return findNode(path)
	}
	for prefix, rt := range routesByID {
		rest, ok := strings.CutPrefix(path, prefix)
		if user, events := strings.CutSuffix(rest, "/events"); ok && events && prefix == "/v1/users/" {
			rt, rest = eventsRoute, user
		}
		if id, results := strings.CutSuffix(rest, "/results"); ok && results && prefix == "/v1/batches/" {
			rt, rest = resultsRoute, id
		}
		for verb, does := range modelVerbs {
			if name, is := strings.CutSuffix(rest, verb); ok && is && prefix == "/v1/models/" {
				rt, rest = does, name
			}
		}
		if !ok || rest == "" || strings.Contains(rest, "/") {
			continue
		}
		if id, err := url.PathUnescape(rest); err == nil {
			return rt, id
		}
	}
	return noRoute, ""
}

// Handler serves the API, health, metrics and the dashboard over HTTP, without gRPC.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// AdminHandler serves /debug/pprof, health, metrics, reloads and rollbacks of models, backups, and the cluster. It
// needs no key, so it belongs on a listener that only operators reach.
func (s *Server) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	open := s.Handler()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		rep, err := s.getMetrics(r, "") // the admin listener needs no key
		s.write(w, r, rep, err)
	})
	for _, path := range []string{"/v2/health/", "/health", "/livez", "/readyz"} {
		mux.Handle(path, open)
	}
	for _, path := range []string{"POST /v1/models/", "GET /v1/backup", "GET /v1/cluster", "POST /v1/cluster/nodes/"} {
		mux.HandleFunc(path, s.adminCall)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.write(w, r, reply{}, serve.Errorf(serve.NotFound, "", "no %s here: this is the admin listener",
			serve.Quoted(r.URL.Path)))
	})
	return mux
}

// adminCall answers calls for models, backups and the cluster. The admin listener needs no key.
func (s *Server) adminCall(w http.ResponseWriter, r *http.Request) {
	rt, name := findRoute(r.URL)
	var rep reply
	err := error(serve.Errorf(serve.NotFound, "", "no %s here: this is the admin listener", serve.Quoted(r.URL.Path)))
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	if h := rt.methods[method]; (rt.op == "reload" || rt.op == "backup" || rt.op == "cluster") && h != nil {
		body := s.meter(w, r, "", false)
		defer body.free()
		if err = s.receive(w, r); err == nil {
			rep, err = h(s, r, name)
		}
	}
	s.write(w, r, rep, err)
}

// serve answers one request and counts it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Add(-1)
	start := time.Now()
	rt, id := findRoute(r.URL)
	end := func(int) {}
	if !rt.open {
		var ctx context.Context
		ctx, end = s.traceHTTP(r, rt.op)
		r = r.WithContext(ctx)
	}
	rep, err := s.answer(rt, w, r, id)
	rep.openAI = rt.openAI
	status := s.write(w, r, rep, err)
	end(status)
	s.metrics.answered(rt.op, status, time.Since(start))
	s.log.Debug("answered", "op", rt.op, "status", status, "took", time.Since(start))
}

// answer calls the route's handler. A panic in it becomes an internal error.
func (s *Server) answer(rt *route, w http.ResponseWriter, r *http.Request, id string) (rep reply, err error) {
	defer s.service.Rescue(rt.op, &err)
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h := rt.methods[method]
	switch {
	case rt == noRoute:
		return reply{}, serve.Errorf(serve.NotFound, "", "no %s here: /openapi.json lists all paths",
			serve.Quoted(r.URL.Path))
	case h == nil:
		w.Header().Set("Allow", rt.allow())
		return reply{}, serve.Errorf(serve.MethodNotAllowed, "", "%s takes %s, not %s", serve.Quoted(r.URL.Path),
			rt.allow(), serve.Quoted(r.Method))
	}
	key := ""
	if rt.role != "" {
		if key, err = s.guard.Check(presentedKey(r), rt.role, time.Now()); err != nil {
			return reply{}, err
		}
	}
	if !rt.open && s.state.Load() == starting {
		return reply{}, notReady()
	}
	if r.Body != nil && r.Body != http.NoBody {
		body := s.meter(w, r, key, rt.stream)
		defer body.free()
	}
	if rt.stream {
		return h(s, r, id) // it takes a slot for each piece
	}
	if r.ContentLength > s.cfg.MaxBody {
		s.swallow(r)
		return reply{}, bodyTooLarge(s.cfg.MaxBody)
	}
	if err := s.receive(w, r); err != nil {
		return reply{}, err
	}
	if rt.list {
		leave, err := s.lists.wait(r.Context())
		if err != nil {
			return reply{}, err
		}
		defer leave()
	} else if !rt.open {
		release, err := s.admit(s.placesOf(rt.role))
		if err != nil {
			return reply{}, err
		}
		defer release()
		r = r.WithContext(arrived(r.Context()))
	}
	return h(s, r, id)
}

func notReady() error { return serve.Errorf(serve.Unavailable, "", "not ready yet") }

// presentedKey returns the key of a request, or "".
func presentedKey(r *http.Request) string {
	if key := guard.Bearer(r.Header.Get("Authorization")); key != "" {
		return key
	}
	return r.Header.Get("X-Api-Key")
}

func bodyTooLarge(limit int64) error {
	return serve.Errorf(serve.TooLarge, "", "the body has more than %d bytes", limit)
}

// swallow reads a body that is too large, up to eight times the limit. A client that writes all of it before it reads
// would otherwise see a broken connection instead of the error. A client that sent Expect waits for the answer and
// needs none of that.
func (s *Server) swallow(r *http.Request) {
	body, ok := r.Body.(*meteredBody)
	if !ok || r.Header.Get("Expect") != "" || r.ContentLength > 8*s.cfg.MaxBody {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		_, err := body.Read(buf)
		if err != nil {
			return
		}
		body.keep(0) // discarded
	}
}

// hold counts n bytes of a request in flight. The caller MUST call free.
func (s *Server) hold(n int64) (free func(), err error) {
	if s.bodies.Add(n) > s.cfg.MaxBuffered {
		s.bodies.Add(-n)
		return nil, serve.Errorf(serve.Exhausted, "", "the bodies of requests in flight exceed %d bytes", s.cfg.MaxBuffered)
	}
	return func() { s.bodies.Add(-n) }, nil
}

// allow returns the methods of a route for the Allow header.
func (rt *route) allow() string {
	names := slices.Collect(maps.Keys(rt.methods))
	if rt.methods["GET"] != nil {
		names = append(names, "HEAD")
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// placesOf returns the slots for requests of a role. Those that wait for the catalog's disk have their own, so that
// rankings do not wait behind them.
func (s *Server) placesOf(role guard.Role) chan struct{} {
	if role == guard.Catalog {
		return s.writes
	}
	return s.slots
}

// admit takes a slot or returns an error if all are taken. The caller MUST call release.
func (s *Server) admit(places chan struct{}) (release func(), err error) {
	if s.state.Load() == starting {
		return nil, notReady()
	}
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	default:
		return nil, serve.Errorf(serve.Exhausted, "", "%d requests are in flight", cap(places))
	}
}

// answerFor is asError, except that a request that the server canceled gets "shutting down": its client is still
// there.
func (s *Server) answerFor(err error) *serve.Error {
	e := asError(err)
	if codeOf(e) == serve.Canceled && s.cut.Err() != nil {
		return serve.Errorf(serve.Unavailable, "", "shutting down")
	}
	return e
}

// write sends a reply or an error and returns the status.
func (s *Server) write(w http.ResponseWriter, r *http.Request, rep reply, err error) int {
	h := w.Header()
	if err != nil {
		e := s.answerFor(err)
		code := codeOf(e)
		if code == serve.Internal {
			s.log.Error("internal error", "error", err) // without the path: it may contain an id
		}
		if code == serve.Exhausted || code == serve.Unavailable {
			h.Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(e.After().Seconds())))))
		}
		if code == serve.Unauthenticated {
			h.Set("WWW-Authenticate", "Bearer")
		}
		status := statuses[code].http
		body := wire.EncodeError(e.Code(), e.Error(), e.Field())
		if rep.openAI {
			body = wire.EncodeCompletionError(openAIType(status), e.Code(), e.Error(), e.Field())
		}
		rep = reply{status: status, body: body}
	}
	if rep.status == 0 {
		rep.status = http.StatusOK
	}
	if rep.kind == "" {
		rep.kind = "application/json"
	}
	h.Set("X-Content-Type-Options", "nosniff")
	if rep.policy != "" {
		h.Set("Content-Security-Policy", rep.policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
	}
	if rep.stream != nil {
		return s.writeStream(w, r, rep)
	}
	if rep.status != http.StatusNoContent {
		h.Set("Content-Type", rep.kind)
		h.Set("Content-Length", strconv.Itoa(len(rep.body)))
	}
	w.WriteHeader(rep.status)
	if r.Method != http.MethodHead && len(rep.body) > 0 {
		if _, err := w.Write(rep.body); err != nil {
			s.log.Debug("the client went away before the end of the response", "error", err)
		}
	}
	return rep.status
}

// readBody returns a JSON body. It accepts a form's content type too, because curl sends that by default.
func readBody(r *http.Request) ([]byte, error) {
	if err := checkMediaType(r, "application/json", jsonLike); err != nil {
		return nil, err
	}
	if whole, ok := r.Body.(wholeBody); ok {
		return whole.data, nil
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		return body, nil
	}
	return nil, readError(r, err)
}

// checkMediaType refuses a body with a wrong Content-Type or Content-Encoding.
func checkMediaType(r *http.Request, want string, ok func(string) bool) error {
	if t := r.Header.Get("Content-Type"); t != "" {
		kind, _, err := mime.ParseMediaType(t)
		if err != nil || !ok(kind) {
			return serve.Errorf(serve.WrongMediaType, "", "content type %s: want %s", serve.Quoted(t), want)
		}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return serve.Errorf(serve.WrongMediaType, "", "content encoding %s: send the body as it is", serve.Quoted(e))
	}
	return nil
}

// readError explains why a body could not be read to its end.
func readError(r *http.Request, err error) error {
	var large *http.MaxBytesError
	var own *serve.Error
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &large):
		return bodyTooLarge(large.Limit)
	case errors.Is(r.Context().Err(), context.Canceled):
		return asError(context.Canceled)
	}
	return serve.Errorf(serve.InvalidArgument, "", "the body cannot be read: %v", err)
}

func jsonLike(kind string) bool {
	switch kind {
	case "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded":
		return true
	}
	return strings.HasSuffix(kind, "+json")
}
