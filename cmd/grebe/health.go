package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"grebe/internal/cli"
)

type healthCmd struct {
	Server  string        `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	Timeout time.Duration `default:"3s" want:"above 0"`
	Wait    time.Duration `default:"0" want:"at least 0"`
	PID     int           `name:"pid" default:"0" want:"at least 0"`
	cli.AccessFlags
}

func (healthCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"server":  "Address of the server.",
		"timeout": "Wait at most this long for one answer.",
		"wait":    "Ask until the server is ready, but at most for this time. 0: ask once.",
		"pid":     "Process of the server: with --wait, stop when it has ended; $! in a shell.",
	}
}

func (healthCmd) Help() string {
	return `Prints "ready" and exits with 0 when the server answers requests, and with 1 and the reason otherwise.
For health checks of containers and, with --wait, for scripts that have just started a server.

Examples:

    grebe health --server http://127.0.0.1:8080
    grebe serve -c grebe.yaml & grebe health --wait 2m --pid $!`
}

// betweenAsks is the time from one question of --wait to the next.
const betweenAsks = 200 * time.Millisecond

// tooSoon is the time within which a server that has just been started is hardly ready: one that answers sooner may be
// another one, and the one that was started is about to find its address in use.
const tooSoon = time.Second

func (c *healthCmd) Run(w *cli.World) error {
	if c.PID > 0 && c.Wait == 0 {
		return cli.Usagef("--pid ends a wait: give --wait, too")
	}
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return err
	}
	client, err := c.Client(w, c.Timeout)
	if err != nil {
		return err
	}
	url := base.JoinPath("/v2/health/ready").String()
	if c.Wait == 0 {
		err = c.ask(w.Ctx, client, url)
	} else {
		err = c.askUntilReady(w.Ctx, client, url)
	}
	if err == nil {
		_, err = fmt.Fprintln(w.Stdout, "ready")
	}
	return err
}

// askUntilReady asks until the server is ready, c.Wait is over or ctx ends. The error has the server's last answer.
func (c *healthCmd) askUntilReady(ctx context.Context, client *http.Client, url string) error {
	within, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	last := errors.New("no answer yet")
	for begin := time.Now(); ; {
		err := c.ask(within, client, url)
		switch {
		case c.ended():
			return fmt.Errorf("process %d has ended: see what it printed", c.PID)
		case err == nil && (c.PID == 0 || time.Since(begin) > tooSoon):
			return nil
		}
		if err != nil && within.Err() == nil {
			last = err // not that the time was over
		}
		select {
		case <-time.After(betweenAsks):
		case <-within.Done():
		}
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted while waiting: %w", last)
		case within.Err() != nil:
			return fmt.Errorf("not ready after %v: %w", c.Wait, last)
		}
	}
}

// ended reports whether the process that --pid names is gone.
func (c *healthCmd) ended() bool {
	if c.PID == 0 {
		return false
	}
	p, err := os.FindProcess(c.PID)
	if err != nil {
		return true
	}
	defer p.Release()
	return errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// ask returns nil if the server is ready, or why it is not.
func (c *healthCmd) ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", c.Server, cli.Unanswered(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is not ready: %s", c.Server, strings.TrimSpace(string(body)))
	}
	return err
}
