package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"grebe/internal/cli"
)

// maxResponse bounds what the client reads, in bytes.
const maxResponse = 256 << 20

// askFlags are what the client commands have in common.
type askFlags struct {
	Server     string        `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	Model      string        `help:"Name of the model; may be left out when the server has one."`
	User       string        `xor:"user" help:"Id of a user that the server knows." placeholder:"ID"`
	UserText   string        `xor:"user" help:"The user in words." placeholder:"TEXT"`
	History    []string      `xor:"user" help:"Ids of what the user chose, oldest first." placeholder:"ID"`
	DeadlineMS int           `name:"deadline-ms" want:"at least 0" placeholder:"MS"`
	Request    string        `help:"Send this file as the request's body; - for standard input." placeholder:"FILE"`
	JSON       bool          `name:"json" help:"Print the response as JSON even to a terminal."`
	Timeout    time.Duration `default:"60s" want:"above 0" help:"Give up after this time."`
	cli.AccessFlags
}

func (askFlags) FlagHelp() cli.Texts {
	return cli.Texts{
		"server":      "Address of the server.",
		"deadline-ms": "Deadline in milliseconds; 0 for the server's.",
	}
}

// askUser is whom a request is for, as JSON.
type askUser struct {
	ID      string   `json:"id,omitempty"`
	Text    string   `json:"text,omitempty"`
	History []string `json:"history,omitempty"`
}

// cost is what an answer says about itself.
type cost struct {
	Usage struct {
		Prompt   int `json:"prompt_tokens"`
		Cached   int `json:"cached_tokens"`
		Computed int `json:"computed_tokens"`
		Beams    int `json:"beam_tokens"`
	} `json:"usage"`
	Timing struct {
		Queue   float64 `json:"queue"`
		Compute float64 `json:"compute"`
		Total   float64 `json:"total"`
	} `json:"timing_ms"`
}

func (c *cost) String() string {
	beams := ""
	if c.Usage.Beams > 0 {
		beams = fmt.Sprintf(", %d for beams", c.Usage.Beams)
	}
	return fmt.Sprintf("%d prompt tokens, %d computed, %d reused%s, %.1f ms (queue %.1f, compute %.1f)",
		c.Usage.Prompt, c.Usage.Computed, c.Usage.Cached, beams, c.Timing.Total, c.Timing.Queue, c.Timing.Compute)
}

func (c *askFlags) user() askUser { return askUser{ID: c.User, Text: c.UserText, History: c.History} }

// named reports whether the flags say for whom the request is.
func (c *askFlags) named() bool { return c.User != "" || c.UserText != "" || len(c.History) > 0 }

// readRequest reads the request from a file. Flags that say something else are a mistake.
func (c *askFlags) readRequest(w *cli.World, more bool) ([]byte, error) {
	switch {
	case c.named() || more || c.Model != "" || c.DeadlineMS != 0:
		return nil, cli.Usagef("--request has the whole request: leave out --model, --user, --candidates and the like")
	case c.Request == "-":
		return io.ReadAll(w.Stdin)
	}
	return os.ReadFile(c.Request)
}

// ask sends a request and prints the answer: as a table on a terminal, as JSON otherwise.
func (c *askFlags) ask(w *cli.World, path string, body []byte, into any, table func() error) error {
	answer, err := c.post(w, path, body)
	if err != nil {
		return err
	}
	if c.JSON || !w.Terminal {
		_, err := fmt.Fprintf(w.Stdout, "%s\n", bytes.TrimRight(answer, "\n"))
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.Server, err)
	}
	return table()
}

// post sends a request and returns the body of a good answer.
func (c *askFlags) post(w *cli.World, path string, body []byte) ([]byte, error) {
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return nil, err
	}
	op := strings.TrimPrefix(path, "/v1/")
	req, err := http.NewRequestWithContext(w.Ctx, http.MethodPost, base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	req.Header.Set("Content-Type", "application/json")
	client, err := c.Client(w, c.Timeout)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if os.IsTimeout(err) {
		return nil, fmt.Errorf("%s: %w (--timeout allows more time)", op, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, cli.Unanswered(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("%s: read the answer of %s: %w", op, c.Server, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, cli.ServerError(resp, answer)
	}
	return answer, nil
}

// adminError is the error of an answer to a call that needs the role admin.
func adminError(resp *http.Response, answer []byte) error {
	return fmt.Errorf("%w (the role is admin: --key-file FILE or GREBE_API_KEY; or ask the admin listener)",
		cli.AnswerError(resp, answer))
}
