package gpu

import (
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute/cuda/split"
)

// Report is what Run measured.
type Report struct {
	Date      time.Time `json:"date"`
	Device    string    `json:"device"`
	CUDA      string    `json:"cuda"` // newest version that the driver knows
	Libraries string    `json:"libraries"`
	Torch     string    `json:"torch,omitempty"` // versions of the peers
	Seed      uint64    `json:"seed"`
	Checks    []Check   `json:"checks"`
	Lines     []Line    `json:"lines"`
	Timeline  []Phase   `json:"timeline,omitempty"`
	Splits    []Split   `json:"splits,omitempty"`
	Models    []Model   `json:"split_models,omitempty"`
}

// Model says how well splits are predicted for the attention of a model.
type Model struct {
	Name string `json:"name"`
	split.Report
}

// Line is one piece of work.
type Line struct {
	Key     string  `json:"key"`
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Median  float64 `json:"median"`
	Least   float64 `json:"least,omitempty"`
	P90     float64 `json:"p90,omitempty"`
	Repeats int     `json:"repeats,omitempty"`
	Must    float64 `json:"must,omitempty"`
	Aim     float64 `json:"aim,omitempty"`
	// AtLeast: bars are what it has to reach from below.
	AtLeast bool   `json:"at_least,omitempty"`
	Peers   []Peer `json:"peers,omitempty"`
}

// Peer is what something else takes for the same work, in the line's unit.
type Peer struct {
	Line  string  `json:"line,omitempty"` // its key
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Split compares ways to cut attention's work, in microseconds of a layer. No model was fitted to its shape.
type Split struct {
	Name   string      `json:"name"`
	Fixed  float64     `json:"fixed_us"`
	Keys   float64     `json:"keys512_us,omitempty"` // parts of 512 keys; none where they would be too many
	Chosen float64     `json:"chosen_us"`
	Best   float64     `json:"best_us"`
	Way    split.Split `json:"way"` // chosen
	BestBy split.Split `json:"best_way"`
}

// Check says how far results were from compute/ref, or a selection's scores from sorting.
type Check struct {
	Name  string  `json:"name"`
	Rows  int     `json:"rows"`
	Error float64 `json:"error"` // ‖got − want‖ / ‖want‖; of scores the largest difference
	Limit float64 `json:"limit"`
}

// holds says whether a line reaches a bar; without a bar it does.
func (l *Line) holds(bar float64) bool {
	if bar == 0 {
		return true
	}
	if l.AtLeast {
		return l.Median >= bar
	}
	return l.Median <= bar
}

func newLine(key, name, unit string, took []float64) Line {
	sorted := slices.Sorted(slices.Values(took))
	return Line{
		Key: key, Name: name, Unit: unit, Repeats: len(sorted),
		Median: report.Median(sorted), Least: sorted[0], P90: report.Percentile(sorted, 90),
	}
}
