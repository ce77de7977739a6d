package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Op is what a request does.
type Op uint8

const (
	Rank      Op = iota // items for a user with an id
	RankText            // items for a user who is described
	Pointwise           // items, a question for each
	ItemFirst           // items, with the items first in the prompt
	Blend               // items, with KV from anywhere
	Events              // items, by the model of events
	Recommend           // items out of all
	Grow                // a user's history
	Forget              // delete a user and bring it back
	Withdraw            // delete an item and bring it back
	ops
)

// Mix says how often each Op comes, in parts of the sum.
type Mix map[Op]int

// usual is what most servers are asked for.
var usual = Mix{Rank: 60, RankText: 12, Pointwise: 6, ItemFirst: 4, Events: 3, Recommend: 5, Grow: 7, Forget: 3}

// with returns a mix with some parts replaced.
func (m Mix) with(more Mix) Mix {
	out := Mix{}
	for _, from := range []Mix{m, more} {
		for op, n := range from {
			out[op] = n
		}
	}
	return out
}

const (
	users = 60
	items = 9540 // of the demo
)

// customers are users of the demo who have events.
var customers = []string{"kaya", "rosa", "grace", "jonas", "hugo", "dario"}

// Traffic makes requests from a seed: request i asks for the same whenever it comes, but for how much users have grown
// by then.
type Traffic struct {
	URL      string        // of the server
	Seed     uint64        // of all requests
	Mix      Mix           // nil: usual
	Deadline time.Duration // of a ranking, more or less; 0: the server's
	client   http.Client
	grown    [users]struct {
		sync.Mutex
		lines int
	}
	mu      sync.Mutex
	answers map[int]int // by status
}

// NewTraffic returns the requests of a seed.
func NewTraffic(seed uint64, mix Mix) *Traffic {
	if mix == nil {
		mix = usual
	}
	t := &Traffic{Seed: seed, Mix: mix, answers: map[int]int{}}
	t.client.Transport = &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}
	for u := range t.grown {
		t.grown[u].lines = 4 + rand.New(rand.NewPCG(seed, uint64(u))).IntN(26)
	}
	return t
}

// Answers returns how many answers had each status, and begins anew.
func (t *Traffic) Answers() map[int]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.answers
	t.answers = map[int]int{}
	return out
}

// WriteUsers writes users as they are before any request behind those of a file.
func (t *Traffic) WriteUsers(behind, to string) error {
	b, err := os.ReadFile(behind)
	if err != nil {
		return err
	}
	for u := range users {
		b = fmt.Appendf(b, `{"id":"u%d","text":%s}`+"\n", u, strconv.Quote(t.history(u, t.grown[u].lines)))
	}
	return os.WriteFile(to, b, 0o600)
}

var words = strings.Fields("runs camps swims bakes paints sews reads builds rides climbs fishes cooks gardens sings")

// history is the first lines of a user's.
func (t *Traffic) history(u, lines int) string {
	var b strings.Builder
	for i := range lines {
		r := rand.New(rand.NewPCG(t.Seed<<20+uint64(u), uint64(i)))
		what, of := words[r.IntN(len(words))], words[r.IntN(len(words))]
		fmt.Fprintf(&b, "%d July 2026, bought \"%s %s\"\n", i%30+1, what, of)
	}
	return b.String()
}

// Do sends request i and waits for the answer. A refusal is no error; a server that does not answer is one.
func (t *Traffic) Do(ctx context.Context, i int) error {
	r := rand.New(rand.NewPCG(t.Seed, uint64(i)+1<<32))
	u := min(users-1, int(r.ExpFloat64()*users/5))
	op := t.op(r)
	switch op {
	case Grow:
		g := &t.grown[u]
		g.Lock()
		defer g.Unlock()
		g.lines += 2
		return t.send(ctx, "PUT", "/v1/users/u"+strconv.Itoa(u), t.user(u, g.lines))
	case Forget:
		g := &t.grown[u]
		g.Lock()
		defer g.Unlock()
		name := "/v1/users/u" + strconv.Itoa(u)
		return errors.Join(t.send(ctx, "DELETE", name, ""), t.send(ctx, "PUT", name, t.user(u, g.lines)))
	case Withdraw:
		n := item(r)
		name := "/v1/items/" + itemID(n)
		return errors.Join(t.send(ctx, "DELETE", name, ""),
			t.send(ctx, "PUT", name, fmt.Sprintf(`{"text":"%s %d","identifier":%d,"codes":[%d,%d,%d]}`,
				words[r.IntN(len(words))], r.IntN(3), 2629+n, r.IntN(64), r.IntN(64), r.IntN(32))))
	case Recommend:
		body := fmt.Sprintf(`{"model":"shop","user":{"id":"u%d"},"n":5%s}`, u, t.deadline(r))
		return t.send(ctx, "POST", "/v1/recommend", body)
	}
	return t.send(ctx, "POST", "/v1/rank", t.ranking(r, op, u))
}

func (t *Traffic) op(r *rand.Rand) Op {
	sum := 0
	for _, n := range t.Mix {
		sum += n
	}
	at := r.IntN(sum)
	for op := range ops {
		if at -= t.Mix[op]; at < 0 {
			return op
		}
	}
	return Rank
}

// deadline is that of one request, from a fifth to twice the usual one.
func (t *Traffic) deadline(r *rand.Rand) string {
	if t.Deadline == 0 {
		return ""
	}
	return fmt.Sprintf(`,"deadline_ms":%d`, max(1, int(t.Deadline.Seconds()*1000*(.2+1.8*r.Float64()))))
}

func (t *Traffic) user(u, lines int) string {
	return `{"text":` + strconv.Quote(t.history(u, lines)) + `}`
}

// item is a number from 1, small ones more often.
func item(r *rand.Rand) int { return 1 + min(items-1, int(r.ExpFloat64()*60)) }

func itemID(n int) string { return fmt.Sprintf("i%05d", n) }

// ranking is the body of one.
func (t *Traffic) ranking(r *rand.Rand, op Op, u int) string {
	model, prefix, user := "shop", "auto", fmt.Sprintf(`{"id":"u%d"}`, u)
	most := []int{4, 12, 30}[r.IntN(3)]
	switch op {
	case RankText:
		user = `{"text":` + strconv.Quote(t.history(u, 5+5*r.IntN(3))) + `}`
	case Pointwise:
		model, most = "shop-pointwise", 6
	case ItemFirst:
		prefix = "item"
	case Blend:
		prefix = "blend"
	case Events:
		model, user = "shop-hstu", fmt.Sprintf(`{"id":%q}`, customers[r.IntN(len(customers))])
	}
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":%q,"user":%s,"prefix":%q,"top_k":1%s,"candidates":[`, model, user, prefix, t.deadline(r))
	seen := map[int]bool{}
	for range most {
		n := item(r)
		if seen[n] {
			continue
		}
		if len(seen) > 0 {
			b.WriteByte(',')
		}
		seen[n] = true
		fmt.Fprintf(&b, `{"id":%q}`, itemID(n))
	}
	b.WriteString("]}")
	return b.String()
}

func (t *Traffic) send(ctx context.Context, method, path, body string) error {
	req, err := http.NewRequestWithContext(ctx, method, t.URL+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	t.mu.Lock()
	t.answers[resp.StatusCode]++
	t.mu.Unlock()
	return nil
}
