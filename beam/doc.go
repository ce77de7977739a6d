// Package beam generates items by very wide beam search over semantic IDs (XGR-1 and XGR-3 … XGR-5 in
// docs/explain/papers.md).
//
// An item is a path of codes, one per level. An Index holds the catalog's valid paths as a prefix tree
// in compressed sparse rows; a Search walks it for one request, a level per round: its caller computes
// the logits of the rows the search asks for, and the search keeps the best continuations.
//
//	s.Reset(index, eligible, options)
//	for !s.Done() {
//	    // logits of level s.Level() for rows 0 … s.Rows()-1: row 0 is the prompt in the first round, later
//	    // row i has fed code s.Codes()[i], and its KV is that of row s.Parents()[i] of the round before
//	    s.Advance(logits, stride)
//	}
//	results, short := s.Results(results[:0], n)
//
// Invariants:
//   - A path's score is the sum over its levels of log-softmax, restricted to the valid continuations of
//     its prefix. Exclusions and filters remove paths and never re-normalise.
//   - Beams are ordered by score, then by parent row, then by code. Rows are laid out by parent row and
//     within it by code, so that is the order of the tree's nodes: the lower node wins a tie.
//   - Parents never decrease along the rows, which is what makes Permute right in place.
//   - Selection is exact: it never differs from sorting all candidates. A logit of -Inf is a path of
//     probability zero, which is never taken; NaN and +Inf are refused.
//   - A beam with one valid path left below it is settled: its score cannot change, so it asks for no
//     logits and has no row, but keeps its place in the beam width.
//   - When at most Width leaves are eligible nothing is ever cut, whatever TopK and Widths say: the result
//     is exact, as if every eligible path had been scored.
//
// A search may also be free of the constraint, to measure what that costs and what it prevents.
//
// The package is pure. An Index is immutable; Merge makes the next one of it. A Search, Set or Eligible belongs to one
// caller at a time, but many may read a Set. After its first use a Search allocates nothing per round.
package beam
