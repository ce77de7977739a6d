// Package jinja renders chat templates of checkpoints. It has the part of the Jinja language that such templates use,
// and renders it as Hugging Face's transformers does: blocks are trimmed (trim_blocks, lstrip_blocks).
//
// Parse returns an error, with the line, for everything that the package does not support. A rendering has no side
// effects, reads no clock and is bounded by Limits. A Template is safe for concurrent use.
package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// Limits bounds a rendering.
type Limits struct {
	Output int // bytes of the text
	Work   int // steps, and bytes of all texts that are made on the way
}

// ErrLimit is what the error of a rendering wraps that is longer or takes more work than its limits allow.
var ErrLimit = errors.New("the template makes too long a text or takes too much work")

const (
	maxSource = 256 << 10 // bytes of a template
	maxDepth  = 100       // of nested expressions, blocks and calls
)

// Template is a parsed template.
type Template struct{ body node }

// failure is an error with its line.
type failure struct {
	line int
	err  error
}

// stop ends parsing or rendering with an error.
func stop(line int, format string, args ...any) {
	panic(failure{line, fmt.Errorf(format, args...)})
}

// catch turns a panic of stop into an error.
func catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = fmt.Errorf("line %d: %w", r.line, r.err)
	default:
		panic(r)
	}
}

// Parse parses a template.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("%d bytes, at most %d", len(source), maxSource)
	}
	defer catch(&err)
	p := &parser{pieces: split(source), macros: map[string]bool{}}
	for i := range p.pieces {
		if c := &p.pieces[i]; c.kind == statement && c.tokens[0].text == "macro" {
			p.macros[c.tokens[1].text] = true
		}
	}
	body := p.block()
	if p.next < len(p.pieces) {
		stop(p.piece().line, "%q has no beginning", p.piece().tokens[0].text)
	}
	return &Template{body}, nil
}

// Render returns the text of a template. Variables are nil, booleans, int64, float64, strings, []any and *Map.
func (t *Template) Render(variables map[string]any, limits Limits) (text string, err error) {
	var out strings.Builder
	e := &env{out: &out, limits: limits, line: 1}
	defer func() {
		if e.line > 0 && err == nil {
			text = out.String()
		}
	}()
	defer catch(&err)
	e.scope = &scope{vars: map[string]any{}}
	for name, v := range variables {
		e.scope.vars[name] = e.value(v)
	}
	e.scope = &scope{vars: map[string]any{}, outer: e.scope}
	t.body(e)
	return "", nil
}

// env is the state of a rendering.
type env struct {
	out    *strings.Builder
	limits Limits
	scope  *scope
	line   int
	depth  int  // of calls
	leaves leap // why the statements that follow are not run
}

// leap is a jump out of the body of a loop.
type leap int

const (
	stay leap = iota
	nextTurn
	endLoop
)

// scope holds the variables of a template, of one turn of a loop or of a call.
type scope struct {
	vars  map[string]any
	outer *scope
}

func (e *env) stop(format string, args ...any) { stop(e.line, format, args...) }

// spend counts work.
func (e *env) spend(n int) {
	if n < 0 || n > e.limits.Work {
		e.stop("%w", ErrLimit)
	}
	e.limits.Work -= n
}

// made counts the work of making a text, and returns it.
func (e *env) made(s string) string {
	e.spend(len(s))
	return s
}

func (e *env) write(s string) {
	e.spend(len(s))
	if e.out.Len()+len(s) > e.limits.Output {
		e.stop("%w", ErrLimit)
	}
	e.out.WriteString(s)
}

// capture returns what a body writes.
func (e *env) capture(body func()) string {
	out := e.out
	e.out = &strings.Builder{}
	body()
	text := e.out.String()
	e.out = out
	return text
}

// inside runs a body with variables of its own.
func (e *env) inside(outer *scope, vars map[string]any, body func()) {
	before := e.scope
	e.scope = &scope{vars, outer}
	body()
	e.scope = before
}

// enter counts a call, which may be recursive.
func (e *env) enter() {
	if e.depth++; e.depth > maxDepth {
		e.stop("calls are nested more than %d deep", maxDepth)
	}
}

func (e *env) lookup(name string) any {
	e.spend(1)
	for s := e.scope; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	return undefined{name}
}
