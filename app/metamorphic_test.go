package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"grebe/app/apptest"
	"grebe/internal/scripttest"
)

var scenarioFile = flag.String("scenario", "", "a file with one scenario of TestMetamorphic, to run instead of "+
	"random ones")

// TestMetamorphic gives servers random options and random requests. Memory, tiers, pages, policies, restarts, reloads
// and deletions change how an answer comes about, never the answer: every one is that of a server without caches, to
// the bit. A request names its order and nothing is blended, so that both compute the same prompt with the same
// numbers.
//
// One client asks, or a few the same at once, and a seed gives the same commands every time. A failure is shrunk to a
// short scenario, which is printed and written to a file. `-scenario FILE` runs it again, and testdata/metamorphic
// keeps those whose faults are fixed.
//
//	start KEY=VALUE…         open the server, or open it again on the same data; see lifetime.start
//	user u1 40@3+5@9         put a user: 40 tokens drawn from seed 3, then 5 from seed 9 (see drawTokens);
//	                         of v1, as many events
//	events v1 5@9            append events
//	forget u1                delete the user, and check that no tier has their KV;
//	                         it stays away until they are named again
//	item y1 6@4              put an item
//	remove y1                delete it
//	rank lm u1 item i3,y1    rank for a named user, items before the user; also user, none
//	rank ev 40@3 user i3     the same of the model of events, for a user without a name; v1:40@3 names one too
//	score 40@3 3@1,9@2 item  score texts without names
//	recommend u1 5 8         five items by a beam of eight
//	crowd 3                  ask what the next command asks three times at once
//	reload lm                swap the checkpoint; rollback lm swaps back
//	boundary 0.3             give rows of embeddings a share of the memory
//	damage 7                 flip bits of a file of cached KV
//	settle                   wait for what is done in the background
//
// GREBE_SEEDS says how many seeds; `make metamorphic SEEDS=500` is the long form. GREBE_SEED is the first of them.
func TestMetamorphic(t *testing.T) {
	x := newMetamorphic(t)
	if *scenarioFile != "" {
		x.runFile(t, *scenarioFile)
		return
	}
	files, err := filepath.Glob("testdata/metamorphic/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, name := range files {
		x.runFile(t, name)
	}
	seeds, steps := uint64(6), 60
	first, _ := strconv.ParseUint(os.Getenv("GREBE_SEED"), 10, 64)
	if n, err := strconv.ParseUint(os.Getenv("GREBE_SEEDS"), 10, 64); err == nil {
		seeds, steps = n, 150
	}
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		if lines := drawScenario(seed, steps); x.run(t, lines) != nil {
			x.report(t, seed, lines)
		}
	}
	t.Logf("%+v", x.seen)
	if s := &x.seen; s.answers == 0 || s.device == 0 || s.host == 0 || s.disk == 0 {
		t.Errorf("not every tier served tokens: %+v", *s)
	}
}

// report shrinks a failing scenario and writes it to a file.
func (x *metamorphic) report(t *testing.T, seed uint64, lines []string) {
	runs := 0
	short := shrink(lines, func(lines []string) bool {
		runs++
		return runs <= 400 && x.run(t, lines) != nil
	})
	err := x.run(t, short)
	for again := 0; err == nil && again < 20; again++ { // failures that depend on background work may need another try
		err = x.run(t, short)
	}
	text := strings.Join(short, "\n") + "\n"
	name := filepath.Join(os.TempDir(), fmt.Sprintf("grebe-metamorphic-%d.txt", seed))
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Error(err)
	}
	t.Errorf("seed %d: %v\nshrunk from %d commands to %d in %d runs; -scenario %s runs them again:\n%s",
		seed, err, len(lines), len(short), runs, name, text)
}

func (x *metamorphic) runFile(t *testing.T, name string) {
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.run(t, strings.Split(string(data), "\n")); err != nil {
		t.Errorf("%s: %v", name, err)
	}
}

// metamorphic is shared by all scenarios: checkpoints, and servers without caches.
type metamorphic struct {
	dir   string            // has the checkpoints lm-a, lm-b, ev-a and ev-b, and rows
	plain map[string]*App   // by what answers depend on
	known map[string]string // their answers
	seen  struct{ scenarios, answers, device, host, disk, computed int }
}

// lifetime is one running scenario.
type lifetime struct {
	*metamorphic
	*testing.T
	dir    string
	server *App   // nil: it does not run
	class  string // what answers depend on, besides the checkpoint
	users  map[string]map[string]any
	items  map[string]map[string]any
	gone   map[string]bool   // deleted users that no request has named since
	now    map[string]string // each model's served checkpoint
	named  map[string]string // each model's configured checkpoint
	before map[string]string // each model's checkpoint after a rollback
	crowd  int               // how often the next question is asked at once; 0: once
}

// errSkip says that a command makes no sense here. Shrinking makes such commands.
var errSkip = errors.New("nothing to do")

// run runs a scenario's commands and returns the first failure, including a panic of a store or a pool.
func (x *metamorphic) run(t *testing.T, lines []string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	l := &lifetime{metamorphic: x, T: t, dir: t.TempDir(), users: map[string]map[string]any{},
		items: map[string]map[string]any{},
		gone:  map[string]bool{}, now: map[string]string{}, named: map[string]string{"lm": "a", "ev": "a"},
		before: map[string]string{}}
	defer os.RemoveAll(l.dir)
	x.seen.scenarios++
	for i, line := range lines {
		c := scripttest.Parse(t, line)
		if c == nil {
			continue
		}
		if err := l.do(c); err != nil && !errors.Is(err, errSkip) {
			return errors.Join(fmt.Errorf("command %d, %q: %w", i+1, line, err), l.stop())
		}
	}
	return l.stop()
}

func (l *lifetime) do(c *scripttest.Command) error {
	if c.Name == "start" {
		return l.start(c)
	}
	if l.server == nil {
		if err := l.start(scripttest.Parse(l.T, "start")); err != nil {
			return err
		}
	}
	switch c.Name {
	case "crowd":
		l.crowd, _ = strconv.Atoi(c.Word(0))
		return nil
	case "user":
		u := drawUser(c.Word(0), c.Word(1))
		delete(l.gone, c.Word(0)) // a reload computes users' KV ahead
		return l.change(l.users, c.Word(0), "PUT", "/v1/users/"+c.Word(0), u, u)
	case "events":
		u := l.users[c.Word(0)]
		if u == nil {
			return errSkip
		}
		had := u["events"].([]map[string]any)
		more := drawEvents(c.Word(1), len(had))
		next := map[string]any{"events": append(slices.Clone(had), more...)}
		return l.change(l.users, c.Word(0), "POST", "/v1/users/"+c.Word(0)+"/events", map[string]any{"events": more}, next)
	case "forget":
		return l.forget(c.Word(0))
	case "item":
		n, _ := strconv.Atoi(c.Word(0)[1:])
		it := map[string]any{"tokens": drawTokens(c.Word(1)), "identifier": 600 + n}
		return l.change(l.items, c.Word(0), "PUT", "/v1/items/"+c.Word(0), it, it)
	case "remove":
		return l.change(l.items, c.Word(0), "DELETE", "/v1/items/"+c.Word(0), nil, nil)
	case "rank":
		return l.rank(c)
	case "score":
		return l.score(c)
	case "recommend":
		return l.recommend(c)
	case "reload", "rollback":
		return l.swap(c.Name, c.Word(0))
	case "boundary":
		return l.divide(c)
	case "damage":
		seed, _ := strconv.ParseUint(c.Word(0), 10, 64)
		apptest.DamageKV(rand.New(rand.NewPCG(seed, 5)), filepath.Join(l.dir, "data"), seed%4 == 0)
		return nil
	case "settle":
		return l.settle()
	}
	return fmt.Errorf("no such command")
}

// change puts or deletes a user or an item, here and in the server.
func (l *lifetime) change(all map[string]map[string]any, id, method, path string, body, next map[string]any) error {
	if next == nil && all[id] == nil {
		return errSkip
	}
	status, text := l.ask(l.server, method, path, body)
	if status/100 != 2 {
		return fmt.Errorf("%d %s", status, text)
	}
	if all[id] = next; next == nil {
		delete(all, id)
	}
	return nil
}

// forget deletes a user. Even if the catalog does not have the user, an earlier request may have left KV.
func (l *lifetime) forget(id string) error {
	want := http.StatusNotFound
	if l.users[id] != nil {
		want = http.StatusNoContent
	}
	if status, text := l.ask(l.server, "DELETE", "/v1/users/"+id, nil); status != want {
		return fmt.Errorf("%d %s, want %d", status, text, want)
	}
	delete(l.users, id)
	l.gone[id] = true
	return l.nothingOfDeleted()
}

// nothingOfDeleted checks that no tier has KV of deleted users.
func (l *lifetime) nothingOfDeleted() error {
	for _, model := range []string{"lm", "ev"} {
		for _, u := range l.server.loaded.of(model) {
			store := u.memory.store
			if store == nil {
				continue
			}
			for id := range l.gone {
				key := u.served.Cache.UserKey(id, nil)
				if n, at := store.Where(key); n > 0 || store.Below(key) {
					return fmt.Errorf("%s has KV of %s, who was deleted: %d tokens on %v, on disk %v", model, id, n, at,
						store.Below(key))
				}
			}
		}
	}
	return nil
}

// who returns a user as a request names it, and as a request that includes all its data.
func (l *lifetime) who(model, word string) (named, whole map[string]any, err error) {
	if id, tokens, both := strings.Cut(word, ":"); both {
		whole, named = drawUser(id, tokens), drawUser(id, tokens)
		named["id"] = id
		delete(l.gone, id)
		return named, whole, nil
	}
	if strings.Contains(word, "@") {
		u := drawUser(map[string]string{"lm": "u", "ev": "v"}[model], word)
		return u, u, nil
	}
	if whole = l.users[word]; whole == nil {
		return nil, nil, errSkip
	}
	delete(l.gone, word)
	return map[string]any{"id": word}, whole, nil
}

func (l *lifetime) rank(c *scripttest.Command) error {
	model := c.Word(0)
	user, whole, err := l.who(model, c.Word(1))
	if err != nil {
		return err
	}
	var named, said []map[string]any
	for _, id := range strings.Split(c.Word(3), ",") {
		switch it := l.items[id]; {
		case id[0] == 'i':
			named, said = append(named, map[string]any{"id": id}), append(said, map[string]any{"id": id})
		case it != nil && model == "lm":
			named = append(named, map[string]any{"id": id})
			said = append(said, map[string]any{"id": id, "tokens": it["tokens"], "identifier": it["identifier"]})
		}
	}
	if len(named) == 0 {
		return errSkip
	}
	body := map[string]any{"model": model, "user": user, "candidates": named, "prefix": c.Word(2), "explain": true}
	return l.same(model, "/v1/rank", body, map[string]any{"user": whole, "candidates": said, "prefix": c.Word(2)})
}

func (l *lifetime) score(c *scripttest.Command) error {
	body := map[string]any{"model": "lm", "query": drawTokens(c.Word(0)), "label_token_ids": []int{5, 9, 400},
		"item_first": c.Word(2) == "item"}
	var items [][]int32
	for _, w := range strings.Split(c.Word(1), ",") {
		items = append(items, drawTokens(w))
	}
	body["items"] = items
	whole := map[string]any{"query": body["query"], "items": items, "label_token_ids": body["label_token_ids"],
		"item_first": body["item_first"]}
	return l.same("lm", "/v1/score", body, whole)
}

func (l *lifetime) recommend(c *scripttest.Command) error {
	user, whole, err := l.who("lm", c.Word(0))
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(c.Word(1))
	width, _ := strconv.Atoi(c.Word(2))
	body := map[string]any{"model": "lm", "user": user, "n": n, "beam_width": width}
	return l.same("lm", "/v1/recommend", body, map[string]any{"user": whole, "n": n, "beam_width": width})
}

// same asks both servers, and compares the answers.
func (l *lifetime) same(model, path string, body, whole map[string]any) error {
	statuses, texts := make([]int, max(l.crowd, 1)), make([][]byte, max(l.crowd, 1))
	l.crowd = 0
	var wg sync.WaitGroup
	for i := range texts {
		wg.Go(func() { statuses[i], texts[i] = l.ask(l.server, "POST", path, body) })
	}
	wg.Wait()
	for i := range texts {
		if err := l.sameAnswer(model, path, body, whole, statuses[i], texts[i]); err != nil {
			return err
		}
	}
	return nil
}

// sameAnswer compares an answer with that of a server without caches.
func (l *lifetime) sameAnswer(model, path string, body, whole map[string]any, status int, text []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("%d %s", status, text)
	}
	var got apptest.Answer
	if err := json.Unmarshal(text, &got); err != nil {
		return err
	}
	if path == "/v1/score" {
		got.Results = got.Scores
	} else if err := got.AddsUp(); err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	by := got.Usage.BySource
	s := &l.seen
	s.answers, s.computed = s.answers+1, s.computed+got.Usage.Computed
	s.device, s.host, s.disk = s.device+by["device"], s.host+by["host"], s.disk+by["disk"]
	if prefix, asked := body["prefix"]; asked && (got.Prefix != prefix || prefix == "none" && got.Usage.Cached > 0) {
		return fmt.Errorf("asked for prefix %s: %s", prefix, text)
	}
	want, err := l.answer(model+"-"+l.now[model], path, whole)
	if err != nil {
		return err
	}
	if string(got.Results) != want {
		return fmt.Errorf("answers\n%s\nwithout caches\n%s\nof %+v", got.Results, want, got.Usage)
	}
	return nil
}

// answer returns the answer of a server without caches.
func (l *lifetime) answer(model, path string, body map[string]any) (string, error) {
	body["model"] = model
	key, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	all := l.class + path + string(key)
	if had, ok := l.known[all]; ok {
		return had, nil
	}
	s, err := l.without(l.T, l.class)
	if err != nil {
		return "", err
	}
	status, text := l.ask(s, "POST", path, body)
	var a apptest.Answer
	if err := json.Unmarshal(text, &a); err != nil || status != http.StatusOK || a.Usage.Cached > 0 {
		return "", fmt.Errorf("without caches: %d %s (%v)", status, text, err)
	}
	if path == "/v1/score" {
		a.Results = a.Scores
	}
	l.known[all] = string(a.Results)
	return l.known[all], nil
}

// ask sends a request to a server in this process.
func (l *lifetime) ask(s *App, method, path string, body map[string]any) (int, []byte) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			l.Fatal(err)
		}
	}
	r := httptest.NewRequest(method, "http://127.0.0.1"+path, bytes.NewReader(data)).WithContext(l.Context())
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	s.server.Handler().ServeHTTP(w, r)
	return w.Code, w.Body.Bytes()
}

// swap reloads the other checkpoint, or rolls back to the previous one.
func (l *lifetime) swap(verb, model string) error {
	next := map[string]string{"a": "b", "b": "a"}[l.now[model]]
	if verb == "rollback" {
		if next = l.before[model]; next == "" {
			return errSkip
		}
	} else {
		l.named[model] = next
		l.point(model)
	}
	status, text := l.ask(l.server, "POST", "/v1/models/"+model+":"+verb, map[string]any{"wait": true})
	var got reloadedModel
	if err := json.Unmarshal(text, &got); err != nil || status != http.StatusAccepted || got.Reload.State != "done" {
		return fmt.Errorf("%d %s (%v)", status, text, err)
	}
	l.before[model], l.now[model] = l.now[model], next
	return nil
}

// divide gives rows of embeddings a share of the memory that the model of events has.
func (l *lifetime) divide(c *scripttest.Command) error {
	both := l.server.loaded.of("ev")[0].memory.shared
	if both == nil {
		return errSkip
	}
	share, err := strconv.ParseFloat(c.Word(0), 64)
	if err != nil {
		return err
	}
	both.pool.SetBoundary(share)
	both.store.Trim()
	if both.divider != nil {
		both.divider.Fill()
	}
	return nil
}

// settle waits until the background work is done, and checks that memory holds only entries.
func (l *lifetime) settle() error {
	if err := l.server.service.Settle(l.Context()); err != nil {
		return err
	}
	for _, model := range []string{"lm", "ev"} {
		for _, u := range l.server.loaded.of(model) {
			if u.memory.store == nil {
				continue
			}
			if err := u.served.Cache.Settle(); err != nil {
				return err
			}
			u.memory.store.Drain()
			if u.memory.shared == nil {
				if err := u.onlyOwnEntries(); err != nil {
					return fmt.Errorf("%s: %w", model, err)
				}
			}
		}
	}
	return l.nothingOfDeleted()
}

// stop closes the server, if it runs. Pools report pages that are still in use.
func (l *lifetime) stop() error {
	if l.server == nil {
		return nil
	}
	err := l.settle()
	s := l.server
	l.server = nil
	return errors.Join(err, s.Close())
}

// quiet drops the log.
var quiet = slog.New(slog.DiscardHandler)
