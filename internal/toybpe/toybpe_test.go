package toybpe

import (
	"bytes"
	"testing"

	"grebe/model/tokenizer"
)

func TestVocabularyIsReadAndUsed(t *testing.T) {
	texts := []string{"the heron and the grebe", "the grebe dives", "naïve €"}
	v := Train(texts, 50)
	data, err := v.TokenizerJSON([]string{"<one>"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := Train(texts, 50).TokenizerJSON([]string{"<one>"})
	if err != nil || !bytes.Equal(data, again) {
		t.Fatalf("two runs differ (%v)", err)
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if tok.VocabSize() != v.Size()+1 {
		t.Errorf("%d tokens, want %d", tok.VocabSize(), v.Size()+1)
	}
	if id, ok := tok.TokenID("<one>"); !ok || int(id) != v.Size() {
		t.Errorf("<one> is %d, %v, want %d", id, ok, v.Size())
	}
	if ids := tok.Encode(" grebe"); len(ids) != 1 {
		t.Errorf("a frequent word has tokens %v, want one", ids)
	}
	for _, text := range append(texts, "\x00 unseen\n") {
		if back := tok.Decode(tok.Encode(text)); back != text {
			t.Errorf("%q comes back as %q", text, back)
		}
	}
}
