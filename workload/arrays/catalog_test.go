package arrays

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/eval"
	"grebe/model/tokenizer"
)

// A text's tokens are those of its first line and of its items' lines, whatever the titles: scripts rely on it.
func TestCatalogLinesMakeTexts(t *testing.T) {
	const head = "The customer bought:\n"
	dir := t.TempDir()
	titles := []string{"Nail Lacquer, 0.5-Fluid Ounce", "BB Cream!", "- Best (2 Pack)...", "Crème \u0301 30%", "a",
		"Two  spaces 12"}
	var items []*grebev1.Item
	for i, title := range titles {
		items = append(items, &grebev1.Item{Id: fmt.Sprintf("B%03d", i), Text: &title})
	}
	if err := Catalog(dir, items, head); err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.Load(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	lines, at := numbers(t, dir, "lines", 2), numbers(t, dir, "line_offsets", 8)
	text, want := head, tok.Encode(head)
	for i, title := range titles {
		text += Line(title)
		want = append(want, lines[at[i]:at[i+1]]...)
	}
	if got := tok.Encode(text); !slices.Equal(got, want) {
		t.Errorf("the text has tokens %v, its lines %v", got, want)
	}
	read, err := eval.Items(filepath.Join(dir, "items.ndjson"))
	if err != nil || len(read) != len(items) || *read[2].Identifier != *read[0].Identifier+2 {
		t.Fatalf("items.ndjson has %d items: %v", len(read), err)
	}
	candidates, begin := numbers(t, dir, "tokens", 2), numbers(t, dir, "offsets", 8)
	if got := candidates[begin[2]]; got != *read[2].Identifier {
		t.Errorf("the third candidate begins with token %d, not its identifier %d", got, *read[2].Identifier)
	}
	if err := Catalog(t.TempDir(), []*grebev1.Item{{Id: "x"}}, head); err == nil {
		t.Error("an item without a text was taken")
	}
}

// numbers reads an array of items of so many bytes a number.
func numbers(t *testing.T, dir, name string, size int) []int32 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "items."+name+".npy"))
	if err != nil {
		t.Fatal(err)
	}
	data = data[10+int(binary.LittleEndian.Uint16(data[8:])):]
	var out []int32
	for ; len(data) >= size; data = data[size:] {
		if size == 2 {
			out = append(out, int32(binary.LittleEndian.Uint16(data)))
		} else {
			out = append(out, int32(binary.LittleEndian.Uint64(data)))
		}
	}
	return out
}
