package tokenizer

import (
	"fmt"
	"strings"
)

// build fills the tables of t from the model and the added tokens.
func (t *Tokenizer) build(m *modelSpec, added []addedToken) error {
	texts, err := placeTokens(m.Vocab, len(added))
	if err != nil {
		return err
	}
	if err := t.buildRules(m); err != nil {
		return err
	}
	t.buildVocab(texts, m.IgnoreMerges)
	outside, err := t.buildAdded(m, added, len(texts))
	if err != nil {
		return err
	}
	t.tokens.extend(outside)
	return nil
}

// placeTokens returns the vocabulary's texts by id, as the file spells them. Ids must
// lie dense enough that the tables stay in proportion to the file.
func placeTokens(vocab map[string]int32, added int) ([]string, error) {
	limit := int64(4)*int64(len(vocab)+added) + 1024
	highest := int32(0)
	for text, id := range vocab {
		if id < 0 || int64(id) >= limit {
			return nil, fmt.Errorf("vocab entry %.100q has id %d, out of proportion to %d entries", text, id, len(vocab))
		}
		highest = max(highest, id)
	}
	texts := make([]string, highest+1)
	used := make([]bool, highest+1)
	for text, id := range vocab {
		if used[id] {
			return nil, fmt.Errorf("vocab entries %.100q and %.100q both have id %d", min(text, texts[id]), max(text, texts[id]),
				id)
		}
		texts[id], used[id] = text, true
	}
	return texts, nil
}

// buildRules finds the tokens of the single bytes and the merge rules.
func (t *Tokenizer) buildRules(m *modelSpec) error {
	for b := range t.bpe.bytes {
		id, ok := m.Vocab[string(byteToRune[b])]
		if !ok {
			return fmt.Errorf("vocab has no token for byte 0x%02x: not a byte-level vocabulary", b)
		}
		t.bpe.bytes[b] = uint32(id)
	}
	merges, err := parseMerges(m.Merges)
	if err != nil {
		return err
	}
	t.bpe.rules = newPairTable(len(merges))
	var joined []byte
	for rank, pair := range merges {
		a, okA := m.Vocab[pair[0]]
		b, okB := m.Vocab[pair[1]]
		joined = append(append(joined[:0], pair[0]...), pair[1]...)
		id, ok := m.Vocab[string(joined)]
		if !ok || !okA || !okB {
			return fmt.Errorf("merge %d of %.100q and %.100q: a part or the result is not in vocab", rank, pair[0], pair[1])
		}
		t.bpe.rules.put(uint32(a), uint32(b), uint64(rank)<<32|uint64(id))
	}
	return nil
}

// buildAdded makes the matchers of the added tokens and returns the texts of those that
// are not in the vocabulary, whose ids start at end.
func (t *Tokenizer) buildAdded(m *modelSpec, tokens []addedToken, end int) ([]string, error) {
	t.added = make(map[string]int32, len(tokens))
	var outside []string
	var raw, normal addedList
	for i, a := range tokens {
		if err := a.check(i); err != nil {
			return nil, err
		}
		text := *a.Content
		if text == "" {
			continue
		}
		if _, twice := t.added[text]; twice {
			return nil, fmt.Errorf("added token %.100q is there twice", text)
		}
		// Readers disagree on which id to believe when the file's is not the one that
		// the token gets by its place.
		id, known := m.Vocab[text]
		if !known {
			id = int32(end + len(outside))
			outside = append(outside, text)
		}
		if *a.ID != int64(id) || !known && end != len(m.Vocab) {
			return nil, fmt.Errorf("added token %.100q has id %d in the file, but by its place in the vocabulary of %d "+
				"entries it is %d", text, *a.ID, len(m.Vocab), id)
		}
		t.added[text] = id
		list := &raw
		if a.Normalized == nil || *a.Normalized {
			list = &normal
			if t.nfc {
				text = strings.Clone(new(scratch).normalizeNFC(text))
			}
		}
		if err := list.add(text, addedMatch{id, a.SingleWord, a.LStrip, a.RStrip}); err != nil {
			return nil, err
		}
	}
	var err error
	if t.rawAdded, err = newAddedMatcher(raw.texts, raw.matches); err != nil {
		return nil, err
	}
	t.normAdded, err = newAddedMatcher(normal.texts, normal.matches)
	return outside, err
}

func (a *addedToken) check(i int) error {
	switch {
	case a.Content == nil:
		return fmt.Errorf("added token %d has no content", i)
	case a.ID == nil:
		return fmt.Errorf("added token %.100q has no id", *a.Content)
	case len(*a.Content) > maxAddedLen:
		return fmt.Errorf("added token %.100q has %d bytes, more than %d", *a.Content, len(*a.Content), maxAddedLen)
	}
	return nil
}

// addedList collects the tokens of one matcher.
type addedList struct {
	texts   []string
	matches []addedMatch
	seen    map[string]bool
}

func (l *addedList) add(text string, m addedMatch) error {
	if l.seen[text] {
		return fmt.Errorf("two added tokens are %.100q after normalisation", text)
	}
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	l.seen[text] = true
	l.texts = append(l.texts, text)
	l.matches = append(l.matches, m)
	return nil
}

// buildVocab packs the vocabulary's tokens, whose spellings are in texts by id, and makes
// the table that finds them.
func (t *Tokenizer) buildVocab(texts []string, ignoreMerges bool) {
	t.opaque = map[string]int32{}
	t.vocab = newWordTable(len(texts))
	raws := make([]string, len(texts))
	var s scratch
	var ids []int32
	for id, text := range texts {
		raws[id] = text
		if text == "" {
			continue
		}
		raw, ok := fromByteLevel(s.norm[:0], text)
		s.norm = raw
		if !ok {
			t.opaque[text] = int32(id)
			continue
		}
		raws[id] = string(raw)
		whole := ignoreMerges
		if !whole {
			ids = t.bpe.append(ids[:0], raws[id], &s.merge)
			whole = len(ids) == 1 && ids[0] == int32(id)
		}
		t.vocab.add(raws[id], int32(id), whole)
	}
	t.tokens.extend(raws)
}
