package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/wire"
)

// table turns the columns of a source into items, users or events.
type table struct {
	kind      string
	columns   []string
	separator byte   // between cells of CSV
	lists     string // between elements of a list in one cell
	convert   string // what to do about text that is not UTF-8
	fields    []field
}

const convertFile = "convert the file, for instance with iconv -f LATIN1 -t UTF-8"

// field is a field of an item, user or event, and the column that it comes from.
type field struct {
	name   string // such as id or attributes.price
	part   string // price of attributes.price
	column int
	check  string // a type that the user asked for; "": the field's own
	set    setter
}

// draft is what a record becomes.
type draft struct {
	item  *grebev1.Item
	user  *grebev1.User
	event *grebev1.Event
	of    string // the event's user
}

type setter func(d *draft, c *cell, name, lists string) error

// setters are the fields of each kind. A name that ends in a dot takes a name after it.
var setters = map[string]map[string]setter{
	kindItems: {
		"id":   func(d *draft, c *cell, _, _ string) (err error) { d.item.Id, err = c.key(); return err },
		"text": func(d *draft, c *cell, _, _ string) (err error) { d.item.Text, err = optional(c.string()); return err },
		"tokens": func(d *draft, c *cell, _, lists string) (err error) {
			d.item.Tokens, err = c.ints(lists, wire.MaxTokens)
			return err
		},
		"identifier": func(d *draft, c *cell, _, _ string) error {
			n, err := c.integer(0, math.MaxInt32)
			id := int32(n)
			d.item.Identifier = &id
			return err
		},
		"codes": func(d *draft, c *cell, _, lists string) (err error) {
			d.item.Codes, err = c.ints(lists, wire.MaxCodes)
			return err
		},
		"attributes.": func(d *draft, c *cell, name, lists string) error {
			values, err := c.strings(lists, wire.MaxValues, (*cell).string)
			if err != nil || len(values) == 0 {
				return err
			}
			if d.item.Attributes == nil {
				d.item.Attributes = map[string]*grebev1.Values{}
			}
			d.item.Attributes[name] = &grebev1.Values{Values: values}
			return nil
		},
	},
	kindUsers: {
		"id":   func(d *draft, c *cell, _, _ string) (err error) { d.user.Id, err = c.key(); return err },
		"text": func(d *draft, c *cell, _, _ string) (err error) { d.user.Text, err = optional(c.string()); return err },
		"tokens": func(d *draft, c *cell, _, lists string) (err error) {
			d.user.Tokens, err = c.ints(lists, wire.MaxTokens)
			return err
		},
		"history": func(d *draft, c *cell, _, lists string) (err error) {
			d.user.History, err = c.strings(lists, wire.MaxHistory, (*cell).key)
			return err
		},
	},
	kindEvents: {
		"user":   func(d *draft, c *cell, _, _ string) (err error) { d.of, err = c.key(); return err },
		"item":   func(d *draft, c *cell, _, _ string) (err error) { d.event.Item, err = c.key(); return err },
		"id":     func(d *draft, c *cell, _, _ string) (err error) { d.event.Id, err = c.key(); return err },
		"time":   func(d *draft, c *cell, _, _ string) (err error) { d.event.Time, err = c.seconds(); return err },
		"action": func(d *draft, c *cell, _, _ string) (err error) { d.event.Action, err = c.int32(); return err },
		"features.": func(d *draft, c *cell, name, _ string) error {
			f, err := c.number()
			if d.event.Features == nil {
				d.event.Features = map[string]float64{}
			}
			d.event.Features[name] = f
			return err
		},
	},
}

func optional(s string, err error) (*string, error) { return &s, err }

func (c *cell) int32() (int32, error) {
	n, err := c.integer(math.MinInt32, math.MaxInt32)
	return int32(n), err
}

// ints returns a list of tokens or codes.
func (c *cell) ints(separator string, most int) ([]int32, error) {
	list, err := c.elements(separator)
	if err != nil {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("more than %d elements", most)
	}
	out := make([]int32, len(list))
	for i := range list {
		n, err := list[i].integer(0, math.MaxInt32)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
		out[i] = int32(n)
	}
	return out, nil
}

// strings returns a list of texts or ids.
func (c *cell) strings(separator string, most int, one func(*cell) (string, error)) ([]string, error) {
	list, err := c.elements(separator)
	if err != nil {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("more than %d elements", most)
	}
	out := make([]string, len(list))
	for i := range list {
		if out[i], err = one(&list[i]); err != nil {
			return nil, fmt.Errorf("element %d: %w", i, err)
		}
	}
	return out, nil
}

// findSetter returns the setter of a field, and the name that it is given.
func findSetter(kind, name string) (setter, string) {
	if set := setters[kind][name]; set != nil && !strings.HasSuffix(name, ".") {
		return set, ""
	}
	group, rest, ok := strings.Cut(name, ".")
	if set := setters[kind][group+"."]; ok && rest != "" && set != nil {
		return set, rest
	}
	return nil, ""
}

// fieldNames lists the fields of a kind for a message.
func fieldNames(kind string) string {
	var names []string
	for name := range setters[kind] {
		if strings.HasSuffix(name, ".") {
			name += "NAME"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// columnTypes are the types that --map can ask for.
var columnTypes = []string{"text", "integer", "number", "time", "ms"}

// pair is one part of --map: a field and a column, and the type after it.
type pair struct{ field, column, check string }

// parseMap parses --map.
func parseMap(text string) ([]pair, error) {
	if text == "" {
		return nil, nil
	}
	var out []pair
	for _, part := range strings.Split(text, ",") {
		name, column, ok := strings.Cut(part, "=")
		name, column = strings.TrimSpace(name), strings.TrimSpace(column)
		if !ok || name == "" || column == "" {
			return nil, cli.Usagef("--map: %q: want FIELD=COLUMN, such as id=sku", part)
		}
		p := pair{field: name, column: column}
		if i := strings.LastIndexByte(column, ':'); i > 0 && slices.Contains(columnTypes, column[i+1:]) {
			p.column, p.check = column[:i], column[i+1:]
		}
		if slices.ContainsFunc(out, func(q pair) bool { return q.field == name }) {
			return nil, cli.Usagef("--map: the field %s comes twice", name)
		}
		out = append(out, p)
	}
	return out, nil
}

// kindOfFields guesses the kind by the fields; "": several kinds have them.
func kindOfFields(names []string) string {
	has := func(list ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool {
			group, _, _ := strings.Cut(n, ".")
			return slices.Contains(list, n) || slices.Contains(list, group+".")
		})
	}
	switch {
	case has("user") && has("item"):
		return kindEvents
	case has("history"):
		return kindUsers
	case has("identifier", "codes", "attributes."):
		return kindItems
	}
	return ""
}

// newTable returns the table of a source with columns. Without pairs every column must be a field.
func newTable(kind string, columns []string, pairs []pair, lists string) (*table, error) {
	t := &table{kind: kind, columns: columns, lists: lists, convert: convertFile}
	given := len(pairs) > 0
	if !given {
		for _, c := range columns {
			pairs = append(pairs, pair{field: c, column: c})
		}
	}
	for _, p := range pairs {
		set, part := findSetter(kind, p.field)
		if set == nil && given {
			return nil, cli.Usagef("--map: %s have no field %q; they have %s", kind, p.field, fieldNames(kind))
		}
		if set == nil {
			return nil, fmt.Errorf("the column %.200q is not a field of %s, which have %s: name the columns to import with "+
				"--map FIELD=COLUMN,…%s", p.column, kind, fieldNames(kind), otherSeparator(columns))
		}
		at := slices.Index(columns, p.column)
		if at < 0 {
			return nil, fmt.Errorf("no column %q for the field %s: the columns are %s: correct --map%s", p.column, p.field,
				listed(columns), otherSeparator(columns))
		}
		t.fields = append(t.fields, field{name: p.field, part: part, column: at, check: p.check, set: set})
	}
	for _, want := range required[kind] {
		if !slices.ContainsFunc(t.fields, func(f field) bool { return f.name == want }) {
			return nil, fmt.Errorf("no column for the field %s: the columns are %s; add --map %s=COLUMN%s", want,
				listed(columns), want, otherSeparator(columns))
		}
	}
	return t, nil
}

// maxListed is the number of columns that an error names.
const maxListed = 40

// listed lists columns for a message.
func listed(columns []string) string {
	if n := len(columns) - maxListed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(columns[:maxListed], ", "), n)
	}
	return strings.Join(columns, ", ")
}

// otherSeparator says what to do about a header whose cells were not split.
func otherSeparator(columns []string) string {
	if len(columns) != 1 {
		return ""
	}
	if i := strings.IndexAny(columns[0], ";|\t,"); i >= 0 {
		return fmt.Sprintf(", or say what stands between the cells, such as --separator %q", columns[0][i:i+1])
	}
	return ""
}

// required are the fields that every record of a kind has.
var required = map[string][]string{kindItems: {"id"}, kindUsers: {"id"}, kindEvents: {"user", "item"}}

// ignored lists the columns that no field comes from.
func (t *table) ignored() (out []string) {
	for i, name := range t.columns {
		if !slices.ContainsFunc(t.fields, func(f field) bool { return f.column == i }) {
			out = append(out, name)
		}
	}
	return out
}

// op turns the cells of a record into a change of the catalog.
func (t *table) op(cells []cell) (catalog.Op, error) {
	var d draft
	switch t.kind {
	case kindItems:
		d.item = &grebev1.Item{}
	case kindUsers:
		d.user = &grebev1.User{}
	default:
		d.event = &grebev1.Event{}
	}
	for i := range t.fields {
		f := &t.fields[i]
		c := cells[f.column]
		if c.kind == absent {
			continue
		}
		err := f.typed(&c)
		if err == nil {
			err = f.set(&d, &c, f.part, t.lists)
		}
		if err != nil {
			return catalog.Op{}, cellError(f.column, err.Error())
		}
	}
	return d.op()
}

// typed checks a cell against the type that --map asks for, and converts times.
func (f *field) typed(c *cell) (err error) {
	switch f.check {
	case "integer":
		_, err = c.integer(math.MinInt64, math.MaxInt64)
	case "number":
		_, err = c.number()
	case "time":
		var n int64
		n, err = c.seconds()
		*c = cell{kind: intCell, int: n}
	case "ms":
		var n int64
		n, err = c.integer(math.MinInt64, math.MaxInt64)
		*c = cell{kind: intCell, int: n / 1000}
	case "text":
		_, err = c.string()
		if c.kind != textCell {
			*c = cell{kind: textCell, text: c.plain()}
		}
	}
	return err
}

// op checks a draft as a whole.
func (d *draft) op() (catalog.Op, error) {
	switch {
	case d.item != nil:
		if len(d.item.Attributes) > wire.MaxAttributes {
			return catalog.Op{}, fmt.Errorf("more than %d attributes", wire.MaxAttributes)
		}
		return catalog.Op{PutItem: d.item}, catalog.CheckID(d.item.Id)
	case d.user != nil:
		return catalog.Op{PutUser: d.user}, catalog.CheckID(d.user.Id)
	}
	return eventOp(d.of, d.event)
}

// decodeMapped returns the cells of a JSON object. A column a.b is the field b of the object a.
func (t *table) decodeMapped(text []byte) ([]cell, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("invalid UTF-8: " + t.convert)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w", err)
	}
	if m == nil {
		return nil, errors.New("want a JSON object, not null")
	}
	if d.More() {
		return nil, errors.New("data after the end of the object")
	}
	out := make([]cell, len(t.columns))
	for i, name := range t.columns {
		out[i] = jsonValue(lookUp(m, name))
	}
	return out, nil
}

// lookUp returns a field of an object; nil: there is none.
func lookUp(m map[string]any, name string) any {
	if v, ok := m[name]; ok {
		return v
	}
	outer, inner, ok := strings.Cut(name, ".")
	if next, is := m[outer].(map[string]any); ok && is {
		return lookUp(next, inner)
	}
	return nil
}

// in adds the name of the column to an error of a cell.
func (t *table) in(err error) error {
	if e, ok := err.(*columnError); ok && t != nil {
		name := strconv.Itoa(e.column + 1)
		if e.column < len(t.columns) {
			name = t.columns[e.column]
		}
		return fmt.Errorf("column %s: %s", name, e.text)
	}
	return err
}
