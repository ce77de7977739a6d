package eval

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"grebe/shop"
)

// measured is a report in which the ways have these NDCG@10 of users.
func measured(ways map[string][]float64) *Report {
	r := &Report{}
	for way, ndcg := range ways {
		l := Line{Way: way, Model: true, At: make([]Cut, len(cuts)), ndcg: ndcg}
		l.At[1].NDCG = Mean(ndcg, 1)
		r.Ranking = append(r.Ranking, l)
		r.Users = len(ndcg)
	}
	return r
}

// An order that is shown to be worse is left out of the line for the configuration, one that is not is not.
func TestOrdersThatAreWorseAreLeftOut(t *testing.T) {
	low, high, mixed := make([]float64, 100), make([]float64, 100), make([]float64, 100)
	for i := range low {
		low[i], high[i] = .2+.1*float64(i%5), .3+.1*float64(i%5)
		mixed[i] = high[i] + .1*float64(i%2*2-1)
	}
	for _, c := range []struct {
		user, item []float64
		want, says string
	}{
		{high, low, "prefix: {orders: [user]}", "the items first is worse"},
		{low, high, "prefix: {orders: [item]}", "the user first is worse"},
		{high, mixed, "prefix: {orders: [user, item]}", "no difference is shown"},
		{make([]float64, 100), make([]float64, 100), "prefix: {orders: [user, item]}", "n/a"},
	} {
		r := measured(map[string][]float64{"user-first": c.user, "item-first": c.item})
		r.CompareOrders("m", "user-first", "item-first", 1)
		var b strings.Builder
		if err := r.orders(&b); err != nil {
			t.Fatal(err)
		}
		if len(r.Orders) != 1 || r.Orders[0].Line != c.want || !strings.Contains(b.String(), c.says) ||
			!strings.Contains(b.String(), "Under model m in the configuration: "+c.want) {
			t.Errorf("want %s, %s:\n%s", c.want, c.says, b.String())
		}
	}
	r := measured(map[string][]float64{"item-first": low})
	if r.CompareOrders("m", "user-first", "item-first", 1); len(r.Orders) != 0 {
		t.Errorf("one order alone: %+v", r.Orders)
	}
}

// A ratio over zero is said to be none, in every form of the report.
func TestRatiosOverZero(t *testing.T) {
	e := Ratio([]float64{1, 0}, []float64{0, 0}, 1)
	if !e.Undefined || e.String() != "n/a" {
		t.Errorf("1 over 0 is %v", e)
	}
	if e := Ratio([]float64{0, 0}, []float64{1, 0}, 1); e.Undefined || e.Value != 0 {
		t.Errorf("0 over 1 is %v", e)
	}
	r := measured(map[string][]float64{"popularity": {0, 0}, "user-first": {1, 0}})
	slices.SortFunc(r.Ranking, func(a, b Line) int { return strings.Compare(a.Way, b.Way) })
	r.Ranking[0].Model = false
	r.compare(bootstrap{1, 10})
	var text, html bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.HTML(&html); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "user-first of popularity  n/a") ||
		strings.Contains(html.String(), "<td>0.000</td><td>0.000–0.000</td>") ||
		!strings.Contains(html.String(), "<td>n/a</td>") {
		t.Errorf("text:\n%s\nhtml:\n%s", text.String(), html.String())
	}
}

func TestIsShop(t *testing.T) {
	w, err := shop.New(1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	if err := w.WriteItems(&all); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	more := append(slices.Clone(all.Bytes()), []byte("{\"id\": \"other\"}\n")...)
	fewer := all.Bytes()[bytes.IndexByte(all.Bytes(), '\n')+1:]
	for name, c := range map[string]struct {
		data []byte
		want bool
	}{"all": {all.Bytes(), true}, "more": {more, false}, "fewer": {fewer, false}, "none": {nil, false}} {
		if got, err := IsShop(write(t, dir, name, c.data), w); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := IsShop(write(t, dir, "broken", []byte("{")), w); err == nil {
		t.Error("a broken file was read")
	}
}
