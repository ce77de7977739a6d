package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"grebe/app/apptest"
)

// object is a JSON object of a request.
type object = map[string]any

// possession is a user or an item that one client alone changes: it knows what the server has to know of it.
type possession struct {
	id    string
	there bool
	sure  bool   // false after a change that may or may not have been made
	now   object // without id
}

// chaosClient asks, and changes what it owns.
type chaosClient struct {
	*chaos
	r            *rand.Rand
	number       int
	users, items []*possession
	drew         int64 // pins when it drew the last candidates
}

// client asks and changes until the time is up.
func (c *chaos) client(ctx context.Context, number int) {
	k := &chaosClient{chaos: c, number: number, r: rand.New(rand.NewPCG(3+c.seed, uint64(number)))}
	for i := range 3 {
		k.users = append(k.users, &possession{id: fmt.Sprintf("x%d-%d", number, i)})
	}
	for i := range 5 {
		k.items = append(k.items, &possession{id: fmt.Sprintf("y%d-%d", number, i)})
	}
	for ctx.Err() == nil {
		for c.down.Load() {
			time.Sleep(10 * time.Millisecond)
		}
		c.gate.RLock()
		switch k.r.IntN(20) {
		case 0, 1, 2:
			k.changeUser(k.users[k.r.IntN(len(k.users))])
		case 3:
			k.changeItem(k.r.IntN(len(k.items)))
		case 4, 5, 6:
			k.recommend()
		case 7:
			k.score()
		case 8:
			k.rerank()
		default:
			k.rank()
		}
		c.gate.RUnlock()
	}
}

// ask sends a request to the server and says whether it was answered; what may have gone wrong without a fault is
// counted.
func (k *chaosClient) ask(ctx context.Context, method, path string, body any, fine ...int) (int, []byte, bool) {
	ends := k.ends.Load()
	code, data, err := k.send(ctx, method, "http://"+k.addr+path, body)
	op := strings.SplitN(path, "/", 4)[2]
	switch dying := k.down.Load() || k.ends.Load() != ends; {
	case err != nil && ctx.Err() != nil:
		k.count(op + " given up")
		return 0, nil, false
	case err != nil:
		if !dying {
			k.Errorf("%s %s: %v", method, path, err)
		}
		k.count(op + " cut off")
		return 0, nil, false
	case code == http.StatusServiceUnavailable && (dying || k.full.Load()):
		k.count(op + " 503")
		return code, data, false
	case code == http.StatusBadRequest && k.pins.Load() != k.drew:
		// an item that the version in use since then does not have
		k.count(op + " of another version")
		return code, data, false
	case !slices.Contains(fine, code):
		sent, _ := json.Marshal(body)
		k.Errorf("%s %s: %d %s\n%.800s", method, path, code, data, sent)
		return code, data, false
	}
	k.count(fmt.Sprint(op, " ", code))
	return code, data, true
}

func (k *chaosClient) text(n int) string {
	words := strings.Fields("running camping swimming baking gardening cycling tent lamp jug flour boots rope stove " +
		"books birds boats things that last made by hand")
	out := make([]string, n)
	for i := range out {
		out[i] = words[k.r.IntN(len(words))]
	}
	return strings.Join(out, " ")
}

// story is what one of the demo's users did up to some day, or something else.
func (k *chaosClient) story() string {
	if k.r.IntN(4) == 0 {
		return "Ada is into " + k.text(10+k.r.IntN(400)) + ".\n"
	}
	lines := strings.SplitAfter(k.tale[k.r.IntN(len(k.tale))], "\n")
	return strings.Join(lines[:1+k.r.IntN(min(len(lines), 40))], "") + k.text(k.r.IntN(5))
}

func (k *chaosClient) event() any {
	return object{"item": k.known(), "time": 1700000000 + k.r.IntN(1e8), "action": 1 + k.r.IntN(3)}
}

// known is an item of the catalog that nobody changes; some are asked for more than others.
func (k *chaosClient) known() string {
	if k.r.IntN(3) == 0 {
		return fmt.Sprintf("i%05d", 1+k.r.IntN(9000))
	}
	return fmt.Sprintf("i%05d", 1+k.r.IntN(60))
}

func (k *chaosClient) changeUser(u *possession) {
	ctx := context.Background()
	switch how := k.r.IntN(6); {
	case !u.sure || !u.there || how == 0:
		next := object{"text": k.story(), "events": []any{k.event(), k.event()}}
		_, _, u.sure = k.ask(ctx, "PUT", "/v1/users/"+u.id, next, 200, 201)
		u.there, u.now = u.sure, next
	case how == 1:
		_, _, u.sure = k.ask(ctx, "DELETE", "/v1/users/"+u.id, nil, 204)
		u.there = false
	default:
		e := k.event()
		if _, _, u.sure = k.ask(ctx, "POST", "/v1/users/"+u.id+"/events", object{"events": []any{e}}, 200); u.sure {
			u.now = object{"text": u.now["text"], "events": follow(u.now["events"].([]any), e)}
		}
	}
}

// follow returns a user's events with a new one, which goes where its time belongs.
func follow(events []any, e any) []any {
	at := func(e any) int { return e.(object)["time"].(int) }
	late := at(e) < at(events[len(events)-1])
	if events = append(slices.Clone(events), e); late {
		slices.SortStableFunc(events, func(a, b any) int { return at(a) - at(b) })
	}
	return events
}

func (k *chaosClient) changeItem(i int) {
	it, ctx := k.items[i], context.Background()
	if it.sure && it.there && k.r.IntN(4) == 0 {
		_, _, it.sure = k.ask(ctx, "DELETE", "/v1/items/"+it.id, nil, 204)
		it.there = false
		return
	}
	next := object{"text": k.text(3 + k.r.IntN(30)), "identifier": 100 + 10*k.number + i,
		"codes": []int{k.r.IntN(64), k.r.IntN(64), k.r.IntN(32)}, "attributes": object{"department": []string{"Camping"}}}
	_, _, it.sure = k.ask(ctx, "PUT", "/v1/items/"+it.id, next, 200, 201)
	it.there, it.now = it.sure, next
}

// whom returns a user as a request names them, and as one names them who has to say everything.
func (k *chaosClient) whom() (named, whole object) {
	switch k.r.IntN(4) {
	case 0:
		u := object{"id": []string{"kaya", "rosa", "grace", "jonas", "hugo", "dario"}[k.r.IntN(6)]}
		return u, u
	case 1:
		u := object{"text": "Ben is into camping. " + strings.Repeat("Likes tents. ", k.r.IntN(80)) + k.text(k.r.IntN(20)),
			"events": []any{object{"item": "i00007", "time": 5, "action": 1}}}
		return u, u
	}
	u := k.users[k.r.IntN(len(k.users))]
	if !u.sure || !u.there {
		return k.whom()
	}
	return object{"id": u.id}, u.now
}

// candidates are given by id, or inline where the server without caches does not know them.
func (k *chaosClient) candidates(own bool) (named, whole []any) {
	seen := map[string]bool{}
	for range 1 + k.r.IntN(25) {
		if id := k.known(); !seen[id] {
			seen[id] = true
			named, whole = append(named, object{"id": id}), append(whole, object{"id": id})
		}
	}
	for _, it := range k.items {
		if own && it.sure && it.there && k.r.IntN(3) == 0 {
			named = append(named, object{"id": it.id})
			whole = append(whole, object{"id": it.id, "text": it.now["text"], "identifier": it.now["identifier"]})
		}
	}
	return named, whole
}

func (k *chaosClient) rank() {
	model := []string{"shop", "shop", "shop", "shop-pointwise", "shop-hstu"}[k.r.IntN(5)]
	prefix := []string{"auto", "user", "item", "none"}[k.r.IntN(4)]
	if model == "shop" && k.r.IntN(3) == 0 {
		prefix = "blend"
	}
	user, wholeUser := k.whom()
	k.drew = k.pins.Load()
	own := model != "shop-hstu" && !k.pinned.Load()
	items, wholeItems := k.candidates(own)
	body := object{"model": model, "user": user, "candidates": items, "prefix": prefix, "explain": k.r.IntN(3) == 0}
	exact := true
	if prefix == "blend" {
		switch k.r.IntN(3) {
		case 0:
			body["budget"] = object{"items": 1, "history": 1}
		case 1:
			body["budget"], exact = object{"items": k.r.Float64(), "history": k.r.Float64()}, false
		default:
			exact = false
		}
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	fine := []int{200}
	switch k.r.IntN(12) {
	case 0:
		body["deadline_ms"], fine = 1+k.r.IntN(60), []int{200, 429, 504}
	case 1:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(k.r.IntN(60))*time.Millisecond)
	case 2:
		if k.r.IntN(3) == 0 {
			k.slowly(body)
			return
		}
	}
	defer cancel()
	code, data, ok := k.ask(ctx, "POST", "/v1/rank", body, fine...)
	k.mu.Lock()
	if code == 0 {
		k.life.unsure++
	} else {
		k.life.asked++
	}
	k.mu.Unlock()
	if !ok || code != 200 {
		return
	}
	a := k.account(body, data)
	if !exact || a.Prefix == "blend" && prefix != "blend" || own && k.pins.Load() != k.drew {
		return
	}
	whole := object{"model": model, "user": wholeUser, "candidates": wholeItems, "prefix": a.Prefix}
	k.same("/v1/rank", body, whole, a.Results)
}

// account reads an answer and checks that it adds up.
func (k *chaosClient) account(body object, data []byte) *apptest.Answer {
	var a apptest.Answer
	if err := json.Unmarshal(data, &a); err != nil {
		k.Errorf("no answer: %v: %s", err, data)
		return &a
	}
	for source, n := range a.Usage.BySource {
		if n > 0 {
			k.count("answers with tokens from " + source)
		}
	}
	if err := a.AddsUp(); err != nil {
		sent, _ := json.Marshal(body)
		k.Errorf("%v: %s\n%.600s", err, data, sent)
	}
	k.mu.Lock()
	k.life.tokens += a.Usage.Cached + a.Usage.Computed
	k.mu.Unlock()
	return &a
}

// same compares an answer with those of the server without caches, by either checkpoint.
func (k *chaosClient) same(path string, body, whole object, got json.RawMessage) {
	var wants []string
	models := []string{whole["model"].(string)}
	if models[0] == "shop" {
		models = append(models, "shop-2")
	}
	for _, m := range models {
		whole["model"] = m
		code, data, err := k.send(context.Background(), "POST", k.plain+path, whole)
		var want apptest.Answer
		if err != nil || code != 200 || json.Unmarshal(data, &want) != nil {
			sent, _ := json.Marshal(whole)
			k.Errorf("the server without caches: %d %v %s\n%.500s", code, err, data, sent)
			return
		}
		if path == "/v1/score" {
			want.Results = want.Scores
		}
		if bytes.Equal(want.Results, got) {
			k.count("same as " + m + " by " + path)
			return
		}
		wants = append(wants, fmt.Sprintf("%.500s", want.Results))
	}
	sent, _ := json.Marshal(body)
	k.count("different")
	k.Errorf("%s gives\n%.500s\nwithout caches:\n%s\n%.1500s", path, got, strings.Join(wants, "\n"), sent)
}

func (k *chaosClient) recommend() {
	model := []string{"shop", "shop", "shop-hstu"}[k.r.IntN(3)]
	user, wholeUser := k.whom()
	body := object{"model": model, "user": user, "n": 1 + k.r.IntN(12), "beam_width": 1 + k.r.IntN(40),
		"exclude_seen": k.r.IntN(2) == 0}
	if k.r.IntN(3) == 0 {
		body["filter"] = object{"department": []string{"Camping", "Kitchen"}}
	}
	if k.r.IntN(3) == 0 {
		body["exclude"] = []string{k.known(), k.known(), k.items[0].id}
	}
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	fine := []int{200}
	switch k.r.IntN(10) {
	case 0:
		body["deadline_ms"], fine = 1+k.r.IntN(60), []int{200, 429, 504}
	case 1:
		ctx, cancel = context.WithTimeout(ctx, time.Duration(k.r.IntN(80))*time.Millisecond)
	}
	defer cancel()
	code, data, ok := k.ask(ctx, "POST", "/v1/recommend", body, fine...)
	if !ok || code != 200 {
		return
	}
	var a apptest.Answer
	if err := json.Unmarshal(data, &a); err != nil {
		k.Errorf("recommend: %v: %s", err, data)
	}
	delete(body, "deadline_ms")
	whole := maps.Clone(body)
	whole["user"] = wholeUser
	if model == "shop-hstu" || a.Version == k.base {
		k.same("/v1/recommend", body, whole, a.Results)
		return
	}
	key, _ := json.Marshal(whole)
	k.once(a.Version+string(key), a.Results)
}

// once makes sure that what was generated of one version and checkpoint is the same every time.
func (k *chaosClient) once(key string, got json.RawMessage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if slices.Contains(k.made[key], string(got)) {
		k.counts["generated again"]++
		return
	}
	if len(k.made[key]) < 2 {
		k.made[key] = append(k.made[key], string(got))
		return
	}
	k.Errorf("two checkpoints, three answers: %s\n%s\n%.500s", got, strings.Join(k.made[key], "\n"), key)
}

func (k *chaosClient) score() {
	body := object{"model": []string{"shop", "shop-pointwise"}[k.r.IntN(2)], "query": "Ada likes " + k.text(k.r.IntN(30)),
		"items":           []string{k.text(3), k.text(9)},
		"label_token_ids": []int{5, 9, 400}, "apply_softmax": k.r.IntN(2) == 0, "item_first": k.r.IntN(2) == 0}
	code, data, ok := k.ask(context.Background(), "POST", "/v1/score", body, 200)
	var a apptest.Answer
	if ok && code == 200 && json.Unmarshal(data, &a) == nil {
		k.same("/v1/score", body, maps.Clone(body), a.Scores)
	}
}

func (k *chaosClient) rerank() {
	body := object{"model": "shop-pointwise", "query": "Ada likes " + k.text(k.r.IntN(30)),
		"documents": []string{k.text(3), k.text(9), k.text(1)}}
	code, data, ok := k.ask(context.Background(), "POST", "/v1/rerank", body, 200)
	var a apptest.Answer
	if ok && code == 200 && json.Unmarshal(data, &a) == nil {
		k.same("/v1/rerank", body, maps.Clone(body), a.Results)
	}
}

// slowly sends a request byte by byte for a while, reads a little of the answer and goes away.
func (k *chaosClient) slowly(body object) {
	k.mu.Lock()
	k.life.unsure++
	k.mu.Unlock()
	conn, err := net.DialTimeout("tcp", k.addr, time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	data, _ := json.Marshal(body)
	fmt.Fprintf(conn, "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "+
		"%d\r\n\r\n", len(data))
	for len(data) > 0 && k.r.IntN(60) > 0 {
		n := min(len(data), 1+k.r.IntN(40))
		if _, err := conn.Write(data[:n]); err != nil {
			return
		}
		data = data[n:]
		time.Sleep(time.Millisecond)
	}
	one := make([]byte, 1)
	for range k.r.IntN(30) {
		if _, err := conn.Read(one); err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	k.count("read slowly")
}
