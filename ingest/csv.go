package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// splitCSV returns the splitter of CSV: a cell that begins with a quote may contain line breaks.
func splitCSV(separator byte) splitter {
	return func(b []byte) (end, lines int) {
		quoted, first := false, true // inside quotes; at the first byte of a cell
		for i := 0; i < len(b); i++ {
			switch c := b[i]; {
			case c == '\n':
				if lines++; !quoted {
					return i + 1, lines
				}
			case c == '"' && (first || quoted):
				quoted = !quoted
				if !quoted && i+1 < len(b) && b[i+1] == '"' { // a quote inside the cell
					quoted = true
					i++
				}
				first = false
			case c == separator && !quoted:
				first = true
			default:
				first = false
			}
		}
		return 0, 0
	}
}

// parseCSV appends the cells of a record to out. A cell without anything in it is absent.
func parseCSV(text []byte, separator byte, out []cell) ([]cell, error) {
	s := string(text) // one allocation for all cells
	for {
		if !strings.HasPrefix(s, `"`) {
			i := strings.IndexByte(s, separator)
			plain := s
			if i >= 0 {
				plain = s[:i]
			}
			if strings.IndexByte(plain, '"') >= 0 {
				return out, cellError(len(out), "a quote inside a cell that does not begin with one: put the cell in quotes, and "+
					"write a quote inside twice")
			}
			out = append(out, textOrNone(plain))
			if i < 0 {
				return out, nil
			}
			s = s[i+1:]
			continue
		}
		value, rest, err := quotedCell(s)
		if err != nil {
			return out, cellError(len(out), err.Error())
		}
		out = append(out, textOrNone(value))
		if rest == "" {
			return out, nil
		}
		if rest[0] != separator {
			return out, cellError(len(out)-1, "text after the closing quote: write a quote inside a cell twice")
		}
		s = rest[1:]
	}
}

// quotedCell reads a cell that begins with a quote.
func quotedCell(s string) (value, rest string, err error) {
	s = s[1:]
	i := strings.IndexByte(s, '"')
	if i >= 0 && !strings.HasPrefix(s[i+1:], `"`) {
		return s[:i], s[i+1:], nil
	}
	var b strings.Builder
	for i >= 0 {
		b.WriteString(s[:i])
		if !strings.HasPrefix(s[i+1:], `"`) {
			return b.String(), s[i+1:], nil
		}
		b.WriteByte('"')
		s = s[i+2:]
		i = strings.IndexByte(s, '"')
	}
	return "", "", errors.New("a quote is never closed: the file was cut off, or a quote inside a cell is not written " +
		"twice")
}

func textOrNone(s string) cell {
	if s == "" {
		return cell{}
	}
	return cell{kind: textCell, text: s}
}

// columnError is what is wrong in a column.
type columnError struct {
	column int
	text   string
}

func (e *columnError) Error() string { return e.text }

func cellError(column int, text string) error { return &columnError{column, text} }

// readHeader returns the names of the columns and removes a byte order mark.
func readHeader(text []byte, separator byte) ([]string, error) {
	text = bytes.TrimPrefix(text, utf8Mark)
	if !utf8.Valid(text) {
		return nil, errors.New("the header is not UTF-8: convert the file, for instance with iconv")
	}
	cells, err := parseCSV(text, separator, nil)
	if err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	names := make([]string, len(cells))
	seen := map[string]bool{}
	for i, c := range cells {
		names[i] = strings.TrimSpace(c.text)
		if strings.ContainsRune(names[i], '\r') {
			return nil, errors.New("lines end with a carriage return only: convert the file, for instance with tr '\\r' '\\n'")
		}
		if names[i] == "" {
			return nil, fmt.Errorf("the header's column %d has no name", i+1)
		}
		if seen[names[i]] {
			return nil, fmt.Errorf("the header has the column %q twice: rename one", names[i])
		}
		seen[names[i]] = true
	}
	return names, nil
}

var utf8Mark = []byte("\xef\xbb\xbf")

// checkEncoding refuses files that begin with the mark of UTF-16 or UTF-32, or have every other byte of UTF-16.
func checkEncoding(head []byte) error {
	marked := bytes.HasPrefix(head, []byte("\xff\xfe")) || bytes.HasPrefix(head, []byte("\xfe\xff"))
	if marked || len(head) >= 2 && (head[0] == 0) != (head[1] == 0) {
		return errors.New("the file is UTF-16: convert it to UTF-8, for instance with iconv -f UTF-16 -t UTF-8")
	}
	return nil
}

// checkLines refuses a file that is one JSON document instead of one per line.
func checkLines(head []byte) error {
	head = bytes.TrimSpace(bytes.TrimPrefix(head, utf8Mark))
	if bytes.HasPrefix(head, []byte("[")) {
		return errors.New("a JSON list, want one object per line (NDJSON): convert the file, for instance with jq -c '.[]'")
	}
	first, rest, _ := bytes.Cut(head, []byte("\n"))
	if string(bytes.TrimSpace(first)) == "{" && bytes.HasPrefix(bytes.TrimSpace(rest), []byte(`"`)) {
		return errors.New("an object over several lines, want one object per line (NDJSON): convert the file, for instance " +
			"with jq -c . FILE")
	}
	return nil
}

// decodeCSV returns the cells of a record that has as many as the header.
func (t *table) decodeCSV(text []byte) ([]cell, error) {
	cells, err := parseCSV(text, t.separator, make([]cell, 0, len(t.columns)))
	if err != nil {
		return nil, err
	}
	if len(cells) != len(t.columns) {
		if len(cells) == 1 && len(t.columns) > 1 {
			return nil, fmt.Errorf("1 cell, the header has %d: was the file cut off here?", len(t.columns))
		}
		return nil, fmt.Errorf("%d cells, the header has %d: the columns changed, or a separator inside a cell is not in "+
			"quotes", len(cells), len(t.columns))
	}
	same := true
	for i := range cells {
		same = same && cells[i].text == t.columns[i]
	}
	if same {
		return nil, errors.New("the header comes again: the file is several files joined. Import them one by one")
	}
	if !utf8.Valid(text) {
		for i := range cells {
			if !utf8.ValidString(cells[i].text) {
				return nil, cellError(i, "invalid UTF-8: "+t.convert)
			}
		}
		return nil, errors.New("invalid UTF-8: " + t.convert)
	}
	return cells, nil
}
