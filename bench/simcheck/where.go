package simcheck

import (
	"fmt"
	"io"
	"os"
	"slices"

	"grebe/bench/profile"
	"grebe/bench/report"
	"grebe/sim"
)

// Where says where a difference comes from. The batches that the server ran are compared one by one with what the
// profile predicts for them, so that neither the queue nor the cache matters.
type Where struct {
	Batches []profile.Measured `json:"batches"`
	Left    int                `json:"left"`  // batches that the log does not tell enough of
	Sizes   []Size             `json:"sizes"` // quarters of the batches, by rows
	// Alone is measured/predicted of batches during which no request came, in the median. A value far from 1 means that
	// the machine is not as fast as when the profile was fitted.
	Alone float64 `json:"alone"`
}

// Size is a quarter of the batches. Values are means.
type Size struct {
	Batches   int     `json:"batches"`
	Requests  float64 `json:"requests"`
	Rows      float64 `json:"rows"`
	Segments  float64 `json:"segments"`
	Ms        float64 `json:"ms"`
	Predicted float64 `json:"predicted_ms"`
	Low       float64 `json:"low"`  // a tenth of the batches have a lower predicted/measured
	High      float64 `json:"high"` // and a tenth a higher one
}

// where reads the log of a server.
func (s *site) where() (*Where, error) {
	p, err := sim.LoadProfile(s.file)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(s.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := &Where{}
	if w.Batches, w.Left, err = profile.Recorded(f, p); err != nil {
		return nil, err
	}
	slices.SortStableFunc(w.Batches, func(a, b profile.Measured) int { return a.Rows - b.Rows })
	var alone []float64
	for i := range w.Batches {
		if b := &w.Batches[i]; b.Arrived == 0 {
			alone = append(alone, b.Ms/p.Served(&b.Work))
		}
	}
	if len(alone) > 0 {
		w.Alone = report.Median(alone)
	}
	const parts = 4
	for i := range parts {
		from, to := i*len(w.Batches)/parts, (i+1)*len(w.Batches)/parts
		if from < to {
			w.Sizes = append(w.Sizes, sizeOf(p, w.Batches[from:to]))
		}
	}
	return w, nil
}

func sizeOf(p *sim.Profile, batches []profile.Measured) Size {
	x, n := Size{Batches: len(batches)}, float64(len(batches))
	var ratios []float64
	for i := range batches {
		b := &batches[i]
		ms := p.Served(&b.Work)
		x.Requests += float64(b.Requests) / n
		x.Rows += float64(b.Rows) / n
		x.Segments += float64(b.Segments) / n
		x.Ms += b.Ms / n
		x.Predicted += ms / n
		ratios = append(ratios, ms/b.Ms)
	}
	slices.Sort(ratios)
	x.Low, x.High = report.Percentile(ratios, 10), report.Percentile(ratios, 90)
	return x
}

// write shows people how well batches were predicted.
func (w *Where) write(to io.Writer, rate float64) error {
	fmt.Fprintf(to, "\nbatches of the server at %.1f/s, a quarter per line; %d more are not known from its log\n", rate,
		w.Left)
	t := report.Table(to)
	fmt.Fprintln(t, "batches\trequests\trows\tsegments\tserver ms\tpredicted ms\tratio\tP10\tP90\t")
	for i := range w.Sizes {
		x := &w.Sizes[i]
		fmt.Fprintf(t, "%d\t%.2f\t%.0f\t%.1f\t%.2f\t%.2f\t%.3f\t%.2f\t%.2f\t\n",
			x.Batches, x.Requests, x.Rows, x.Segments, x.Ms, x.Predicted, x.Predicted/x.Ms, x.Low, x.High)
	}
	fmt.Fprintf(t, "batches during which no request came took %.3f times as long as predicted, in the median\n", w.Alone)
	return t.Flush()
}
