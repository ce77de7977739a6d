package tokenizer

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// addedToken is an entry of the file's added_tokens.
type addedToken struct {
	ID         *int64  `json:"id"`
	Content    *string `json:"content"`
	SingleWord bool    `json:"single_word"`
	LStrip     bool    `json:"lstrip"`
	RStrip     bool    `json:"rstrip"`
	Normalized *bool   `json:"normalized"`
}

// maxAddedLen bounds an added token's text in bytes, and with it the work that a text of
// near misses can cause.
const maxAddedLen = 512

// addedMatcher finds added tokens in text: a trie, walked from each position whose byte
// starts a token. The match is the leftmost, and of those the longest.
type addedMatcher struct {
	first  [256]uint32 // node after the first byte, 0 if no token starts with it
	edges  pairTable   // node, byte → node
	tokens []addedMatch
}

// addedMatch is what a node of the trie matches; id is negative where nothing ends.
type addedMatch struct {
	id                         int32
	singleWord, lstrip, rstrip bool
}

// maxAddedEdges bounds the trie's memory, to 128 MiB. A million item tokens that differ
// in their last digits need a quarter of it.
const maxAddedEdges = 1 << 22

// newAddedMatcher returns the matcher for texts, which are distinct and not empty, or nil
// if there are none.
func newAddedMatcher(texts []string, matches []addedMatch) (*addedMatcher, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	edges := countEdges(texts)
	if edges > maxAddedEdges {
		return nil, fmt.Errorf("%d added tokens with too much text: %d trie edges, more than %d", len(texts), edges,
			maxAddedEdges)
	}
	m := &addedMatcher{edges: newPairTable(edges), tokens: []addedMatch{{id: -1}}}
	for i, s := range texts {
		m.tokens[m.path(s)] = matches[i]
	}
	return m, nil
}

// countEdges returns how many edges the trie of texts has: of each text in order, the
// part that the one before does not share.
func countEdges(texts []string) int {
	edges, last := 0, ""
	for _, s := range slices.Sorted(slices.Values(texts)) {
		shared := 0
		for shared < min(len(s), len(last)) && s[shared] == last[shared] {
			shared++
		}
		edges += len(s) - shared
		last = s
	}
	return edges
}

// path returns the node of text, making those that are missing.
func (m *addedMatcher) path(text string) uint32 {
	node := m.first[text[0]]
	if node == 0 {
		node = m.newNode()
		m.first[text[0]] = node
	}
	for i := 1; i < len(text); i++ {
		next := m.edges.get(node, uint32(text[i]))
		if next == absent {
			next = uint64(m.newNode())
			m.edges.put(node, uint32(text[i]), next)
		}
		node = uint32(next)
	}
	return node
}

func (m *addedMatcher) newNode() uint32 {
	m.tokens = append(m.tokens, addedMatch{id: -1})
	return uint32(len(m.tokens) - 1)
}

// find returns the first match in text at or after from; ok is false if there is none.
func (m *addedMatcher) find(text string, from int) (start, end int, match addedMatch, ok bool) {
	for i := from; i < len(text); i++ {
		node := m.first[text[i]]
		if node == 0 {
			continue
		}
		for j := i + 1; ; j++ {
			if m.tokens[node].id >= 0 {
				start, end, match, ok = i, j, m.tokens[node], true
			}
			if j == len(text) {
				break
			}
			next := m.edges.get(node, uint32(text[j]))
			if next == absent {
				break
			}
			node = uint32(next)
		}
		if ok {
			return start, end, match, true
		}
	}
	return 0, 0, addedMatch{}, false
}

// addedIter cuts text at its added tokens. After next, plain is text to encode (maybe
// empty) and id the added token after it, or -1.
type addedIter struct {
	m    *addedMatcher
	text string

	plain string
	id    int32

	from     int // where to look for the next match
	done     int // text before this is encoded
	spaceEnd int // end of the run of spaces last stripped on the right
}

func (it *addedIter) next() bool {
	for {
		start, end, match, ok := it.m.find(it.text, it.from)
		if !ok {
			return it.finish()
		}
		it.from = end
		if match.singleWord && !standsAlone(it.text, start, end) {
			continue
		}
		if match.lstrip {
			start = max(stripLeft(it.text, it.done, start), it.done)
		}
		if match.rstrip {
			end = it.stripRight(end)
		}
		it.plain = ""
		if it.done < start {
			it.plain = it.text[it.done:start]
		}
		it.id, it.done = match.id, end
		return true
	}
}

// finish hands out the text after the last match, once.
func (it *addedIter) finish() bool {
	if it.done >= len(it.text) {
		return false
	}
	it.plain, it.id = it.text[it.done:], -1
	it.done, it.from = len(it.text), len(it.text)
	return true
}

// standsAlone reports whether text[start:end] has no word character on either side.
func standsAlone(text string, start, end int) bool {
	if before, n := utf8.DecodeLastRuneInString(text[:start]); n > 0 && isWord(before) {
		return false
	}
	after, n := utf8.DecodeRuneInString(text[end:])
	return n == 0 || !isWord(after)
}

// stripLeft returns where the spaces before text[end] start, not before from.
func stripLeft(text string, from, end int) int {
	for end > from {
		r, n := utf8.DecodeLastRuneInString(text[:end])
		if c, _ := classAt(text, end-n); r == utf8.RuneError || !c.isSpace() {
			break
		}
		end -= n
	}
	return end
}

// stripRight returns the end of the spaces from text[i] on. Matches inside a run of
// spaces that is already known are not scanned again.
func (it *addedIter) stripRight(i int) int {
	if i < it.spaceEnd {
		return it.spaceEnd
	}
	_, it.spaceEnd, _ = scanSpaces(it.text, i)
	return it.spaceEnd
}
