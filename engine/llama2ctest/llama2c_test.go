package llama2ctest

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/model"
	_ "grebe/model/llama"
	"grebe/model/safetensors"
)

// stories returns the folder of the stories260K model beside the repository.
func stories(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for filepath.Dir(dir) != dir {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	data := filepath.Join(dir, "..", "shared", "data", "stories260K")
	if _, err := os.Stat(data); err != nil {
		t.Skip("no stories260K in ../shared/data: ", err)
	}
	return data
}

// The trained model tells its story, token by token, each step on the KV of the ones before.
func TestStories(t *testing.T) {
	const steps = 200
	data, dir := stories(t), t.TempDir()
	if err := Convert(filepath.Join(data, "stories260K.bin"), dir); err != nil {
		t.Fatal(err)
	}
	tok, err := ReadTokenizer(filepath.Join(data, "tok512.bin"))
	if err != nil {
		t.Fatal(err)
	}
	dev := ref.New()
	defer dev.Close()
	m, err := model.Open(dir, dev, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Vocab() != tok.Vocab() {
		t.Fatalf("model has %d tokens, tokenizer %d", m.Vocab(), tok.Vocab())
	}
	shape := m.Shape()
	r, err := dev.Open(shape, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()

	kv := compute.Chunk{Bytes: make([]byte, shape.ChunkBytes(steps, false)), Tokens: steps}
	pairs := make([]compute.Pair, m.Vocab())
	for id := range pairs {
		pairs[id].ID = int32(id)
	}
	logits := make([]float32, m.Vocab())
	var text strings.Builder
	token := int32(BOS)
	for pos := range steps {
		b := &compute.Batch{
			Tokens: []int32{token}, Positions: []int32{int32(pos)},
			Segments: []compute.Segment{{Cached: pos, Len: pos + 1, Chunks: []compute.Chunk{kv}}},
		}
		if err := m.Forward(r, b, nil); err != nil {
			t.Fatal(err)
		}
		if err := m.Logits(r, pairs, logits); err != nil {
			t.Fatal(err)
		}
		next := argmax(logits)
		if next == BOS {
			break
		}
		text.WriteString(tok.Decode(token, next))
		token = next
	}
	want, err := os.ReadFile(filepath.Join(data, "expected.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if got := text.String(); got != strings.TrimSuffix(string(want), "\n") {
		t.Errorf("the story is\n%s\nwant\n%s", got, want)
	}
}

func argmax(v []float32) int32 {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return int32(best)
}

// tiny returns a checkpoint file whose values count up.
func tiny(vocab int32) []byte {
	const dim, hidden, layers, heads, kvHeads, seq = 8, 6, 1, 2, 1, 4
	var raw []byte
	for _, v := range []int32{dim, hidden, layers, heads, kvHeads, vocab, seq} {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
	}
	n := 3*dim + dim + 2*dim*dim + 2*4*dim + dim + 3*hidden*dim + dim + seq*4
	if vocab < 0 {
		n += 3 * dim
	}
	for i := range n {
		raw = safetensors.Encode(raw, compute.F32, float32(i))
	}
	return raw
}

func TestConvertOrder(t *testing.T) {
	for _, vocab := range []int32{3, -3} {
		dir := t.TempDir()
		bin := filepath.Join(dir, "m.bin")
		if err := os.WriteFile(bin, tiny(vocab), 0o666); err != nil {
			t.Fatal(err)
		}
		if err := Convert(bin, dir); err != nil {
			t.Fatal(err)
		}
		s, err := safetensors.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		q, err := s.Tensor("model.layers.0.self_attn.q_proj.weight")
		if err != nil {
			t.Fatal(err)
		}
		// wq starts after the embedding and one norm, at 32; rows of 8 values, heads of 4 rows.
		values := safetensors.Floats(q)
		for row, from := range []int{0, 2, 1, 3, 4, 6, 5, 7} {
			if values[8*row] != float32(32+8*from) {
				t.Errorf("row %d of wq starts with %v, want old row %d", row, values[8*row], from)
			}
		}
		if _, untied := s.Lookup("lm_head.weight"); untied != (vocab < 0) {
			t.Errorf("vocabulary %d: lm_head %v", vocab, untied)
		}
		m, err := model.Open(dir, ref.New(), model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
}

func TestConvertRefuses(t *testing.T) {
	good := tiny(3)
	negative := bytes.Clone(good)
	binary.LittleEndian.PutUint32(negative, 0xffffff00)
	odd := bytes.Clone(good)
	binary.LittleEndian.PutUint32(odd[12:], 3)
	for want, raw := range map[string][]byte{
		"truncated": good[:len(good)-4], "follow the weights": append(bytes.Clone(good), 0, 0, 0, 0),
		"not a llama2.c": negative, "divide": odd, "not a file": good[:20],
	} {
		bin := filepath.Join(t.TempDir(), "m.bin")
		if err := os.WriteFile(bin, raw, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := Convert(bin, t.TempDir()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestDecode(t *testing.T) {
	tok := &Tokenizer{pieces: []string{"<unk>", "\n<s>\n", "\n</s>\n", "<0x0A>", " once", "<0xZZ>"}}
	for _, c := range []struct {
		prev, token int32
		want        string
	}{{BOS, 4, "once"}, {4, 4, " once"}, {4, 3, "\n"}, {4, 5, "<0xZZ>"}, {4, 99, ""}, {4, -1, ""}} {
		if got := tok.Decode(c.prev, c.token); got != c.want {
			t.Errorf("Decode(%d, %d) = %q, want %q", c.prev, c.token, got, c.want)
		}
	}
}

func FuzzParseTokenizer(f *testing.F) {
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00ab"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tok, err := parseTokenizer(raw)
		if err == nil && tok.Vocab() > len(raw)/8 {
			t.Fatalf("%d pieces from %d bytes", tok.Vocab(), len(raw))
		}
	})
}
