package main

import (
	"encoding/json"
	"testing"
)

func TestParseFilter(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  string // empty: refused
	}{
		{[]string{"a=b,c", "a=d", "e=f=g"}, `{"a":["b","c","d"],"e":["f=g"]}`},
		{[]string{"price>=10", "price<50", "price!=12,13"}, `{"price":{"gte":"10","lt":"50","not":["12","13"]}}`},
		{[]string{"made>2026-01-31", "made<=2027-01-01T00:00:00Z"},
			`{"made":{"gt":"2026-01-31","lte":"2027-01-01T00:00:00Z"}}`},
		{[]string{"a!=b", "a!=c"}, `{"a":{"not":["b","c"]}}`},
		{[]string{"a"}, ""},
		{[]string{"a="}, ""},
		{[]string{"=b"}, ""},
		{[]string{"a!b"}, ""},
		{[]string{"a>="}, ""},
		{[]string{"a=b", "a>3"}, ""},
	} {
		got, err := parseFilter(c.flags)
		raw, _ := json.Marshal(got)
		if c.want == "" && err == nil || c.want != "" && (err != nil || string(raw) != c.want) {
			t.Errorf("%q: %s, %v; want %s", c.flags, raw, err, c.want)
		}
	}
}
