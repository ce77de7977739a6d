package eval

import grebev1 "grebe/api/grebe/v1"

// Whole returns a question's user and candidates as messages, with texts and identifiers: for benchmarks that
// make prompts themselves.
func (d *Data) Whole(q *Question) (user *grebev1.User, candidates []*grebev1.Item) {
	for _, id := range q.Candidates {
		candidates = append(candidates, d.items[id])
	}
	return d.users[q.User], candidates
}

// Of returns how much of another way's NDCG@10 a way reaches in rankings, in expectation where that is known.
func (r *Report) Of(way, over string, seed uint64) (Estimate, bool) {
	var a, b []float64
	for i := range r.Ranking {
		l := &r.Ranking[i]
		values := l.expected
		if values == nil {
			values = l.ndcg
		}
		switch l.Way {
		case way:
			a = values
		case over:
			b = values
		}
	}
	if way == over {
		a = b
	}
	if len(a) == 0 || len(a) != len(b) {
		return Estimate{}, false
	}
	return Ratio(a, b, seed), true
}
