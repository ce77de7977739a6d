package kube

import (
	"slices"
	"testing"
	"time"
)

// A judge sees listings with one Lease; version 0: it is absent. It says at which of them the Lease expires.
func TestJudge(t *testing.T) {
	type look struct {
		at      int // seconds
		version int64
	}
	for name, c := range map[string]struct {
		looks []look
		want  []int // seconds at which the Lease has expired
	}{
		"renewed":               {[]look{{0, 1}, {2, 1}, {4, 2}, {6, 2}, {8, 3}, {10, 3}, {12, 4}, {14, 4}}, nil},
		"not renewed":           {[]look{{0, 1}, {2, 1}, {4, 1}, {6, 1}, {8, 1}, {10, 1}, {12, 1}}, []int{12}},
		"renewed at last":       {[]look{{0, 1}, {5, 1}, {10, 1}, {12, 2}, {17, 2}, {22, 2}, {24, 2}}, []int{24}},
		"after a long gap":      {[]look{{0, 1}, {2, 1}, {62, 1}, {64, 1}, {66, 1}, {70, 1}, {72, 1}, {74, 1}}, []int{74}},
		"gaps that are short":   {[]look{{0, 1}, {5, 1}, {10, 1}, {15, 1}}, []int{15}},
		"gaps that are long":    {[]look{{0, 1}, {6, 1}, {12, 1}, {18, 1}, {24, 1}, {30, 1}}, nil},
		"gone and back":         {[]look{{0, 1}, {4, 1}, {8, 0}, {10, 1}, {12, 1}, {16, 1}, {20, 1}, {22, 1}}, []int{22}},
		"first seen long ago":   {[]look{{1000, 7}, {1002, 7}}, nil},
		"the version goes back": {[]look{{0, 9}, {4, 9}, {8, 3}, {12, 3}, {16, 3}, {18, 3}, {20, 3}}, []int{20}},
	} {
		var j judge
		var got []int
		start := time.Unix(1e9, 0)
		for _, l := range c.looks {
			var listing []sighting
			if l.version != 0 {
				listing = []sighting{{"l", l.version, 10 * time.Second}}
			}
			at := start.Add(time.Duration(l.at) * time.Second)
			if expired := j.saw(at, at, listing); len(expired) > 0 {
				got = append(got, l.at)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: expired at %v, want %v", name, got, c.want)
		}
	}
}

// Slow answers make no Lease older: its time begins with the first answer and ends with the last question.
func TestJudgeSlowAnswers(t *testing.T) {
	var j judge
	start, lease := time.Unix(1e9, 0), []sighting{{"l", 1, 10 * time.Second}}
	for i := range 6 {
		sent := start.Add(time.Duration(2*i) * time.Second)
		if len(j.saw(sent, sent.Add(2*time.Second), lease)) > 0 {
			t.Errorf("expired at %v: it was seen %v ago", sent.Sub(start), sent.Sub(start)-2*time.Second)
		}
	}
	sent := start.Add(13 * time.Second)
	if len(j.saw(sent, sent, lease)) != 1 {
		t.Error("not expired")
	}
}

func TestInterval(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{
		time.Second: lookLeast, 4 * time.Second: time.Second, 10 * time.Second: lookEvery, time.Hour: lookEvery,
	} {
		if got := interval([]sighting{{"l", 1, ttl}}); got != want {
			t.Errorf("with a ttl of %v it looks every %v, want %v", ttl, got, want)
		}
	}
	if got := interval(nil); got != lookEvery {
		t.Errorf("without a Lease it looks every %v", got)
	}
}
