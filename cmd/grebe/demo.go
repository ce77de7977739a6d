package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"

	grebev1 "grebe/api/grebe/v1"
	"grebe/cmd/grebe/internal/demo"
	"grebe/internal/config"
	"grebe/internal/wire"
)

type demoCmd struct {
	Once   bool   `help:"Answer one ranking and one recommendation on standard output and exit."`
	JSON   bool   `name:"json" help:"With --once: print JSON, as when the output is no terminal."`
	Listen string `default:"127.0.0.1:8080" help:"Address of HTTP." placeholder:"HOST:PORT"`
	Data   string `type:"path" help:"Folder for the demo's files; default: the user's cache folder." placeholder:"DIR"`
	logFlags
}

func (demoCmd) Help() string {
	return `Generates a small checkpoint, a tokenizer and a catalog, loads them as any folder is loaded, and
serves them. The weights are random: the answers show the machinery, not taste.

Examples:

    grebe demo
    grebe demo --once
    grebe demo --listen 127.0.0.1:9000 --data ./demo`
}

const randomWeights = "The model's weights are random (a fixed seed): the answers show the machinery, not taste."

func (c *demoCmd) Run(w *world) error {
	dir := c.Data
	if dir == "" {
		dir = demo.Dir()
	}
	if err := demo.Ensure(dir); err != nil {
		return err
	}
	// What a demo is told is gone when it ends, so that several can run and each begins the same.
	data, err := os.MkdirTemp("", "grebe-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	file := filepath.Join(dir, demo.ConfigFile)
	cfg, err := config.Load(config.Source{File: file, Flags: []config.Setting{
		{Path: "data_dir", Value: data, Origin: "grebe demo"},
		{Path: "dashboard.user_ids", Value: "shown", Origin: "grebe demo"},
		{Path: "listen", Value: c.Listen, Origin: "flag --listen"},
		{Path: "admin_listen", Value: "", Origin: "grebe demo"},
		{Path: "grpc_listen", Value: "", Origin: "grebe demo"},
	}})
	if err != nil {
		return err
	}
	if c.Once {
		return c.once(w, &cfg.Config)
	}
	return serve(w, &cfg.Config, c.logger(w.stderr), serveHooks{ready: func(addr net.Addr) { c.welcome(w, file, addr) }})
}

func (c *demoCmd) welcome(w *world, file string, addr net.Addr) {
	fmt.Fprintf(w.stdout, `
Grebe is serving its demo on http://%[1]s/
%[2]s

Rank some items for a known user:
  curl -s http://%[1]s/v1/rank -d '{"user": {"id": "ana"}, "candidates": [{"id": "i3"}, {"id": "i10"}, {"id": "i34"}, {"id": "i41"}], "top_k": 3}'
The same with the items first, for a user described in words:
  curl -s http://%[1]s/v1/rank -d '{"user": {"text": "Likes birds."}, "candidates": [{"id": "i9"}, {"id": "i19"}, {"id": "i25"}], "prefix": "item"}'
Generate items that user ana has not chosen yet:
  curl -s http://%[1]s/v1/recommend -d '{"user": {"id": "ana"}, "n": 5, "exclude_seen": true, "filter": {"category": ["books", "outdoor"]}}'

The files are in %[3]s; serve them yourself with
  grebe serve -c %[4]s
Ctrl-C stops.
`, addr, randomWeights, filepath.Dir(file), file)
}

// once loads the demo without opening a door and answers two requests.
func (c *demoCmd) once(w *world, cfg *config.Config) error {
	c.LogLevel = "warn"
	s, err := load(w.ctx, cfg, c.logger(w.stderr))
	if err != nil {
		return err
	}
	defer s.Close()
	user := &grebev1.User{Id: demo.User}
	ask := &grebev1.RankRequest{User: user, TopK: 5, DeadlineMs: 30_000}
	for _, id := range demo.Candidates() {
		ask.Candidates = append(ask.Candidates, &grebev1.Item{Id: id})
	}
	ranked, err := s.server.Rank(w.ctx, ask)
	if err != nil {
		return err
	}
	generated, err := s.server.Recommend(w.ctx, &grebev1.RecommendRequest{User: user, N: 5, ExcludeSeen: true, DeadlineMs: 30_000})
	if err != nil {
		return err
	}
	rank, recommend := wire.EncodeRank(ranked), wire.EncodeRecommend(generated)
	if c.JSON || !w.terminal {
		enc := json.NewEncoder(w.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Notes     []string        `json:"notes"`
			Rank      json.RawMessage `json:"rank"`
			Recommend json.RawMessage `json:"recommend"`
		}{[]string{randomWeights}, rank, recommend})
	}
	return printAnswers(w, s.device.Name(), rank, recommend)
}

// printAnswers shows both answers to people.
func printAnswers(w *world, device string, rank, recommend []byte) error {
	var r rankResponse
	if err := json.Unmarshal(rank, &r); err != nil {
		return fmt.Errorf("read the ranking: %w", err)
	}
	var g recommendResponse
	if err := json.Unmarshal(recommend, &g); err != nil {
		return fmt.Errorf("read the recommendation: %w", err)
	}
	texts := demo.Texts()
	fmt.Fprintf(w.stdout, "The best 5 of %d items for user %s, on %s:\n\n", len(texts), demo.User, device)
	if err := r.table(w.stdout, texts); err != nil {
		return err
	}
	fmt.Fprintf(w.stdout, "\nFive items generated for %s, by beam search over their semantic IDs:\n\n", demo.User)
	if err := g.table(w.stdout, texts); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w.stdout, "\n%s\n", randomWeights)
	return err
}
