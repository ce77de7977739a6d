package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
)

// The history of one fenced object, "map": leaders claim and write it, others read it. Porcupine looks for an order in
// which no process writes in a term that a later leader's claim has ended, and in which every read and claim returns
// what was written last.
//
// A process's requests go through a link that can be paused with requests inside, before the server has them or after.
// A request of a killed process stays in its link and may arrive much later. Every operation's end in the history is
// when its last request has left the link, so none has an unknown outcome.

// state is the object as the model has it.
type state struct {
	term int64
	data string
}

type kind string

const (
	claims kind = "claim"
	writes kind = "write"
	reads  kind = "read"
)

// operation is a porcupine operation's input and output.
type operation struct {
	kind  kind
	term  int64
	data  string // what was written, or returned
	blind bool   // a claim that was applied but whose answer nobody got

	process   int
	call, end int64
	failed    bool
	requests  []*request
}

// step is the specification.
func step(s state, o *operation) (bool, state) {
	switch o.kind {
	case claims:
		return o.term >= s.term && (o.blind || o.data == s.data), state{o.term, s.data}
	case writes:
		return o.term == s.term, state{o.term, o.data}
	}
	return o.term == s.term && o.data == s.data, s
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(s, in, _ any) (bool, any) {
		ok, next := step(s.(state), in.(*operation))
		return ok, next
	},
	DescribeOperation: func(in, _ any) string {
		o := in.(*operation)
		return fmt.Sprintf("%s term %d %s", o.kind, o.term, o.data)
	},
}

// history records operations. Its clock counts calls and ends, so the order of any two that did not overlap is known.
type history struct {
	clock atomic.Int64
	mu    sync.Mutex
	all   []*operation
}

type operationKey struct{}

func (h *history) begin(ctx context.Context, o *operation) context.Context {
	o.call = h.clock.Add(1)
	h.mu.Lock()
	h.all = append(h.all, o)
	h.mu.Unlock()
	return context.WithValue(ctx, operationKey{}, o)
}

func (h *history) end(o *operation, err error) {
	o.failed = err != nil
	o.end = h.clock.Add(1)
}

// operations returns what took effect, after all requests have left their links.
func (h *history) operations() (out []porcupine.Operation) {
	for _, o := range h.all {
		applied := false
		for _, r := range o.requests {
			applied = applied || r.applied
			o.end = max(o.end, r.left)
		}
		if o.failed && !applied {
			continue
		}
		if o.failed {
			o.blind = true
		}
		out = append(out, porcupine.Operation{ClientId: o.process, Input: o, Call: o.call, Return: o.end})
	}
	return out
}

// link is a process's way to the coordinator.
type link struct {
	coord.Coordinator
	h    *history
	wait *sync.WaitGroup // of requests on their way
	rng  func(n int) int

	mu   sync.Mutex
	open chan struct{} // closed: requests pass
}

// request is a Swap on its way.
type request struct {
	applied bool
	left    int64
}

type answer struct {
	version int64
	entry   coord.Entry
	err     error
}

// pause holds every request on the link, before or after the server, until resume.
func (l *link) pause() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := make(chan struct{})
	l.open = open
	return sync.OnceFunc(func() { close(open) })
}

func (l *link) gate() {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	<-open
}

// send passes a request through the link. If the caller gives up, the request goes on.
func (l *link) send(ctx context.Context, call func() answer) answer {
	answers := make(chan answer, 1)
	l.wait.Go(func() {
		time.Sleep(time.Duration(l.rng(3)) * time.Millisecond)
		l.gate()
		a := call()
		time.Sleep(time.Duration(l.rng(3)) * time.Millisecond)
		l.gate()
		answers <- a
	})
	// a paused process gives up nothing: its clock stands still as well
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case a := <-answers:
		return a
	case <-ctx.Done():
		return answer{err: fmt.Errorf("%w: %w", coord.ErrUnavailable, ctx.Err())}
	}
}

func (l *link) Get(ctx context.Context, key string) (coord.Entry, error) {
	a := l.send(ctx, func() answer {
		e, err := l.Coordinator.Get(context.WithoutCancel(ctx), key)
		return answer{entry: e, err: err}
	})
	return a.entry, a.err
}

func (l *link) Swap(ctx context.Context, key string, data []byte, expected int64, lease coord.Lease) (int64, error) {
	r := new(request)
	if o, ok := ctx.Value(operationKey{}).(*operation); ok {
		o.requests = append(o.requests, r)
	}
	a := l.send(ctx, func() answer {
		v, err := l.Coordinator.Swap(context.WithoutCancel(ctx), key, data, expected, lease)
		r.applied, r.left = err == nil, l.h.clock.Add(1)
		return answer{version: v, err: err}
	})
	return a.version, a.err
}

// broken is a way to get fencing wrong.
type broken string

const (
	sound   broken = ""
	noClaim broken = "a new leader reads the object without claiming it"
	noTerm  broken = "a leader whose write conflicts writes again without a look at the term"
)

// claim is Term.Claim, or what a wrong leader does.
func (b broken) claim(ctx context.Context, t *Term) (*Object, error) {
	if b != noClaim {
		return t.Claim(ctx, "map")
	}
	o := &Object{t: t, key: "map"}
	if _, err := o.read(ctx); err != nil {
		return nil, err
	}
	return o, nil
}

// write is Object.Write, or what a wrong leader does.
func (b broken) write(ctx context.Context, o *Object, data string) error {
	err := o.Write(ctx, []byte(data))
	if b != noTerm || !errors.Is(err, ErrFenced) {
		return err
	}
	e, err := o.t.c.Get(ctx, o.key)
	if err != nil {
		return err
	}
	_, err = o.t.c.Swap(ctx, o.key, Fenced{o.t.Number, []byte(data)}.Encode(), e.Version, nil)
	return err
}

// scene is a run of several processes against one coordinator.
type scene struct {
	h       history
	b       broken
	open    func() coord.Coordinator
	ttl     time.Duration
	clients int
	events  int // pauses and kills

	mu     sync.Mutex
	rng    *rand.Rand
	terms  map[int64]string // who led in which term
	leader int              // who led last
	t      *testing.T
}

func (s *scene) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}

// victim is any process, but mostly the leader.
func (s *scene) victim() int {
	if s.random(3) == 0 {
		return s.random(s.clients)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader
}

// process is a candidate.
type process struct {
	s    *scene
	id   int
	l    *link
	stop context.CancelFunc
	done chan struct{}
}

func (s *scene) start(ctx context.Context, id, boot int, wait *sync.WaitGroup) *process {
	open := make(chan struct{})
	close(open)
	p := &process{s: s, id: id, done: make(chan struct{}),
		l: &link{Coordinator: s.open(), h: &s.h, wait: wait, rng: s.random, open: open}}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		defer close(p.done)
		self := fmt.Sprintf("p%d/%d", id, boot)
		_ = Run(ctx, p.l, Options{Key: "leader/map", Self: self, TTL: s.ttl}, func(ctx context.Context, t *Term) error {
			s.mu.Lock()
			if other, ok := s.terms[t.Number]; ok {
				s.t.Errorf("%s and %s both lead in term %d", other, self, t.Number)
			}
			s.terms[t.Number], s.leader = self, id
			s.mu.Unlock()
			return p.lead(ctx, t)
		})
	}()
	return p
}

// lead claims the map and writes it again and again.
func (p *process) lead(ctx context.Context, t *Term) error {
	op := &operation{kind: claims, term: t.Number, process: p.id}
	c := p.s.h.begin(p.aware(ctx), op)
	o, err := p.s.b.claim(c, t)
	if err == nil {
		op.data = string(o.Data())
	}
	p.s.h.end(op, err)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if !sleep(ctx, time.Duration(p.s.random(int(p.s.ttl/4)))) {
			return ctx.Err()
		}
		op := &operation{kind: writes, term: t.Number, data: fmt.Sprintf("%d.%d", t.Number, n), process: p.id}
		c := p.s.h.begin(p.aware(ctx), op)
		err := p.s.b.write(c, o, op.data)
		p.s.h.end(op, err)
		if errors.Is(err, ErrFenced) || errors.Is(err, ErrNotLeading) {
			return err
		}
	}
}

// aware returns a context that half of the time does not end with the term: a paused process learns of that too late.
func (p *process) aware(ctx context.Context) context.Context {
	if p.s.random(2) == 0 {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// read reads the map now and then.
func (s *scene) read(ctx context.Context, id int) {
	c := s.open()
	for sleep(ctx, time.Duration(s.random(int(s.ttl/3)))) {
		op := &operation{kind: reads, process: id}
		o := s.h.begin(ctx, op)
		e, err := c.Get(o, "map")
		if err == nil && e.Version != 0 {
			f, bad := Decode(e.Data)
			if bad != nil {
				s.t.Error(bad)
			}
			op.term, op.data = f.Term, string(f.Data)
		}
		s.h.end(op, err)
	}
}

// run lets things happen and returns the history.
func (s *scene) run() []porcupine.Operation {
	s.terms = map[int64]string{}
	ctx, cancel := context.WithCancel(context.Background())
	var wait, readers sync.WaitGroup
	var ps []*process
	for i := range s.clients {
		ps = append(ps, s.start(ctx, i, 0, &wait))
	}
	readers.Go(func() { s.read(ctx, s.clients) })
	var resumes, killed []func()
	for boot := range s.events {
		time.Sleep(time.Duration(s.random(int(s.ttl))))
		i := s.victim()
		if s.random(5) == 0 {
			old := ps[i]
			old.stop() // its requests stay in the link
			killed = append(killed, func() { <-old.done })
			ps[i] = s.start(ctx, i, boot+1, &wait)
			continue
		}
		resume := ps[i].l.pause()
		resumes = append(resumes, resume)
		time.AfterFunc(time.Duration(s.random(int(3*s.ttl))), resume)
	}
	time.Sleep(s.ttl)
	cancel()
	for _, r := range resumes {
		r()
	}
	for _, k := range killed {
		k()
	}
	for _, p := range ps {
		<-p.done
	}
	readers.Wait()
	wait.Wait()
	return s.h.operations()
}

// virtual runs a scene in virtual time, and returns porcupine's verdict and how many terms and operations there were.
func virtual(t *testing.T, seed uint64, events int, b broken) (ok bool, terms, operations int) {
	var ops []porcupine.Operation
	synctest.Test(t, func(t *testing.T) {
		server := coordtest.NewServer()
		defer server.Close()
		s := &scene{b: b, ttl: 3 * time.Second, clients: 3, events: events, rng: rand.New(rand.NewPCG(seed, 7)), t: t,
			open: func() coord.Coordinator { return server.Open() }}
		ops = s.run()
		terms = len(s.terms)
	})
	return porcupine.CheckOperations(model, ops), terms, len(ops)
}

// Acceptance line 7 of the cluster: a leader that is paused beyond its lease cannot write. GREBE_LEADER_FAULTS=10000 is
// the whole campaign.
func TestPausedLeaderCannotWrite(t *testing.T) {
	faults, each := 300, 100
	if v := os.Getenv("GREBE_LEADER_FAULTS"); v != "" {
		var err error
		if faults, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	var terms, operations int
	for seed := range uint64(max(faults/each, 1)) {
		ok, n, ops := virtual(t, seed, each, sound)
		if !ok {
			t.Fatalf("seed %d: porcupine rejects the history of %d operations", seed, ops)
		}
		terms, operations = terms+n, operations+ops
	}
	t.Logf("%d pauses and kills: %d terms, %d operations", faults, terms, operations)
	if terms < faults/10 {
		t.Errorf("%d pauses and kills made only %d terms", faults, terms)
	}
}

// Without the claim, or without the check of the term, the same histories are rejected: the test above can fail.
func TestBrokenFencingIsRejected(t *testing.T) {
	for _, b := range []broken{noClaim, noTerm} {
		rejected := 0
		for seed := range uint64(3) {
			if ok, _, _ := virtual(t, seed, 100, b); !ok {
				rejected++
			}
		}
		t.Logf("%s: %d of 3 histories rejected", b, rejected)
		if rejected == 0 {
			t.Errorf("%s, and porcupine accepts all histories", b)
		}
	}
}
