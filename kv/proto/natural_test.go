package proto

import "testing"

func TestNatural(t *testing.T) {
	for text, want := range map[string]bool{
		" good": true, "ly": true, "Überraschung": true, "好": true, "don't": true, " USB-C": true,
		"": false, " ": false, "\n": false, ".\n": false, ", ": false, "$": false, "4": false, " 2024": false,
		"B07XYZ": false,
		"½":      false, " March": false, "tuesday": false, "<|im_end|>": false, "<item_7>": false, "[SEP]": false,
		"\ufffd": false, "<": false,
	} {
		if Natural(text) != want {
			t.Errorf("%q is natural: %v, want %v", text, !want, want)
		}
	}
}
