package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// First is how long the first request of a kind and size took, and later ones of it. Times are milliseconds.
type First struct {
	Kind   string  `json:"kind"` // rank, score, or recommend with a width
	Rows   int     `json:"rows"` // tokens of the prompt, all of them computed
	First  float64 `json:"first_ms"`
	Median float64 `json:"median_ms"` // of the later ones
	Most   float64 `json:"most_ms"`   // of the later ones
}

// mostTimes is how much longer than the median the first request may take.
const mostTimes = 2

// Ratio is how many times longer than the median the first request took.
func (f *First) Ratio() float64 { return f.First / f.Median }

// Slow reports whether the first request took more than twice the median.
func (f *First) Slow() bool { return f.Ratio() > mostTimes }

// firstWidths are the widths of recommendations.
var firstWidths = []int{50, 128, 512}

// firstRows are the sizes that GPUs prepare for apart: powers of two, and from 128 on multiples of it.
func firstRows(most int) []int {
	var out []int
	for rows := 8; rows <= most; rows += min(rows, 128) {
		out = append(out, rows)
	}
	return out
}

// FirstOptions say what to ask a server for that has just started. Zero means the default.
type FirstOptions struct {
	URL   string
	Model string // that is asked; the server's only one
	Rows  int    // most of a prompt; 2,048
	Later int    // requests of each kind and size behind the first; 9
	Seed  uint64 // 1
}

// Firsts sends one request of each kind and size, one after the other, and then Later more of each. Kinds and sizes
// have the order that the seed draws. No two prompts have a beginning in common, so that no KV is reused: a prompt
// with cached tokens, as on a server that was asked before, is an error.
func Firsts(ctx context.Context, o FirstOptions) ([]First, error) {
	set(&o.Rows, 2048)
	set(&o.Later, 9)
	set(&o.Seed, 1)
	c := newClient(&Options{URL: o.URL, Users: 1, Items: 1, Zipf: 1, Model: o.Model})
	defer c.http.CloseIdleConnections()
	p := &prompts{r: rand.New(rand.NewPCG(o.Seed, 27))}
	var all []First
	var bodies []func() (path string, body map[string]any)
	for _, rows := range firstRows(o.Rows) {
		all = append(all, First{Kind: "rank"}, First{Kind: "score"})
		bodies = append(bodies, func() (string, map[string]any) { return "/v1/rank", p.rank(rows) },
			func() (string, map[string]any) { return "/v1/score", p.score(rows) })
		for _, width := range firstWidths {
			all = append(all, First{Kind: fmt.Sprint("recommend ", width)})
			bodies = append(bodies, func() (string, map[string]any) { return "/v1/recommend", p.recommend(rows, width) })
		}
	}
	order := rand.New(rand.NewPCG(o.Seed, 26)).Perm(len(all))
	later := make([][]float64, len(all))
	for turn := range 1 + o.Later {
		for _, i := range order {
			path, body := bodies[i]()
			took, rows, err := c.timed(ctx, path, c.fresh(body))
			if err != nil {
				return nil, err
			}
			if all[i].Rows = rows; turn == 0 {
				all[i].First = took
			} else {
				later[i] = append(later[i], took)
			}
		}
	}
	for i := range all {
		all[i].Median, all[i].Most = median(later[i]), slices.Max(later[i])
	}
	return all, nil
}

// SlowFirsts returns an error that names the first requests that took more than twice their median.
func SlowFirsts(all []First) error {
	var slow []string
	for i := range all {
		if f := &all[i]; f.Slow() {
			slow = append(slow, fmt.Sprintf("%s of %d rows (%.1f ×)", f.Kind, f.Rows, f.Ratio()))
		}
	}
	if len(slow) == 0 {
		return nil
	}
	return fmt.Errorf("serving: %d of %d first requests took more than %d times the median: %s", len(slow), len(all),
		mostTimes, strings.Join(slow, ", "))
}

// spared is how many tokens of a prompt of so many rows are left to the user: templates may add some.
func spared(rows int) int { return rows - min(rows/2, 32) }

// fresh adds the model to a body.
func (c *client) fresh(body map[string]any) []byte {
	if c.o.Model != "" {
		body["model"] = c.o.Model
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // numbers and texts of this package have a text
	}
	return text
}

// prompts draws prompts that have no beginning in common: users begin with even tokens and items with odd ones, and no
// two of the first 2,048 of either begin with the same one. Prompts that a server prepares itself with begin with small
// tokens, which users come to last.
type prompts struct {
	r     *rand.Rand
	users int // drawn
	items int
}

// user draws the tokens of a user.
func (p *prompts) user(n int) []int {
	tokens := draw(p.r, n)
	p.users++
	tokens[0] = (plain - 2*p.users%plain) % plain
	return tokens
}

// candidates draws items that take a quarter of the rows or are most, and returns the rows that are left for the user.
func (p *prompts) candidates(rows, most int) (items [][]int, left int) {
	rows = spared(rows)
	each := max(1, min(perItem, rows/8))
	for range max(1, min(rows/4/each, most)) {
		item := draw(p.r, each)
		item[0], p.items = (2*p.items+1)%plain, p.items+1
		items = append(items, item)
	}
	return items, rows - each*len(items)
}

func (p *prompts) rank(rows int) map[string]any {
	items, left := p.candidates(rows, rows)
	candidates := make([]map[string]any, len(items))
	for i, tokens := range items {
		candidates[i] = map[string]any{"id": "c" + strconv.Itoa(i), "identifier": i, "tokens": tokens}
	}
	return map[string]any{"user": map[string]any{"tokens": p.user(left)}, "candidates": candidates}
}

// scored are the most items of a score: each has the instruction behind it, of three tokens here, for which there is as
// much room as spared leaves.
const scored = 8

func (p *prompts) score(rows int) map[string]any {
	items, left := p.candidates(rows, scored)
	return map[string]any{"query": p.user(left), "items": items, "label_token_ids": []int{1, 2}, "apply_softmax": true}
}

func (p *prompts) recommend(rows, width int) map[string]any {
	return map[string]any{"user": map[string]any{"tokens": p.user(spared(rows))}, "n": 10, "beam_width": width}
}

// timed returns the milliseconds that a request took, and the rows that it computed.
func (c *client) timed(ctx context.Context, path string, body []byte) (took float64, rows int, err error) {
	began := time.Now()
	text, err := c.get(ctx, http.MethodPost, path, body)
	took = time.Since(began).Seconds() * 1000
	if err != nil {
		return 0, 0, err
	}
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Cached  int `json:"cached_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, 0, fmt.Errorf("serving: %s: read the answer: %w", path, err)
	}
	if cached := max(answer.Usage.Cached, answer.Usage.Details.Cached); cached > 0 {
		return 0, 0, fmt.Errorf("serving: %s: a new prompt of %d tokens found %d of them cached: the server "+
			"has to be one that was not asked since its start", path, answer.Usage.Prompt, cached)
	}
	return took, answer.Usage.Prompt, nil
}
