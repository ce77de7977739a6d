package hstu

import (
	"bytes"
	"strings"
	"testing"

	"grebe/model/hstu/hstutest"
)

// A small run has every line, and a returning user is no slower by an order than what is computed anew.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	r, err := Run(t.Context(), Options{Events: []int{30, 200}, New: 3, Candidates: 7, Items: 500, Repeats: 1, Threads: 1,
		Spec: &hstutest.Spec{Hidden: 32, Layers: 2, Heads: 2, HeadDim: 16}}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Lines) != 2 || r.Lines[1].Events != 200 || r.Lines[1].KVBytes == 0 ||
		!strings.Contains(out.String(), "the best 100 of 500 items") {
		t.Errorf("the report is %+v, the table\n%s", r, &out)
	}
}
