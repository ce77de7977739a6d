package eval

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"grebe/bench/report"
	"grebe/internal/human"
)

// Report is what Run measured.
type Report struct {
	Date   string `json:"date"`
	Device string `json:"device,omitempty"`
	Model  string `json:"model,omitempty"`
	Random bool   `json:"random_weights"` // of the model
	Data   string `json:"data"`
	Users  int    `json:"users"`
	// Candidates is the mean length of the lists.
	Candidates float64 `json:"candidates"`
	Catalog    int     `json:"catalog"`
	UserTokens float64 `json:"user_tokens"` // mean over rankings
	ItemTokens float64 `json:"item_tokens"`

	AutoUserFirst float64      `json:"auto_user_first"`  // share of auto's rankings with the user first
	Unreal        int          `json:"unreal"`           // items that came back and do not exist
	Short         int          `json:"short"`            // recommendations with fewer items than asked for
	Ranking       []Line       `json:"ranking"`          // one of the candidates is right
	Generation    []Line       `json:"generation"`       // one item of the whole catalog is right
	Comparisons   []Comparison `json:"comparisons"`      // of NDCG@10 in rankings, Recall@10 in generation
	Orders        []Orders     `json:"orders,omitempty"` // of prompts, for each model that was asked in both
	Notes         []string     `json:"notes"`
}

// Line is what one way reached.
type Line struct {
	Way     string  `json:"way"`
	Model   bool    `json:"model"` // or a baseline
	At      []Cut   `json:"at"`
	Seconds float64 `json:"seconds,omitempty"`
	Cached  float64 `json:"cached"`             // share of the prompts' tokens whose KV was there
	TooLong int     `json:"too_long,omitempty"` // prompts that the model had no room for; they count as wrong
	// Expected is NDCG@10 in expectation over what users take, where probabilities are known.
	Expected *Estimate `json:"expected_ndcg_10,omitempty"`
	// Each is that of every user, or NDCG@10 where probabilities are not known: two runs can be compared user by user.
	Each []float64 `json:"each,omitempty"`
	// EachRecall and EachMRR are Recall@10, which is HIT@10 where one item is right, and MRR@10 likewise.
	EachRecall []float64 `json:"each_recall,omitempty"`
	EachMRR    []float64 `json:"each_mrr,omitempty"`

	ndcg, recall, expected []float64   // at the headline cut, per user
	scores                 [][]float64 // of candidates, per user
	lists                  [][]string  // of candidates, best first, per user
}

// Cut is the metrics at k.
type Cut struct {
	K      int      `json:"k"`
	Recall Estimate `json:"recall"`
	MRR    Estimate `json:"mrr"`
	NDCG   Estimate `json:"ndcg"`
	Hit    Estimate `json:"hit"`
}

// Comparison is how much of another way's metric a way reaches.
type Comparison struct {
	What   string   `json:"what"` // ranking or generation
	Metric string   `json:"metric"`
	Way    string   `json:"way"`
	Over   string   `json:"over"`
	Ratio  Estimate `json:"ratio"`
}

func newReport(d *Data) *Report {
	r := &Report{Date: time.Now().UTC().Format(time.DateOnly), Data: d.Name, Users: len(d.Questions),
		Catalog: len(d.order), Notes: slices.Clone(d.Notes)}
	for i := range d.Questions {
		r.Candidates += float64(len(d.Questions[i].Candidates)) / float64(len(d.Questions))
	}
	return r
}

func (r *Report) fill(d *Data, rank, recommend []result, by bootstrap) {
	chance := Line{Way: "chance"}
	var values [][]Metrics
	for i := range d.Questions {
		n := len(d.Questions[i].Candidates)
		p := slices.Repeat([]float64{1 / float64(n)}, n)
		values = append(values, atCuts(func(k int) Metrics { return Expected(p, k) }))
	}
	chance.summarise(values, by)
	r.Ranking = []Line{chance}
	for _, res := range rank {
		l := newLine(&res)
		l.summarise(realised(d, &res, func(q *Question) string { return q.Chosen }), by)
		if d.Known() {
			l.expect(d, &res, by)
		}
		r.Ranking = append(r.Ranking, l)
	}
	for _, res := range recommend {
		l := newLine(&res)
		l.summarise(realised(d, &res, func(q *Question) string { return q.Next }), by)
		if d.chances != nil {
			l.each(d.expectedNext(&res))
		}
		r.Generation = append(r.Generation, l)
	}
	for _, l := range slices.Concat(r.Ranking, r.Generation) {
		if l.TooLong > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: of %s %d did not fit into the model's positions and counted "+
				"as wrong.", l.Way, human.Count(r.Users, "prompt"), l.TooLong))
		}
	}
	r.compare(by)
}

func newLine(res *result) Line {
	cached := float64(res.cached) / float64(max(res.tokens, 1))
	return Line{Way: res.way, Model: res.model, Seconds: res.seconds, Cached: cached, TooLong: res.tooLong,
		scores: res.scores, lists: res.lists}
}

func atCuts(at func(k int) Metrics) []Metrics {
	out := make([]Metrics, len(cuts))
	for i, k := range cuts {
		out[i] = at(k)
	}
	return out
}

// realised returns the metrics of each question at each cut.
func realised(d *Data, res *result, answer func(*Question) string) [][]Metrics {
	out := make([][]Metrics, len(d.Questions))
	for i := range d.Questions {
		var places []int
		if at := slices.Index(res.lists[i], answer(&d.Questions[i])); at >= 0 {
			places = []int{at + 1}
		}
		out[i] = atCuts(func(k int) Metrics { return At(places, 1, k) })
	}
	return out
}

// column returns the metrics of all users at the cut of number c.
func column(values [][]Metrics, c int) []Metrics {
	out := make([]Metrics, len(values))
	for i := range values {
		out[i] = values[i][c]
	}
	return out
}

// summarise takes means over users.
func (l *Line) summarise(values [][]Metrics, by bootstrap) {
	for c, k := range cuts {
		at := column(values, c)
		one := func(f func(Metrics) float64) []float64 {
			out := make([]float64, len(at))
			for i := range at {
				out[i] = f(at[i])
			}
			return out
		}
		recall, ndcg := one(func(m Metrics) float64 { return m.Recall }), one(func(m Metrics) float64 { return m.NDCG })
		l.At = append(l.At, Cut{
			K: k, Recall: by.mean(recall), NDCG: by.mean(ndcg),
			MRR: by.mean(one(func(m Metrics) float64 { return m.MRR })),
			Hit: by.mean(one(func(m Metrics) float64 { return m.Hit })),
		})
		if k == headline {
			l.ndcg, l.recall = ndcg, recall
			l.each(at)
		}
	}
}

// each keeps the metrics of every user.
func (l *Line) each(of []Metrics) {
	l.Each, l.EachRecall, l.EachMRR = nil, nil, nil
	for _, m := range of {
		l.Each, l.EachRecall, l.EachMRR = append(l.Each, m.NDCG), append(l.EachRecall, m.Recall), append(l.EachMRR, m.MRR)
	}
}

// expect computes metrics in expectation over what users take.
func (l *Line) expect(d *Data, res *result, by bootstrap) {
	of := make([]Metrics, len(d.Questions))
	for i := range d.Questions {
		q := &d.Questions[i]
		p := map[string]float64{}
		var total float64
		for k, id := range q.Candidates {
			p[id] = q.Probabilities[k]
			total += q.Probabilities[k]
		}
		in := make([]float64, len(res.lists[i]))
		for k, id := range res.lists[i] {
			in[k] = p[id] / total
		}
		of[i] = Expected(in, headline)
	}
	l.each(of)
	l.expected = l.Each
	e := by.mean(l.expected)
	l.Expected = &e
}

// expectedNext returns the metrics at the headline cut in expectation over what users take of the whole catalog.
func (d *Data) expectedNext(res *result) []Metrics {
	of := make([]Metrics, len(d.Questions))
	for i, list := range res.lists {
		real := slices.DeleteFunc(slices.Clone(list), func(id string) bool { return d.items[id] == nil })
		of[i] = Expected(d.chances(i, real), headline)
	}
	return of
}

// compare relates each model's line to the optimum and to popularity, and the orders of a prompt to
// the first.
func (r *Report) compare(by bootstrap) {
	find := func(lines []Line, way string) *Line {
		for i := range lines {
			if lines[i].Way == way {
				return &lines[i]
			}
		}
		return nil
	}
	add := func(what, metric string, l, over *Line, values func(*Line) []float64) {
		if over != nil && over != l && len(values(over)) > 0 {
			r.Comparisons = append(r.Comparisons, Comparison{what, metric, l.Way, over.Way, by.ratio(values(l), values(over))})
		}
	}
	expected, metric := func(l *Line) []float64 { return l.expected }, "expected NDCG@10"
	if optimum := find(r.Ranking, "optimum"); optimum == nil {
		expected, metric = func(l *Line) []float64 { return l.ndcg }, "NDCG@10"
	}
	var first *Line // of the models
	for i := range r.Ranking {
		l := &r.Ranking[i]
		if !l.Model {
			continue
		}
		add("ranking", metric, l, find(r.Ranking, "optimum"), expected)
		add("ranking", metric, l, find(r.Ranking, "popularity"), expected)
		if first == nil {
			first = l
		}
		add("ranking", metric, l, first, expected)
	}
	recall := func(l *Line) []float64 { return l.recall }
	for i := range r.Generation {
		if l := &r.Generation[i]; l.Model {
			add("generation", "Recall@10", l, find(r.Generation, "optimum"), recall)
			add("generation", "Recall@10", l, find(r.Generation, "popularity"), recall)
		}
	}
}

// JSON writes the report for machines.
func (r *Report) JSON(w io.Writer) error {
	return report.JSON(w, r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", r.Date, r.Device)
	if r.Model != "" {
		fmt.Fprintf(&b, "model: %s\n", r.Model)
	}
	fmt.Fprintf(&b, "data: %s, %s; %s\n", r.Data, human.Count(r.Catalog, "item"), human.Count(r.Users, "user"))
	if r.UserTokens > 0 {
		fmt.Fprintf(&b, "prompts: %.0f tokens of history, %.1f per item; auto put the user first in %.0f %%\n", r.UserTokens,
			r.ItemTokens, 100*r.AutoUserFirst)
	}
	fmt.Fprintf(&b, "\nRanking %.0f candidates, one of which the user takes\n", r.Candidates)
	table(&b, r.Ranking, true)
	if len(r.Generation) > 0 {
		fmt.Fprintf(&b, "\nNaming the next item out of all %d\n", r.Catalog)
		table(&b, r.Generation, false)
		fmt.Fprintf(&b, "items that came back and do not exist: %d; recommendations with fewer than %d items: %d\n", r.Unreal,
			generated, r.Short)
	}
	if len(r.Comparisons) > 0 {
		fmt.Fprintf(&b, "\nRatios, with 95 %% intervals over users\n")
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, c := range r.Comparisons {
			fmt.Fprintf(t, "  %s\t%s of %s\t%s\n", c.Metric, c.Way, c.Over, c.Ratio.String())
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if err := r.orders(&b); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String writes an estimate to three digits with its interval, or n/a for a ratio over zero.
func (e Estimate) String() string {
	if e.Undefined {
		return "n/a"
	}
	return fmt.Sprintf("%.3f [%.3f, %.3f]", e.Value, e.Low, e.High)
}

func table(w io.Writer, lines []Line, ranking bool) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"", "Recall@5", "Recall@10", "MRR@10", "NDCG@5", "NDCG@10", "[95 %]"}
	if ranking {
		head = append(head, "expected NDCG@10")
	} else {
		head = append(head, "HIT@20", "NDCG@20")
	}
	fmt.Fprintln(t, strings.Join(append(head, "cached", "s"), "\t")+"\t")
	for i := range lines {
		l := &lines[i]
		five, ten, twenty := l.At[0], l.At[1], l.At[2]
		row := []string{l.Way, three(five.Recall), three(ten.Recall), three(ten.MRR), three(five.NDCG), three(ten.NDCG),
			fmt.Sprintf("[%.3f, %.3f]", ten.NDCG.Low, ten.NDCG.High)}
		switch {
		case !ranking:
			row = append(row, three(twenty.Hit), three(twenty.NDCG))
		case l.Expected != nil:
			row = append(row, l.Expected.String())
		default:
			row = append(row, "")
		}
		cached, seconds := "", ""
		if l.Model {
			cached, seconds = fmt.Sprintf("%.0f %%", 100*l.Cached), fmt.Sprintf("%.1f", l.Seconds)
		}
		fmt.Fprintln(t, strings.Join(append(row, cached, seconds), "\t")+"\t")
	}
	_ = t.Flush() // into memory
}

func three(e Estimate) string { return fmt.Sprintf("%.3f", e.Value) }
