// Package kv8 measures what KV in FP8 does to rankings: the same questions are asked of two servers that
// differ in the format of their KV only, and the scores, orders and qualities of the answers are compared.
//
// Every question is asked twice of each server, in turns, and the second answers count: what they see of
// users and items comes from the cache, in its format. (What is computed in a request is rounded to the format
// before it is used too, so the first answers hardly differ.)
package kv8

import (
	"context"
	"fmt"
	"math"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/bench/report"
	"grebe/eval"
)

// Format is a server and the format of its KV.
type Format struct {
	Name       string
	Asker      eval.Asker
	TokenBytes float64 // of KV, of all layers
}

// Options say how to measure.
type Options struct {
	Ways     []eval.Way            // rankings only
	Seed     uint64                // of intervals
	Progress func(done, total int) // called after each request
}

// Report compares the second format with the first.
type Report struct {
	Data, Device, Model string
	Random              bool // the weights are
	Formats             [2]string
	TokenBytes          [2]float64
	Lines               []Line
}

// Line is of one way to ask.
type Line struct {
	Way       string
	Questions int
	// Spread is the standard deviation of the first format's logits within a list, and Logit that of the
	// differences to them, less their mean, which changes nothing; Worst the largest of those.
	Spread, Logit, Worst float64
	Score                float64       // mean absolute difference of scores
	Tau                  eval.Estimate // Kendall's, of the orders
	Top10                eval.Estimate // share of the first ten that both have
	First                float64       // share of lists with the same first
	NDCG                 [2]float64    // at 10; in expectation where the probabilities are known
	Change               eval.Estimate // of it
	ComputeMs            [2]float64    // medians
}

// answer is a ranking: logits and scores by candidate, and the candidates' order.
type answer struct {
	logits, scores []float64
	order          []int
	computeMs      float64
}

// Run asks all questions.
func Run(ctx context.Context, d *eval.Data, formats [2]Format, o Options) (*Report, error) {
	r := &Report{Data: d.Name}
	for i := range formats {
		r.Formats[i], r.TokenBytes[i] = formats[i].Name, formats[i].TokenBytes
	}
	done, total := 0, len(o.Ways)*len(d.Questions)
	for i := range o.Ways {
		w := &o.Ways[i]
		var c comparison
		for q := range d.Questions {
			answers, err := ask(ctx, formats, d.Request(w, &d.Questions[q]), q%2 == 1)
			if err != nil {
				return nil, fmt.Errorf("kv8: %s: user %s: %w", w.Name, d.Questions[q].User, err)
			}
			c.add(&d.Questions[q], answers)
			if done++; o.Progress != nil {
				o.Progress(done, total)
			}
		}
		r.Lines = append(r.Lines, c.line(w.Name, o.Seed))
	}
	return r, nil
}

// ask returns the second answers of both servers.
func ask(ctx context.Context, formats [2]Format, req *grebev1.RankRequest, swap bool) (out [2]answer, err error) {
	for range 2 {
		for i := range formats {
			if swap {
				i = 1 - i
			}
			resp, err := formats[i].Asker.Rank(ctx, req)
			if err != nil {
				return out, fmt.Errorf("KV in %s: %w", formats[i].Name, err)
			}
			out[i] = newAnswer(resp, len(req.Candidates))
		}
	}
	return out, nil
}

func newAnswer(r *grebev1.RankResponse, candidates int) answer {
	a := answer{logits: make([]float64, candidates), scores: make([]float64, candidates),
		computeMs: r.GetTimingMs().GetCompute()}
	for _, x := range r.Results {
		a.logits[x.Index], a.scores[x.Index] = float64(x.Logit), x.Score
		a.order = append(a.order, int(x.Index))
	}
	return a
}

// comparison gathers the answers of one way.
type comparison struct {
	spread, logit, worst, score float64 // sums of variances and of differences
	values, same                int
	tau, top, change            []float64
	ndcg                        [2]float64
	times                       [2][]float64
}

func (c *comparison) add(q *eval.Question, a [2]answer) {
	n := len(a[0].logits)
	mean, shift := 0.0, 0.0
	for i := range n {
		mean += a[0].logits[i] / float64(n)
		shift += (a[1].logits[i] - a[0].logits[i]) / float64(n)
	}
	for i := range n {
		off := a[1].logits[i] - a[0].logits[i] - shift
		c.spread += (a[0].logits[i] - mean) * (a[0].logits[i] - mean)
		c.logit += off * off
		c.worst = max(c.worst, math.Abs(off))
		c.score += math.Abs(a[1].scores[i] - a[0].scores[i])
	}
	c.values += n
	c.tau = append(c.tau, Tau(a[0].order, a[1].order))
	c.top = append(c.top, overlap(a[0].order, a[1].order, 10))
	if n > 0 && a[0].order[0] == a[1].order[0] {
		c.same++
	}
	var quality [2]float64
	for i := range a {
		quality[i] = ndcg(q, a[i].order)
		c.ndcg[i] += quality[i]
		c.times[i] = append(c.times[i], a[i].computeMs)
	}
	c.change = append(c.change, quality[1]-quality[0])
}

func (c *comparison) line(way string, seed uint64) Line {
	n, values := float64(len(c.tau)), float64(max(c.values, 1))
	l := Line{Way: way, Questions: len(c.tau), Spread: math.Sqrt(c.spread / values), Logit: math.Sqrt(c.logit / values),
		Worst: c.worst, Score: c.score / values,
		Tau: eval.Mean(c.tau, seed), Top10: eval.Mean(c.top, seed), First: float64(c.same) / n,
		Change: eval.Mean(c.change, seed)}
	for i := range c.times {
		l.ComputeMs[i] = report.Median(c.times[i])
		l.NDCG[i] = c.ndcg[i] / n
	}
	return l
}

// ndcg is that of an order of candidates at 10: in expectation where it is known how likely each one is.
func ndcg(q *eval.Question, order []int) float64 {
	if len(q.Probabilities) == 0 {
		for place, i := range order {
			if q.Candidates[i] == q.Chosen {
				return eval.At([]int{place + 1}, 1, 10).NDCG
			}
		}
		return 0
	}
	sum := 0.0
	for _, p := range q.Probabilities {
		sum += p
	}
	p := make([]float64, len(order))
	for place, i := range order {
		p[place] = q.Probabilities[i] / sum
	}
	return eval.Expected(p, 10).NDCG
}

// Tau is Kendall's τ of two orders of the same things: the share of pairs in the same order less the share of
// the others. Orders of fewer than two things agree.
func Tau(a, b []int) float64 {
	if len(a) < 2 {
		return 1
	}
	place := make([]int, len(b))
	for i, x := range b {
		place[x] = i
	}
	same := 0
	for i := range a {
		for j := i + 1; j < len(a); j++ {
			if place[a[i]] < place[a[j]] {
				same++
			}
		}
	}
	pairs := len(a) * (len(a) - 1) / 2
	return float64(2*same-pairs) / float64(pairs)
}

// overlap is the share of the first k of a that are among the first k of b.
func overlap(a, b []int, k int) float64 {
	if k = min(k, len(a)); k == 0 {
		return 1
	}
	n := 0
	for _, x := range a[:k] {
		if slices.Contains(b[:k], x) {
			n++
		}
	}
	return float64(n) / float64(k)
}
