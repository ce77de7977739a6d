package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	"grebe/app/doctor"
	"grebe/catalog"
	"grebe/generate"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/prompt"
)

type doctorCmd struct {
	Config  string `short:"c" type:"path" placeholder:"FILE"`
	JSON    bool   `name:"json" help:"Print JSON."`
	Repair  bool   `help:"Repair a damaged data_dir while no server runs on it, and print what was lost."`
	DataDir string `type:"path" placeholder:"DIR"`
}

func (doctorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config": "Check this configuration too: models, catalog, addresses.",
		"data-dir": "With --repair: the folder to repair; default: that of the configuration, or GREBE_DATA_DIR or " +
			"./grebe-data.",
	}
}

func (doctorCmd) Help() string {
	return `Exits with 1 when something needed is broken.

With --repair grebe doctor checks the data folder only. It rebuilds damaged files whose content is known. If that is
not enough, it copies everything that can be read and keeps the damaged files in a folder beside. Intact files stay as
they are.

Examples:

    grebe doctor
    grebe doctor -c grebe.yaml
    grebe doctor -c grebe.yaml --repair`
}

func (c *doctorCmd) Run(w *cli.World) error {
	var r *doctor.Report
	if c.DataDir != "" && !c.Repair {
		return cli.Usagef("--data-dir names the folder that --repair repairs. A check reads data_dir of the configuration")
	}
	if c.Repair {
		dir, err := ingest.DataDir(c.DataDir, c.Config, w.Env)
		if err != nil {
			return err
		}
		r = doctor.Repair(dir)
	} else {
		r = doctor.Examine("/", c.Config, w.Env)
		if c.Config != "" {
			c.models(w, r)
		}
	}
	if err := c.print(w, r); err != nil {
		return err
	}
	if r.Failed() {
		return cli.ErrReported
	}
	return nil
}

// models checks what each model of texts makes of its configuration, as a server does at its start.
func (c *doctorCmd) models(w *cli.World, r *doctor.Report) {
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil {
		return // it is reported
	}
	var generating []generate.Codes
	var byIdentifier []string // checks of the models that only rank, by the items' identifiers
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		check := "model " + mc.Name
		broken := slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool {
			return f.Check == check && f.Status == doctor.Fail
		})
		if broken || hstu.Is(mc.Path) {
			continue
		}
		b, err := app.BuilderOf(mc)
		if err != nil {
			r.Fail(check, "correct prompt or codes of the model; grebe serve would not start", "%v", err)
			continue
		}
		if b.Depth() > 0 {
			patterns(r, check, mc, b)
			generating = append(generating, generate.Codes{Name: mc.Name, Prompt: b})
		} else if mc.Scoring.Kind == "identifier" {
			byIdentifier = append(byIdentifier, check)
		}
	}
	if !r.Failed() {
		examineItems(w, r, &cfg.Config, generating, byIdentifier)
	}
}

// patterns reports patterns of codes that match no token of the model.
func patterns(r *doctor.Report, check string, mc *config.Model, b *prompt.Builder) {
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return // it is reported
	}
	for level, pattern := range mc.Codes.Pattern {
		if b.MatchesNoToken(level, described.Vocab) {
			r.Warn(check, "correct the pattern, or add the codes' tokens to tokenizer.json; "+
				"until then the model generates no items",
				"codes.pattern[%d]: %q matches no token of tokenizer.json", level, pattern)
		}
	}
}

// examineItems reports items whose codes a model does not have, and a catalog without the identifiers that models rank
// by. It reads the server's catalog, or, before the first start, the file that the configuration names. It does not
// open the server's catalog for identifiers alone.
func examineItems(w *cli.World, r *doctor.Report, cfg *config.Config, generating []generate.Codes,
	byIdentifier []string) {
	f := generate.NewForecast(func(string) (*prompt.Item, bool) { return nil, false }, generating...)
	count, identified := 0, false
	see := func(id string, codes []int32, identifier bool) {
		f.Put(id, codes)
		count++
		identified = identified || identifier
	}
	_, err := os.Stat(datadir.Catalog(cfg.DataDir))
	switch served := err == nil; {
	case served && len(generating) > 0:
		items, err := catalog.Open(datadir.Catalog(cfg.DataDir), catalog.Options{})
		if err != nil { // a server has it, and says at its start what it cannot generate
			return
		}
		for e := range items.All() {
			see(e.Item.ID, e.Item.Codes, e.Item.Identifier >= 0)
		}
		if err := items.Close(); err != nil {
			r.Warn("catalog", "", "%v", err)
		}
	case !served && cfg.Catalog.Items != "" && len(generating)+len(byIdentifier) > 0:
		err := ingest.EachItem(w.Ctx, cfg.Catalog.Items, func(it *grebev1.Item) {
			see(it.Id, it.Codes, it.Identifier != nil)
		})
		if err != nil {
			r.Warn("catalog", "", "%v", err)
			byIdentifier = nil // an item that was not read may have one
		}
	}
	for _, m := range f.Impacts() {
		if text := m.Warning(); text != "" {
			r.Warn("codes", "make the items' codes and the model's codes fit: models[].codes", "%s", text)
		}
	}
	if count == 0 || identified {
		return
	}
	for _, check := range byIdentifier {
		r.Warn(check, `give the items identifiers, or set scoring: {kind: pointwise, "yes": …, "no": …}`,
			"the model scores by identifier, and no item of the catalog has one: it cannot rank them")
	}
}

func (c *doctorCmd) print(w *cli.World, r *doctor.Report) error {
	if c.JSON {
		enc := json.NewEncoder(w.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := r.Print(w.Stdout); err != nil {
		return err
	}
	if !r.Failed() {
		_, err := fmt.Fprintln(w.Stdout, "All that is needed is in order.")
		return err
	}
	_, err := fmt.Fprintln(w.Stdout, "Something needed is broken: see the lines that begin with fail.")
	return err
}
