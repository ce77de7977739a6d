// Package kubetest is the part of Kubernetes' API server that package kube uses, in memory, for tests.
//
// It follows the protocol where a client can tell the difference:
//
//   - one counter of versions for all objects, and updates that change nothing
//   - updates and deletions with preconditions
//   - label selectors, and pages that show the state of the first one
//   - watches from a version, bookmarks, and 410 after a compaction
//   - statuses as JSON, tokens and roles
//
// Faults are methods of Server. It takes time from package time, so it works inside testing/synctest.
//
// Lock order: Server.mu is the only lock.
package kubetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Rule gives rights, as a rule of a Role does.
type Rule struct {
	Group, Resource string
	Verbs           []string
}

// Rules are the rights that docs/how-to/kubernetes-coordinator.md names.
func Rules() []Rule {
	return []Rule{
		{"", "configmaps", []string{"get", "list", "watch", "create", "update", "delete"}},
		{"coordination.k8s.io", "leases", []string{"list", "create", "patch", "delete"}},
	}
}

// Server is an API server with its storage. The zero value is not ready: see New.
type Server struct {
	mu        sync.Mutex
	changed   chan struct{} // closed at every change
	version   int64
	compacted int64 // the history up to here is gone
	objects   map[string]*record
	history   []change

	tokens map[string]bool // nil: every token
	rules  []Rule
	faults faults
	counts map[string]int // requests by verb and resource
}

// record is one object through time.
type record struct {
	kind      *kind
	namespace string
	name      string
	values    []value // by version
}

// value is an object's state since a version.
type value struct {
	version int64
	object  map[string]any // nil: it was deleted
}

// change is an entry of the history.
type change struct {
	version       int64
	record        *record
	before, after map[string]any // nil: absent
}

// faults are switched on by tests.
type faults struct {
	throttle  int           // so many requests get 429
	after     int           // with this Retry-After, in seconds
	fail      int           // so many requests get 500
	lose      int           // so many writes are applied, and get 504
	slow      time.Duration // before every answer
	mute      bool          // watches stay open and are silent
	forget    int           // so many deletions never reach a watch
	drop      int64         // counts orders to end all watches
	abrupt    bool          // without an end of the stream
	forgotten map[int64]bool
}

// New returns an empty server that admits every token, with the rights of Rules.
func New() *Server {
	return &Server{changed: make(chan struct{}), version: 1, objects: map[string]*record{}, rules: Rules(),
		counts: map[string]int{}, faults: faults{forgotten: map[int64]bool{}}}
}

// change applies f and wakes all watches.
func (s *Server) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.wake()
}

func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Admit lets these tokens in, and no others.
func (s *Server) Admit(tokens ...string) {
	s.change(func() {
		s.tokens = map[string]bool{}
		for _, t := range tokens {
			s.tokens[t] = true
		}
	})
}

// Allow replaces the rights of all tokens.
func (s *Server) Allow(rules ...Rule) { s.change(func() { s.rules = rules }) }

// Compact forgets all history.
func (s *Server) Compact() {
	s.change(func() {
		s.compacted, s.history = s.version, nil
		for key, r := range s.objects {
			if r.values = r.values[len(r.values)-1:]; r.values[0].object == nil {
				delete(s.objects, key)
			}
		}
	})
}

// Throttle answers the next n requests with 429 and a Retry-After in seconds.
func (s *Server) Throttle(n, after int) {
	s.change(func() { s.faults.throttle, s.faults.after = n, after })
}

// Fail answers the next n requests with 500.
func (s *Server) Fail(n int) { s.change(func() { s.faults.fail = n }) }

// LoseAnswers applies the next n writes and answers 504.
func (s *Server) LoseAnswers(n int) { s.change(func() { s.faults.lose = n }) }

// Slow delays every answer.
func (s *Server) Slow(d time.Duration) { s.change(func() { s.faults.slow = d }) }

// Mute lets watches stay open and be silent, or ends that.
func (s *Server) Mute(on bool) { s.change(func() { s.faults.mute = on }) }

// ForgetDeletions keeps the next n deletions from all watches.
func (s *Server) ForgetDeletions(n int) { s.change(func() { s.faults.forget = n }) }

// DropWatches ends all watches, abruptly or in order.
func (s *Server) DropWatches(abruptly bool) {
	s.change(func() { s.faults.drop++; s.faults.abrupt = abruptly })
}

// Delete deletes all objects of a resource, as an administrator may. It returns how many there were.
func (s *Server) Delete(resource string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.objects {
		if r.kind.resource == resource && r.now() != nil {
			s.put(&query{kind: r.kind, namespace: r.namespace}, r.name, nil)
			n++
		}
	}
	return n
}

// Count returns how many requests there were, by verb and resource, such as "list leases".
func (s *Server) Count(request string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[request]
}

// Requests returns how many requests there were.
func (s *Server) Requests() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.counts {
		n += c
	}
	return n
}

// Names returns the names of the objects of a resource, sorted.
func (s *Server) Names(resource string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []string{}
	for _, r := range s.objects {
		if r.kind.resource == resource && r.now() != nil {
			out = append(out, r.name)
		}
	}
	slices.Sort(out)
	return out
}

// status is an answer that is no success.
type status struct {
	code    int
	reason  string
	message string
	after   int // seconds of Retry-After; 0: none
}

func fail(code int, reason, format string, args ...any) *status {
	return &status{code: code, reason: reason, message: fmt.Sprintf(format, args...)}
}

func (f *status) object() map[string]any {
	return map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": f.message, "reason": f.reason, "code": f.code}
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Trim(r.URL.Path, "/") == reviewPath {
		s.review(w, r)
		return
	}
	q, f := s.admit(r)
	if f == nil {
		f = s.delay(r)
	}
	if f != nil {
		if f.after > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(f.after))
		}
		answer(w, f.code, f.object())
		return
	}
	if q.verb == "watch" {
		s.watch(w, r, q)
		return
	}
	code, v, f := s.do(q, r)
	if f != nil {
		code, v = f.code, f.object()
	}
	answer(w, code, v)
}

func (s *Server) delay(r *http.Request) *status {
	s.mu.Lock()
	d := s.faults.slow
	s.mu.Unlock()
	if d == 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.Context().Done():
		return fail(http.StatusGatewayTimeout, "Timeout", "the client has gone")
	}
}

// admit reads what is asked for and checks the token and the rights.
func (s *Server) admit(r *http.Request) (*query, *status) {
	q, f := parse(r)
	if f != nil {
		return nil, f
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[q.verb+" "+q.kind.resource]++
	if !s.known(r) {
		return nil, fail(http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	}
	if s.faults.throttle > 0 {
		s.faults.throttle--
		f := fail(http.StatusTooManyRequests, "TooManyRequests", "too many requests, please try again later")
		f.after = s.faults.after
		return nil, f
	}
	if s.faults.fail > 0 {
		s.faults.fail--
		return nil, fail(http.StatusInternalServerError, "InternalError",
			"Internal error occurred: etcdserver: request timed out")
	}
	if s.allows(q.kind.group, q.kind.resource, q.verb) {
		return q, nil
	}
	return nil, fail(http.StatusForbidden, "Forbidden",
		"%s is forbidden: User \"system:serviceaccount:%s:grebe\" cannot %s resource %q in API group %q in the namespace %q",
		q.full(), q.namespace, q.verb, q.kind.resource, q.kind.group, q.namespace)
}

// known reports whether a request's token is admitted. The caller has the lock.
func (s *Server) known(r *http.Request) bool {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return s.tokens == nil || s.tokens[bearer]
}

// allows reports whether the rules give a right. The caller has the lock.
func (s *Server) allows(group, resource, verb string) bool {
	return slices.ContainsFunc(s.rules, func(r Rule) bool {
		return r.Group == group && r.Resource == resource && slices.Contains(r.Verbs, verb)
	})
}

const reviewPath = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

// review answers whether the client has a right. Everyone with a token may ask.
func (s *Server) review(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Spec struct {
			Attributes struct{ Namespace, Verb, Group, Resource string } `json:"resourceAttributes"`
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := json.NewDecoder(r.Body).Decode(&in); {
	case !s.known(r):
		answer(w, http.StatusUnauthorized, fail(http.StatusUnauthorized, "Unauthorized", "Unauthorized").object())
	case r.Method != http.MethodPost || err != nil || in.Spec.Attributes.Verb == "":
		answer(w, http.StatusBadRequest, fail(http.StatusBadRequest, "BadRequest", "no review: %v", err).object())
	default:
		a := in.Spec.Attributes
		answer(w, http.StatusCreated, map[string]any{"kind": "SelfSubjectAccessReview",
			"apiVersion": "authorization.k8s.io/v1", "spec": in.Spec,
			"status": map[string]any{"allowed": s.allows(a.Group, a.Resource, a.Verb)}})
	}
}
