package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"grebe/app"
	"grebe/internal/cli"
	"grebe/server/guard"
)

type keyCmd struct {
	Name  string   `required:"" help:"Who will use it; shown in logs and errors."`
	Roles []string `default:"serve" enum:"serve,catalog,admin" help:"What it allows: ${enum}."`
	Rate  float64  `want:"at least 0" help:"Requests per second; 0 for no limit." placeholder:"N"`
	Burst int      `want:"at least 0" help:"Requests at once; 0 for one second's worth." placeholder:"N"`
	Out   string   `type:"path" placeholder:"FILE"`
	Add   string   `type:"path" placeholder:"FILE"`
}

func (keyCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"out": "Write the key to this new file, which only its owner can read, instead of standard output.",
		"add": "Add the key's entry, without the key itself, to this file; default: print it on standard error.",
	}
}

func (keyCmd) Help() string {
	return `Prints a new key on standard output, once: it is stored nowhere. --add writes its entry, a name, roles and a
digest, to a file: auth.keys of the configuration names that file. The role serve asks models; catalog reads and changes
items, users and versions; admin does everything.

Examples:

    grebe key --name shop --add keys.yaml --out shop.key
    grebe key --name nightly-import --roles catalog --rate 50 --add keys.yaml`
}

func (c *keyCmd) Run(w *cli.World) error {
	key, digest := guard.NewKey()
	k := guard.Key{Name: c.Name, SHA256: digest, Rate: c.Rate, Burst: c.Burst}
	for _, r := range c.Roles {
		k.Roles = append(k.Roles, guard.Role(r))
	}
	if _, err := guard.New([]guard.Key{k}); err != nil {
		return cli.Usage(err)
	}
	line := fmt.Sprintf("- {name: %q, sha256: %q, roles: [%s]", c.Name, digest, strings.Join(c.Roles, ", "))
	if c.Rate > 0 {
		line += fmt.Sprintf(", rate: %v", c.Rate)
	}
	if c.Burst > 0 {
		line += fmt.Sprintf(", burst: %d", c.Burst)
	}
	if err := c.keep(w, k, line+"}\n"); err != nil {
		return err
	}
	if c.Out != "" {
		return c.write(key)
	}
	_, err := fmt.Fprintln(w.Stdout, key)
	return err
}

// write puts the key into a new file that only its owner can read.
func (c *keyCmd) write(key string) error {
	f, err := os.OpenFile(c.Out, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the key: %w", err)
	}
	_, err = fmt.Fprintln(f, key)
	return errors.Join(err, f.Close())
}

// keep writes a line where the server will find it, unless the server would then refuse the file.
func (c *keyCmd) keep(w *cli.World, k guard.Key, line string) error {
	if c.Add == "" {
		_, err := fmt.Fprint(w.Stderr, line)
		return err
	}
	before, err := os.ReadFile(c.Add)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(bytes.TrimSpace(before)) > 0 {
		keys, err := app.ReadKeys(c.Add)
		if err == nil {
			_, err = guard.New(append(keys, k))
		}
		if err != nil {
			return fmt.Errorf("nothing was added to %s: %w", c.Add, err)
		}
		if before[len(before)-1] != '\n' {
			line = "\n" + line
		}
	}
	f, err := os.OpenFile(c.Add, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
