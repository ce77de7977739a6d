package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"grebe/ahead"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/human"
)

// indexServer asks a running server to compute items.
type indexServer struct {
	base   string
	client *http.Client
}

// errNoServer means that nothing answers at the server's address.
var errNoServer = errors.New("no server answers")

// indexThrough has a running server compute the items of a model, or of all, and shows how far it is until it is done.
func indexThrough(w *cli.World, access *cli.AccessFlags, base, model string) error {
	if _, err := cli.ServerURL(base); err != nil {
		return err
	}
	client, err := access.Client(w, time.Minute)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	s := &indexServer{base: base, client: client}
	all, err := s.call(w, http.MethodPost, "?model="+url.QueryEscape(model))
	if err != nil {
		return err
	}
	every, shown := 10*time.Second, time.Now()
	if w.Terminal {
		every = 200 * time.Millisecond
	}
	for {
		if model != "" {
			all = slices.DeleteFunc(all, func(p ahead.Progress) bool { return p.Model != model })
		}
		if !slices.ContainsFunc(all, func(p ahead.Progress) bool { return p.State.Running() }) {
			break
		}
		if time.Since(shown) >= every {
			shown = time.Now()
			showIndex(w, all)
		}
		select {
		case <-w.Ctx.Done():
			return fmt.Errorf("%w: the server goes on", w.Ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
		if all, err = s.call(w, http.MethodGet, ""); err != nil {
			return err
		}
	}
	if w.Terminal {
		fmt.Fprint(w.Stderr, "\r\x1b[K")
	}
	return tellIndexed(w, all)
}

// call asks for indexing, or how far it is.
func (s *indexServer) call(w *cli.World, method, query string) ([]ahead.Progress, error) {
	u, err := url.Parse(s.base)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(w.Ctx, method, u.JoinPath("/v1/items:index").String()+query, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", errNoServer, s.base, cli.Unanswered(err))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusAccepted {
		return nil, cli.ServerError(resp, body)
	}
	var answer struct {
		Models []ahead.Progress `json:"models"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	return answer.Models, nil
}

// showIndex shows how far the models are: on one line of a terminal, on a line each elsewhere.
func showIndex(w *cli.World, all []ahead.Progress) {
	for _, p := range all {
		line := fmt.Sprintf("%s: %s, %d of %s looked at, %d computed", p.Model, p.State, p.Items-p.Left,
			human.Count(p.Items, "item"), p.Computed)
		if w.Terminal {
			fmt.Fprintf(w.Stderr, "\r%s\x1b[K", line)
		} else {
			fmt.Fprintln(w.Stderr, line)
		}
	}
}

// tellIndexed says how it ended.
func tellIndexed(w *cli.World, all []ahead.Progress) error {
	var failed error
	for _, p := range all {
		there := p.Items - p.Left - p.Computed - p.TooLong - p.Failed
		fmt.Fprintf(w.Stdout, "%s: %d of %s computed, %d already there or without tokens", p.Model, p.Computed,
			human.Count(p.Items, "item"), there)
		if p.TooLong > 0 {
			fmt.Fprintf(w.Stdout, ", %d too long for the model or its memory", p.TooLong)
		}
		if p.Failed > 0 {
			fmt.Fprintf(w.Stdout, ", %d failed: the server's log says why", p.Failed)
		}
		if p.Left > 0 && p.State == ahead.Full {
			fmt.Fprintf(w.Stdout, "; no room for the other %d: give cache.host_memory more, or cache.disk", p.Left)
		} else if p.Left > 0 {
			fmt.Fprintf(w.Stdout, "; %d left", p.Left)
		}
		fmt.Fprintln(w.Stdout)
		switch p.State {
		case ahead.Failed:
			failed = fmt.Errorf("model %s: %s", p.Model, p.Error)
		case ahead.Idle:
			failed = fmt.Errorf("model %s: the server gave up: it is stopping, or its checkpoint keeps no items", p.Model)
		}
	}
	return failed
}

// serverOf returns the address at which the server of a configuration answers on this machine.
func serverOf(cfg *config.Config) string {
	scheme := "http"
	if cfg.TLS.Cert != "" {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
