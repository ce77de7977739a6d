package main

import (
	"fmt"
	"strings"

	"grebe/server/guard"
)

type keyCmd struct {
	Name  string   `required:"" help:"Who will use it; shown in logs and errors."`
	Roles []string `default:"serve" enum:"serve,catalog,admin" help:"What it opens: ${enum}."`
	Rate  float64  `help:"Requests per second; 0 for no limit." placeholder:"N"`
	Burst int      `help:"Requests at once; 0 for one second's worth." placeholder:"N"`
}

func (keyCmd) Help() string {
	return `Prints a new key on standard output, once: it is stored nowhere. What the server needs to know it
by goes to standard error, to be added to the file that auth.keys names. serve asks models; catalog
reads and changes items, users and versions; admin does everything.

Examples:

    grebe key --name shop > shop.key 2>> keys.yaml
    grebe key --name nightly-import --roles catalog --rate 50`
}

func (c *keyCmd) Run(w *world) error {
	key, digest := guard.NewKey()
	k := guard.Key{Name: c.Name, SHA256: digest, Rate: c.Rate, Burst: c.Burst}
	for _, r := range c.Roles {
		k.Roles = append(k.Roles, guard.Role(r))
	}
	if _, err := guard.New([]guard.Key{k}); err != nil {
		return usageError{err}
	}
	line := fmt.Sprintf("- {name: %q, sha256: %q, roles: [%s]", c.Name, digest, strings.Join(c.Roles, ", "))
	if c.Rate > 0 {
		line += fmt.Sprintf(", rate: %v", c.Rate)
	}
	if c.Burst > 0 {
		line += fmt.Sprintf(", burst: %d", c.Burst)
	}
	if _, err := fmt.Fprintln(w.stderr, line+"}"); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w.stdout, key)
	return err
}
