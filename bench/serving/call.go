package serving

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// call asks the server for what is no load, and reads the answer into out.
func (c *client) call(ctx context.Context, method, path string, body []byte, out any) error {
	text, err := c.get(ctx, method, path, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("serving: %s: read the answer: %w", path, err)
	}
	return nil
}

func (c *client) get(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	status, text, err := c.do(ctx, method, path, body)
	if err == nil && status/100 != 2 {
		err = &refused{status, text}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return text, nil
}

// do sends a body and returns the answer, whatever its status is.
func (c *client) do(ctx context.Context, method, path string, body []byte) (status int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, c.o.URL+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// metrics returns the server's metrics by name, each the sum over its labels.
func (c *client) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := c.get(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("serving: metrics: %q: %w", line, err)
		}
		name, _, _ := strings.Cut(line[:at], "{")
		out[name] += v
	}
	return out, nil
}
