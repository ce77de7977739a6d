package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"grebe/internal/cli"
)

type rankCmd struct {
	askFlags
	Candidates     []string `xor:"candidates" help:"Ids of the items to rank." placeholder:"ID"`
	CandidatesFile string   `xor:"candidates" type:"path" placeholder:"FILE"`
	TopK           int      `want:"at least 0" help:"Return only the best K; 0 for all." placeholder:"K"`
	Prefix         string   `default:"auto" enum:"auto,user,item,none,blend"`
	Explain        bool     `help:"Say where the KV of each part of the prompt came from."`
}

func (rankCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"candidates-file": "File with one candidate per line: an id, or an item as JSON.",
		"prefix":          "What comes first and is reused: ${enum}.",
	}
}

func (rankCmd) Help() string {
	return `Prints a table on a terminal and the response's JSON otherwise.

Examples:

    grebe rank --model shop --user kaya --candidates i00040,i02500,i05100 --top-k 2
    grebe rank --model shop --user kaya --candidates i00040,i02500 --explain
    grebe rank --user-text "Likes birds." --candidates-file items.ndjson --prefix item
    grebe rank --server http://10.0.0.7:8080 --request request.json --json`
}

// rankRequest is the JSON of POST /v1/rank.
type rankRequest struct {
	Model      string            `json:"model,omitempty"`
	User       askUser           `json:"user"`
	Candidates []json.RawMessage `json:"candidates"`
	TopK       int               `json:"top_k,omitempty"`
	Prefix     string            `json:"prefix,omitempty"`
	DeadlineMS int               `json:"deadline_ms,omitempty"`
	Explain    bool              `json:"explain,omitempty"`
}

// rankResponse is what the table shows of the answer.
type rankResponse struct {
	Model   string `json:"model"`
	Node    string `json:"node"`
	Prefix  string `json:"prefix"`
	Reason  string `json:"prefix_reason"`
	Results []struct {
		Index int     `json:"index"`
		ID    string  `json:"id"`
		Score float64 `json:"score"`
		Logit float64 `json:"logit"`
	} `json:"results"`
	explained
	cost
}

// explained is what an answer says of its prompt and its node, if that was asked for.
type explained struct {
	Parts []struct {
		Kind   string `json:"kind"`
		ID     string `json:"id"`
		Tokens int    `json:"tokens"`
		Cached int    `json:"cached"`
		Source string `json:"source"`
	} `json:"parts"`
	Route *struct {
		Predicted float64 `json:"predicted_ms"`
		Reason    string  `json:"reason"`
	} `json:"route"`
}

func (c *rankCmd) Run(w *cli.World) error {
	body, err := c.body(w)
	if err != nil {
		return err
	}
	var r rankResponse
	return c.ask(w, "/v1/rank", body, &r, func() error { return r.table(w.Stdout, c.titles(w, r.ids())) })
}

func (c *rankCmd) body(w *cli.World) ([]byte, error) {
	listed := len(c.Candidates) > 0 || c.CandidatesFile != ""
	if c.Request != "" {
		return c.readRequest(w, listed || c.Explain)
	}
	if !c.named() {
		return nil, cli.Usagef("for whom? Give --user, --user-text or --history")
	}
	if !listed {
		return nil, cli.Usagef("rank what? Give --candidates or --candidates-file")
	}
	r := rankRequest{Model: c.Model, User: c.user(), TopK: c.TopK, Prefix: c.Prefix, DeadlineMS: c.DeadlineMS,
		Explain: c.Explain}
	for _, id := range c.Candidates {
		r.Candidates = append(r.Candidates, byID(id))
	}
	if c.CandidatesFile != "" {
		var err error
		if r.Candidates, err = readCandidates(c.CandidatesFile); err != nil {
			return nil, err
		}
	}
	return json.Marshal(r)
}

func byID(id string) json.RawMessage {
	raw, _ := json.Marshal(map[string]string{"id": id}) // a map of strings cannot fail
	return raw
}

func readCandidates(name string) ([]json.RawMessage, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the candidates: %w", err)
	}
	defer f.Close()
	var out []json.RawMessage
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		switch {
		case text == "":
		case text[0] != '{':
			out = append(out, byID(text))
		case !json.Valid([]byte(text)):
			return nil, fmt.Errorf("%s:%d: not a JSON object", name, line)
		default:
			out = append(out, json.RawMessage(text))
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read the candidates: %s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no candidates", name)
	}
	return out, nil
}

func (r *rankResponse) ids() []string {
	var ids []string
	for _, x := range r.Results {
		ids = append(ids, x.ID)
	}
	return ids
}

// table prints a ranking for people; texts says what the items are, nil when unknown.
func (r *rankResponse) table(out io.Writer, texts map[string]string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "place\titem\tscore\tlogit\t\n")
	for i, x := range r.Results {
		fmt.Fprintf(t, "%d\t%s\t%.4f\t%.3f\t%s\n", i+1, cmp.Or(x.ID, fmt.Sprintf("#%d", x.Index)), x.Score, x.Logit,
			texts[x.ID])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	order := r.Prefix
	if order == "user" || order == "item" {
		order += "-first"
	}
	if _, err := fmt.Fprintf(out, "%s, %s\n", order, &r.cost); err != nil {
		return err
	}
	if len(r.Parts) > 0 {
		fmt.Fprintf(out, "\n%s (prefix: %s), because %s (%s).\n", inWords(prefixWords, r.Prefix), r.Prefix,
			inWords(prefixReasons, r.Reason), r.Reason)
	}
	return r.explain(out, r.Node)
}

// explain prints why the node answered, and the parts of the prompt.
func (r *explained) explain(out io.Writer, node string) error {
	if r.Route != nil {
		fmt.Fprintf(out, "Node %s answered, because %s (%s). It was predicted to take %.1f ms.\n", node,
			inWords(routeReasons, r.Route.Reason), r.Route.Reason, r.Route.Predicted)
	}
	if len(r.Parts) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "part\ttokens\tcached\tcomputed\tcached in\n")
	names := r.partNames()
	for i, p := range r.Parts {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\n", names[i], p.Tokens, p.Cached, p.Tokens-p.Cached,
			inWords(sourceWords, p.Source))
	}
	return t.Flush()
}

// partNames returns what each part of the prompt is called. The questions about single items come in the order of the
// items. An item without an id is called by its place in the request.
func (r *explained) partNames() []string {
	var items, out []string
	for _, p := range r.Parts {
		if p.Kind == "item" {
			items = append(items, cmp.Or(p.ID, fmt.Sprintf("#%d", len(items))))
		}
	}
	item, question := 0, 0
	for _, p := range r.Parts {
		switch {
		case p.Kind == "item":
			out = append(out, "item "+items[item])
			item++
		case p.Kind == "discriminant" && question < len(items):
			out = append(out, "question about "+items[question])
			question++
		default:
			out = append(out, p.Kind)
		}
	}
	return out
}

// The words of the API for people. An answer of a newer server may have others, which are shown as they are.
var (
	prefixWords = map[string]string{
		"user":  "The user comes first in the prompt",
		"item":  "The items come first in the prompt",
		"none":  "Nothing was reused",
		"blend": "The prompt is an ordinary one, which blends in KV of other prompts",
	}
	prefixReasons = map[string]string{
		"requested":  "the request asks for it",
		"only":       "the configuration allows no other order",
		"fixed":      "the configured policy leaves no choice",
		"no-cache":   "nothing can be reused",
		"cheaper":    "that is predicted to take less time now",
		"invest":     "that takes longer now, but is predicted to save more time later",
		"deadline":   "the other order would miss the deadline",
		"blend":      "that is predicted to take the least time",
		"user-long":  "the user has at least as many tokens as the items",
		"user-short": "the user has fewer tokens than the items",
		"user-hot":   "the user asks more often than the rarest of the items is asked for",
		"user-cold":  "each of the items is asked for at least as often as the user asks",
	}
	routeReasons = map[string]string{
		"user":  "it has KV of the user",
		"items": "KV of items was known there or on other nodes",
		"rows":  "it has most of the embedding rows",
		"load":  "it was predicted to be the fastest",
		"again": "another node did not answer",
		"alone": "no other node is known",
	}
	sourceWords = map[string]string{
		"":          "-",
		"device":    "device memory",
		"host":      "host memory",
		"peer":      "another node (peer)",
		"prototype": "similar tokens (prototype)",
	}
)

func inWords(words map[string]string, of string) string {
	if text, ok := words[of]; ok {
		return text
	}
	return of
}
