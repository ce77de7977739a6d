package eval

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"grebe/bench/report"
	"grebe/internal/human"
)

// Setup is one way of computing, such as bf16 on a GPU, and what was measured with it.
type Setup struct {
	Name   string
	Report *Report
}

// Contrast says what other ways of computing change in the metrics, beside the first one of them.
type Contrast struct {
	Date      string      `json:"date"`
	Data      string      `json:"data"`
	Users     int         `json:"users"`
	Reference string      `json:"reference"`
	Expected  bool        `json:"expected"` // metrics are in expectation over what users take
	Setups    []SetupLine `json:"setups"`
	Lines     []Shift     `json:"lines"`
	// Reports are those of the setups, with the metrics of every user.
	Reports []*Report `json:"reports"`
}

// SetupLine is where a setup ran.
type SetupLine struct {
	Name   string `json:"name"`
	Device string `json:"device"`
	Model  string `json:"model"`
}

// Shift is what a setup changes in one way of answering.
type Shift struct {
	Way     string       `json:"way"`
	Setup   string       `json:"setup"`
	Metrics []Difference `json:"metrics"`
	Changed int          `json:"changed"` // users with another NDCG@10
	// Noise is the standard deviation of a candidate's score from the reference's, when what all candidates of
	// a list have in common is taken off; nil where scores are not known.
	Noise *float64 `json:"noise,omitempty"`
	// Tau is Kendall's τ of the lists with the reference's, nil where lists are not known or not of the same candidates.
	Tau     *Tau    `json:"kendall_tau,omitempty"`
	Ties    int     `json:"ties"` // pairs of neighbours in a list with equal scores
	Cached  float64 `json:"cached"`
	Seconds float64 `json:"seconds"`
}

// Difference is that of a metric's mean, with its standard error over users.
type Difference struct {
	Metric     string  `json:"metric"`
	Reference  float64 `json:"reference"`
	Value      float64 `json:"value"`
	Difference float64 `json:"difference"`
	Error      float64 `json:"standard_error"`
	// Lower is the lower end of the difference's 95 % interval as a share of the reference; nil where that is 0.
	Lower *float64 `json:"lower,omitempty"`
	// Needed is how many users it takes to know the difference to ± Precision in 95 of 100 cases.
	Needed int `json:"needed"`
}

const (
	// Precision is to what a difference should be known.
	Precision = 0.0005
	// Digits is what means may differ by and still be called the same to three digits.
	Digits = 0.001
)

// Same reports whether all metrics are the same to three digits.
func (s *Shift) Same() bool {
	for i := range s.Metrics {
		if !(math.Abs(s.Metrics[i].Difference) < Digits) {
			return false
		}
	}
	return true
}

// Compare holds setups, which answered the same questions, against the first.
func Compare(setups []Setup) (*Contrast, error) {
	first := setups[0].Report
	c := &Contrast{Date: first.Date, Data: first.Data, Users: first.Users, Reference: setups[0].Name}
	for _, s := range setups {
		if s.Report.Data != first.Data || s.Report.Users != first.Users {
			return nil, fmt.Errorf("eval: compare %s (%s, %d users) with %s (%s, %d users): not the same questions", s.Name,
				s.Report.Data, s.Report.Users,
				c.Reference, first.Data, first.Users)
		}
		c.Setups = append(c.Setups, SetupLine{s.Name, s.Report.Device, s.Report.Model})
		c.Reports = append(c.Reports, s.Report)
	}
	for _, from := range first.models() {
		c.Expected = c.Expected || from.Expected != nil
		for _, s := range setups[1:] {
			for _, to := range s.Report.models() {
				if to.Way != from.Way {
					continue
				}
				if len(to.Each) != len(from.Each) || len(to.EachMRR) != len(to.Each) || len(from.EachMRR) != len(from.Each) {
					return nil, fmt.Errorf("eval: compare %s: %s has the metrics of %d users, %s of %d", to.Way, s.Name,
						len(to.EachMRR), c.Reference, len(from.EachMRR))
				}
				c.Lines = append(c.Lines, shift(s.Name, from, to))
			}
		}
	}
	if len(c.Lines) == 0 {
		return nil, fmt.Errorf("eval: %s and the others have no way in common", c.Reference)
	}
	return c, nil
}

// models returns the lines that are no baselines.
func (r *Report) models() (out []*Line) {
	for _, lines := range [][]Line{r.Ranking, r.Generation} {
		for i := range lines {
			if lines[i].Model {
				out = append(out, &lines[i])
			}
		}
	}
	return out
}

func shift(setup string, from, to *Line) Shift {
	s := Shift{Way: to.Way, Setup: setup, Cached: to.Cached, Seconds: to.Seconds, Ties: ties(to.scores),
		Metrics: []Difference{
			differ("NDCG@10", from.Each, to.Each), differ("Recall@10, HIT@10", from.EachRecall, to.EachRecall),
			differ("MRR@10", from.EachMRR, to.EachMRR),
		}}
	for i := range from.Each {
		if from.Each[i] != to.Each[i] {
			s.Changed++
		}
	}
	if n, ok := noise(from.scores, to.scores); ok {
		s.Noise = &n
	}
	s.Tau = agreement(from.lists, to.lists)
	return s
}

// differ compares the same users' values.
func differ(metric string, from, to []float64) Difference {
	n := float64(len(from))
	d := Difference{Metric: metric}
	var sum, squares float64
	for i := range from {
		x := to[i] - from[i]
		d.Reference, d.Value = d.Reference+from[i]/n, d.Value+to[i]/n
		sum, squares = sum+x, squares+x*x
	}
	d.Difference = sum / n
	if n > 1 {
		variance := max(0, (squares-n*d.Difference*d.Difference)/(n-1))
		d.Error = math.Sqrt(variance / n)
		d.Needed = int(math.Ceil(variance * math.Pow(1.96/Precision, 2)))
	}
	if d.Reference > 0 {
		lower := (d.Difference - 1.96*d.Error) / d.Reference
		d.Lower = &lower
	}
	return d
}

// noise returns how far scores are apart within lists.
func noise(from, to [][]float64) (float64, bool) {
	var squares float64
	free := 0
	for k := range min(len(from), len(to)) {
		a, b := from[k], to[k]
		if len(a) < 2 || len(a) != len(b) {
			continue
		}
		var mean float64
		for i := range a {
			mean += (b[i] - a[i]) / float64(len(a))
		}
		for i := range a {
			squares += (b[i] - a[i] - mean) * (b[i] - a[i] - mean)
		}
		free += len(a) - 1
	}
	if free == 0 {
		return 0, false
	}
	return math.Sqrt(squares / float64(free)), true
}

// ties counts scores that another candidate of the list has too.
func ties(scores [][]float64) int {
	n := 0
	for _, list := range scores {
		seen := make(map[float64]bool, len(list))
		for _, x := range list {
			if seen[x] {
				n++
			}
			seen[x] = true
		}
	}
	return n
}

// JSON writes the contrast for machines.
func (c *Contrast) JSON(w io.Writer) error {
	return report.JSON(w, c)
}

// Text writes the contrast for people.
func (c *Contrast) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, %s\n", c.Date, c.Data, human.Count(c.Users, "user"))
	for _, s := range c.Setups {
		fmt.Fprintf(&b, "%s: %s; %s\n", s.Name, s.Device, s.Model)
	}
	what := "Metrics of what users took."
	if c.Expected {
		what = "Metrics in expectation over what users take."
	}
	fmt.Fprintf(&b, "\n%s Differences from %s, user by user, ± one standard error; HIT@10 is Recall@10, since one item "+
		"is right. \"At least\" is the lower "+
		"end of the 95 %% interval, as a share of %s. τ is Kendall's, of each list with that of %s: 1 is the same "+
		"order.\n\n", what, c.Reference, c.Reference, c.Reference)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\t\tNDCG@10\t\tat least\tRecall@10\t\tat least\tMRR@10\t\tat least\tτ of lists\tusers "+
		"changed\tnoise of scores\tequal\tknown to ±0.0005 from\tcached\ts\tthree digits")
	for i := range c.Lines {
		l := &c.Lines[i]
		fmt.Fprintf(t, "%s\t%s", l.Way, l.Setup)
		needed := 0
		for _, m := range l.Metrics {
			lower := ""
			if m.Lower != nil {
				lower = fmt.Sprintf("%+.2f %%", 100**m.Lower)
			}
			fmt.Fprintf(t, "\t%.4f\t%+.5f ± %.5f\t%s", m.Value, m.Difference, m.Error, lower)
			needed = max(needed, m.Needed)
		}
		noise, tau, verdict := "", "", "same"
		if l.Tau != nil {
			tau = fmt.Sprintf("%.4f ± %.4f", l.Tau.Mean, l.Tau.Error)
		}
		if l.Noise != nil {
			noise = fmt.Sprintf("%.5f", *l.Noise)
		}
		if !l.Same() {
			verdict = "DIFFERENT"
		}
		fmt.Fprintf(t, "\t%s\t%d\t%s\t%d\t%d users\t%.0f %%\t%.1f\t%s\n", tau, l.Changed, noise, l.Ties, needed, 100*l.Cached,
			l.Seconds, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
