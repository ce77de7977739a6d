package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/wire"
	"grebe/shop/demo"
)

type demoCmd struct {
	Once    bool   `help:"Answer a ranking and a recommendation with each model on standard output and exit."`
	JSON    bool   `name:"json" help:"With --once: print JSON even to a terminal."`
	Listen  string `default:"127.0.0.1:8080" help:"Address of HTTP; default: ${default}." placeholder:"HOST:PORT"`
	Cluster int    `want:"at least 2 and at most 16" placeholder:"N"`
	Data    string `type:"path" help:"Folder for the demo's files; default: the user's cache folder." placeholder:"DIR"`
	cli.LogFlags
}

func (demoCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"cluster": "Serve as a cluster of so many processes on this machine, with an etcd.",
	}
}

func (demoCmd) Help() string {
	return `Serves an invented shop of 9,540 items with small models that were trained for it and are part of the binary.
They are written to a folder and loaded as any folder is. The models never saw these customers.

The demo has no admin address: it has no keys, so its one address also answers admin calls, such as /metrics,
reloads and backups.

With --cluster the demo starts child processes that serve together, prints their addresses and process ids, and says
what to kill.

Examples:

    grebe demo
    grebe demo --once
    grebe demo --cluster 3
    grebe demo --listen 127.0.0.1:9000 --data ./demo`
}

const aboutDemo = "The shop and its customers are invented; the models were trained on other customers of the same " +
	"shop (training/README.md)."

func (c *demoCmd) Run(w *cli.World) error {
	dir := c.Data
	if dir == "" {
		dir = demo.Dir()
	}
	if err := demo.Ensure(dir); err != nil {
		return err
	}
	if c.Cluster > 0 {
		if c.Once {
			return cli.Usagef("--once asks one process: leave out --cluster")
		}
		return c.cluster(w, dir)
	}
	// What a demo is told is gone when it ends, so that several can run and each begins the same.
	data, err := os.MkdirTemp("", "grebe-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)
	file := filepath.Join(dir, demo.ConfigFile)
	cfg, err := config.Load(config.Source{File: file, Env: w.Env, Flags: []config.Setting{
		{Path: "data_dir", Value: data, Origin: "grebe demo"},
		{Path: "dashboard.user_ids", Value: "shown", Origin: "grebe demo"},
		{Path: "dashboard.story", Value: "true", Origin: "grebe demo"},
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
	p := process(w)
	p.Ready = func(addr net.Addr) { c.welcome(w, file, addr) }
	return app.Serve(w.Ctx, &cfg.Config, options(c.Logger(w.Stderr)), p)
}

func (c *demoCmd) welcome(w *cli.World, file string, addr net.Addr) {
	fmt.Fprintf(w.Stdout, `
Grebe is serving its demo on http://%[1]s/
%[2]s

Rank some items for a customer (kaya runs, camps and swims; others: rosa, grace, jonas, hugo, dario):
  curl -sS http://%[1]s/v1/rank -d '{"model": "shop", "user": {"id": "kaya"}, "top_k": 3,
    "candidates": [{"id": "i00040"}, {"id": "i02500"}, {"id": "i05100"}, {"id": "i08700"}]}'
The same by the other model, an HSTU, which reads kaya's purchases and searches as events instead of a text:
  curl -sS http://%[1]s/v1/rank -d '{"model": "shop-hstu", "user": {"id": "kaya"}, "top_k": 3,
    "candidates": [{"id": "i00040"}, {"id": "i02500"}, {"id": "i05100"}, {"id": "i08700"}]}'
For a customer described in words, a question per item (pointwise):
  curl -sS http://%[1]s/v1/rank -d '{"model": "shop-pointwise",
    "user": {"text": "Ada is into baking. Likes plain design.\n\n1 July 2026, searched for \"flour for bread\"\n"},
    "candidates": [{"id": "i00040"}, {"id": "i02500"}, {"id": "i05100"}]}'
Recommend from the whole shop, but for camping, what kaya does not have yet:
  curl -sS http://%[1]s/v1/recommend -d '{"model": "shop", "user": {"id": "kaya"}, "n": 5,
    "exclude_seen": true, "filter": {"department": ["Camping"]}}'

The files are in %[3]s; serve them yourself with
  grebe serve -c %[4]s
How good the answers are, beside the best that is possible:
  grebe eval
Ctrl-C stops.
`, addr, aboutDemo, filepath.Dir(file), file)
}

// once loads the demo without opening a door and asks both models for a ranking and for items.
func (c *demoCmd) once(w *cli.World, cfg *config.Config) error {
	c.LogLevel = "warn"
	s, err := app.Load(w.Ctx, cfg, options(c.Logger(w.Stderr)))
	if err != nil {
		return err
	}
	defer s.Close()
	offer, err := demo.OfferTo(demo.User)
	if err != nil {
		return err
	}
	language, err := demoAsk(w, s, demo.Model, offer)
	if err != nil {
		return err
	}
	events, err := demoAsk(w, s, demo.HSTU, offer)
	if err != nil {
		return err
	}
	if c.JSON || !w.Terminal {
		enc := json.NewEncoder(w.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Notes []string `json:"notes"`
			demoAnswers
			HSTU demoAnswers `json:"hstu"`
		}{[]string{aboutDemo}, *language, *events})
	}
	return printAnswers(w, s.Device().Name(), offer, language, events)
}

// demoAnswers are what one model says.
type demoAnswers struct {
	Rank      json.RawMessage `json:"rank"`
	Recommend json.RawMessage `json:"recommend"`
}

// demoAsk asks a model for the best of what is offered, and of the whole shop.
func demoAsk(w *cli.World, s *app.App, model string, offer *demo.Offer) (*demoAnswers, error) {
	user := &grebev1.User{Id: demo.User}
	ask := &grebev1.RankRequest{Model: model, User: user, TopK: 5, DeadlineMs: 30_000}
	for _, it := range offer.Items {
		ask.Candidates = append(ask.Candidates, &grebev1.Item{Id: it.Id})
	}
	ranked, err := s.Service().Rank(w.Ctx, ask)
	if err != nil {
		return nil, err
	}
	found, err := s.Service().Recommend(w.Ctx, &grebev1.RecommendRequest{
		Model: model, User: user, N: 5, ExcludeSeen: true, DeadlineMs: 30_000})
	if err != nil {
		return nil, err
	}
	return &demoAnswers{wire.EncodeRank(ranked), wire.EncodeRecommend(found)}, nil
}

// printAnswers shows all answers to people.
func printAnswers(w *cli.World, device string, offer *demo.Offer, language, events *demoAnswers) error {
	texts, err := demo.Texts()
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "%s\n…\n%s\n\n", offer.Profile(), strings.Join(offer.Tail(8), "\n"))
	list := fmt.Sprintf("The best 5 of %d items that %s is offered", len(offer.Items), demo.User)
	all := fmt.Sprintf("Five items for %s out of all %d", demo.User, len(texts))
	for _, part := range []struct {
		answers        *demoAnswers
		ranked, chosen string
	}{
		{language, list + ", by the language model, on " + device, all + ", by beam search over their semantic IDs"},
		{events, list + ", by HSTU, which reads events instead of a text", all + ", by HSTU's vectors"},
	} {
		if err := part.answers.print(w, part.ranked, part.chosen, texts); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w.Stdout, "%s\n", aboutDemo)
	return err
}

func (a *demoAnswers) print(w *cli.World, ranked, chosen string, texts map[string]string) error {
	var r rankResponse
	if err := json.Unmarshal(a.Rank, &r); err != nil {
		return fmt.Errorf("read the ranking: %w", err)
	}
	var g recommendResponse
	if err := json.Unmarshal(a.Recommend, &g); err != nil {
		return fmt.Errorf("read the recommendation: %w", err)
	}
	fmt.Fprintf(w.Stdout, "%s:\n\n", ranked)
	if err := r.table(w.Stdout, texts); err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "\n%s:\n\n", chosen)
	if err := g.table(w.Stdout, texts); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w.Stdout)
	return err
}
