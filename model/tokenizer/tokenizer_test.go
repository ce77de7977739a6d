package tokenizer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// realData returns the path of a file of the data beside the repository.
func realData(t testing.TB, name string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Skip("no go.mod above the test: cannot find the real data")
		}
		dir = up
	}
	path := filepath.Join(dir, "..", "shared", "data", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("real data %s is not on this machine", name)
	}
	return path
}

var qwenOnce = sync.OnceValues(func() (*Tokenizer, error) { return Load(qwenPath) })
var qwenPath string

func loadQwen(t testing.TB) *Tokenizer {
	t.Helper()
	qwenPath = realData(t, "tokenizers/qwen3/tokenizer.json")
	tok, err := qwenOnce()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestQwenVectors(t *testing.T) {
	tok := loadQwen(t)
	inp, err := os.ReadFile(realData(t, "tokenizers/vectors/qwen2.inp"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(realData(t, "tokenizers/vectors/qwen2.out"))
	if err != nil {
		t.Fatal(err)
	}
	texts := strings.Split(string(inp), "\n__ggml_vocab_test__\n")
	lines := strings.Split(string(out), "\n")
	if len(texts) < 47 {
		t.Fatalf("%d texts, want 47", len(texts))
	}
	for i, text := range texts[:47] {
		var want []int32
		for _, f := range strings.Fields(lines[i]) {
			id, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, int32(id))
		}
		if got := tok.Encode(text); !slices.Equal(got, want) {
			t.Errorf("text %d %q:\n got %v\nwant %v", i, text, got, want)
		}
		if got := tok.Decode(want); got != text {
			t.Errorf("text %d decodes to %q, want %q", i, got, text)
		}
	}
}

var alphabet = []string{
	"a", "b", "the", "s", "S", "ſ", "t", "T", "re", "RE", "ve", "m", "ll", "lL", "d", "K", "'", "'", "’", "é",
	"e\u0301", "Ω",
	"你", "好", "我们", "한", "ㄱ", "が", "か\u3099", " ", " ", " ", "\t", "\n", "\n", "\r", "\r\n", "\u000b",
	"\u0085", "\u00a0", "\u3000", "\u200b",
	"\u2028", "0", "1", "23", "٣", "½", "Ⅷ", ".", ",", "!", "<", "|", ">", "_", "-", "🙂", "🚀", "👩\u200d💻",
	"\u0301", "\u0000", "\u1c89", "\U0002ebf0", "\U00010d40",
}

func randomText(rng *rand.Rand, most int) string {
	var b strings.Builder
	for range rng.IntN(most) + 1 {
		s := alphabet[rng.IntN(len(alphabet))]
		for range 1 + rng.IntN(5)*rng.IntN(2) {
			b.WriteString(s)
		}
	}
	return b.String()
}

var patterns = map[string]splitter{"qwen": {digits: 1}, "llama": {digits: 3}, "gpt2": {gpt2: true}}

func TestSplitAgreesWithReference(t *testing.T) {
	for name, p := range patterns {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 2000 {
			text := randomText(rng, 12)
			want := referenceSplit(p, text)
			var got []string
			for i := 0; i < len(text); {
				end := p.next(text, i)
				got = append(got, text[i:end])
				i = end
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %q\n got %q\nwant %q", name, text, got, want)
			}
		}
	}
}

func TestEncodeAgreesWithReference(t *testing.T) {
	for name, p := range patterns {
		for _, opts := range []smallOptions{{split: p}, {split: p, ignoreMerges: true, mergeLines: true},
			{split: p, nfc: true}} {
			data := smallTokenizer(opts)
			tok := mustParse(t, data)
			ref := newReference(t, data)
			ref.split = p
			rng := rand.New(rand.NewPCG(3, 4))
			for range 600 {
				compareWithReference(t, tok, ref, name, randomText(rng, 30))
			}
		}
	}
}

func TestRealVocabularyAgreesWithReference(t *testing.T) {
	tok := loadQwen(t)
	data, err := os.ReadFile(qwenPath)
	if err != nil {
		t.Fatal(err)
	}
	ref := newReference(t, data)
	ref.split = splitter{digits: 1}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 600 {
		compareWithReference(t, tok, ref, "qwen3", randomText(rng, 30))
	}
	compareWithReference(t, tok, ref, "qwen3", mixedText())
}

func compareWithReference(t *testing.T, tok *Tokenizer, ref *reference, name, text string) {
	t.Helper()
	got, want := tok.Encode(text), ref.encode(text)
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %q\n got %v\nwant %v", name, text, got, want)
	}
	back := text
	if tok.nfc {
		back = norm.NFC.String(text)
	}
	if dec := tok.Decode(got); dec != back {
		t.Fatalf("%s: %q decodes to %q", name, text, dec)
	}
}

func TestLongWordsAgreeWithReference(t *testing.T) {
	data := smallTokenizer(smallOptions{split: splitter{digits: 1}})
	tok := mustParse(t, data)
	ref := newReference(t, data)
	ref.split = splitter{digits: 1}
	rng := rand.New(rand.NewPCG(7, 8))
	syllables := []string{"th", "he", "er", "a", "in", "t", "zz", "我", "们"}
	for n := 1; n < 200; n += 3 {
		var b strings.Builder
		for range n {
			b.WriteString(syllables[rng.IntN(len(syllables))])
		}
		compareWithReference(t, tok, ref, "long word", b.String())
	}
	huge := strings.Repeat("the", 1<<18)
	if got := tok.Decode(tok.Encode(huge)); got != huge {
		t.Error("a word of 768 KiB does not survive encoding and decoding")
	}
}

func TestInvalidUTF8(t *testing.T) {
	tok := mustParse(t, smallTokenizer(smallOptions{split: splitter{digits: 1}, nfc: true}))
	for _, text := range []string{"\xff", "a\xe4\xbd b", "\xed\xa0\x80",
		"e\u0301\xff" + strings.Repeat("\u0301", 40) + "\xfe"} {
		got := tok.DecodeBytes(tok.Encode(text))
		if want := norm.NFC.String(text); string(got) != want && !strings.Contains(want, "\u034f") {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	for in, want := range map[string]string{
		"a\xe4\xbdb": "a\ufffdb", "\xff\xfe": "\ufffd\ufffd", "\xed\xa0\x80": "\ufffd\ufffd\ufffd",
		"\xf0\x9f\x99": "\ufffd", "\xf0\x80\x80": "\ufffd\ufffd\ufffd", "é\xc3": "é\ufffd", "\ufffd": "\ufffd",
	} {
		if got := string(appendLossy(nil, []byte(in))); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

func TestNormalizeLongMarkRuns(t *testing.T) {
	marks := strings.Repeat("\u0323\u0301", 40)
	var s scratch
	got := s.normalizeNFC("xe" + marks)
	want := "x\u1eb9" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)
	if got != want {
		t.Errorf("got %+q\nwant %+q", got, want)
	}
	rng := rand.New(rand.NewPCG(9, 10))
	pieces := []string{"a", "e", "ê", "\u0323", "\u0301", "\u0302", "\u0344", "각", "ᄀ", "ᅡ", "ᆨ", "\u09c7",
		"\u09be", "か", "\u3099", "Å", "\U0001d15e", "\u0f73", " "}
	for range 3000 {
		var b strings.Builder
		for range 1 + rng.IntN(10) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		if got, want := composeNFC(b.String()), norm.NFC.String(b.String()); got != want {
			t.Fatalf("%+q: got %+q, want %+q", b.String(), got, want)
		}
	}
}

func TestQwenLookups(t *testing.T) {
	tok := loadQwen(t)
	if got := tok.VocabSize(); got != 151669 {
		t.Errorf("VocabSize %d, want 151669", got)
	}
	for text, want := range map[string]int32{"<|im_end|>": 151645, "Ġyes": 9834, " yes": 9834, "yes": 9693, "no": 2152,
		"是": 20412, "\n": 198} {
		if got, ok := tok.TokenID(text); !ok || got != want {
			t.Errorf("TokenID(%q) = %d, %v, want %d", text, got, ok, want)
		}
	}
	if id, ok := tok.TokenID("no such token at all"); ok {
		t.Errorf("found id %d for a text that is no token", id)
	}
	for _, id := range []int32{-1, 151669, 1 << 30} {
		if text, ok := tok.TokenText(id); ok {
			t.Errorf("id %d has text %q", id, text)
		}
	}
	if got := tok.Decode([]int32{151644, 9834, -5, 1 << 30, 198}); got != "<|im_start|> yes\n" {
		t.Errorf("decoded %q", got)
	}
	for id := range int32(tok.VocabSize()) {
		text, ok := tok.TokenText(id)
		if !ok {
			t.Fatalf("id %d has no text", id)
		}
		if spelled, ok := fromByteLevel(nil, text); ok && string(spelled) != text && utf8.Valid(spelled) {
			continue // also the spelling of another text
		}
		if got, ok := tok.TokenID(text); !ok || got != id {
			t.Fatalf("id %d, text %q: TokenID gives %d, %v", id, text, got, ok)
		}
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	tok := mustParse(t, smallTokenizer(smallOptions{split: splitter{digits: 3}, nfc: true, added: someAdded}))
	text := mixedText() + "\u00e9 <a_1>" + strings.Repeat("theinthe", 30)
	dst := tok.Encode(text)
	// Below one: the pool of buffers may be emptied between calls.
	if n := testing.AllocsPerRun(50, func() { dst = tok.AppendEncode(dst[:0], text) }); n >= 1 {
		t.Errorf("%v allocations per call", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := mustParse(t, smallTokenizer(smallOptions{split: splitter{digits: 3}, nfc: true, added: someAdded}))
	text := mixedText() + strings.Repeat("theinthe", 30)
	want := tok.Encode(text)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if !slices.Equal(tok.Encode(text), want) {
					t.Error("concurrent calls give another answer")
				}
			}
		})
	}
	wg.Wait()
}
