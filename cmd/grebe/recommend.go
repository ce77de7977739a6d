package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"grebe/internal/cli"
)

type recommendCmd struct {
	askFlags
	N           int      `short:"n" want:"at least 1 and at most 10000" placeholder:"N"`
	BeamWidth   int      `want:"at least 1 and at most 4096" placeholder:"W"`
	TopK        int      `want:"at least 1" placeholder:"K"`
	Exclude     []string `help:"Ids of items not wanted." placeholder:"ID"`
	ExcludeSeen bool     `help:"Leave out the items of the user's history."`
	Filter      []string `sep:"none" placeholder:"NAME=VALUE"`
	Quota       []string `sep:"none" placeholder:"NAME=N"`
	Boost       []string `sep:"none" placeholder:"NAME=VALUE:X"`
	Temperature float64  `want:"at least 0 and at most 100" placeholder:"T"`
	Fallback    string   `enum:",popular" default:"" placeholder:"KIND"`
	Seed        *uint64  `help:"Seed of the samples: equal seeds draw equally." placeholder:"S"`
	Explain     bool     `help:"Say where the KV of each part of the prompt came from."`
}

func (recommendCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"n":          "Items wanted, 1 to 10000; default 10.",
		"beam-width": "Paths kept per round, 1 to 8192; default 128.",
		"top-k":      "Continuations of one path that compete per round; default the beam width.",
		"filter": "Only items with one of these values of an attribute, or none of them (NAME!=VALUE), or a number or " +
			"time in a range (NAME>=X); may come several times.",
		"quota":       "At most N results with the same value of an attribute; may come several times.",
		"boost":       "Add X to the scores of items with a value of an attribute; may come several times.",
		"temperature": "Above 0: sample paths without replacement; default 0, the most probable.",
		"fallback":    "popular: items with many events, for users of whom the model can read nothing.",
	}
}

func (recommendCmd) Help() string {
	return `Generates items of the server's catalog for a user, by beam search over their semantic IDs. Prints a
table on a terminal and the response's JSON otherwise. The score is the log-probability of the item's path.

Examples:

    grebe recommend --model shop --user kaya -n 5 --exclude-seen
    grebe recommend --history i9,i19 --filter category=books,music --exclude i3
    grebe recommend --user kaya --filter 'price>=10' --filter 'price<50' --filter 'brand!=acme'
    grebe recommend --user-text "Likes birds." --beam-width 512 --json
    grebe recommend --user kaya --quota brand=2 --boost category=books:0.5
    grebe recommend --user kaya --temperature 0.8 --seed 7
    grebe recommend --user kaya --explain
    grebe recommend --server http://10.0.0.7:8080 --request request.json`
}

// recommendRequest is the JSON of POST /v1/recommend.
type recommendRequest struct {
	Model       string         `json:"model,omitempty"`
	User        askUser        `json:"user"`
	N           int            `json:"n,omitempty"`
	BeamWidth   int            `json:"beam_width,omitempty"`
	TopK        int            `json:"top_k,omitempty"`
	Exclude     []string       `json:"exclude,omitempty"`
	ExcludeSeen bool           `json:"exclude_seen,omitempty"`
	Filter      map[string]any `json:"filter,omitempty"`
	DeadlineMS  int            `json:"deadline_ms,omitempty"`

	Quota       map[string]int                `json:"quota,omitempty"`
	Boost       map[string]map[string]float64 `json:"boost,omitempty"`
	Temperature float64                       `json:"temperature,omitempty"`
	Seed        *uint64                       `json:"seed,omitempty"`
	Fallback    string                        `json:"fallback,omitempty"`
	Explain     bool                          `json:"explain,omitempty"`
}

// recommendResponse is what the table shows of the answer.
type recommendResponse struct {
	Results []struct {
		ID    string  `json:"id"`
		Codes []int   `json:"codes"`
		Score float64 `json:"score"`
	} `json:"results"`
	Short    bool     `json:"short"`
	Fallback string   `json:"fallback"`
	Notes    []string `json:"notes"`
	Version  string   `json:"catalog_version"`
	Node     string   `json:"node"`
	explained
	cost
}

func (c *recommendCmd) Run(w *cli.World) error {
	body, err := c.body(w)
	if err != nil {
		return err
	}
	var r recommendResponse
	return c.ask(w, "/v1/recommend", body, &r, func() error { return r.table(w.Stdout, c.titles(w, r.ids())) })
}

func (c *recommendCmd) body(w *cli.World) ([]byte, error) {
	said := c.N != 0 || c.BeamWidth != 0 || c.TopK != 0 || len(c.Exclude) > 0 || c.ExcludeSeen || len(c.Filter) > 0 ||
		len(c.Quota) > 0 || len(c.Boost) > 0 || c.Temperature != 0 || c.Seed != nil || c.Fallback != "" || c.Explain
	if c.Request != "" {
		return c.readRequest(w, said)
	}
	if !c.named() {
		return nil, cli.Usagef("for whom? Give --user, --user-text or --history")
	}
	filter, err := parseFilter(c.Filter)
	if err != nil {
		return nil, err
	}
	quota, err := parseQuota(c.Quota)
	if err != nil {
		return nil, err
	}
	boost, err := parseBoost(c.Boost)
	if err != nil {
		return nil, err
	}
	return json.Marshal(recommendRequest{
		Model: c.Model, User: c.user(), N: c.N, BeamWidth: c.BeamWidth, TopK: c.TopK,
		Exclude: c.Exclude, ExcludeSeen: c.ExcludeSeen, Filter: filter, DeadlineMS: c.DeadlineMS,
		Quota: quota, Boost: boost, Temperature: c.Temperature, Seed: c.Seed, Fallback: c.Fallback,
		Explain: c.Explain,
	})
}

// parseQuota reads NAME=N of each flag.
func parseQuota(flags []string) (map[string]int, error) {
	out := map[string]int{}
	for _, f := range flags {
		name, n, _ := strings.Cut(f, "=")
		limit, err := strconv.Atoi(n)
		if err != nil || name == "" || limit < 1 {
			return nil, cli.Usagef("--quota %q: want NAME=N with N from 1 on", f)
		}
		out[name] = limit
	}
	return out, nil
}

// parseBoost reads NAME=VALUE:X of each flag. The value may have colons.
func parseBoost(flags []string) (map[string]map[string]float64, error) {
	out := map[string]map[string]float64{}
	for _, f := range flags {
		name, rest, _ := strings.Cut(f, "=")
		at := strings.LastIndexByte(rest, ':')
		if name == "" || at < 1 {
			return nil, cli.Usagef("--boost %q: want NAME=VALUE:X", f)
		}
		x, err := strconv.ParseFloat(rest[at+1:], 64)
		if err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, cli.Usagef("--boost %q: %q is not a number", f, rest[at+1:])
		}
		if out[name] == nil {
			out[name] = map[string]float64{}
		}
		out[name][rest[:at]] = x
	}
	return out, nil
}

// comparisons are the signs of ranges, longer ones first, and their names in the API.
var comparisons = []struct{ sign, name string }{{">=", "gte"}, {"<=", "lte"}, {"!=", "not"}, {">", "gt"}, {"<", "lt"}}

// parseFilter reads NAME=VALUE,..., NAME!=VALUE,... or NAME>=BOUND of each flag. The values of a name that comes twice
// are joined.
func parseFilter(flags []string) (map[string]any, error) {
	out, parts := map[string]any{}, map[string]map[string]any{}
	for _, f := range flags {
		end := strings.IndexAny(f, "<>!=")
		if end <= 0 {
			return nil, badFilter(f)
		}
		name, rest, part := f[:end], f[end:], ""
		for _, c := range comparisons {
			if text, ok := strings.CutPrefix(rest, c.sign); ok && part == "" {
				part, rest = c.name, text
			}
		}
		if part == "" && f[end] == '=' {
			rest = rest[1:]
		} else if part == "" {
			return nil, badFilter(f)
		}
		if rest == "" {
			return nil, badFilter(f)
		}
		if part == "" {
			before, _ := out[name].([]string)
			out[name] = append(before, strings.Split(rest, ",")...)
			continue
		}
		if parts[name] == nil {
			parts[name] = map[string]any{}
		}
		if part == "not" {
			before, _ := parts[name][part].([]string)
			parts[name][part] = append(before, strings.Split(rest, ",")...)
		} else {
			parts[name][part] = rest
		}
	}
	for name, p := range parts {
		if out[name] != nil {
			return nil, cli.Usagef("--filter: %q has values and a range or !=: give one or the other", name)
		}
		out[name] = p
	}
	return out, nil
}

func badFilter(flag string) error {
	return cli.Usagef("--filter %q: want NAME=VALUE,..., NAME!=VALUE,... or a range such as NAME>=10", flag)
}

func (r *recommendResponse) ids() []string {
	var ids []string
	for _, x := range r.Results {
		ids = append(ids, x.ID)
	}
	return ids
}

// table prints items for people; texts says what they are, nil when unknown.
func (r *recommendResponse) table(out io.Writer, texts map[string]string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	coded := false // models of events have no codes
	for _, x := range r.Results {
		coded = coded || len(x.Codes) > 0
	}
	fmt.Fprint(t, "place\titem\tscore\t")
	if coded {
		fmt.Fprint(t, "codes\t")
	}
	fmt.Fprintln(t)
	for i, x := range r.Results {
		fmt.Fprintf(t, "%d\t%s\t%.4f\t", i+1, x.ID, x.Score)
		if coded {
			fmt.Fprintf(t, "%s\t", strings.Trim(fmt.Sprint(x.Codes), "[]"))
		}
		fmt.Fprintln(t, texts[x.ID])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Fallback != "" {
		fmt.Fprintf(out, "%s items: of this user nothing is known that the model reads\n", r.Fallback)
	}
	if r.Short {
		fmt.Fprintln(out, "fewer than asked for: no more items were found")
	}
	for _, note := range r.Notes {
		fmt.Fprintln(out, "note:", note)
	}
	if _, err := fmt.Fprintf(out, "catalog version %s, %s\n", r.Version, &r.cost); err != nil {
		return err
	}
	if r.Route != nil {
		fmt.Fprintln(out)
	}
	return r.explain(out, r.Node)
}
