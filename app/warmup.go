package app

import (
	"context"
	"time"
)

// warmFor is how long a start waits for a device to prepare for requests of all kinds and sizes. The rest is prepared
// while no client waits.
const warmFor = 4 * time.Second

// warmUp sends models made-up requests, if the device prepares for kinds and sizes of requests as a GPU does. A
// request that fails is logged: the model answered before.
func (a *App) warmUp(ctx context.Context) error {
	if m := a.device.Memory(); m.Host() == m {
		return nil
	}
	w := a.service.NewWarmUp()
	end := a.phase("requests of all sizes")
	if err := w.Run(ctx, warmFor); err != nil {
		if ctx.Err() != nil {
			return err
		}
		a.log.Warn("a warm-up request failed: first requests of its model may be slow", "error", err)
	}
	end()
	a.log.Info("warm-up requests done", "requests", w.Asked(), "sizes_left", w.Left())
	if w.Left() == 0 {
		return nil
	}
	a.closers.run(func(ctx context.Context) {
		start := time.Now()
		if err := w.Finish(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("the warm-up failed: first requests of some sizes may be slow", "sizes_left", w.Left(), "error", err)
			return
		}
		a.log.Info("warm-up done for requests of all sizes", "requests", w.Asked(),
			"seconds", time.Since(start).Round(time.Millisecond).Seconds())
	})
	return nil
}
