package hstu

import (
	"fmt"
	"math"
)

// postprocessor turns the state of a row into what heads use.
type postprocessor struct {
	kind    string
	norm    *norm
	combine *linear
}

func (l *loader) postprocessor() *postprocessor {
	c := l.cfg
	p := &postprocessor{kind: c.Postprocessor}
	if p.kind == LayerNorm || p.kind == TimestampLN {
		p.norm = l.norm(outputs+"_layer_norm.", c.Hidden)
	}
	if p.kind == TimestampLN {
		p.combine = l.linear(outputs+"_time_feature_combiner.", c.Hidden+2*len(periods), c.Hidden)
	}
	return p
}

// periods are what the time of a query tells: the hour of the day and the day of the week.
var periods = [...]struct{ unit, of float32 }{{3600, 24}, {86400, 7}}

// apply returns the rows, of width values, as heads use them.
func (p *postprocessor) apply(rows []float32, width int, query int64) ([]float32, error) {
	out := append([]float32(nil), rows...)
	switch p.kind {
	case L2:
		for i := 0; i < len(out); i += width {
			normalize(out[i : i+width])
		}
	case LayerNorm:
		p.norm.apply(out)
	case TimestampLN:
		wide := make([]float32, 0, len(rows)/width*(width+2*len(periods)))
		features := timeFeatures(query)
		for i := 0; i < len(rows); i += width {
			wide = append(append(wide, rows[i:i+width]...), features...)
		}
		var err error
		if out, err = p.combine.apply(wide); err != nil {
			return nil, err
		}
		p.norm.apply(out)
	}
	return out, nil
}

func normalize(x []float32) {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	scale := float32(1 / max(math.Sqrt(sum), 1e-6))
	for i := range x {
		x[i] *= scale
	}
}

// timeFeatures are cosines and sines, in float32 and with π = 3.14 as the code that trains has them.
func timeFeatures(query int64) []float32 {
	var out []float32
	for _, p := range periods {
		units := float32(math.Floor(float64(float32(query) / p.unit)))
		angle := float64(float32(math.Mod(float64(units), float64(p.of))) / p.of * 2 * 3.14)
		out = append(out, float32(math.Cos(angle)), float32(math.Sin(angle)))
	}
	return out
}

// predictor is the ranking heads.
type predictor struct{ mlp *mlp }

func (l *loader) predictor() *predictor {
	c := l.cfg
	return &predictor{l.mlp("_multitask_module._prediction_module.", c.Hidden, c.TaskMLP, len(c.Tasks), false)}
}

// Scored is what is predicted of a candidate.
type Scored struct {
	Score float64   // what candidates are ordered by
	Tasks []float32 // in the order of Config().Tasks
}

// Score predicts from the states of candidates' rows, as Hidden returned them, what the user does with the
// candidates' items; query is the time in seconds since 1970. features are the rows of all features of each candidate,
// nil where the model has none.
func (m *Model) Score(hidden [][]float32, items, features []int32, query int64) ([]Scored, error) {
	if m.predict == nil {
		return nil, fmt.Errorf("hstu: the model has no tasks to rank by")
	}
	h := m.cfg.Hidden
	flat := make([]float32, 0, len(hidden)*h)
	for _, x := range hidden {
		flat = append(flat, x...)
	}
	users, err := m.post.apply(flat, h, query)
	if err != nil {
		return nil, err
	}
	own, err := m.itemRows(items, features)
	if err != nil {
		return nil, err
	}
	for i := range users {
		users[i] *= own[i]
	}
	logits, err := m.predict.mlp.apply(users)
	if err != nil {
		return nil, err
	}
	tasks := m.cfg.Tasks
	out := make([]Scored, len(hidden))
	for i := range out {
		s := &out[i]
		s.Tasks = logits[i*len(tasks) : (i+1)*len(tasks) : (i+1)*len(tasks)]
		for t := range tasks {
			if tasks[t].Type == 0 {
				s.Tasks[t] = sigmoid(s.Tasks[t])
			}
			s.Score += m.cfg.Ranking[tasks[t].Name] * float64(s.Tasks[t])
		}
	}
	return out, nil
}
