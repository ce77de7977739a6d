package profile

import (
	"fmt"
	"io"
	"math"
	"slices"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/sim"
)

// Measured is a batch that a server ran.
type Measured struct {
	sim.Work
	Arrived int     `json:"arrived,omitempty"` // requests that came while it ran
	Ms      float64 `json:"ms"`
}

// Recorded returns the batches of a server with one worker whose decisions were recorded, with their work as profile p
// counts it. Batches are left out whose prompts cannot be told from the log: left says how many.
func Recorded(in io.Reader, p *sim.Profile) (all []Measured, left int, err error) {
	r := reader{tile: p.Tile(), asked: map[int]*asked{}, jobs: map[uint64]*sim.Work{}}
	for l, err := range record.Read(in) {
		if err != nil {
			return nil, 0, err
		}
		r.read(l)
		if err := l.Values.Failed(); err != nil {
			return nil, 0, fmt.Errorf("line %d: %w: %s", l.Number, err, l)
		}
	}
	return r.all, r.left, nil
}

// reader reads the lines of a log.
type reader struct {
	tile   int
	last   *asked
	asked  map[int]*asked       // by the number of the request
	jobs   map[uint64]*sim.Work // nil: not known
	chosen []uint64             // jobs of the batch that runs
	came   int                  // requests since it began
	all    []Measured
	left   int
}

// asked is what a server decided a prefix order from.
type asked struct {
	fixed   [3]int // tokens of preamble, lead-in and question
	perItem bool
	user    int
	cached  int
	items   []int64
	missing []bool // by item
	order   string
	reuse   bool
}

func (r *reader) read(l *record.Line) {
	v := &l.Values
	switch l.Room + " " + l.Op {
	case "reuse0 decide":
		r.last = decided(v)
		r.asked[v.Int()] = r.last
	case "reuse0 order":
		r.last.order = v.Text()
		v.Text()
		r.last.reuse = v.Bool()
	case "dispatch0 add":
		id, _, rows, keys := v.Uint64(), v.Int(), v.Int(), v.Int()
		v.Time()
		v.Time()
		r.jobs[id] = r.asked[v.Int()].find(rows, keys, r.tile)
	case "dispatch0 run":
		r.chosen, r.came = r.chosen[:0], 0
		for _, id := range v.Ints() {
			r.chosen = append(r.chosen, uint64(id))
		}
	case "dispatch0 tries":
		r.chosen, r.came = append(r.chosen[:0], v.Uint64()), 0
	case "dispatch0 admit":
		r.came++
	case "dispatch0 ran":
		r.ran(v)
	}
}

// decided reads what was decided from.
func decided(v *record.Values) *asked {
	a := &asked{}
	v.Text()
	v.Key()
	v.Bool()
	a.fixed[0], a.fixed[1] = v.Int(), v.Int()
	v.Bool()
	a.fixed[2], a.perItem = v.Int(), v.Bool()
	v.Int()
	a.user = v.Int()
	for _, n := range v.Ints() {
		a.cached += int(n)
	}
	a.items = v.Ints()
	for _, tier := range v.Texts() {
		a.missing = append(a.missing, tier == plan.Missing.String())
	}
	v.Floats()
	for range 3 {
		v.Float()
	}
	v.Bool()
	v.Bool()
	v.Float()
	v.Float()
	return a
}

// find returns the work of a job with so many rows and keys. Whether preamble and lead-in were cached is not in the
// log: it is tried. It returns nil if nothing fits.
func (a *asked) find(rows, keys, tile int) *sim.Work {
	if a == nil || a.order == "" {
		return nil
	}
	for _, shared := range [][2]bool{{true, true}, {true, false}, {false, false}} {
		if w := a.work(shared, tile); w.Rows == rows && w.Keys == keys {
			return &w
		}
	}
	return nil
}

// work counts what is computed of a prompt.
func (a *asked) work(shared [2]bool, tile int) (w sim.Work) {
	w.Requests = 1
	all := a.user + a.fixed[0] + a.fixed[2]
	lead, cached := a.fixed[0], a.cached
	if !a.reuse {
		shared, cached = [2]bool{}, 0
	}
	if !shared[0] {
		w.Segment(0, lead, 0, tile)
	}
	items := 0
	for _, n := range a.items {
		items += int(n)
	}
	if a.perItem {
		all += a.fixed[2] * (len(a.items) - 1)
	}
	all += items
	if a.order == plan.ItemFirst.String() {
		if !shared[1] {
			w.Segment(0, a.fixed[1], lead, tile)
		}
		lead, all = lead+a.fixed[1], all+a.fixed[1]
		for i, n := range a.items {
			if a.missing[i] || !a.reuse {
				w.Segment(0, int(n), lead, tile)
			}
		}
		w.Segment(0, a.user, lead+items, tile)
	} else {
		w.Segment(cached, a.user, lead, tile)
		for _, n := range a.items {
			w.Segment(0, int(n), lead+a.user, tile)
		}
	}
	if a.perItem {
		for _, n := range a.items {
			w.Segment(0, a.fixed[2], lead+a.user+int(n), tile)
		}
	} else {
		w.Segment(0, a.fixed[2], lead+a.user+items, tile)
	}
	w.Cached = all - w.Rows
	return w
}

// ran reads a batch that ended.
func (r *reader) ran(v *record.Values) {
	v.Int()
	var m Measured
	requests, rows, keys, ms, late := v.Int(), v.Int(), v.Int(), v.Float(), v.Bool()
	known := len(r.chosen) == requests && !late && !slices.ContainsFunc(r.chosen,
		func(id uint64) bool { return r.jobs[id] == nil })
	if known {
		for _, id := range r.chosen {
			m.Add(r.jobs[id])
		}
		known = rows <= m.Rows && keys <= m.Keys
	}
	if !known {
		r.left++
		return
	}
	m.spare(rows, keys)
	m.Arrived, m.Ms = r.came, ms
	r.all = append(r.all, m)
}

// spare leaves so many rows and keys of the work. The rest was computed for others: segments, of which the log does not
// say how many. They are taken to be as long as the others.
func (m *Measured) spare(rows, keys int) {
	if rows == m.Rows {
		return
	}
	of := func(n, part, all int) int { return int(math.Round(float64(n) * float64(part) / float64(all))) }
	m.Tiled, m.Segments = of(m.Tiled, keys, m.Keys), of(m.Segments, rows, m.Rows)
	m.Rows, m.Keys = rows, keys
}
