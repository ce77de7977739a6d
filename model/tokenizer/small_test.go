package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// smallOptions says what tokenizer.json smallTokenizer writes.
type smallOptions struct {
	split        splitter
	nfc          bool
	ignoreMerges bool
	mergeLines   bool // merges as "a b", not ["a", "b"]
	added        []map[string]any
}

// someAdded are added tokens with every flag; their ids are filled in.
var someAdded = []map[string]any{
	{"content": "<|end|>", "special": true},
	{"content": "<a_1>"}, {"content": "<a_12>"}, {"content": "<a_1"},
	{"content": "<left>", "lstrip": true}, {"content": "<right>", "rstrip": true},
	{"content": "<both>", "lstrip": true, "rstrip": true},
	{"content": "cat", "single_word": true}, {"content": "catalog"},
	{"content": "caf\u00e9", "normalized": true}, {"content": "th ere", "normalized": true, "single_word": true},
	{"content": "   ", "rstrip": true},
}

const corpus = `the there then than these other another her here hear in into inner within win thin thing things
cat catalog cats s 's 're we're they've I'm he'll she'd don't can't 12 123 2024 100 10 00 ... !!! ->   == // <a_ <|end
我们 我们的 你好 你们 café élan Ωmega не на при 🙂🙂 🚀
    four spaces and 	tabs`

// smallTokenizer writes a tokenizer.json whose merges are learned from corpus.
func smallTokenizer(o smallOptions) []byte {
	trained := trainSmall()
	vocab, merges := trained.vocab, trained.merges
	added, outside := []map[string]any{}, 0
	for _, a := range o.added {
		id, known := vocab[a["content"].(string)]
		if !known {
			id = int32(len(vocab) + outside)
			outside++
		}
		full := map[string]any{"id": id, "special": false, "single_word": false, "lstrip": false, "rstrip": false,
			"normalized": false}
		for k, v := range a {
			full[k] = v
		}
		added = append(added, full)
	}
	model := map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": o.ignoreMerges}
	if o.mergeLines {
		lines := []string{"#version: 0.2"}
		for _, m := range merges {
			lines = append(lines, m[0]+" "+m[1])
		}
		model["merges"] = lines
	}
	f := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer": preTokenizerJSON(o.split), "post_processor": nil,
		"decoder": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
		"model":   model,
	}
	if o.nfc {
		f["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "NFC"}}}
	}
	data, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return data
}

func preTokenizerJSON(p splitter) map[string]any {
	level := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": p.gpt2}
	if p.gpt2 {
		return level
	}
	regex := qwenPattern
	if p.digits == 3 {
		regex = llamaPattern
	}
	split := map[string]any{"type": "Split", "pattern": map[string]any{"Regex": regex}, "behavior": "Isolated",
		"invert": false}
	return map[string]any{"type": "Sequence", "pretokenizers": []any{split, level}}
}

type smallModel struct {
	vocab  map[string]int32
	merges [][2]string
}

// trainSmall learns 300 merges, and adds tokens that no merge reaches.
var trainSmall = sync.OnceValue(func() smallModel {
	vocab := map[string]int32{}
	for b := range 256 {
		vocab[string(byteToRune[b])] = int32(b)
	}
	var words [][]string
	for _, w := range referenceSplit(splitter{digits: 3}, corpus) {
		words = append(words, strings.Split(byteLevel(w), ""))
	}
	var merges [][2]string
	for len(merges) < 300 {
		best, ok := commonPair(words)
		if !ok {
			break
		}
		merges = append(merges, best)
		if _, ok := vocab[best[0]+best[1]]; !ok {
			vocab[best[0]+best[1]] = int32(len(vocab))
		}
		for i, w := range words {
			words[i] = joinPair(w, best)
		}
	}
	for _, w := range []string{"Ġcatalogs", "wither", "ĊĊĊ", "2024", "not a byte-level entry"} {
		if _, ok := vocab[w]; !ok {
			vocab[w] = int32(len(vocab))
		}
	}
	return smallModel{vocab, merges}
})

func commonPair(words [][]string) ([2]string, bool) {
	count := map[[2]string]int{}
	for _, w := range words {
		for i := range len(w) - 1 {
			count[[2]string{w[i], w[i+1]}]++
		}
	}
	var best [2]string
	for p, n := range count {
		if n > count[best] || n == count[best] && slices.Compare(p[:], best[:]) < 0 {
			best = p
		}
	}
	return best, len(count) > 0
}

func joinPair(w []string, p [2]string) []string {
	var out []string
	for i := 0; i < len(w); i++ {
		if i+1 < len(w) && w[i] == p[0] && w[i+1] == p[1] {
			out = append(out, w[i]+w[i+1])
			i++
			continue
		}
		out = append(out, w[i])
	}
	return out
}

func mustParse(t testing.TB, data []byte) *Tokenizer {
	t.Helper()
	tok, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// mixedText is English with some Chinese, numbers, code and emoji.
func mixedText() string {
	const text = `The quick brown fox jumps over the lazy dog. I've been told he's there, "RE" you sure? We'll see in 2024.
A user who bought item 48213 (rating 4.5/5) at 10:32:07 also viewed: wireless headphones, USB-C charger, ` +
		`and a 27-inch monitor!
这款耳机音质很好，佩戴舒适，续航时间长达30小时。推荐给喜欢音乐的朋友们。🎧👍
func main() { for i := 0; i < 100; i++ { fmt.Println("value:", i*i) } }
Natural language understanding benefits from personalization; recommendation systems ` +
		`retrieve, rank and explain candidates. 🙂🚀
`
	return strings.Repeat(text, 8)
}

func BenchmarkEncode(b *testing.B) {
	tok := loadQwen(b)
	text := mixedText()
	dst := tok.Encode(text)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text)
	}
}

// BenchmarkEncodeTitles is real product titles and their codes, few words of which repeat.
func BenchmarkEncodeTitles(b *testing.B) {
	tok := loadQwen(b)
	data, err := os.ReadFile(realData(b, "beauty/beauty_joined.tsv"))
	if err != nil {
		b.Fatal(err)
	}
	text := string(data)
	dst := tok.Encode(text)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text)
	}
}

// BenchmarkEncodeAdded is a history of semantic ids, all of them added tokens.
func BenchmarkEncodeAdded(b *testing.B) {
	tok := mustParse(b, smallTokenizer(smallOptions{split: patterns["qwen"], nfc: true, added: someAdded}))
	text := strings.Repeat("<a_12><a_1>", 400)
	dst := tok.Encode(text)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		dst = tok.AppendEncode(dst[:0], text)
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := loadQwen(b)
	text := mixedText()
	ids := tok.Encode(text)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.DecodeBytes(ids)
	}
}

func BenchmarkLoad(b *testing.B) {
	path := realData(b, "tokenizers/qwen3/tokenizer.json")
	for b.Loop() {
		if _, err := Load(path); err != nil {
			b.Fatal(err)
		}
	}
}
