package simcheck

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"grebe/app"
	"grebe/prompt"
	"grebe/shop"
	"grebe/shop/demo"
	"grebe/sim"
	"grebe/workload"
)

// The load: customers of the shop's test split come back with longer histories. Nothing was fitted to them.
const (
	users    = 400
	userZipf = 0.8
	itemZipf = 1.0
	grows    = 2 // purchases between two requests of a customer, at most
	// hostTokens is host memory for KV, in tokens, that users and items have to compete for on a CPU.
	hostTokens = 24 << 10
)

// The prompt of the demo's model.
var templates = prompt.Config{
	Preamble: prompt.Text{Text: "A shop and one of its customers.\n"}, LeadIn: prompt.Text{Text: "Offers:\n"},
	Instruction: prompt.Text{Text: "The customer takes:"}, User: "{text}", Item: "<{id}> {text}\n",
}

// request is a ranking, as a server and as the simulator see it.
type request struct {
	body []byte
	sim.Request
}

// requests are those of a run. It is also a sim.Stream, whose times are those at which the server was asked.
type requests struct {
	all     []request
	lengths []int32 // of items, in tokens
	fixed   [3]int  // tokens of preamble, lead-in and instruction
	next    int
}

// draw makes n requests from a seed.
func draw(model string, n, candidates int, deadline time.Duration, seed uint64) (*requests, error) {
	world, err := shop.New(1, shop.Default)
	if err != nil {
		return nil, err
	}
	build, err := builder(model)
	if err != nil {
		return nil, err
	}
	out := &requests{lengths: make([]int32, len(world.Items)),
		fixed: [3]int{len(build.Preamble()), len(build.LeadIn()), len(build.Instruction())}}
	for i := range world.Items {
		tokens, err := build.ItemTokens(&prompt.Item{ID: world.Items[i].ID, Text: world.Items[i].Text()})
		if err != nil {
			return nil, err
		}
		out.lengths[i] = int32(len(tokens))
	}
	d := drawer{
		world: world, build: build, random: rand.New(rand.NewPCG(seed, 22)), candidates: candidates, deadline: deadline,
		users: workload.NewZipf(users, 1, userZipf), items: workload.NewZipf(len(world.Items), candidates, itemZipf),
		ranks: rand.New(rand.NewPCG(seed, 23)).Perm(len(world.Items)), known: map[int]*customer{},
	}
	for range n {
		r, err := d.request(out.lengths)
		if err != nil {
			return nil, err
		}
		out.all = append(out.all, *r)
	}
	return out, nil
}

// builder makes prompts as the server does.
func builder(dir string) (*prompt.Builder, error) {
	tokenizer, err := app.OpenTokenizer(dir)
	if err != nil {
		return nil, err
	}
	var c struct {
		Vocab int `json:"vocab_size"`
	}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	return prompt.New(templates, tokenizer, c.Vocab)
}

// customer is one of the shop's, with the number of purchases so far.
type customer struct {
	*shop.User
	bought, of int
}

// drawer draws requests.
type drawer struct {
	world      *shop.World
	build      *prompt.Builder
	random     *rand.Rand
	users      *workload.Zipf
	items      *workload.Zipf
	ranks      []int // item by rank
	known      map[int]*customer
	candidates int
	deadline   time.Duration
}

type named struct {
	ID   string `json:"id"`
	Text string `json:"text,omitempty"`
}

// request draws one.
func (d *drawer) request(lengths []int32) (*request, error) {
	n := d.users.Draw(d.random)
	text := d.history(n)
	tokens, err := d.build.UserTokens(&prompt.User{Text: text})
	if err != nil {
		return nil, err
	}
	r := &request{Request: sim.Request{User: uint64(n), UserTokens: int32(len(tokens))}}
	body := struct {
		Model      string  `json:"model"`
		User       named   `json:"user"`
		Candidates []named `json:"candidates"`
		TopK       int     `json:"top_k"`
		Deadline   int64   `json:"deadline_ms"`
	}{Model: demo.Model, User: named{fmt.Sprint("u", n), text}, TopK: 10, Deadline: d.deadline.Milliseconds()}
	seen := map[int]bool{}
	for len(seen) < d.candidates {
		item := d.ranks[d.items.Draw(d.random)]
		if seen[item] {
			continue
		}
		seen[item] = true
		r.Items, r.ItemTokens = append(r.Items, int32(item)), append(r.ItemTokens, lengths[item])
		body.Candidates = append(body.Candidates, named{ID: d.world.Items[item].ID})
	}
	r.body, err = json.Marshal(&body)
	return r, err
}

// history returns the text of a customer, who comes first after half of the purchases.
func (d *drawer) history(n int) string {
	c := d.known[n]
	if c == nil {
		u := d.world.User(shop.Test, n)
		c = &customer{User: u, of: u.Events()}
		c.bought = c.of / 2
		d.known[n] = c
	} else {
		c.bought = min(c.bought+d.random.IntN(grows+1), c.of-1)
	}
	return d.world.Text(d.world.Before(c.User, shop.Test, n, c.bought))
}

// Next plays the next request to the simulator.
func (r *requests) Next(to *sim.Request) bool {
	if r.next == len(r.all) {
		return false
	}
	from := &r.all[r.next]
	r.next++
	to.At, to.User, to.UserTokens = from.At, from.User, from.UserTokens
	to.Items, to.ItemTokens = append(to.Items[:0], from.Items...), append(to.ItemTokens[:0], from.ItemTokens...)
	return true
}

// Items returns the size of the catalog.
func (r *requests) Items() int { return len(r.lengths) }

// ItemTokens returns the length of an item.
func (r *requests) ItemTokens(item int32) int32 { return r.lengths[item] }
