package jinja

import (
	"slices"
	"strconv"
)

// node runs a statement, and expr computes a value.
type (
	node func(e *env)
	expr func(e *env) any
)

type parser struct {
	pieces []piece
	next   int             // piece
	macros map[string]bool // names of all macros of the template
	tokens []token         // what is left of the tag that is read
	depth  int
	loops  int // around the statement
}

func (p *parser) piece() *piece { return &p.pieces[p.next] }

// peek returns the next token of a tag.
func (p *parser) peek() token { return p.tokens[0] }

func (p *parser) take() token {
	t := p.tokens[0]
	if t.kind != end {
		p.tokens = p.tokens[1:]
	}
	return t
}

// accept takes the next token if it is a word.
func (p *parser) accept(word string) bool {
	if p.peek().is(word) {
		p.take()
		return true
	}
	return false
}

func (p *parser) want(word string) {
	if !p.accept(word) {
		p.unexpected("want " + word)
	}
}

func (p *parser) unexpected(why string) {
	t := p.peek()
	if t.kind == end {
		stop(t.line, "the tag ends too early: %s", why)
	}
	stop(t.line, "%q is not expected or not supported: %s", t.text, why)
}

// done checks that a tag has no more tokens.
func (p *parser) done() {
	if p.peek().kind != end {
		p.unexpected("want the end of the tag")
	}
}

var reserved = []string{"and", "or", "not", "in", "is", "if", "else", "elif", "for", "true", "false", "none", "True",
	"False", "None"}

// newName takes a name that may be given to a variable.
func (p *parser) newName() string {
	t := p.peek()
	if t.kind != name || slices.Contains(reserved, t.text) {
		p.unexpected("want a name")
	}
	return p.take().text
}

// nest counts how deep the parser is in blocks and expressions.
func (p *parser) nest(line int) func() {
	if p.depth++; p.depth > maxDepth {
		stop(line, "expressions or blocks are nested more than %d deep", maxDepth)
	}
	return func() { p.depth-- }
}

// block parses pieces up to a statement that ends or continues a block, which is left to the caller.
func (p *parser) block() node {
	var body []node
	for ; p.next < len(p.pieces); p.next++ {
		switch c := p.piece(); c.kind {
		case literal:
			body = append(body, func(e *env) { e.write(c.text) })
		case output:
			p.tokens = c.tokens
			x := p.expression()
			p.done()
			body = append(body, func(e *env) {
				e.line = c.line
				e.write(e.text(x(e)))
			})
		default:
			p.tokens = c.tokens
			n := p.statement(c.line)
			if n == nil {
				return sequence(body)
			}
			body = append(body, func(e *env) {
				e.line = c.line
				e.spend(1)
				n(e)
			})
		}
	}
	return sequence(body)
}

func sequence(body []node) node {
	return func(e *env) {
		for _, n := range body {
			if n(e); e.leaves != stay {
				return
			}
		}
	}
}

// statement parses a statement. It returns nil for one that ends or continues a block.
func (p *parser) statement(line int) node {
	defer p.nest(line)()
	switch word := p.peek(); word.text {
	case "if":
		return p.condition()
	case "for":
		return p.loop(line)
	case "set":
		return p.set(line)
	case "macro":
		return p.macro(line)
	case "generation": // marks what is trained on
		p.take()
		p.done()
		return p.body(line, "endgeneration")
	case "break", "continue":
		p.take()
		p.done()
		if p.loops == 0 {
			stop(line, "%s outside of a loop", word.text)
		}
		to := map[string]leap{"break": endLoop, "continue": nextTurn}[word.text]
		return func(e *env) { e.leaves = to }
	case "elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration":
		return nil
	default:
		stop(line, "the statement %q is not supported", word.text)
		return nil
	}
}

// body parses the pieces behind a statement up to one of some words, which is taken. It becomes the current statement.
func (p *parser) body(line int, words ...string) node {
	p.next++
	n := p.block()
	if p.next == len(p.pieces) {
		stop(line, "the block has no %s", words[len(words)-1])
	}
	p.tokens = p.piece().tokens
	if !slices.Contains(words, p.peek().text) {
		stop(p.peek().line, "%q does not end the block of line %d", p.peek().text, line)
	}
	if p.take().text == words[len(words)-1] {
		p.done()
	}
	return n
}

// ended returns the word that ended the last body.
func (p *parser) ended() string { return p.piece().tokens[0].text }

func (p *parser) condition() node {
	line := p.take().line
	is := p.or()
	p.done()
	then := p.body(line, "elif", "else", "endif")
	var otherwise node
	switch p.ended() {
	case "elif":
		p.tokens = p.piece().tokens
		otherwise = p.condition()
	case "else":
		p.done()
		otherwise = p.body(line, "endif")
	}
	return func(e *env) {
		if truth(is(e)) {
			then(e)
		} else if otherwise != nil {
			otherwise(e)
		}
	}
}

func (p *parser) loop(line int) node {
	p.take()
	names := []string{p.newName()}
	for p.accept(",") {
		names = append(names, p.newName())
	}
	p.want("in")
	over := p.or()
	var chosen expr
	if p.accept("if") {
		chosen = p.expression()
	}
	p.done()
	p.loops++
	body := p.body(line, "else", "endfor")
	p.loops--
	var empty node
	if p.ended() == "else" {
		p.done()
		empty = p.body(line, "endfor")
	}
	return func(e *env) {
		items, outer := e.items(over(e)), e.scope
		if chosen != nil {
			items = slices.DeleteFunc(slices.Clone(items), func(x any) (out bool) {
				e.inside(outer, e.unpack(names, x), func() { out = !truth(chosen(e)) })
				return out
			})
		}
		if len(items) == 0 && empty != nil {
			empty(e)
		}
		for i, x := range items {
			vars := e.unpack(names, x)
			vars["loop"] = &loop{i, len(items)}
			e.inside(outer, vars, func() { body(e) })
			leaves := e.leaves
			if e.leaves = stay; leaves == endLoop {
				return
			}
		}
	}
}

// unpack returns the variables of a turn of a loop.
func (e *env) unpack(names []string, x any) map[string]any {
	e.spend(1)
	if len(names) == 1 {
		return map[string]any{names[0]: x}
	}
	parts := e.items(x)
	if len(parts) != len(names) {
		e.stop("a loop has %d variables, but an element has %d parts", len(names), len(parts))
	}
	vars := map[string]any{}
	for i, n := range names {
		vars[n] = parts[i]
	}
	return vars
}

func (p *parser) set(line int) node {
	p.take()
	to := p.newName()
	if p.accept(".") {
		of := p.newName()
		p.want("=")
		x := p.expression()
		p.done()
		return func(e *env) {
			n, ok := e.lookup(to).(*namespace)
			if !ok {
				e.stop("%s is not a namespace", to)
			}
			n.vars[of] = x(e)
		}
	}
	if p.accept("=") {
		x := p.expression()
		p.done()
		return func(e *env) { e.scope.vars[to] = x(e) }
	}
	p.done()
	body := p.body(line, "endset")
	return func(e *env) {
		e.scope.vars[to] = e.capture(func() { e.inside(e.scope, map[string]any{}, func() { body(e) }) })
	}
}

// parameter is one of a macro.
type parameter struct {
	name   string
	absent expr
}

func (p *parser) macro(line int) node {
	p.take()
	called := p.newName()
	var params []parameter
	p.want("(")
	for !p.accept(")") {
		if len(params) > 0 {
			p.want(",")
		}
		x := parameter{name: p.newName()}
		if p.accept("=") {
			x.absent = p.expression()
		}
		params = append(params, x)
	}
	p.done()
	loops := p.loops
	p.loops = 0
	body := p.body(line, "endmacro")
	p.loops = loops
	return func(e *env) {
		at := e.scope
		at.vars[called] = function(func(e *env, args arguments) any {
			return e.capture(func() {
				e.inside(at, map[string]any{}, func() {
					e.bind(called, params, args)
					body(e)
				})
			})
		})
	}
}

// bind gives the parameters of a macro their values.
func (e *env) bind(called string, params []parameter, args arguments) {
	if len(args.list) > len(params) {
		e.stop("%s takes %d arguments, not %d", called, len(params), len(args.list))
	}
	for i, x := range params {
		v, named := args.named[x.name]
		switch {
		case i < len(args.list):
			v = args.list[i]
		case named:
			delete(args.named, x.name)
		case x.absent != nil:
			v = x.absent(e)
		default:
			v = undefined{x.name}
		}
		e.scope.vars[x.name] = v
	}
	for n := range args.named {
		e.stop("%s has no parameter %s, or it is given twice", called, n)
	}
}

// expression parses an expression with conditions (a if b else c).
func (p *parser) expression() expr {
	defer p.nest(p.peek().line)()
	x := p.or()
	for p.accept("if") {
		is, then := p.or(), x
		otherwise := func(*env) any { return undefined{"the value of an if without else"} }
		if p.accept("else") {
			otherwise = p.expression()
		}
		x = func(e *env) any {
			if truth(is(e)) {
				return then(e)
			}
			return otherwise(e)
		}
	}
	return x
}

func (p *parser) or() expr {
	x := p.and()
	for p.accept("or") {
		a, b := x, p.and()
		x = func(e *env) any {
			if v := a(e); truth(v) {
				return v
			}
			return b(e)
		}
	}
	return x
}

func (p *parser) and() expr {
	x := p.not()
	for p.accept("and") {
		a, b := x, p.not()
		x = func(e *env) any {
			if v := a(e); !truth(v) {
				return v
			}
			return b(e)
		}
	}
	return x
}

func (p *parser) not() expr {
	if p.peek().is("not") {
		defer p.nest(p.take().line)()
		x := p.not()
		return func(e *env) any { return !truth(x(e)) }
	}
	return p.compare()
}

var comparisons = map[string]func(e *env, a, b any) bool{
	"==":     (*env).equal,
	"!=":     func(e *env, a, b any) bool { return !e.equal(a, b) },
	"<":      (*env).less,
	">":      func(e *env, a, b any) bool { return e.less(b, a) },
	"<=":     func(e *env, a, b any) bool { return e.less(a, b) || e.equal(a, b) },
	">=":     func(e *env, a, b any) bool { return e.less(b, a) || e.equal(a, b) },
	"in":     (*env).in,
	"not in": func(e *env, a, b any) bool { return !e.in(a, b) },
}

// compare parses comparisons; a < b < c compares neighbours, as in Python.
func (p *parser) compare() expr {
	first := p.sum()
	type link struct {
		is func(e *env, a, b any) bool
		to expr
	}
	var chain []link
	for {
		op := p.peek().text
		if p.peek().is("not") && p.tokens[1].is("in") {
			p.take()
			op = "not in"
		}
		is, ok := comparisons[op]
		if !ok || p.peek().kind != operator && p.peek().kind != name {
			break
		}
		p.take()
		chain = append(chain, link{is, p.sum()})
	}
	if len(chain) == 0 {
		return first
	}
	return func(e *env) any {
		a := first(e)
		for _, l := range chain {
			b := l.to(e)
			if !l.is(e, a, b) {
				return false
			}
			a = b
		}
		return true
	}
}

// binary parses operators of one strength.
func (p *parser) binary(part func() expr, ops ...string) expr {
	x := part()
	for p.peek().kind == operator && slices.Contains(ops, p.peek().text) {
		op, a, b := p.take().text, x, part()
		x = func(e *env) any { return e.compute(op, a(e), b(e)) }
	}
	return x
}

func (p *parser) sum() expr { return p.binary(p.joined, "+", "-") }

func (p *parser) joined() expr { return p.binary(p.product, "~") }

func (p *parser) product() expr {
	return p.binary(func() expr { return p.unary(true) }, "*", "/", "//", "%")
}

func (p *parser) unary(filters bool) expr {
	defer p.nest(p.peek().line)()
	var x expr
	switch {
	case p.accept("-"):
		a := p.unary(false)
		x = func(e *env) any { return e.compute("-", int64(0), a(e)) }
	case p.accept("+"):
		a := p.unary(false)
		x = func(e *env) any { return e.compute("+", int64(0), a(e)) }
	default:
		x = p.primary()
	}
	x = p.postfix(x)
	for filters && (p.peek().is("|") || p.peek().is("is")) {
		if p.accept("|") {
			x = p.filter(x)
		} else {
			p.take()
			x = p.test(x)
		}
	}
	return x
}

var constants = map[string]any{"true": true, "True": true, "false": false, "False": false, "none": nil, "None": nil}

func (p *parser) primary() expr {
	t := p.peek()
	switch t.kind {
	case name:
		return p.named()
	case text:
		p.take()
		s := t.text
		for p.peek().kind == text { // neighbours are one text
			s += p.take().text
		}
		return func(*env) any { return s }
	case integer:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			stop(t.line, "%s is too large a number", t.text)
		}
		p.take()
		return func(*env) any { return n }
	case float:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			stop(t.line, "%s is too large a number", t.text)
		}
		p.take()
		return func(*env) any { return f }
	}
	switch {
	case p.accept("("):
		return p.parenthesis()
	case p.accept("["):
		items := p.list("]")
		return func(e *env) any { return list{items: e.all(items)} }
	case p.accept("{"):
		return p.mapping()
	}
	p.unexpected("want a value")
	return nil
}

// named parses a constant, a variable or the call of a function.
func (p *parser) named() expr {
	t := p.peek()
	if v, ok := constants[t.text]; ok {
		p.take()
		return func(*env) any { return v }
	}
	called := p.newName()
	if !p.peek().is("(") {
		return func(e *env) any { return e.lookup(called) }
	}
	f, ok := functions[called]
	if !ok && !p.macros[called] && called != "strftime_now" {
		stop(t.line, "the function %s is not supported", called)
	}
	args := p.call()
	return func(e *env) any {
		do, isMacro := e.lookup(called).(function)
		switch {
		case isMacro:
		case f != nil:
			do = f
		case called == "strftime_now":
			e.stop("strftime_now is not defined: prompts do not depend on the clock")
		default:
			e.stop("%s is undefined", called)
		}
		e.enter()
		defer func() { e.depth-- }()
		return do(e, args(e))
	}
}

// parenthesis parses what is between parentheses: an expression or a tuple.
func (p *parser) parenthesis() expr {
	if p.accept(")") {
		return func(*env) any { return list{tuple: true} }
	}
	x := p.expression()
	if p.accept(")") {
		return x
	}
	p.want(",")
	items := append([]expr{x}, p.list(")")...)
	return func(e *env) any { return list{e.all(items), true} }
}

// list parses expressions up to a closing mark.
func (p *parser) list(closing string) (items []expr) {
	for !p.accept(closing) {
		if items = append(items, p.expression()); !p.peek().is(closing) {
			p.want(",")
		}
	}
	return items
}

func (p *parser) mapping() expr {
	var keys, values []expr
	for !p.accept("}") {
		keys = append(keys, p.expression())
		p.want(":")
		if values = append(values, p.expression()); !p.peek().is("}") {
			p.want(",")
		}
	}
	return func(e *env) any {
		m := &Map{}
		for i := range keys {
			k, ok := keys[i](e).(string)
			if !ok {
				e.stop("the key of a mapping is not a text")
			}
			e.spend(1)
			m.Set(k, values[i](e))
		}
		return m
	}
}

// all returns the values of expressions.
func (e *env) all(items []expr) []any {
	e.spend(len(items))
	out := make([]any, len(items))
	for i, x := range items {
		out[i] = x(e)
	}
	return out
}

// arguments are those of a call.
type arguments struct {
	list  []any
	named map[string]any
}

// call parses the arguments of a call, with its parentheses.
func (p *parser) call() func(e *env) arguments {
	var items []expr
	var names []string
	var named []expr
	p.want("(")
	for !p.accept(")") {
		if p.peek().kind == name && p.tokens[1].is("=") {
			names = append(names, p.newName())
			p.take()
			named = append(named, p.expression())
		} else if len(names) > 0 {
			p.unexpected("arguments with names come last")
		} else {
			items = append(items, p.expression())
		}
		if !p.peek().is(")") {
			p.want(",")
		}
	}
	return func(e *env) arguments {
		args := arguments{list: e.all(items), named: map[string]any{}}
		for i, n := range names {
			args.named[n] = named[i](e)
		}
		return args
	}
}

// postfix parses attributes, elements, slices and calls of methods.
func (p *parser) postfix(x expr) expr {
	for {
		of := x
		switch {
		case p.accept("."):
			x = p.attribute(of)
		case p.accept("["):
			x = p.element(of)
		case p.peek().is("("):
			p.unexpected("only functions and methods are called")
		default:
			return x
		}
	}
}

func (p *parser) attribute(of expr) expr {
	t := p.take()
	if t.kind != name {
		stop(t.line, "a name must follow the dot, not %q", t.text)
	}
	if !p.peek().is("(") {
		if _, ok := methods[t.text]; ok {
			stop(t.line, "the method %s is not called; an element of this name is written ['%s']", t.text, t.text)
		}
		return func(e *env) any { return e.attribute(of(e), t.text) }
	}
	m, ok := methods[t.text]
	if !ok {
		stop(t.line, "the method %s is not supported", t.text)
	}
	args := p.call()
	return func(e *env) any { return m(e, of(e), t.text, args(e)) }
}

func (p *parser) element(of expr) expr {
	var parts [3]expr
	n := 0
	for ; n < 3; n++ {
		if !p.peek().is(":") && !p.peek().is("]") {
			parts[n] = p.expression()
		}
		if p.accept("]") {
			break
		}
		if n == 2 {
			p.want("]")
		}
		p.want(":")
	}
	if n == 0 {
		if parts[0] == nil {
			p.unexpected("want an element between [ and ]")
		}
		return func(e *env) any {
			v := of(e)
			return e.element(v, parts[0](e))
		}
	}
	return func(e *env) any {
		v := of(e)
		var at [3]any
		for i, x := range parts {
			if x != nil {
				at[i] = x(e)
			}
		}
		return e.slice(v, at[0], at[1], at[2])
	}
}

func (p *parser) filter(x expr) expr {
	line, called := p.peek().line, p.newName()
	f, ok := filters[called]
	if !ok {
		stop(line, "the filter %s is not supported", called)
	}
	args := func(*env) arguments { return arguments{} }
	if p.peek().is("(") {
		args = p.call()
	}
	return func(e *env) any {
		v := x(e)
		e.spend(1)
		return f(e, v, args(e))
	}
}

// startsValue reports whether Jinja would read the next token as the argument of a test.
func (p *parser) startsValue() bool {
	t := p.peek()
	return t.kind == text || t.kind == integer || t.kind == float || t.is("[") || t.is("{") ||
		t.kind == name && t.text != "else" && t.text != "or" && t.text != "and"
}

func (p *parser) test(x expr) expr {
	not := p.accept("not")
	t := p.take()
	f, ok := tests[t.text]
	if !ok || t.kind != name && t.text != "in" && t.text != "==" {
		stop(t.line, "the test %q is not supported", t.text)
	}
	args := func(*env) arguments { return arguments{} }
	switch {
	case p.peek().is("("):
		args = p.call()
	case f.takes > 0:
		a := p.postfix(p.primary())
		args = func(e *env) arguments { return arguments{list: []any{a(e)}} }
	case p.startsValue():
		p.unexpected("the test takes no argument")
	}
	return func(e *env) any {
		v := x(e)
		return f.check(e, v, args(e)) != not
	}
}
