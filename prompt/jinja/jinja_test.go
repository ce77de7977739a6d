package jinja

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var plenty = Limits{Output: 1 << 20, Work: 1 << 22}

// chat returns the variables of a chat: role, content, role, content …
func chat(parts ...string) map[string]any {
	var messages []any
	for i := 0; i < len(parts); i += 2 {
		m := &Map{}
		m.Set("role", parts[i])
		m.Set("content", parts[i+1])
		messages = append(messages, m)
	}
	return map[string]any{"messages": messages, "add_generation_prompt": true, "bos_token": "<|begin_of_text|>"}
}

func source(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func render(t *testing.T, template string, vars map[string]any) string {
	t.Helper()
	parsed, err := Parse(template)
	if err != nil {
		t.Fatal(err)
	}
	out, err := parsed.Render(vars, plenty)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Templates of published checkpoints render as their definitions say.
func TestPublishedTemplates(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		vars map[string]any
		want string
	}{
		"Qwen2.5": {"qwen2.5.jinja", chat("user", "Hi"),
			"<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n" +
				"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
		"Qwen2.5 with a system": {"qwen2.5.jinja", chat("system", "Recommend.", "user", "Hi", "assistant",
			"<a_1><b_2>", "user", "More"),
			"<|im_start|>system\nRecommend.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n" +
				"<|im_start|>assistant\n<a_1><b_2><|im_end|>\n<|im_start|>user\nMore<|im_end|>\n" +
				"<|im_start|>assistant\n"},
		"Qwen3": {"qwen3.jinja", chat("system", "S", "user", "Hi"),
			"<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
		"Qwen3 drops earlier thoughts": {"qwen3.jinja", chat("user", "A", "assistant", "<think>\nwhy\n</think>\n\nB",
			"user", "C"),
			"<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n" +
				"<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"},
		"Qwen3 keeps the last thought": {"qwen3.jinja", chat("user", "A", "assistant", "<think>\nwhy\n</think>\n\nB"),
			"<|im_start|>user\nA<|im_end|>\n" +
				"<|im_start|>assistant\n<think>\nwhy\n</think>\n\nB<|im_end|>\n<|im_start|>assistant\n"},
		"Llama 3": {"llama3.jinja", chat("user", " Hi "),
			"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>" +
				"<|start_header_id|>assistant<|end_header_id|>\n\n"},
		"Llama 3 with a system": {"llama3.jinja", chat("system", "S", "user", "Hi"),
			"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>" +
				"<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>" +
				"<|start_header_id|>assistant<|end_header_id|>\n\n"},
		"Llama 3.1": {"llama3.1.jinja", chat("system", "S", "user", "Hi"),
			"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n" +
				"Today Date: 26 Jul 2024\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>" +
				"<|start_header_id|>assistant<|end_header_id|>\n\n"},
		"Mistral": {"mistral.jinja", chat("user", "Hi", "assistant", "Yes", "user", "So"),
			"<|begin_of_text|>[INST] Hi [/INST]Yes</s>[INST] So [/INST]"},
	} {
		t.Run(name, func(t *testing.T) {
			c.vars["eos_token"] = "</s>"
			if got := render(t, source(t, c.file), c.vars); got != c.want {
				t.Errorf("got\n%q\nwant\n%q", got, c.want)
			}
		})
	}
	vars := chat("user", "Hi")
	vars["enable_thinking"] = false
	if got := render(t, source(t, "qwen3.jinja"), vars); !strings.HasSuffix(got, "assistant\n<think>\n\n</think>\n\n") {
		t.Errorf("without thinking: %q", got)
	}
}

// The language, case by case. TestAgainstPython compares the same cases with Jinja itself.
var cases = []struct{ template, want string }{
	{"a\n{% if true %}\n  b\n{% endif %}\nc\n", "a\n  b\nc"},
	{"a\n  {% if true %}b{% endif %} \n c", "a\nb \n c"},
	{"a  {%- if true -%}  b  {%- endif +%}\n c", "ab\n c"},
	{" {%+ if true %}x{% endif %}", " x"},
	{"x {# a comment #}\n y {#- and -#} z", "x  yz"},
	{"{{ 'a' 'b' ~ 1 ~ 2.0 ~ none ~ true }}", "ab12.0NoneTrue"},
	{`{{ "a\n\t\\\"\u00e9\x41" }}`, "a\n\t\\\"éA"},
	{"{{ [1, 'it', \"it's\", none, 1.5, {'k': [true]}, (1,), (1, 2), ()] }}",
		`[1, 'it', "it's", None, 1.5, {'k': [True]}, (1,), (1, 2), ()]`},
	{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 * 3 + 4 - 1 }} {{ 'ab' * 2 }}", "3 -4 2 3.5 9 abab"},
	{"{{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 5.0 }}", "1e+20 1e-07 0.30000000000000004 5.0"},
	{"{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ 3 in [1, 3] }} {{ 'b' not in 'abc' }}",
		"True True True True True False"},
	{"{{ nothing }}|{{ nothing is defined }}|{{ nothing or 'x' }}|{{ m.nothing }}|{{ nothing|length }}", "|False|x||0"},
	{"{{ 'yes' if m else 'no' }} {{ 'yes' if nothing }}|{{ not 0 and 'z' }}", "yes |z"},
	{"{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ loop.index }}/{{ loop.length }}:{{ x }}" +
		"{{ ',' if not loop.last }}{% endfor %}", "1/2:2,2/2:4"},
	{"{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}{% for k in m %}{{ k }}{% endfor %}", "a=1;b=zwei;ab"},
	{"{% for x in [] %}x{% else %}none{% endfor %}", "none"},
	{"{% for x in 'abc' %}{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% if x == 'c' %}{% break %}{% endif %}" +
		"{% endfor %}", "ac"},
	{"{% set x = 1 %}{% for y in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21"},
	{"{% set ns = namespace(x=1) %}{% for y in [1, 2] %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}", "4"},
	{"{% set x %}a{{ 1 }}{% endset %}{{ x|upper }}", "A1"},
	{"{% macro m1(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m1(1) }} {{ m1(1, c=2) }}" +
		" {{ m1(1, 2, 3) }}", "1BNone 1B2 123"},
	{"{{ s[0] }}{{ s[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ s[:-1] }}{{ s[10:] }}{{ s[99] }}",
		"haalas tßäl ollahhallo läßt s sa"},
	{"{{ [1,2,3][::-1] }} {{ [1,2,3][-2:] }} {{ [1,2,3][5:0:-2] }}", "[3, 2, 1] [2, 3] [3]"},
	{"{{ ' a '|trim }}{{ 'xxaxx'|trim('x') }}{{ 'ab'.strip('b') }}{{ '  a'.lstrip() }}{{ 'a\n'.rstrip('\n') }}",
		"aaaaa"},
	{"{{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1)[-1] }}" +
		" {{ 'abab'.replace('a', 'x', 1) }}",
		"['a', 'b', 'c'] ['a', 'b'] b,c xbab"},
	{"{{ 'ab'.startswith('a') }} {{ 'ab'.endswith(('x', 'b')) }} {{ '-'.join(['a', 'b']) }} {{ [1, 'b']|join('-') }}",
		"True True a-b 1-b"},
	{"{{ m|tojson }} {{ 'é\"</' |tojson }} {{ [1, 2.0, none, true]|tojson }}",
		`{"a": 1, "b": "zwei"} "é\"</" [1, 2.0, null, true]`},
	{"{{ m|tojson(indent=2) }} {{ []|tojson(indent=2) }}", "{\n  \"a\": 1,\n  \"b\": \"zwei\"\n} []"},
	{"{{ 'hello wORLD-x'|title }} {{ 'hELLO w'|capitalize }} {{ 'ab'|first }}{{ [1,2]|last }}{{ 'ab'|list }}" +
		" {{ '12'|int + 1 }} {{ 'x'|int }}",
		"Hello World-X Hello w a2['a', 'b'] 13 0"},
	{"{{ l|map(attribute='n')|join(',') }} {{ l|selectattr('n', 'equalto', 2)|list|length }}" +
		" {{ l|rejectattr('n')|list }} {{ ['a', '']|select|list }}",
		"1,2 1 [] ['a']"},
	{"{{ [' a ', 'b']|map('trim')|list }} {{ nothing|default('d') }} {{ ''|d('e', true) }} {{ [1,2]|reverse|list }}",
		"['a', 'b'] d e [2, 1]"},
	{"{{ m.get('a') }}{{ m.get('z', 9) }}{{ m['b'] }}{{ m.keys()|list }}{{ 'a' in m }}", "19zwei['a', 'b']True"},
	{"{{ 'a\n\nb'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ '\na'|indent(2, first=true) }}",
		"a\n\n  b|  a\n  b|  \n  a"},
	{"{{ 1 is number }}{{ 'a' is string }}{{ m is mapping }}{{ [] is iterable }}{{ none is none }}{{ 3 is odd }}" +
		"{{ 4 is divisibleby 2 }}{{ true is boolean }}",
		"TrueTrueTrueTrueTrueTrueTrueTrue"},
	{"{{ 1 is not defined }} {{ 'a' is in ['a'] }} {{ 2 is eq 2 }}{{ nothing is not none }}", "False True TrueTrue"},
	{"{% for i in range(3) %}{{ i }}{% endfor %}{{ range(5, 1, -2)|list }}", "012[5, 3]"},
	{"{{ -1 }}{{ - 2 + 3 }}{{ (1 + 2) * 3 }}", "-119"},
	{"{{ {'a': {'b': 1}}.a.b }}{{ {} }}", "1{}"},
	{"{% if m.a == 2 %}x{% elif m.a == 1 %}y{% else %}z{% endif %}", "y"},
	{"{% generation %}x{% endgeneration %}", "x"},
	{"a\r\nb\rc", "a\nb\nc"},
	{"{ {a} {{ '}}' }} {% if '%}' %}y{% endif %} }}", "{ {a} }} y }}"},
	{"\n{{ 1 }}\n\n", "\n1\n"},
}

func values() map[string]any {
	m := &Map{}
	m.Set("a", int64(1))
	m.Set("b", "zwei")
	var l []any
	for i := range 2 {
		n := &Map{}
		n.Set("n", int64(i+1))
		l = append(l, n)
	}
	return map[string]any{"m": m, "s": "hallo läßt sa", "l": l}
}

// pythonValues are those of values, in JSON.
const pythonValues = `{"m": {"a": 1, "b": "zwei"}, "s": "hallo läßt sa", "l": [{"n": 1}, {"n": 2}]}`

func TestLanguage(t *testing.T) {
	for _, c := range cases {
		parsed, err := Parse(c.template)
		if err != nil {
			t.Errorf("%s: %v", c.template, err)
			continue
		}
		if got, err := parsed.Render(values(), plenty); err != nil || got != c.want {
			t.Errorf("%s\n got %q, %v\nwant %q", c.template, got, err, c.want)
		}
	}
}

// What is not supported, or is wrong, is an error with its line and a reason.
func TestRefused(t *testing.T) {
	for template, want := range map[string]string{
		"a\n{% include 'x' %}":        `line 2: the statement "include" is not supported`,
		"{{ x|nosuch }}":              "line 1: the filter nosuch is not supported",
		"{{ x is nosuch }}":           `the test "nosuch" is not supported`,
		"{{ x.nosuch() }}":            "the method nosuch is not supported",
		"{{ nosuch() }}":              "the function nosuch is not supported",
		"{{ x.items }}":               "the method items is not called",
		"{% if x %}":                  "the block has no endif",
		"{% for x in y %}{% endif %}": `"endif" does not end the block`,
		"{% endif %}":                 `"endif" has no beginning`,
		"{{ x":                        "a tag has no end",
		"{{ 'x }}":                    "is not expected",
		"{{ }}":                       "an empty tag",
		"{% %}":                       "an empty tag",
		"{# x":                        "a comment has no end",
		"{{ 1 2 }}":                   `"2" is not expected`,
		"{{ 2 ** 3 }}":                "is not expected",
		"{{ " + strings.Repeat("(", 200) + "1" + strings.Repeat(")", 200) + " }}": "nested more than",
		"{% break %}":                       "break outside of a loop",
		"{% set a, b = 1, 2 %}":             `"," is not expected`,
		"{{ 99999999999999999999 }}":        "too large a number",
		"{{ '\\N{DASH}' }}":                 `the escape \N is not supported`,
		"{% macro %}":                       "want a name",
		"{% for if in x %}{% endfor %}":     "want a name",
		"{% if true %}{% else %}{% else %}": "does not end the block",
	} {
		if _, err := Parse(template); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", template, err, want)
		}
	}
	for template, want := range map[string]string{
		"\n{{ x.y.z }}":   "line 2: y is undefined",
		"{{ nothing.x }}": "nothing is undefined, it has no x",
		"{{ 'a' + 1 }}":   "a text + an integer is not supported",
		"{{ raise_exception('roles must alternate') }}":   "roles must alternate",
		"{{ 9223372036854775807 + 1 }}":                   "does not fit in 64 bits",
		"{{ 1 % 0 }}":                                     "a division by zero",
		"{% for a, b in [[1]] %}{% endfor %}":             "2 variables",
		"{{ strftime_now('%d') }}":                        "prompts do not depend on the clock",
		"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}": "nested more than",
		"{{ loop.index }}":                                "loop is undefined",
		"{% for x in [1] %}{{ loop.cycle }}{% endfor %}":  "loop.cycle is not supported",
	} {
		parsed, err := Parse(template)
		if err == nil {
			x := &Map{}
			_, err = parsed.Render(map[string]any{"x": x}, plenty)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", template, err, want)
		}
	}
}

// A rendering ends at its limits, whatever the template does.
func TestLimits(t *testing.T) {
	for _, template := range []string{
		"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
		"{% set n = namespace(s='x') %}{% for a in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"{% set n = namespace(s=[1]) %}{% for a in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}",
		"{% set n = namespace(s='x') %}{% for a in range(100) %}{% set n.s = n.s.replace('x', 'xx') %}{% endfor %}",
		"{{ 'x' * 1000000000 * 1000000000 }}",
		"{% for a in range(1000000) %}{{ s }}{% endfor %}",
		"{% set n = namespace(s=1) %}{% for a in range(100) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
		"{{ range(1000000000) }}",
	} {
		parsed, err := Parse(template)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := parsed.Render(map[string]any{"s": "text"}, plenty); !errors.Is(err, ErrLimit) &&
			!strings.Contains(fmt.Sprint(err), "deep") {
			t.Errorf("%s: %d bytes, %v", template, len(out), err)
		}
	}
}

// python renders templates with Jinja, set up as transformers does.
type python struct {
	in  io.Writer
	out *bufio.Scanner
}

const pythonSource = `
import sys, json
from jinja2.sandbox import ImmutableSandboxedEnvironment
def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
def raise_exception(message):
    raise ValueError(message)
env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
print("ready", flush=True)
for line in sys.stdin:
    q = json.loads(line)
    try:
        out = {"text": env.from_string(q["template"]).render(**q["vars"])}
    except Exception as e:
        out = {"error": type(e).__name__ + ": " + str(e)}
    print(json.dumps(out), flush=True)
`

func startPython(t *testing.T) *python {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", "-c", pythonSource)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	p := &python{in, bufio.NewScanner(out)}
	p.out.Buffer(nil, 16<<20)
	if !p.out.Scan() {
		t.Skip("python3 has no jinja2")
	}
	return p
}

func (p *python) render(t *testing.T, template, vars string) (text, problem string) {
	t.Helper()
	q, err := json.Marshal(map[string]any{"template": template, "vars": json.RawMessage(vars)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.in, "%s\n", q); err != nil || !p.out.Scan() {
		t.Fatal("python ended", err, p.out.Err())
	}
	var out struct{ Text, Error string }
	if err := json.Unmarshal(p.out.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out.Text, out.Error
}

// Renderings are those of Jinja in Python, where it is installed: of the cases above, of published templates with
// random chats, and of random templates. What this package refuses, it refuses; it never renders something else.
func TestAgainstPython(t *testing.T) {
	p := startPython(t)
	for _, c := range cases {
		if strings.Contains(c.template, "generation %}") {
			continue // an extension of transformers
		}
		want, problem := p.render(t, c.template, pythonValues)
		parsed, err := Parse(c.template)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parsed.Render(values(), plenty); err != nil || got != want || problem != "" {
			t.Errorf("%s\n  got %q, %v\n want %q %s", c.template, got, err, want, problem)
		}
	}
	r := rand.New(rand.NewPCG(28, 1))
	for _, name := range []string{"qwen2.5.jinja", "qwen3.jinja", "llama3.jinja", "llama3.1.jinja", "mistral.jinja"} {
		parsed, err := Parse(source(t, name))
		if err != nil {
			t.Fatal(err)
		}
		for range 30 {
			var parts []string
			for range 1 + r.IntN(5) {
				role := []string{"system", "user", "assistant", "user"}[r.IntN(4)]
				var text strings.Builder
				for range r.IntN(6) {
					text.WriteString([]string{"a", " ", "\n", "</think>", "<think>", "<tool_response>",
						"</tool_response>", "é", "{{ x }}", "\t"}[r.IntN(10)])
				}
				parts = append(parts, role, text.String())
			}
			vars := chat(parts...)
			vars["eos_token"] = "</s>"
			asJSON := map[string]any{"add_generation_prompt": true, "bos_token": "<|begin_of_text|>",
				"eos_token": "</s>"}
			var messages []any
			for i := 0; i < len(parts); i += 2 {
				messages = append(messages, map[string]string{"role": parts[i], "content": parts[i+1]})
			}
			asJSON["messages"] = messages
			raw, err := json.Marshal(asJSON)
			if err != nil {
				t.Fatal(err)
			}
			want, problem := p.render(t, source(t, name), string(raw))
			got, err := parsed.Render(vars, plenty)
			if (err != nil) != (problem != "") || err == nil && got != want {
				t.Errorf("%s of %q\n  got %q, %v\n want %q %s", name, parts, got, err, want, problem)
			}
		}
	}
	rendered := 0
	for range 500 {
		template := randomTemplate(r, 3)
		parsed, err := Parse(template)
		if err != nil {
			continue
		}
		got, err := parsed.Render(values(), plenty)
		if err != nil {
			continue
		}
		rendered++
		if want, problem := p.render(t, template, pythonValues); got != want || problem != "" {
			t.Errorf("%s\n  got %q\n want %q %s", template, got, want, problem)
		}
	}
	t.Logf("%d random templates rendered", rendered)
}

// randomTemplate makes a template that is often valid.
func randomTemplate(r *rand.Rand, depth int) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	open, shut := pick("{%", "{%-", "{%+"), pick("%}", "-%}", "+%}")
	x := func() string { return randomExpression(r, 3) }
	if depth == 0 {
		return pick("a", " ", "\n", "  \n ", "{{ "+x()+" }}", "{{- "+x()+" -}}")
	}
	body := func() string { return randomTemplate(r, depth-1) }
	switch r.IntN(9) {
	case 0:
		return open + " if " + x() + " " + shut + body() + open + " else " + shut + body() + open + " endif " + shut
	case 1:
		return open + " for y in " + x() + " " + shut + body() + open + " endfor " + shut
	case 2:
		return open + " set " + pick("x", "y", "m") + " = " + x() + " " + shut
	case 3:
		return open + " set " + pick("x", "y") + " " + shut + body() + open + " endset " + shut
	case 4:
		return pick("{# c #}", "{#- c -#}", "\n  {# c #}\n")
	default:
		return body() + body() + body()
	}
}

func randomExpression(r *rand.Rand, depth int) string {
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	if depth == 0 {
		return pick("x", "y", "s", "m", "l", "1", "0", "-2", "2.5", "'a'", "' b\n'", "''", "true", "none", "[]",
			"[1, 'a']", "{'k': 1}", "(1, 2)", "nothing")
	}
	a := func() string { return randomExpression(r, depth-1) }
	switch r.IntN(12) {
	case 0:
		return a() + pick(" + ", " - ", " * ", " // ", " % ", " / ", " ~ ", " ~ ") + a()
	case 1:
		return a() + pick(" == ", " != ", " < ", " >= ", " in ", " not in ", " and ", " or ") + a()
	case 2:
		return "(" + a() + ")" + pick("|trim", "|length", "|upper", "|list", "|first", "|last", "|tojson",
			"|join(',')", "|string", "|int",
			"|default('d')", "|reverse|list", "|capitalize", "|title", "|items|list", "|map('string')|list",
			"|select|list", "|indent(2)")
	case 3:
		return "(" + a() + ")" + pick(" is defined", " is string", " is mapping", " is none", " is number",
			" is iterable", " is sequence", " is true", " is odd")
	case 4:
		return "(" + a() + ")" + pick("[0]", "[-1]", "[1:]", "[:-1]", "[::-1]", "[::2]", "[5:1:-1]", "['k']", ".k",
			".a", "[-3:2]")
	case 5:
		return "(" + a() + ")" + pick(".strip()", ".split()", ".split('a')", ".startswith('a')",
			".replace('a', 'bb')", ".upper()", ".lstrip('ab')",
			".get('a')", ".items()|list", ".keys()|list", ".replace('', '-')", ".replace('', '-', 2)", ".split('l', 1)")
	case 6:
		return "not " + a()
	case 7:
		return "(" + a() + " if " + a() + " else " + a() + ")"
	case 8:
		return "[" + a() + ", " + a() + "]"
	default:
		return a()
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range cases {
		f.Add(c.template)
	}
	for _, name := range []string{"qwen2.5.jinja", "qwen3.jinja", "llama3.1.jinja"} {
		f.Add(source(f, name))
	}
	f.Fuzz(func(t *testing.T, template string) {
		parsed, err := Parse(template)
		if err != nil {
			return
		}
		vars := values()
		for k, v := range chat("user", "a", "assistant", "b") {
			vars[k] = v
		}
		out, err := parsed.Render(vars, Limits{Output: 1 << 16, Work: 1 << 18})
		if len(out) > 1<<16 || err != nil && out != "" {
			t.Fatalf("%d bytes, %v", len(out), err)
		}
	})
}
