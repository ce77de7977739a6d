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
