package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// replaced are the fields of a kind that a record replaces, beside the id.
var replaced = map[string][]string{
	kindItems: {"text", "tokens", "identifier", "codes", "attributes"},
	kindUsers: {"text", "tokens", "history", "events"},
}

// has lists the fields of a source: those of its columns, or of the first line.
func (s *source) has() (out []string) {
	if s.table == nil {
		return s.first
	}
	for i := range s.table.fields {
		out = append(out, s.table.fields[i].name)
	}
	return out
}

// lacks lists the fields that a source does not have, which are empty after the import. It is empty for events.
func (s *source) lacks() (out []string) {
	has := func(field string) bool {
		return slices.ContainsFunc(s.has(), func(n string) bool { return n == field || strings.HasPrefix(n, field+".") })
	}
	if !has("id") { // such as a deletion: it does not show what follows
		return nil
	}
	for _, f := range replaced[s.kind] {
		instead := f == "text" && has("tokens") || f == "tokens" && has("text")
		if !has(f) && !instead {
			out = append(out, f)
		}
	}
	return out
}

// firstFields returns the fields of the first line of NDJSON; nil: they are unknown.
func firstFields(kind string, head []byte) (out []string) {
	line, _, _ := bytes.Cut(bytes.TrimLeft(head, " \t\r\n"), []byte{'\n'})
	var m map[string]json.RawMessage
	if json.Unmarshal(line, &m) != nil {
		return nil
	}
	for _, f := range slices.Concat([]string{"id"}, replaced[kind]) {
		if _, ok := m[f]; ok {
			out = append(out, f)
		}
	}
	return out
}

// warnEmptied says which fields of items or users in the catalog an import of the source empties.
func (s *source) warnEmptied(w io.Writer, items, users int64) {
	lacks, there := s.lacks(), items
	if s.kind == kindUsers {
		there = users
	}
	if len(lacks) == 0 || there == 0 {
		return
	}
	what, they := s.path, "it replaces"
	if s.table == nil {
		what, they = "the first line of "+s.path, "such lines replace"
	}
	fmt.Fprintf(w, "Warning: %s has only %s. The %s of the catalog that %s lose their %s.\n", what, and(s.has()), s.kind,
		they, and(lacks))
}

// and joins words as a sentence does.
func and(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
