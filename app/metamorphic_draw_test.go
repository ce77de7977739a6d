package app

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grebe/kv"
)

// drawTokens reads tokens such as 40@3+5@9+20@3/41: 40 tokens of the stream with seed 3, 5 of the one with seed 9, then
// 20 of the first one after its first 41. So 40@3 begins 60@3, and 40@3+1@9+19@3/41 is 60@3 with another token in its
// middle.
func drawTokens(word string) []int32 {
	out := []int32{}
	for _, s := range spansOf(word) {
		r := rand.New(rand.NewPCG(s.seed, 11))
		for i := range s.from + s.n {
			if token := int32(20 + r.IntN(300)); i >= s.from {
				out = append(out, token)
			}
		}
	}
	return out
}

// span is n tokens of a stream.
type span struct {
	n    int
	seed uint64
	from int
}

func spansOf(word string) (out []span) {
	for part := range strings.SplitSeq(word, "+") {
		var s span
		if n, err := fmt.Sscanf(part, "%d@%d/%d", &s.n, &s.seed, &s.from); n < 2 {
			panic(fmt.Sprintf("%q is no length@seed: %v", part, err))
		}
		out = append(out, s)
	}
	return out
}

func lengthOf(word string) (n int) {
	for _, s := range spansOf(word) {
		n += s.n
	}
	return n
}

// splice replaces tokens [from, to) by others, which may be none.
func splice(word string, from, to int, with string) string {
	var before, after []string
	keep := func(parts []string, s span, from, to int) []string {
		switch n := min(to, s.n) - max(from, 0); {
		case n <= 0:
			return parts
		case s.from+max(from, 0) > 0:
			return append(parts, fmt.Sprintf("%d@%d/%d", n, s.seed, s.from+max(from, 0)))
		default:
			return append(parts, fmt.Sprintf("%d@%d", n, s.seed))
		}
	}
	at := 0
	for _, s := range spansOf(word) {
		before = keep(before, s, 0, from-at)
		after = keep(after, s, to-at, s.n)
		at += s.n
	}
	if with != "" {
		before = append(before, with)
	}
	return strings.Join(append(before, after...), "+")
}

// drawEvents makes an event of each token, after had earlier events of the user.
func drawEvents(word string, had int) []map[string]any {
	out := []map[string]any{}
	for i, token := range drawTokens(word) {
		out = append(out, map[string]any{"item": fmt.Sprintf("i%d", token%catalogItems), "time": 1000 + had + i,
			"action": 1 + token%3})
	}
	return out
}

// drawUser returns a user: u… for the language model, v… for the model of events.
func drawUser(id, word string) map[string]any {
	if id[0] == 'v' {
		return map[string]any{"events": drawEvents(word, 0)}
	}
	return map[string]any{"tokens": drawTokens(word)}
}

func jsonOf(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// drawScenario draws a scenario of so many commands.
func drawScenario(seed uint64, steps int) []string {
	r := rand.New(rand.NewPCG(seed, 17))
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	class := "dtype=" + pick("bf16", "f32")
	if r.IntN(4) == 0 {
		class = "dtype=bf16 kv=fp8"
	}
	if r.IntN(3) == 0 {
		class += " scoring=pointwise"
	}
	start := func() string {
		line := "start " + class
		set := func(key string, value any) { line += fmt.Sprintf(" %s=%v", key, value) }
		place := pick("near", "far", "pinned")
		set("place", place)
		if place == "near" && r.IntN(3) == 0 {
			set("workers", 2)
		}
		if r.IntN(3) > 0 {
			set("page", 256<<r.IntN(5))
		}
		set("host", 80+r.IntN(80)<<r.IntN(5))
		set("device", 80+r.IntN(80)<<r.IntN(4))
		if r.IntN(3) > 0 {
			set("disk", 1+r.IntN(3))
		}
		set("policy", pick("default", "default", "lru", "laru", "sieve"))
		set("rows", pick("default", "lru", "laru", "sieve"))
		set("boundary", pick("fixed", "climb"))
		set("cache", 36<<r.IntN(4))
		set("threads", 1+r.IntN(2))
		return line
	}
	last := 0
	user := func(kind string) string { // often the previous one, so that cached KV is requested again
		if r.IntN(2) == 0 {
			last = r.IntN(3)
		}
		return fmt.Sprint(kind, last)
	}
	// at draws a position in so many tokens, often near the end of a chunk of KV.
	at := func(n int) int {
		if n > kv.ChainTokens-3 && r.IntN(2) == 0 {
			return min(n, kv.ChainTokens*(1+r.IntN(1+n/kv.ChainTokens))-2+r.IntN(5))
		}
		return r.IntN(n + 1)
	}
	length := func() int { return 1 + at(20<<r.IntN(4)) }
	tokens := func() string { // many have the same beginning
		word := fmt.Sprintf("%d@%d", length(), r.IntN(1+r.IntN(6)))
		if r.IntN(3) == 0 {
			word += fmt.Sprintf("+%d@%d", 1+r.IntN(40), r.IntN(6))
		}
		return word
	}
	// edit changes some tokens, at the end or before it.
	edit := func(word string) string {
		n := lengthOf(word)
		from := at(n)
		other := fmt.Sprintf("%d@%d", 1+r.IntN(3), r.IntN(9))
		switch r.IntN(6) {
		case 0: // others in their place
			word = splice(word, from, from+lengthOf(other), other)
		case 1: // a few more in between
			word = splice(word, from, from, other)
		case 2: // a few less
			word = splice(word, from, from+1+r.IntN(3), "")
		case 3: // another end
			word = splice(word, from, n, fmt.Sprintf("%d@%d", 1+r.IntN(40), r.IntN(9)))
		default: // more at the end
			word += fmt.Sprintf("+%d@%d", 1+r.IntN(40), r.IntN(6))
		}
		if word == "" || lengthOf(word) > 260 || strings.Count(word, "+") > 8 {
			return tokens()
		}
		return word
	}
	has := map[string]string{} // users' latest tokens
	put := func(id string) string {
		switch other := has[fmt.Sprint(id[:len(id)-1], r.IntN(3))]; {
		case r.IntN(8) == 0 || has[id] == "" && other == "":
			has[id] = tokens()
		case has[id] == "" || other != "" && r.IntN(4) == 0: // begins like another user
			has[id] = edit(other)
		default:
			has[id] = edit(has[id])
		}
		return fmt.Sprintf("user %s %s", id, has[id])
	}
	// who draws a user of the catalog, one with tokens and a name, or one without a name.
	who := func(kind string) string {
		id := user(kind)
		switch r.IntN(6) {
		case 0:
			if has[id] != "" {
				return edit(has[id])
			}
			return tokens()
		case 1, 2:
			return id + ":" + strings.Fields(put("=" + id))[2]
		}
		return id
	}
	item := func() string { return fmt.Sprintf("y%d", r.IntN(6)) }
	var texts []string
	text := func() string { // text of an item; some differ only at the end
		if n := len(texts); n > 0 && r.IntN(3) == 0 { // another's
			return texts[n-1-r.IntN(min(n, 4))]
		}
		if r.IntN(2) == 0 {
			texts = append(texts, fmt.Sprintf("%d@%d+%d@%d", 20+r.IntN(4), r.IntN(2), 1+r.IntN(3), r.IntN(9)))
		} else {
			texts = append(texts, fmt.Sprintf("%d@%d", 1+r.IntN(20), r.IntN(9)))
		}
		return texts[len(texts)-1]
	}
	items := func() string {
		var out []string
		for range 1 + r.IntN(10) {
			it := fmt.Sprintf("i%d", r.IntN(1+r.IntN(catalogItems)))
			if r.IntN(3) == 0 {
				it = item()
			}
			if !slices.Contains(out, it) {
				out = append(out, it)
			}
		}
		return strings.Join(out, ",")
	}
	lines := []string{start()}
	for i := range 3 {
		lines = append(lines, put(fmt.Sprint("u", i)), put(fmt.Sprint("v", i)), fmt.Sprintf("item y%d %s", i, text()))
	}
	for len(lines) < steps {
		var line string
		switch n := r.IntN(100); {
		case n < 12:
			line = put(user(pick("u", "u", "v")))
		case n < 22:
			line = fmt.Sprintf("events %s %d@%d", user("v"), 1+r.IntN(20), r.IntN(9))
		case n < 26:
			line = "forget " + user(pick("u", "u", "v"))
		case n < 32:
			line = fmt.Sprintf("item %s %s", item(), text())
		case n < 34:
			line = "remove " + item()
		case n < 60:
			line = fmt.Sprintf("rank lm %s %s %s", who("u"), pick("user", "item", "user", "item", "none"), items())
		case n < 72:
			line = fmt.Sprintf("rank ev %s %s %s", who("v"), pick("user", "user", "none"), items())
		case n < 78:
			scored := fmt.Sprintf("%d@%d,%d@%d", 1+r.IntN(9), r.IntN(9), 1+r.IntN(9), r.IntN(9))
			if r.IntN(2) == 0 { // each twice
				scored += "," + scored
			}
			line = fmt.Sprintf("score %s %s %s", tokens(), scored, pick("user", "item"))
		case n < 85:
			line = fmt.Sprintf("recommend %s %d %d", who("u"), 1+r.IntN(8), 1+r.IntN(16))
		case n < 88:
			line = pick("reload", "reload", "rollback") + " " + pick("lm", "ev")
		case n < 91:
			line = fmt.Sprintf("boundary %.2f", 0.1+0.8*r.Float64())
		case n < 92:
			line = fmt.Sprintf("damage %d", r.IntN(100))
		case n < 97:
			line = "settle"
		default:
			line = start()
		}
		if verb, _, _ := strings.Cut(line, " "); slices.Contains([]string{"rank", "score", "recommend"}, verb) &&
			r.IntN(5) == 0 {
			lines = append(lines, fmt.Sprintf("crowd %d", 2+r.IntN(4)))
		}
		lines = append(lines, line)
	}
	return lines
}

// shrink returns a short scenario that still fails: without needless commands, with default options, few items and
// short users.
func shrink(lines []string, fails func([]string) bool) []string {
	for size := len(lines) / 2; size > 0; size /= 2 {
		// the last ones first, because nothing after the failure matters
		for from := len(lines) - size; from >= 0; from -= size {
			if less := slices.Delete(slices.Clone(lines), from, min(from+size, len(lines))); len(less) > 0 && fails(less) {
				lines = less
			}
			from = min(from, len(lines))
		}
	}
	for i := range lines {
		for _, simpler := range simplify(lines[i]) {
			less := slices.Clone(lines)
			if less[i] = simpler(less[i]); less[i] != lines[i] && fails(less) {
				lines = less
			}
		}
	}
	return lines
}

// simplify returns ways to shorten a command. Each is tried on the result of those before it.
func simplify(line string) (out []func(string) string) {
	words := strings.Fields(line)
	edit := func(how func(word string) string, at int) {
		out = append(out, func(now string) string {
			words := strings.Fields(now)
			if words[at] = how(words[at]); words[at] == "" {
				return now
			}
			return strings.Join(words, " ")
		})
	}
	for at, word := range words {
		switch {
		case at > 0 && words[0] == "start":
			out = append(out, func(now string) string { return strings.Replace(now, " "+word, "", 1) })
		case strings.Contains(word, ","):
			for part := range strings.SplitSeq(word, ",") {
				edit(func(word string) string {
					left := slices.DeleteFunc(strings.Split(word, ","), func(p string) bool { return p == part })
					return strings.Join(left, ",")
				}, at)
			}
		case strings.Contains(word, "+"):
			for _, part := range strings.Split(word, "+") {
				edit(func(string) string { return part }, at)
			}
		}
	}
	return out
}

// An edit does not change the tokens before and after it.
func TestSplice(t *testing.T) {
	const word = "5@1+70@2+9@1/4"
	all := drawTokens(word)
	for from := range len(all) + 1 {
		for to := from; to <= len(all); to++ {
			got := splice(word, from, to, "3@8")
			want := slices.Concat(all[:from], drawTokens("3@8"), all[to:])
			if !slices.Equal(drawTokens(got), want) {
				t.Fatalf("without [%d, %d) %s is %s: %d, want %d", from, to, word, got, drawTokens(got), want)
			}
		}
	}
	if got := splice("5@1+4@2", 5, 9, ""); got != "5@1" {
		t.Errorf("without its end it is %s", got)
	}
}

// Shrinking removes what the failure does not need.
func TestShrink(t *testing.T) {
	lines := []string{"start place=far disk=2 policy=lru", "user u1 5@3", "user u2 9@4", "settle",
		"rank lm u2 item i1,i2,i3", "rank lm u1 user i7,i9", "forget u2"}
	got := shrink(lines, func(lines []string) bool {
		text := strings.Join(lines, "\n")
		return strings.Contains(text, "disk=2") && strings.Contains(text, "user u1") &&
			strings.Contains(text, "rank lm u1 user i7")
	})
	want := []string{"start disk=2", "user u1 5@3", "rank lm u1 user i7"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
