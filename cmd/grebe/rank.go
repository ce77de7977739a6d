package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// maxResponse bounds what the client reads, in bytes.
const maxResponse = 256 << 20

type rankCmd struct {
	Server         string        `default:"http://127.0.0.1:8080" help:"Address of the server." placeholder:"URL"`
	Model          string        `help:"Name of the model; may be left out when the server has one."`
	User           string        `xor:"user" help:"Id of a user that the server knows." placeholder:"ID"`
	UserText       string        `xor:"user" help:"The user in words." placeholder:"TEXT"`
	History        []string      `xor:"user" help:"Ids of what the user chose, oldest first." placeholder:"ID,..."`
	Candidates     []string      `xor:"candidates" help:"Ids of the items to rank." placeholder:"ID,..."`
	CandidatesFile string        `xor:"candidates" type:"path" help:"File with one candidate per line: an id, or an item as JSON." placeholder:"FILE"`
	TopK           int           `help:"Return only the best K; 0 for all." placeholder:"K"`
	Prefix         string        `default:"auto" enum:"auto,user,item,none,blend" help:"What comes first and is reused: ${enum}."`
	DeadlineMS     int           `name:"deadline-ms" help:"Deadline in milliseconds; 0 for the server's." placeholder:"MS"`
	Request        string        `help:"Send this file as the request's body; - for standard input." placeholder:"FILE"`
	JSON           bool          `name:"json" help:"Print the response as JSON, as when the output is no terminal."`
	Timeout        time.Duration `default:"60s" help:"Give up after this time."`
}

func (rankCmd) Help() string {
	return `Prints a table on a terminal and the response's JSON otherwise.

Examples:

    grebe rank --user ana --candidates i3,i10,i34,i41 --top-k 3
    grebe rank --user-text "Likes birds." --candidates-file items.ndjson --prefix item
    grebe rank --server http://10.0.0.7:8080 --request request.json --json`
}

// rankRequest is the JSON of POST /v1/rank.
type rankRequest struct {
	Model      string            `json:"model,omitempty"`
	User       rankUser          `json:"user"`
	Candidates []json.RawMessage `json:"candidates"`
	TopK       int               `json:"top_k,omitempty"`
	Prefix     string            `json:"prefix,omitempty"`
	DeadlineMS int               `json:"deadline_ms,omitempty"`
}

type rankUser struct {
	ID      string   `json:"id,omitempty"`
	Text    string   `json:"text,omitempty"`
	History []string `json:"history,omitempty"`
}

// rankResponse is what the table shows of the answer.
type rankResponse struct {
	Model   string `json:"model"`
	Prefix  string `json:"prefix"`
	Results []struct {
		Index int     `json:"index"`
		ID    string  `json:"id"`
		Score float64 `json:"score"`
		Logit float64 `json:"logit"`
	} `json:"results"`
	Usage struct {
		Prompt   int `json:"prompt_tokens"`
		Cached   int `json:"cached_tokens"`
		Computed int `json:"computed_tokens"`
	} `json:"usage"`
	Timing struct {
		Queue   float64 `json:"queue"`
		Compute float64 `json:"compute"`
		Total   float64 `json:"total"`
	} `json:"timing_ms"`
}

func (c *rankCmd) Run(w *world) error {
	body, err := c.body(w)
	if err != nil {
		return err
	}
	answer, err := c.post(w, body)
	if err != nil {
		return err
	}
	if c.JSON || !w.terminal {
		_, err := fmt.Fprintf(w.stdout, "%s\n", bytes.TrimRight(answer, "\n"))
		return err
	}
	var r rankResponse
	if err := json.Unmarshal(answer, &r); err != nil {
		return fmt.Errorf("read the answer of %s: %w", c.Server, err)
	}
	return r.table(w.stdout, nil)
}

func (c *rankCmd) body(w *world) ([]byte, error) {
	named := c.User != "" || c.UserText != "" || len(c.History) > 0
	listed := len(c.Candidates) > 0 || c.CandidatesFile != ""
	switch {
	case c.Request == "-" && !named && !listed:
		return io.ReadAll(w.stdin)
	case c.Request != "" && !named && !listed:
		return os.ReadFile(c.Request)
	case c.Request != "":
		return nil, usagef("--request has everything in it: leave out the user and the candidates")
	case !named:
		return nil, usagef("for whom? Give --user, --user-text or --history")
	case !listed:
		return nil, usagef("rank what? Give --candidates or --candidates-file")
	}
	r := rankRequest{
		Model: c.Model, User: rankUser{ID: c.User, Text: c.UserText, History: c.History},
		TopK: c.TopK, Prefix: c.Prefix, DeadlineMS: c.DeadlineMS,
	}
	for _, id := range c.Candidates {
		r.Candidates = append(r.Candidates, byID(id))
	}
	if c.CandidatesFile != "" {
		var err error
		if r.Candidates, err = readCandidates(c.CandidatesFile); err != nil {
			return nil, err
		}
	}
	return json.Marshal(r)
}

func byID(id string) json.RawMessage {
	raw, _ := json.Marshal(map[string]string{"id": id}) // a map of strings cannot fail
	return raw
}

func readCandidates(name string) ([]json.RawMessage, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the candidates: %w", err)
	}
	defer f.Close()
	var out []json.RawMessage
	s := bufio.NewScanner(f)
	s.Buffer(nil, 16<<20)
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		switch {
		case text == "":
		case text[0] != '{':
			out = append(out, byID(text))
		case !json.Valid([]byte(text)):
			return nil, fmt.Errorf("%s:%d: not a JSON object", name, line)
		default:
			out = append(out, json.RawMessage(text))
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("read the candidates: %s: %w", name, err)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no candidates", name)
	}
	return out, nil
}

// post sends the request and returns the body of a good answer.
func (c *rankCmd) post(w *world, body []byte) ([]byte, error) {
	base, err := url.Parse(c.Server)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, usagef("--server %q is not an address such as http://127.0.0.1:8080", c.Server)
	}
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, base.JoinPath("/v1/rank").String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("rank: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: c.Timeout}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("rank: %w (is a server running there? `grebe demo` starts one)", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("rank: read the answer of %s: %w", c.Server, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, serverError(resp.Status, answer)
	}
	return answer, nil
}

func serverError(status string, answer []byte) error {
	var e struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(answer, &e) != nil || e.Error.Message == "" {
		return fmt.Errorf("the server says %s", status)
	}
	return errors.New(cmp.Or(e.Error.Code, status) + ": " + e.Error.Message)
}

// table prints a ranking for people; texts says what the items are, nil when unknown.
func (r *rankResponse) table(out io.Writer, texts map[string]string) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "place\titem\tscore\tlogit\t\n")
	for i, x := range r.Results {
		fmt.Fprintf(t, "%d\t%s\t%.4f\t%.3f\t%s\n", i+1, cmp.Or(x.ID, fmt.Sprintf("#%d", x.Index)), x.Score, x.Logit, texts[x.ID])
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s-first, %d prompt tokens, %d computed, %d reused, %.1f ms (queue %.1f, compute %.1f)\n",
		r.Prefix, r.Usage.Prompt, r.Usage.Computed, r.Usage.Cached, r.Timing.Total, r.Timing.Queue, r.Timing.Compute)
	return err
}
