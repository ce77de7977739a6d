package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// cellKind is the type that a source gives a cell.
type cellKind uint8

const (
	absent cellKind = iota
	textCell
	intCell
	floatCell
	boolCell
	timeCell // seconds since 1970
	listCell
	jsonCell // an object
)

// cell is a value of a record.
type cell struct {
	kind  cellKind
	text  string
	int   int64 // also of boolCell and timeCell
	float float64
	list  []cell
}

// describe returns a cell as an error shows it.
func (c *cell) describe() string {
	switch c.kind {
	case absent:
		return "nothing"
	case listCell:
		return "a list"
	case jsonCell:
		return "an object"
	case textCell:
		return fmt.Sprintf("%.40q", c.text)
	}
	return c.plain()
}

// plain returns a scalar as text.
func (c *cell) plain() string {
	switch c.kind {
	case textCell:
		return c.text
	case intCell:
		return strconv.FormatInt(c.int, 10)
	case floatCell:
		return strconv.FormatFloat(c.float, 'f', -1, 64)
	case boolCell:
		return strconv.FormatBool(c.int != 0)
	case timeCell:
		return time.Unix(c.int, 0).UTC().Format(time.RFC3339)
	}
	return ""
}

// string returns a scalar as text that is valid UTF-8.
func (c *cell) string() (string, error) {
	if c.kind == listCell || c.kind == jsonCell {
		return "", fmt.Errorf("want a text, not %s", c.describe())
	}
	s := c.plain()
	if !utf8.ValidString(s) {
		return "", errors.New("invalid UTF-8: convert the data to UTF-8")
	}
	return s, nil
}

// key returns an id. A number with a fraction is refused: an id that went through a float has lost digits.
func (c *cell) key() (string, error) {
	if c.kind == floatCell && (c.float != math.Trunc(c.float) || math.Abs(c.float) > 1<<53) {
		return "", fmt.Errorf("want an id, not the number %s: export the ids as text or integers", c.plain())
	}
	return c.string()
}

// integer returns an integer between low and high.
func (c *cell) integer(low, high int64) (int64, error) {
	var n int64
	err := errors.New("")
	switch c.kind {
	case intCell:
		n, err = c.int, nil
	case floatCell:
		if n = int64(c.float); float64(n) == c.float {
			err = nil
		}
	case textCell:
		n, err = strconv.ParseInt(strings.TrimSpace(c.text), 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("want an integer, not %s", c.describe())
	}
	if n < low || n > high {
		return 0, fmt.Errorf("%d is not between %d and %d", n, low, high)
	}
	return n, nil
}

// number returns a finite number.
func (c *cell) number() (float64, error) {
	f, err := 0.0, errors.New("")
	switch c.kind {
	case intCell:
		f, err = float64(c.int), nil
	case floatCell:
		f, err = c.float, nil
	case textCell:
		f, err = strconv.ParseFloat(strings.TrimSpace(c.text), 64)
	}
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("want a number, not %s", c.describe())
	}
	return f, nil
}

// timeLayouts are the forms of a time as text; without a zone they are UTC.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z07:00", "2006-01-02"}

// seconds returns a time in seconds since 1970.
func (c *cell) seconds() (int64, error) {
	if c.kind == timeCell {
		return c.int, nil
	}
	if n, err := c.integer(math.MinInt64, math.MaxInt64); err == nil {
		return n, nil
	}
	if c.kind == textCell {
		s := strings.TrimSpace(c.text)
		for _, layout := range timeLayouts {
			if t, err := time.Parse(layout, s); err == nil {
				return t.Unix(), nil
			}
		}
	}
	return 0, fmt.Errorf("want a time (seconds since 1970, or such as 2026-11-18T09:00:00Z), not %s", c.describe())
}

// elements returns the elements of a list: a list of the source, a JSON list in a text, or parts of a text between
// separators.
func (c *cell) elements(separator string) ([]cell, error) {
	switch c.kind {
	case listCell:
		return c.list, nil
	case jsonCell:
		return nil, errors.New("want a list, not an object")
	case textCell:
		s := strings.TrimSpace(c.text)
		if strings.HasPrefix(s, "[") {
			return jsonList(s)
		}
		if separator == "" || !strings.Contains(s, separator) {
			return []cell{{kind: textCell, text: s}}, nil
		}
		parts := strings.Split(s, separator)
		out := make([]cell, 0, len(parts))
		for _, p := range parts {
			if p = strings.TrimSpace(p); p != "" {
				out = append(out, cell{kind: textCell, text: p})
			}
		}
		return out, nil
	}
	return []cell{*c}, nil
}

// jsonList parses a list as JSON.
func jsonList(s string) ([]cell, error) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var list []any
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("%.40q is not a JSON list: %w", s, err)
	}
	if d.More() {
		return nil, fmt.Errorf("%.40q: text after the list", s)
	}
	out := make([]cell, len(list))
	for i, v := range list {
		if out[i] = jsonValue(v); out[i].kind == absent {
			return nil, fmt.Errorf("element %d is null", i)
		}
	}
	return out, nil
}

// jsonValue turns a value that encoding/json decoded with UseNumber into a cell.
func jsonValue(v any) cell {
	switch v := v.(type) {
	case string:
		return cell{kind: textCell, text: v}
	case bool:
		if v {
			return cell{kind: boolCell, int: 1}
		}
		return cell{kind: boolCell}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return cell{kind: intCell, int: n}
		}
		f, err := v.Float64()
		if err != nil {
			return cell{kind: textCell, text: v.String()} // too large: refused as a number
		}
		return cell{kind: floatCell, float: f}
	case []any:
		out := cell{kind: listCell, list: make([]cell, len(v))}
		for i := range v {
			out.list[i] = jsonValue(v[i])
		}
		return out
	case map[string]any:
		return cell{kind: jsonCell}
	}
	return cell{}
}
