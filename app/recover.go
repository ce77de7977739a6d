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

// errLost ends the serving of a stack whose device is lost.
var errLost = errors.New("the device is lost")

// noteLost notes that the device is lost, for who serves the stack, which is not ready from now on. It never waits.
func (a *App) noteLost(err error) {
	if front := a.loaded.front.Load(); front != nil {
		front.SetReady(false)
	}
	select {
	case a.lost <- err:
	default: // it is known
	}
}

// notePanic counts and logs a panic of an engine, whose batch failed.
func (a *App) notePanic(p *contain.Panic) {
	if front := a.loaded.front.Load(); front != nil { // nobody asks before
		front.Panicked("engine", p)
	}
}

// watch ends ctx's serving when the stack's device is lost: from then on it is not ready. The caller MUST call
// stop.
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

// sameDevice is cfg without a choice where a GPU was lost: auto would go on with the CPU, and nobody would notice.
func (a *App) sameDevice(cfg *config.Config) *config.Config {
	if _, gpu := a.device.(cuda.Device); !gpu {
		return cfg
	}
	same := *cfg
	same.Device = "cuda"
	return &same
}

// reopen loads everything again behind the same addresses. Meanwhile they answer that nothing is ready.
func reopen(ctx context.Context, cfg *config.Config, opt Options, p Process, at server.Listeners, n losses) (*App, server.Listeners, error) {
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
	return nil, server.Listeners{}, p.startOver(ctx, opt.Log, cfg.Device, n, fmt.Errorf("open the lost device again: %w", err))
}

// A device may be lost so many times in a row, each time soon after serving began: one that is lost more often
// is broken, and whoever runs grebe shall know.
const (
	lossesVariable = "LOSSES_OF_GREBE" // in a row, before this process
	maxLosses      = 3
	soundAfter     = 5 * time.Minute // of serving
)

// losses counts how often the device was lost in a row, in this process and in those that it replaces.
type losses int

// lossesBefore are those that the process before this one had seen.
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

// after counts a loss after so long of serving. Its error says that there were too many.
func (n losses) after(served time.Duration) (losses, error) {
	if served >= soundAfter {
		n = 0
	}
	if n++; n > maxLosses {
		return n, fmt.Errorf("%w for the %dth time, %v after serving began: not opened again", errLost, n, served.Round(time.Second))
	}
	return n, nil
}

// env returns the environment of a process that goes on counting.
func (n losses) env(env []string) []string {
	out := make([]string, 0, len(env)+1)
	for _, kv := range env {
		if !strings.HasPrefix(kv, lossesVariable+"=") {
			out = append(out, kv)
		}
	}
	return append(out, fmt.Sprintf("%s=%d", lossesVariable, n))
}

// startOver replaces the process by a new one of the same command line: a driver that does not open a lost device
// again does so for another process. Where that cannot be, it returns err.
func (p Process) startOver(ctx context.Context, log *slog.Logger, device string, n losses, err error) error {
	if p.Exec == nil || ctx.Err() != nil {
		return fmt.Errorf("%w (start grebe again)", err)
	}
	log.Error("the device cannot be opened again in this process: starting over", "error", err, "losses", int(n))
	return errors.Join(err, p.Exec(append(n.env(p.Env), config.EnvName("device")+"="+device)))
}
