package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"grebe/internal/cli"
)

type healthCmd struct {
	Server  string        `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	Timeout time.Duration `default:"3s" want:"above 0" help:"Give up after this time."`
	cli.AccessFlags
}

func (healthCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"server": "Address of the server.",
	}
}

func (healthCmd) Help() string {
	return `Exits with 0 when the server answers requests, and with 1 and the reason otherwise. For health checks of
containers.

Example:

    grebe health --server http://127.0.0.1:8080`
}

func (c *healthCmd) Run(w *cli.World) error {
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(w.Ctx, http.MethodGet, base.JoinPath("/v2/health/ready").String(), nil)
	if err != nil {
		return err
	}
	client, err := c.Client(w, c.Timeout)
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
	if err == nil {
		_, err = fmt.Fprintln(w.Stdout, "ready")
	}
	return err
}
