package serving

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Each kind of request is asked in each size, nothing is cached, and later requests are as large as the first.
func TestFirsts(t *testing.T) {
	url := serve(t, made(t))
	all, err := Firsts(t.Context(), FirstOptions{URL: url, Rows: 128, Later: 2})
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]int{}
	for _, f := range all {
		if f.First <= 0 || f.Median <= 0 || f.Most < f.Median {
			t.Errorf("%+v: times that cannot be", f)
		}
		rows[f.Kind] = append(rows[f.Kind], f.Rows)
	}
	for _, kind := range []string{"rank", "score", "recommend 50", "recommend 128", "recommend 512"} {
		got := slices.Clone(rows[kind])
		for i := range got { // the size that a GPU rounds up to
			for _, bucket := range firstRows(2048) {
				if got[i] <= bucket {
					got[i] = bucket
					break
				}
			}
		}
		if !slices.Equal(got, []int{8, 16, 32, 64, 128}) {
			t.Errorf("%s: prompts of %v rows, want one for each of 8, 16, 32, 64 and 128", kind, rows[kind])
		}
	}
	if _, err := Firsts(t.Context(), FirstOptions{URL: url, Model: "none"}); err == nil {
		t.Error("a model that the server does not have answers")
	}
	_, err = Firsts(t.Context(), FirstOptions{URL: url, Rows: 128, Later: 2})
	if err == nil || !strings.Contains(err.Error(), "cached") {
		t.Errorf("the same requests again: %v, want an error, since what they need is cached", err)
	}
}

// TestPrompts: prompts of all sizes fit into the rows that they are for, with what a template adds, and none begins as
// one of the prompts that a server prepares itself with.
func TestPrompts(t *testing.T) {
	p := &prompts{r: rand.New(rand.NewPCG(1, 27))}
	for range 10 {
		for _, rows := range firstRows(2048) {
			items, left := p.candidates(rows, scored)
			n := left
			for _, item := range items {
				n += len(item) + 3
			}
			if before := firstRows(2048); n > rows || n <= rows/2 && rows > before[0] || rows > 128 && n <= rows-128 {
				t.Errorf("a score for %d rows has %d with its instructions", rows, n)
			}
			if u := p.user(left); u[0]%2 != 0 || u[0] < 1000 && p.users < 1500 {
				t.Errorf("user %d begins with %d", p.users, u[0])
			}
		}
	}
}

func TestSlowFirsts(t *testing.T) {
	all := []First{{Kind: "rank", Rows: 64, First: 2, Median: 1}, {Kind: "score", Rows: 128, First: 2.1, Median: 1}}
	err := SlowFirsts(all)
	if err == nil || !strings.Contains(err.Error(), "score of 128 rows") || strings.Contains(err.Error(), "rank") {
		t.Errorf("%v; want that of the score alone", err)
	}
	if err := SlowFirsts(all[:1]); err != nil {
		t.Error(err)
	}
	if rows := firstRows(2048); len(rows) != 20 || rows[4] != 128 || rows[5] != 256 || rows[19] != 2048 {
		t.Errorf("sizes %v, want 8 to 64 doubled, and the 16 multiples of 128", rows)
	}
}
