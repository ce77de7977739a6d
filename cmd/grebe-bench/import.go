package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"grebe/bench/overload"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

type importCmd struct {
	Items   int     `want:"at least 1 and at most 1000000" help:"Items per import; default 10000." placeholder:"N"`
	Models  int     `default:"8" want:"at least 1 and at most 64" placeholder:"N"`
	Seconds float64 `want:"above 0 and at most 3600" help:"Seconds of each measurement; default 20." placeholder:"S"`
	Rounds  int     `want:"at least 1 and at most 1000" placeholder:"N"`
	Share   float64 `want:"above 0 and at most 1" placeholder:"X"`
	Events  float64 `want:"above 0 and at most 10000" help:"Events per second; default 20." placeholder:"N"`
	Prefix  string  `default:"none" want:"one of none, auto" placeholder:"PREFIX"`
	Check   bool    `help:"Exit with 1 if a target is missed."`
	JSON    bool    `name:"json" help:"Print JSON."`
	programFlag
}

func (importCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"models": "Models of the server; default ${default}.",
		"rounds": "Repetitions, alone and during an import in turns; default 4.",
		"share":  "Rate of rankings, as a share of the highest; default 0.3.",
		"prefix": "What rankings reuse: none, or auto (the server chooses); default ${default}.",
	}
}

func (importCmd) Help() string {
	return `Measures rankings and events while an import changes all items. It serves the demo's catalog with several
models that keep KV on disk, in a process of its own, on all cores but the last. Rankings and events are sent at a
steady rate, alone and during an import. During the import, the P99 of rankings must stay within 1.2 times that alone.
No request may be refused, and events must be acknowledged within 100 ms. Takes about ten minutes.

Examples:

    grebe-bench import --check
    grebe-bench import --items 1000 --seconds 5 --rounds 2`
}

func (c *importCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "grebe-import-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	shop := filepath.Join(dir, "shop")
	if err := demo.Ensure(shop); err != nil {
		return err
	}
	items, err := os.ReadFile(filepath.Join(shop, "items.ndjson"))
	if err != nil {
		return err
	}
	file := filepath.Join(shop, "import.yaml")
	text, err := os.ReadFile(filepath.Join(shop, demo.ConfigFile))
	if err != nil {
		return err
	}
	settings, models, err := manyShops(string(text), c.Models)
	if err != nil {
		return err
	}
	settings += fmt.Sprintf("data_dir: %s\n", filepath.Join(dir, "data"))
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		return err
	}
	r, err := overload.RunImport(w.Ctx, overload.ImportOptions{
		Program: program, Config: file, Catalog: string(items), Models: models, Items: c.Items,
		Window: time.Duration(c.Seconds * float64(time.Second)), Rounds: c.Rounds, Share: c.Share, Events: c.Events,
		Prefix: c.Prefix, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

// manyShops returns a configuration with so many models like the demo's first, which keep KV on disk, and their names.
func manyShops(demo string, n int) (settings string, names []string, err error) {
	const first, name = "  - name: ", "shop"
	_, rest, ok := strings.Cut(demo, "models:\n"+first+name+"\n")
	model, _, more := strings.Cut(rest, first)
	if !ok || !more {
		return "", nil, fmt.Errorf("the demo's configuration has no model %s before others", name)
	}
	var b strings.Builder
	b.WriteString("models:\n")
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%d", name, i+1))
		b.WriteString(first + names[i] + "\n" + model)
	}
	fmt.Fprintf(&b, "slo_ms: 5000\ncache: {host_memory: %dMiB, disk: %dMiB}\ncatalog: {items: items.ndjson, users: "+
		"users.ndjson}\n", 256*n, 512*n)
	return b.String(), names, nil
}
