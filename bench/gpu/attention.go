package gpu

import (
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/split"
)

// attended is a batch whose attention is timed by itself. The split's model has not seen its shape.
type attended struct {
	spec  spec
	name  string
	batch *compute.Batch
	line  Line // with its key, when it has bars
}

func attendedBatches() []attended {
	beams := func(context int, must, aim float64) attended {
		return attended{qwen3, fmt.Sprintf("512 beams of 3 behind %d", context), attend.Beams(context, 512, 3),
			Line{Key: fmt.Sprintf("beams-%d", context), Must: must, Aim: aim}}
	}
	plain := func(s spec, cached, rows int) attended {
		return attended{spec: s, name: fmt.Sprintf("%d rows behind %d", rows, cached), batch: attend.Behind(cached, rows)}
	}
	round := func(context, width, length int) attended {
		return attended{spec: qwen3, name: fmt.Sprintf("%d beams of %d behind %d", width, length, context),
			batch: attend.Beams(context, width, length)}
	}
	return []attended{
		plain(qwen2, 0, 256), plain(qwen2, 0, 1024), plain(qwen2, 0, 2048), plain(qwen2, 1000, 1516), plain(qwen2, 1500, 116),
		plain(qwen2, 4000, 100), plain(qwen2, 2500, 300), plain(qwen2, 8000, 32),
		beams(1000, 24, 15), beams(4000, 62, 45), round(1000, 256, 1), round(1000, 256, 2), round(3000, 128, 3),
		round(7000, 64, 2), plain(qwen3, 0, 1000), plain(qwen3, 800, 200),
	}
}

// attendConfig is what the device runs a model's attention with.
func attendConfig(d cuda.Device, s spec, o *Options) attend.Config {
	overlap := !o.Device.NoOverlap && !o.Device.Plain && d.Context().Info().Arch == 90
	return attend.Config{Shape: s.shape, Plain: o.Device.Plain, Overlap: overlap}
}

// tuneAgain measures how attention of both models is best cut, whatever was kept.
func tuneAgain(d cuda.Device, o *Options) error {
	c := d.Context()
	defer c.Leave()
	if err := c.Enter(); err != nil {
		return err
	}
	for _, s := range []spec{qwen2, qwen3} {
		if _, err := attend.Tune(c, attendConfig(d, s, o), true); err != nil {
			return err
		}
	}
	return nil
}

// measureAttention times one layer's attention, cut as the model of splits chooses and in all other ways.
func measureAttention(o *Options, d cuda.Device, r *Report) error {
	c := d.Context()
	defer c.Leave()
	if err := c.Enter(); err != nil {
		return err
	}
	all := attendedBatches()
	for _, s := range []spec{qwen2, qwen3} {
		cfg := attendConfig(d, s, o)
		model, err := attend.Tune(c, cfg, false)
		if err != nil {
			return err
		}
		r.Models = append(r.Models, Model{s.name, model.Report()})
		if o.Device.FixedSplit {
			model = nil
		}
		var batches []*compute.Batch
		var of []*attended
		for i := range all {
			if all[i].spec.name == s.name {
				batches, of = append(batches, all[i].batch), append(of, &all[i])
			}
		}
		measured, err := attend.Sweep(c, cfg, batches, o.Repeats)
		if err != nil {
			return err
		}
		for i := range measured {
			r.addAttention(of[i], &measured[i], model, o.Repeats)
		}
	}
	return nil
}

func (r *Report) addAttention(a *attended, m *split.Measured, model *split.Model, repeats int) {
	s := Split{Name: a.spec.name + ": " + a.name, Way: model.Choose(&m.Work)}
	s.Fixed, _ = m.By(split.Fixed)
	s.Keys, _ = m.By(split.Split{Form: split.Even, Steps: 4})
	s.Chosen, _ = m.By(s.Way)
	for _, t := range m.Times {
		if s.Best == 0 || t.US < s.Best {
			s.Best, s.BestBy = t.US, t.Split
		}
	}
	r.Splits = append(r.Splits, s)
	if a.line.Key != "" {
		l := a.line
		l.Name, l.Unit, l.Median, l.Repeats = "attention of "+a.name, "µs", s.Chosen, repeats
		r.Lines = append(r.Lines, l)
	}
}
