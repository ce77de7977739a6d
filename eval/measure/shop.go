package measure

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"grebe/eval"
	"grebe/internal/cli"
	"grebe/model/tokenizer"
	"grebe/shop"
	"grebe/workload/arrays"
)

// Shop writes the shop.
type Shop struct {
	Out        string  `required:"" type:"path" help:"Folder to write to, made if needed." placeholder:"DIR"`
	Seed       uint64  `default:"1" help:"Of the shop; default ${default}."`
	Items      int     `default:"10000" want:"at least 1000" help:"Items, about; default ${default}."`
	Train      int     `default:"20000" want:"at least 0" help:"Customers to train on; default ${default}."`
	Validation int     `default:"1000" want:"at least 0" help:"Customers to choose settings by; default ${default}."`
	Test       int     `default:"1000" want:"at least 0" help:"Customers to measure on; default ${default}."`
	Cuts       int     `default:"4" want:"at least 0"`
	Requests   int     `default:"2000" want:"at least 0" help:"Requests of the trace; default ${default}."`
	Rate       float64 `default:"20" want:"at least 0.001 and at most 1000000"`
	Tokenizer  string  `type:"path" help:"tokenizer.json to count tokens with." placeholder:"FILE"`
	Arrays     bool    `help:"Write arrays of integers for the scripts of training/ instead, with a tokenizer."`
	ItemsFile  string  `name:"items-file" type:"path" placeholder:"FILE"`
	JSON       bool    `name:"json" help:"Print the statistics as JSON."`
}

// FlagHelp has the help texts that are too long for tags.
func (Shop) FlagHelp() cli.Texts {
	return cli.Texts{
		"cuts": "Further questions about each customer to train on, at random places of the history; default ${default}.",
		"rate": "Requests of the trace per second, on average; default ${default}.",
		"items-file": "With --arrays: items (NDJSON) with texts, instead of the shop's; who had them is left to the " +
			"scripts.",
	}
}

func (Shop) Help() string {
	return `Writes items.ndjson; for each of train, validation and test the customers (users-*.ndjson, as grebe import
takes them) and the questions about them (requests-*.ndjson, as grebe eval takes them; validation and test with the true
probabilities); and trace.ndjson, requests of test customers with arrival times. Questions with "events": K, which are
in train alone, are asked after the first K purchases: the prompt is the customer's text up to the next line that begins
with "- ". The same seed gives the same files on every machine.

Examples:

    grebe eval world --out ./shop --train 2000
    grebe eval world --out ./shop --tokenizer ./my-model/tokenizer.json
    grebe eval world --out ./arrays --arrays --train 50000
    grebe eval world --out ./arrays --arrays --items-file items.ndjson`
}

// Run writes it.
func (c *Shop) Run(w *cli.World) error {
	if c.ItemsFile != "" {
		return c.catalog()
	}
	sh, err := shop.New(c.Seed, c.Items)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return err
	}
	if c.Arrays {
		return c.arrays(sh)
	}
	if err := writeFile(filepath.Join(c.Out, "items.ndjson"), sh.WriteItems); err != nil {
		return err
	}
	for _, s := range []struct {
		split shop.Split
		n     int
	}{{shop.Train, c.Train}, {shop.Validation, c.Validation}, {shop.Test, c.Test}} {
		if err := c.customers(w, sh, s.split, s.n); err != nil {
			return err
		}
	}
	if c.Test > 0 {
		err = writeFile(filepath.Join(c.Out, "trace.ndjson"), func(out io.Writer) error {
			return encodeLines(out, sh.Trace(shop.Test, c.Test, c.Requests, c.Rate, c.Seed))
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(w.Stderr, "%d items, %d + %d + %d customers and a trace of %d requests in %s\n", len(sh.Items), c.Train,
		c.Validation, c.Test, c.Requests, c.Out)
	return c.statistics(w, sh)
}

// arrays writes the shop for the training scripts.
func (c *Shop) arrays(sh *shop.World) error {
	a, err := arrays.New(c.Out, sh)
	if err != nil {
		return err
	}
	for _, s := range []struct {
		split shop.Split
		n     int
	}{{shop.Train, c.Train}, {shop.Validation, c.Validation}, {shop.Test, c.Test}} {
		if err := a.Customers(s.split, s.n); err != nil {
			return err
		}
	}
	return nil
}

// catalog writes a catalog of others for the training scripts.
func (c *Shop) catalog() error {
	if !c.Arrays {
		return cli.Usagef("--items-file: only with --arrays")
	}
	items, err := eval.Items(c.ItemsFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return err
	}
	return arrays.Catalog(c.Out, items, "The customer bought:\n")
}

// customers writes the customers of a split and the questions about them.
func (c *Shop) customers(w *cli.World, sh *shop.World, split shop.Split, n int) error {
	return writeFile(filepath.Join(c.Out, fmt.Sprintf("users-%s.ndjson", split)), func(users io.Writer) error {
		return writeFile(filepath.Join(c.Out, fmt.Sprintf("requests-%s.ndjson", split)), func(requests io.Writer) error {
			for i := range n {
				if err := w.Ctx.Err(); err != nil {
					return err
				}
				u := sh.User(split, i)
				if err := sh.WriteUser(users, u); err != nil {
					return err
				}
				if err := encodeLines(requests, c.questions(sh, u, split, i)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// questions returns what is asked about a customer: at the end and, to train on, in the middle.
func (c *Shop) questions(sh *shop.World, u *shop.User, split shop.Split, n int) []eval.Question {
	if split != shop.Train {
		return []eval.Question{eval.Ask(sh, u)}
	}
	out := []eval.Question{eval.Plain(sh, u)}
	places := rand.New(rand.NewPCG(c.Seed, uint64(n))).Perm(u.Events())
	for _, k := range places[:min(c.Cuts, len(places))] {
		q := eval.Plain(sh, sh.Before(u, split, n, k))
		q.Events = &k
		out = append(out, q)
	}
	return out
}

// statistics prints token counts beside the paper's.
func (c *Shop) statistics(w *cli.World, sh *shop.World) error {
	if c.Tokenizer == "" {
		return nil
	}
	tok, err := tokenizer.Load(c.Tokenizer)
	if err != nil {
		return err
	}
	var users, items []string
	for i := range min(c.Test, 1000) {
		users = append(users, sh.Text(sh.User(shop.Test, i)))
	}
	for i := range sh.Items {
		items = append(items, sh.Items[i].Text())
	}
	t := eval.Count(tok, users, items)
	if c.JSON {
		return json.NewEncoder(w.Stdout).Encode(t)
	}
	return t.Text(w.Stdout)
}

func encodeLines[T any](out io.Writer, values []T) error {
	enc := json.NewEncoder(out)
	for i := range values {
		if err := enc.Encode(&values[i]); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file through a buffer.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(write(b), b.Flush(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
