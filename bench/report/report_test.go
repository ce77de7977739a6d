package report

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

type line struct {
	Name    string              `json:"name"`
	Ratio   float64             `json:"ratio"`
	Small   float32             `json:"small"`
	Two     [2]float64          `json:"two"`
	Each    []float64           `json:"each"`
	None    []float64           `json:"none,omitempty"`
	By      map[string]float64  `json:"by"`
	More    *line               `json:"more,omitempty"`
	Any     any                 `json:"any,omitempty"`
	When    time.Time           `json:"when"`
	Skipped float64             `json:"-"`
	Lists   map[string][]*int64 `json:"lists,omitempty"`
	hidden  float64
}

// A report with numbers that are not finite is written whole, in its order, with null in their places; it is not
// changed.
func TestNumbersThatAreNotFiniteAreNull(t *testing.T) {
	nan, inf, seven := math.NaN(), math.Inf(1), int64(7)
	r := &line{
		Name: "a", Ratio: nan, Small: float32(math.Inf(-1)), Two: [2]float64{1, inf}, Each: []float64{2, math.Inf(-1), 3},
		By:   map[string]float64{"x": nan, "y": 4},
		More: &line{Name: "b", Ratio: 0.5}, Any: []any{nan, "text", 5.0}, Skipped: nan, hidden: nan,
		Lists: map[string][]*int64{"l": {&seven, nil}},
	}
	var out strings.Builder
	if err := JSON(&out, r); err != nil {
		t.Fatal(err)
	}
	var flat strings.Builder
	for l := range strings.Lines(out.String()) {
		flat.WriteString(strings.TrimSpace(l))
	}
	want := `{"name": "a","ratio": null,"small": null,"two": [1,null],"each": [2,null,3],"by": {"x": null,"y": 4},` +
		`"more": {"name": "b","ratio": 0.5,"small": 0,"two": [0,0],"each": null,"by": null,"when": "0001-01-01T00:00:00Z"},` +
		`"any": [null,"text",5],"when": "0001-01-01T00:00:00Z","lists": {"l": [7,null]}}`
	if got := flat.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !math.IsNaN(r.Ratio) || !math.IsInf(r.Each[1], -1) || !math.IsNaN(r.By["x"]) {
		t.Errorf("writing changed the report: %+v", r)
	}
}

// A report of finite numbers is what encoding/json makes of it.
func TestFiniteReports(t *testing.T) {
	r := line{Name: "<a>", Ratio: 1e-7, Each: []float64{math.MaxFloat64}, hidden: math.NaN()}
	want, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := JSON(&out, r); err != nil || out.String() != string(want)+"\n" {
		t.Errorf("%v, %s, want %s", err, out.String(), want)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the disk is full") }

func TestErrorsAreTold(t *testing.T) {
	if err := JSON(broken{}, 1); err == nil {
		t.Error("a failed write is not told")
	}
	if err := JSON(&strings.Builder{}, func() {}); err == nil {
		t.Error("a function was written")
	}
}
