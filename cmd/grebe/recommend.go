package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grebe/internal/cli"
)

type recommendCmd struct {
	askFlags
	N           int      `short:"n" want:"at least 1 and at most 10000" help:"Items wanted, 1 to 10000; default 10." placeholder:"N"`
	BeamWidth   int      `want:"at least 1 and at most 4096" help:"Paths kept per round, 1 to 4096; default 128." placeholder:"W"`
	TopK        int      `want:"at least 1" help:"Continuations of one path that compete per round; default the beam width." placeholder:"K"`
	Exclude     []string `help:"Ids of items not wanted." placeholder:"ID"`
	ExcludeSeen bool     `help:"Leave out the items of the user's history."`
	Filter      []string `sep:"none" help:"Only items with one of these values of an attribute; may come several times." placeholder:"NAME=VALUE"`
}

func (recommendCmd) Help() string {
	return `Generates items of the server's catalog for a user, by beam search over their semantic IDs. Prints a
table on a terminal and the response's JSON otherwise. The score is the log-probability of the item's path.

Examples:

    grebe recommend --model shop --user kaya -n 5 --exclude-seen
    grebe recommend --history i9,i19 --filter category=books,music --exclude i3
    grebe recommend --user-text "Likes birds." --beam-width 512 --json
    grebe recommend --server http://10.0.0.7:8080 --request request.json`
}

// recommendRequest is the JSON of POST /v1/recommend.
type recommendRequest struct {
	Model       string              `json:"model,omitempty"`
	User        askUser             `json:"user"`
	N           int                 `json:"n,omitempty"`
	BeamWidth   int                 `json:"beam_width,omitempty"`
	TopK        int                 `json:"top_k,omitempty"`
	Exclude     []string            `json:"exclude,omitempty"`
	ExcludeSeen bool                `json:"exclude_seen,omitempty"`
	Filter      map[string][]string `json:"filter,omitempty"`
	DeadlineMS  int                 `json:"deadline_ms,omitempty"`
}

// recommendResponse is what the table shows of the answer.
type recommendResponse struct {
	Results []struct {
		ID    string  `json:"id"`
		Codes []int   `json:"codes"`
		Score float64 `json:"score"`
	} `json:"results"`
	Short   bool   `json:"short"`
	Version string `json:"catalog_version"`
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
	said := c.N != 0 || c.BeamWidth != 0 || c.TopK != 0 || len(c.Exclude) > 0 || c.ExcludeSeen || len(c.Filter) > 0
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
	return json.Marshal(recommendRequest{
		Model: c.Model, User: c.user(), N: c.N, BeamWidth: c.BeamWidth, TopK: c.TopK,
		Exclude: c.Exclude, ExcludeSeen: c.ExcludeSeen, Filter: filter, DeadlineMS: c.DeadlineMS,
	})
}

// parseFilter reads NAME=VALUE,... of each flag; the values of a name that comes twice are joined.
func parseFilter(flags []string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, f := range flags {
		name, values, ok := strings.Cut(f, "=")
		if !ok || name == "" || values == "" {
			return nil, cli.Usagef("--filter %q: want NAME=VALUE,...", f)
		}
		out[name] = append(out[name], strings.Split(values, ",")...)
	}
	return out, nil
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
	fmt.Fprint(t, "place\titem\tscore\tcodes\t\n")
	for i, x := range r.Results {
		codes := strings.Trim(fmt.Sprint(x.Codes), "[]")
		fmt.Fprintf(t, "%d\t%s\t%.4f\t%s\t%s\n", i+1, x.ID, x.Score, codes, texts[x.ID])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r.Short {
		fmt.Fprintln(out, "fewer than asked for: no more items were found")
	}
	_, err := fmt.Fprintf(out, "catalog version %s, %s\n", r.Version, &r.cost)
	return err
}
