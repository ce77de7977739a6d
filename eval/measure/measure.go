// Package measure is grebe eval: it opens models with a data folder of their own, asks them the questions of package
// eval and reports how well they answer. It also writes the invented shop that the questions are about.
package measure

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/app"
	"grebe/eval"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/reuse"
	"grebe/serve"
	"grebe/shop"
	"grebe/shop/demo"
)

// Models measures how good rankings and recommendations of models are: its fields are the flags of grebe eval.
type Models struct {
	Config     string   `short:"c" type:"path" placeholder:"FILE"`
	Checkpoint string   `type:"path" help:"A checkpoint instead, with plain prompts." placeholder:"DIR"`
	Untrained  bool     `help:"A model of random weights instead, whose results must be those of chance."`
	Ways       []string `want:"one of user, item, auto, blend, pointwise, pointwise-user, pointwise-item, beam, hstu"`
	Target     float64  `name:"blend-target" want:"above 0 and below 1" placeholder:"SHARE"`
	Compare    []string `placeholder:"SETUP"`
	Users      int      `want:"at least 1" help:"Users; default 200 of the shop, all of a file." placeholder:"N"`
	Skip       int      `want:"at least 0" placeholder:"N"`

	ItemsFile    string `name:"items-file" type:"path" placeholder:"FILE"`
	UsersFile    string `name:"users-file" type:"path" placeholder:"FILE"`
	RequestsFile string `name:"requests-file" type:"path" placeholder:"FILE"`
	Candidates   int    `want:"at least 2 and at most 10000" placeholder:"N"`

	Width    int     `want:"at least 1 and at most 4096" help:"Width of beams; default 64." placeholder:"N"`
	Parallel int     `default:"1" want:"at least 1 and at most 1024" placeholder:"N"`
	Passes   int     `default:"1" want:"at least 1" placeholder:"N"`
	Device   *string `want:"one of auto, cpu, cuda" help:"auto, cpu or cuda."`
	DType    string  `name:"dtype" want:"one of auto, f32, bf16" placeholder:"FORMAT"`
	Yes      string  `default:"yes" help:"With --checkpoint: the token that means yes, for pointwise; default ${default}."`
	No       string  `default:"no" help:"The token that means no; default ${default}."`
	Seed     uint64  `default:"1" help:"Of the shop, of drawn candidates and of intervals; default ${default}."`
	JSON     bool    `name:"json" help:"Print JSON."`
	HTML     string  `name:"html" type:"path" want:"a file that can be written" placeholder:"FILE"`
	cli.LogFlags
}

// FlagHelp has the help texts that are too long for tags.
func (Models) FlagHelp() cli.Texts {
	return cli.Texts{
		"config": "Configuration of the server with the models to measure; default the demo's.",
		"ways": "user, item, auto, blend, pointwise (of which pointwise-user, pointwise-item), beam, hstu; default all " +
			"that the models can do.",
		"blend-target": "Find the smallest budgets with which blended prompts reach this share of the whole prompts' " +
			"NDCG@10.",
		"compare": "Measure with each of these and say what changes against the first: words of cpu, plain, avx2, " +
			"avx512, amx, cuda, f32, bf16, int8, fp8, calibrated, kv-f32, kv-bf16, kv-fp8, batched, cached, joined by +; or " +
			"files of --json.",
		"skip":       "Leave out so many of the shop's test customers at the beginning, to share them among machines.",
		"items-file": "Items (NDJSON); default the configuration's, or the shop's.",
		"users-file": "Users (NDJSON) whose last item is held out; default the shop's test customers, of another catalog " +
			"the configuration's users.",
		"requests-file": "Questions (NDJSON) about these users, with their candidates.",
		"candidates":    "Candidates where they are drawn; default 100.",
		"parallel":      "Requests at a time, which are computed in batches; default ${default}.",
		"passes":        "How often all is asked; the last answers, from warm caches, are measured; default ${default}.",
		"dtype":         "auto, f32 or bf16, for all models.",
		"html":          "Also write one page for a browser.",
	}
}

func (Models) Help() string {
	return `Asks the same questions in each way: rankings with the user first, the items first, the order that auto
chooses, blended prompts and pointwise; items of the whole catalog by beam search. Prints Recall, MRR, NDCG and HIT with
intervals, and compares them with chance, popularity and the most recent category; on the built-in shop also with the
best possible ranking. Without a model it measures those of the demo, which were trained for that shop.

With -c and another catalog, the last item of each user of catalog.users, or of --users-file, is held out and is the
right answer. For each model that was asked in both orders of the prompt it prints which of them to allow, as a line
for the configuration.

A line of a requests file: {"user": "u1", "candidates": ["i1", "i2"], "chosen": "i2", "next": "i9"}.

Examples:

    grebe eval -c grebe.yaml --users 500 --html eval.html
    grebe eval -c grebe.yaml --blend-target 0.98
    grebe eval -c grebe.yaml --users 1000 --compare cpu+f32,cuda+bf16,cuda+bf16+kv-fp8
    grebe eval -c grebe.yaml --users 2000 --compare bf16,bf16+int8
    grebe eval --checkpoint ./my-model --ways user,item
    grebe eval -c grebe.yaml --items-file items.ndjson --users-file users.ndjson --json`
}

// Run measures and prints the result.
func (c *Models) Run(w *cli.World) error {
	if (c.Config != "" && c.Checkpoint != "") || (c.Untrained && c.Config+c.Checkpoint != "") {
		return cli.Usagef("give one of -c, --checkpoint and --untrained")
	}
	if c.HTML != "" && len(c.Compare) > 1 {
		return cli.Usagef("--html: a page shows one measurement, not those of --compare")
	}
	if c.Target != 0 {
		c.Ways = []string{"item", "blend"}
	}
	if c.Config+c.Checkpoint == "" && !c.Untrained && c.RequestsFile+c.UsersFile == "" {
		dir := demo.Dir()
		if err := demo.Ensure(dir); err != nil {
			return err
		}
		c.Config = filepath.Join(dir, demo.ConfigFile)
	}
	if c.LogLevel == "info" {
		c.LogLevel = "error" // the progress bar and the result are what a reader waits for
	}
	tmp, err := os.MkdirTemp("", "grebe-eval-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var r result
	if len(c.Compare) > 0 {
		r, err = c.compareSetups(w, tmp)
	} else {
		r, err = c.measure(w, tmp)
	}
	if err != nil {
		return err
	}
	write := r.Text
	if c.JSON {
		write = r.JSON
	}
	err = write(w.Stdout)
	if whole, ok := r.(*eval.Report); ok && c.HTML != "" {
		err = errors.Join(err, writeFile(c.HTML, whole.HTML))
	}
	return err
}

// measure opens the models with a data folder of their own and asks.
func (c *Models) measure(w *cli.World, tmp string) (*eval.Report, error) {
	data, items, err := c.Data(tmp)
	if err != nil {
		return nil, err
	}
	cfg, err := c.Configure(w, tmp, data, items)
	if err != nil {
		return nil, err
	}
	r, err := c.ask(w, data, cfg, app.OpenDevices, false)
	if err != nil {
		return nil, err
	}
	if c.IsUntrained() {
		r.Notes = append(r.Notes, "The weights are random: the models' results are chance, as they must be. What this "+
			"shows is the machinery, and what there is to learn: the optimum.")
	}
	if c.Target != 0 {
		r.Notes = append(r.Notes, c.budgets(r))
	}
	return r, nil
}

// IsUntrained reports whether nothing was given to measure.
func (c *Models) IsUntrained() bool { return c.Config == "" && c.Checkpoint == "" }

// Data returns the questions, and the file of items that the server is to load.
//
// The built-in shop has customers of its own, whose true wishes are known. Of another catalog the last item of each
// user is held out.
func (c *Models) Data(tmp string) (*eval.Data, string, error) {
	items, users := c.ItemsFile, c.UsersFile
	var theirs string // users of the configuration
	if c.Config != "" {
		cfg, err := config.Load(config.Source{File: c.Config})
		if err != nil {
			return nil, "", err
		}
		items, theirs = cmp.Or(items, cfg.Catalog.Items), cfg.Catalog.Users
		if _, err := os.Stat(filepath.Join(cfg.DataDir, "catalog")); err == nil && items == "" {
			return nil, "", cli.Usagef("%s names no catalog.items, and the catalog in %s belongs to the server: give "+
				"--items-file and --users-file", c.Config, cfg.DataDir)
		}
	}
	if users == "" {
		if c.RequestsFile != "" {
			return nil, "", cli.Usagef("--requests-file: about whom? Give --users-file")
		}
		sh, err := shop.New(c.Seed, shop.Default)
		if err != nil {
			return nil, "", err
		}
		own := true
		if items != "" {
			if own, err = eval.IsShop(items, sh); err != nil {
				return nil, "", err
			}
		}
		if own {
			return c.shop(sh, tmp, items)
		}
		if users = theirs; users == "" {
			return nil, "", cli.Usagef("%s is not the catalog of the built-in shop, so it needs users to measure "+
				"with: give --users-file, or catalog.users in the configuration. "+
				"A line is {\"id\": \"u1\", \"history\": [\"i1\", \"i2\"]}; the last item of each history is held out", items)
		}
	}
	if items == "" {
		return nil, "", cli.Usagef("--users-file: whose items? Give --items-file")
	}
	d, err := eval.Read(eval.Files{Items: items, Users: users, Requests: c.RequestsFile, Most: c.Users,
		Candidates: c.Candidates, Seed: c.Seed})
	return d, items, err
}

// shop asks about the shop's customers. Items of a file are the shop's with what a model needs beside:
// identifiers and codes.
func (c *Models) shop(sh *shop.World, tmp, items string) (*eval.Data, string, error) {
	switch {
	case c.IsUntrained():
		if err := eval.Untrained(tmp, sh); err != nil {
			return nil, "", err
		}
		items = filepath.Join(tmp, "items.ndjson")
	case items == "":
		items = filepath.Join(tmp, "items.ndjson")
		if err := writeFile(items, sh.WriteItems); err != nil {
			return nil, "", err
		}
	}
	users := c.Users
	if users <= 0 {
		users = 200
	}
	d := eval.ShopFrom(sh, max(0, c.Skip), users)
	return d, items, d.Equip(items)
}

// Configure returns the configuration to load. The server's own data folder is left alone.
func (c *Models) Configure(w *cli.World, tmp string, d *eval.Data, items string) (*config.Config, error) {
	const origin = "grebe eval"
	set := []config.Setting{
		{Path: "data_dir", Value: filepath.Join(tmp, "data"), Origin: origin},
		{Path: "admin_listen", Value: "", Origin: origin}, {Path: "grpc_listen", Value: "", Origin: origin},
	}
	add := func(path, value string) { set = append(set, config.Setting{Path: path, Value: value, Origin: origin}) }
	file := c.Config
	if c.IsUntrained() {
		file = filepath.Join(tmp, eval.ConfigFile)
	}
	if c.Checkpoint != "" {
		c.plain(add, d)
	}
	add("catalog.items", items)
	if c.Device != nil {
		add("device", *c.Device)
	}
	cfg, err := config.Load(config.Source{File: file, Env: w.Env, Flags: set})
	if err != nil {
		return nil, err
	}
	cfg.Catalog.Users = "" // users come with the requests
	cfg.Limits.DeadlineMillis = max(cfg.Limits.DeadlineMillis, eval.DeadlineMs)
	for i := range cfg.Models {
		if c.DType != "" {
			cfg.Models[i].DType = c.DType
		}
		// What is on disk belongs to the server.
		cfg.Models[i].Disk = config.Size{}
	}
	cfg.Cache.Disk = config.Size{}
	if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
		return nil, err
	}
	if c.Config == "" {
		return &cfg.Config, nil
	}
	served, err := config.Load(config.Source{File: file, Env: w.Env})
	if err == nil {
		err = copyImportance(served.DataDir, cfg.DataDir, cfg.Models)
	}
	return &cfg.Config, err
}

// copyImportance takes along what was learned of models: blended prompts are measured as they are served.
func copyImportance(from, to string, models []config.Model) error {
	for i := range models {
		raw, err := os.ReadFile(reuse.ImportanceFile(from, models[i].Name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		name := reuse.ImportanceFile(to, models[i].Name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(name), 0o700)
		}
		if err == nil {
			err = os.WriteFile(name, raw, 0o600)
		}
		if err != nil {
			return fmt.Errorf("what grebe index --importance learned: %w", err)
		}
	}
	return nil
}

// plain sets a checkpoint with plain prompts, and the same one for pointwise where its tokenizer can
// say yes and no.
func (c *Models) plain(add func(path, value string), d *eval.Data) {
	user := "{text}\n"
	if !d.Texts() {
		user = "The customer bought, oldest first:\n{history}\n"
	}
	put := func(model, name, instruction string) {
		add(model+".path", c.Checkpoint)
		add(model+".name", name)
		add(model+".prompt.user", user)
		add(model+".prompt.item", "{text}\n")
		add(model+".prompt.lead_in", "Offers:\n")
		add(model+".prompt.instruction", instruction)
	}
	put("models[0]", "identifier", "The customer takes")
	tok, err := app.OpenTokenizer(c.Checkpoint)
	if err != nil || tok == nil {
		return
	}
	_, yes := tok.TokenID(c.Yes)
	_, no := tok.TokenID(c.No)
	if yes && no {
		put("models[1]", "pointwise", "Will the customer take it?")
		add("models[1].scoring.kind", "pointwise")
		add("models[1].scoring.yes", c.Yes)
		add("models[1].scoring.no", c.No)
	}
}

// WaysOf returns what the loaded models can do of what was asked for, and what a reader must know.
func (c *Models) WaysOf(s *app.App, d *eval.Data) ([]eval.Way, []string) {
	wanted := func(name string) bool { return len(c.Ways) == 0 || slices.Contains(c.Ways, name) }
	var ways []eval.Way
	var notes []string
	names, found := map[string]bool{}, map[string]bool{}
	add := func(kind string, m *serve.Model, w eval.Way) {
		found[kind] = true
		if names[w.Name] {
			w.Name += " (" + m.Name + ")"
		}
		names[w.Name] = true
		w.Model = m.Name
		ways = append(ways, w)
	}
	beams := func(m *serve.Model) {
		if m.Generate != nil && wanted("beam") {
			add("beam", m, eval.Way{Name: "beam search", Generate: true})
		}
	}
	for i := range s.Models() {
		m := &s.Models()[i]
		if !m.ReadsTexts() {
			if wanted("hstu") {
				add("hstu", m, eval.Way{Name: "HSTU, user-first", Prefix: "user"})
				add("hstu", m, eval.Way{Name: "HSTU, item-first", Prefix: "item"})
				if m.Recommends() {
					add("hstu", m, eval.Way{Name: "HSTU, retrieval", Generate: true})
				}
			}
			continue
		}
		if m.Scoring.Kind == serve.Pointwise {
			c.addPointwise(func(kind string, w eval.Way) { add(kind, m, w) })
			beams(m)
			continue
		}
		var first int32
		if !d.Identifiers() {
			first = identifiersByPlace
			notes = append(notes, "The items have no identifiers: candidates were given tokens by their place in the list, "+
				"which no model was trained for unless it was for just that.")
		}
		for _, prefix := range []string{"user", "item", "auto", "blend"} {
			if wanted(prefix) && (prefix != "blend" || m.Blend != nil) {
				name := map[string]string{"user": "user-first", "item": "item-first", "auto": "auto", "blend": "blend"}[prefix]
				add(prefix, m, eval.Way{Name: name, Prefix: prefix, FirstIdentifier: first})
			}
		}
		beams(m)
	}
	for _, name := range c.Ways {
		if !found[name] {
			notes = append(notes, fmt.Sprintf("Not measured: %s, which no model here can do (%s).", name,
				needs[strings.TrimSuffix(strings.TrimSuffix(name, "-user"), "-item")]))
		}
	}
	return ways, slices.Compact(notes)
}

// addPointwise adds the orders of pointwise prompts: both, or the one that is asked for.
func (c *Models) addPointwise(add func(kind string, w eval.Way)) {
	for _, w := range []eval.Way{{Name: "pointwise", Prefix: "user"}, {Name: "pointwise, item-first", Prefix: "item"}} {
		switch one := "pointwise-" + w.Prefix; {
		case len(c.Ways) == 0 || slices.Contains(c.Ways, "pointwise"):
			add("pointwise", w)
		case slices.Contains(c.Ways, one):
			add(one, w)
		}
	}
}

// needs says what a model must have for a way.
var needs = map[string]string{
	"user": "it takes scoring by identifier", "item": "it takes scoring by identifier",
	"auto":  "it takes scoring by identifier",
	"blend": "it takes scoring by identifier, and KV in f32 or bf16",
	"pointwise": "it takes scoring: {kind: pointwise}, or a checkpoint whose vocabulary has --yes and --no as one token " +
		"each",
	"beam": "it takes codes in the configuration and in the items",
	"hstu": "it takes a checkpoint of HSTU",
}

// identifiersByPlace is the token of the first candidate where items have no identifiers: behind what
// vocabularies begin with.
const identifiersByPlace = 100

// DescribeModels names an App's models.
func DescribeModels(s *app.App) string {
	var out []string
	for i := range s.Models() {
		m := &s.Models()[i]
		out = append(out, fmt.Sprintf("%s (%s, %s)", m.Name, m.Architecture, m.DType))
	}
	return strings.Join(out, "; ")
}
