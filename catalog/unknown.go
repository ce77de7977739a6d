package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// UnknownItems counts events of items that nobody knows, and has the first of these items.
type UnknownItems struct {
	Events   int64
	Examples []string // at most maxExamples ids
}

const maxExamples = 10

// Add counts n events of an item.
func (u *UnknownItems) Add(item string, n int64) {
	u.Events += n
	if len(u.Examples) < maxExamples && !slices.Contains(u.Examples, item) {
		u.Examples = append(u.Examples, item)
	}
}

// Merge counts the events of another UnknownItems too.
func (u *UnknownItems) Merge(v UnknownItems) {
	for _, item := range v.Examples {
		u.Add(item, 0)
	}
	u.Events += v.Events
}

// suchAs is what a Warning has between its number and its ids.
const suchAs = " that the catalog does not have, such as "

// Warning returns a sentence about the events; "": there are none.
func (u *UnknownItems) Warning() string {
	have, count := "1 event has an item", "it counts once the catalog has it"
	switch u.Events {
	case 0:
		return ""
	case 1:
	default:
		have, count = fmt.Sprintf("%d events have items", u.Events), "they count once it has them"
	}
	quoted := make([]string, len(u.Examples))
	for i, item := range u.Examples {
		quoted[i] = fmt.Sprintf("%.64q", item)
	}
	return have + suchAs + strings.Join(quoted, ", ") + "; " + count
}

// ReadWarning returns what a Warning says, and whether the text is one. A server's response has the text only.
func ReadWarning(text string) (u UnknownItems, ok bool) {
	have, items, ok := strings.Cut(text, suchAs)
	if !ok {
		return u, false
	}
	if _, err := fmt.Sscan(have, &u.Events); err != nil {
		return u, false
	}
	for {
		quoted, err := strconv.QuotedPrefix(items)
		if err != nil {
			return u, true
		}
		item, err := strconv.Unquote(quoted)
		if err != nil {
			return u, true
		}
		u.Examples = append(u.Examples, item)
		if items, ok = strings.CutPrefix(items[len(quoted):], ", "); !ok {
			return u, true
		}
	}
}
