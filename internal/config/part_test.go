package config

import "testing"

func TestPartsAreDecodedOntoDefaults(t *testing.T) {
	type inner struct {
		A int `yaml:"a"`
		B int `yaml:"b"`
	}
	var file struct {
		Base Part `yaml:"base"`
		Set  Part `yaml:"set"`
		None Part `yaml:"none"`
	}
	if err := Decode([]byte("base: {a: 1}\nset: {b: 2}\n"), &file); err != nil {
		t.Fatal(err)
	}
	v := inner{A: 8, B: 9}
	for _, p := range []*Part{&file.Base, &file.Set, &file.None} {
		if err := Onto(p, &v); err != nil {
			t.Fatal(err)
		}
	}
	if v != (inner{1, 2}) {
		t.Errorf("%+v, want base and set, one over the other", v)
	}
	if err := Decode([]byte("base: {c: 1}"), &file); err != nil {
		t.Fatal(err)
	}
	if err := Onto(&file.Base, &v); err == nil {
		t.Error("an unknown key is accepted")
	}
	if err := Decode(nil, &v); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}
