package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"grebe/compute/cuda"
	"grebe/internal/config"
	"grebe/internal/contain"
	"grebe/server"
)

// errLost ends the serving of an App whose device is lost.
var errLost = errors.New("the device is lost")

// noteLost reports that the device is lost to the goroutine that serves. The server is not ready from then on. noteLost
// never blocks.
func (a *App) noteLost(err error) {
	if front := a.loaded.front.Load(); front != nil {
		front.SetReady(false)
	}
	select {
	case a.lost <- err:
	default: // already reported
	}
}

// notePanic counts and logs a panic of an engine. Its batch has failed.
func (a *App) notePanic(p *contain.Panic) {
	if s := a.loaded.service.Load(); s != nil { // nil before serving
		s.Panicked("engine", p)
	}
}

// watch returns a context that ends with errLost when the App's device is lost. The caller MUST call stop.
func (a *App) watch(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case err := <-a.lost:
			a.log.Error("the device is lost: opening it again", "device", a.device.Name(), "error", err)
			cancel(errLost)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// sameDevice returns cfg with the device fixed if a GPU was lost. With auto the server would silently go on with the
// CPU.
func (a *App) sameDevice(cfg *config.Config) *config.Config {
	if _, gpu := a.device.(cuda.Device); !gpu {
		return cfg
	}
	same := *cfg
	same.Device = "cuda"
	return &same
}

// reopen loads everything again behind the same addresses. Meanwhile they answer that the server is not ready.
func reopen(ctx context.Context, cfg *config.Config, opt Options, p Process, at server.Listeners,
	n losses) (*App, server.Listeners, error) {
	bound := *cfg
	for _, d := range []struct {
		key *string
		ln  net.Listener
	}{{&bound.Listen, at.HTTP}, {&bound.AdminListen, at.Admin}, {&bound.GRPCListen, at.GRPC}} {
		if d.ln != nil {
			*d.key = d.ln.Addr().String()
		}
	}
	doors, err := listen(ctx, &bound)
	if err != nil {
		return nil, doors, fmt.Errorf("listen again: %w", err)
	}
	a, err := loadBehind(ctx, cfg, opt, doors)
	if err == nil {
		return a, doors, nil
	}
	closeAll(doors)
	if ctx.Err() != nil {
		return nil, server.Listeners{}, nil
	}
	return nil, server.Listeners{}, p.startOver(ctx, opt.Log, cfg.Device, n,
		fmt.Errorf("open the lost device again: %w", err))
}

// A device may be lost this many times in a row, each time soon after serving began. One that is lost more often is
// broken, and the operator must know.
const (
	lossesVariable = "LOSSES_OF_GREBE" // losses in a row before this process
	maxLosses      = 3
	soundAfter     = 5 * time.Minute // serving for this long ends the row
)

// losses counts how often the device was lost in a row, in this process and in those it replaced.
type losses int

// lossesBefore returns the losses in a row that the previous process counted.
func lossesBefore(env []string) losses {
	var n losses
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, lossesVariable+"="); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				n = 0
			}
		}
	}
	return n
}

// after counts a loss. served is how long the device served before it. It returns an error if there were too many in a
// row.
func (n losses) after(served time.Duration) (losses, error) {
	if served >= soundAfter {
		n = 0
	}
	if n++; n > maxLosses {
		return n, fmt.Errorf("%w for the %dth time, %v after serving began: not opened again", errLost, n,
			served.Round(time.Second))
	}
	return n, nil
}

// env returns env with the count for the next process.
func (n losses) env(env []string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, lossesVariable+"=") {
			out = append(out, kv)
		}
	}
	return append(out, fmt.Sprintf("%s=%d", lossesVariable, n))
}

// startOver replaces the process by a new one with the same command line. Some drivers do not open a lost device again
// in the same process, but do in a new one. If it cannot, it returns err.
func (p Process) startOver(ctx context.Context, log *slog.Logger, device string, n losses, err error) error {
	if p.Exec == nil || ctx.Err() != nil {
		return fmt.Errorf("%w (start grebe again)", err)
	}
	log.Error("the device cannot be opened again: restarting the process", "error", err, "losses", int(n))
	return errors.Join(err, p.Exec(append(n.env(p.Env), config.EnvName("device")+"="+device)))
}
