package overload

import (
	"bytes"
	"strings"
	"testing"

	"grebe/bench/load"
)

// Beside an import the P99 of rankings may be 1.2 times that alone, nothing is refused, and every event is acknowledged
// soon.
func TestImportBars(t *testing.T) {
	result := func(p99, most float64, errors map[string]int) load.Result {
		return load.Result{Answered: 100, Latency: load.Percentiles{P99: p99, Max: most}, Errors: errors}
	}
	for _, c := range []struct {
		name             string
		rankings, events load.Result
		want             string // what the report says failed
	}{
		{"good", result(60, 500, nil), result(20, 100, nil), ""},
		{"slow", result(61, 61, nil), result(20, 100, nil), "FAIL  P99 of rankings beside imports 1.22 times"},
		{"refused", result(50, 50, map[string]int{"429": 2}), result(20, 20, nil), "FAIL  2 requests refused"},
		{"events refused", result(50, 50, nil), result(20, 20, map[string]int{"429": 1}), "FAIL  1 requests refused"},
		{"failed", result(50, 50, map[string]int{"504": 3}), result(20, 20, nil), "3 failed"},
		{"late events", result(50, 50, nil), result(20, 101, nil), "FAIL  all events acknowledged within 101.0 ms"},
	} {
		r := ImportReport{Alone: Beside{Rankings: result(50, 50, nil)},
			Beside: Beside{Rankings: c.rankings, Events: c.events}}
		r.judge()
		var b bytes.Buffer
		if err := r.write(&b); err != nil {
			t.Fatal(err)
		}
		if r.Passed != (c.want == "") || !strings.Contains(b.String(), c.want) ||
			r.Passed == strings.Contains(b.String(), "FAIL") {
			t.Errorf("%s: passed %v\n%s", c.name, r.Passed, b.String())
		}
	}
}

// An import has as many items as it says, each under an id of its own.
func TestItemsOfImports(t *testing.T) {
	const catalog = `{"id":"a","text":"x"}` + "\n" + `{"id":"b","text":"y"}` + "\n"
	for _, n := range []int{1, 2, 5} {
		items, err := readItems(catalog, n)
		ids := map[any]bool{}
		for _, it := range items {
			ids[it["id"]] = true
		}
		if err != nil || len(items) != n || len(ids) != n {
			t.Errorf("%d items: %d, %d ids, %v", n, len(items), len(ids), err)
		}
	}
	if _, err := readItems("", 1); err == nil {
		t.Error("items of an empty catalog")
	}
}
