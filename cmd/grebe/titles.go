package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"grebe/internal/cli"
)

// Bounds of what a table asks for: rows, the length of a title, and the time for all.
const (
	maxTitles   = 50
	titleRunes  = 60
	titlesLimit = 2 * time.Second
)

// titles returns the first line of items' texts, as far as the server tells them: a key may be refused, and items may
// have none. A table is useful without, so that nothing here is an error.
func (c *askFlags) titles(w *cli.World, ids []string) map[string]string {
	ctx, cancel := context.WithTimeout(w.Ctx, titlesLimit)
	defer cancel()
	client, err := c.Client(w, titlesLimit)
	base, bad := url.Parse(c.Server)
	if err != nil || bad != nil {
		return nil
	}
	out := map[string]string{}
	for _, id := range ids[:min(len(ids), maxTitles)] {
		if id == "" || out[id] != "" {
			continue
		}
		text, ok := itemText(ctx, client, base.JoinPath("/v1/items", url.PathEscape(id)).String())
		if !ok {
			break
		}
		out[id] = title(text)
	}
	return out
}

// itemText asks for one item; ok is false when to ask for others is no use.
func itemText(ctx context.Context, client *http.Client, address string) (text string, ok bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", false
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	var item struct {
		Text string `json:"text"`
	}
	switch err := json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&item); {
	case resp.StatusCode == http.StatusNotFound:
		return "", true
	case err != nil || resp.StatusCode != http.StatusOK:
		return "", false
	}
	return item.Text, true
}

// title returns the beginning of a text's first line.
func title(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if r := []rune(line); len(r) > titleRunes {
		return string(r[:titleRunes-1]) + "…"
	}
	return line
}
