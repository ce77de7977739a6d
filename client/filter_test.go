package client

import (
	"encoding/json"
	"testing"
	"time"
)

func TestConditions(t *testing.T) {
	for want, c := range map[string]Condition{
		`["toys","games"]`:                          Any("toys", "games"),
		`{"gte":10,"lt":49.5}`:                      {GTE: 10, LT: 49.5},
		`{"gt":"2026-01-31T00:00:00Z","not":["a"]}`: {GT: time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC), Not: []string{"a"}},
		`{"lte":"2026-01-31"}`:                      {LTE: "2026-01-31"},
	} {
		if got, err := json.Marshal(c); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	if _, err := json.Marshal(Condition{Values: []string{"a"}, Not: []string{"b"}}); err == nil {
		t.Error("values and other parts are written")
	}
}
