package main

import (
	"grebe/app"
	"grebe/ingest"
	"grebe/internal/cli"
)

type importCmd struct {
	Files      []string `arg:"" optional:"" type:"path" placeholder:"FILE"`
	From       string   `placeholder:"URL"`
	Query      string   `placeholder:"SQL"`
	Password   string   `name:"password-file" type:"path" placeholder:"FILE"`
	Server     string   `xor:"target" help:"Import through this running server." placeholder:"URL"`
	Config     string   `short:"c" xor:"target" type:"path" placeholder:"FILE"`
	DataDir    string   `xor:"target" type:"path" placeholder:"DIR"`
	Kind       string   `default:"" enum:"items,users,events,"`
	Format     string   `default:"" enum:"ndjson,csv,tsv,parquet,"`
	Map        string   `placeholder:"FIELD=COLUMN,…"`
	Separator  string   `help:"Character between the cells of CSV; default: a comma, in .tsv files a tab." placeholder:"C"`
	Lists      string   `default:";" placeholder:"TEXT"`
	Duplicates string   `default:"bad" enum:"bad,last"`
	OnError    string   `default:"stop" enum:"skip,stop" help:"What to do at a bad record: ${enum}."`
	DryRun     bool
	Restart    bool `help:"Begin at the start of each file, even if a part was imported before."`
	Force      bool `help:"Import even if a model is left with fewer than half of the items that it can generate."`
	cli.AccessFlags
}

func (importCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"files": "Files with one item, user or event per line or row: NDJSON, .csv, .tsv or .parquet, also .gz and .zst; " +
			"- is standard input.",
		"from": "Import the rows of --query from a database: mysql://user@host/db, postgres://user@host/db, or env:NAME " +
			"of a variable with the address.",
		"query":         "What to import from the database, such as SELECT sku, title FROM products.",
		"password-file": "File with the database's password; default: the variable GREBE_SQL_PASSWORD.",
		"config":        "Import into the data_dir of this configuration.",
		"data-dir":      "Import into this folder; default: GREBE_DATA_DIR or ./grebe-data.",
		"kind":          "What the files hold: items, users or events; default: by name, columns or content.",
		"format":        "Format of the files: ndjson, csv, tsv or parquet; default: by name. Standard input needs it.",
		"map": "Which column each field comes from, such as id=sku,text=title,attributes.price=price:number; default: " +
			"columns have the names of fields.",
		"lists":      "Text between the elements of a list in one cell; default ${default}. A cell may also be a JSON list.",
		"duplicates": "How to treat a second record with the same id: as bad, or keep the last.",
		"dry-run":    "Report what would change, what is wrong and what each model could generate, and change nothing.",
	}
}

func (importCmd) Help() string {
	return `A record replaces the whole item or user: fields that the file does not have, or that --map does not list,
are empty afterwards. A file of ids and prices removes texts and codes. A warning names such fields before
anything is written.

If a model has codes, an import of items becomes one version of the catalog, which POST
/v1/catalog:rollback undoes. To continue an import that was stopped, run the same command again. Bad
records are reported with line, column and reason.

Fields of items are id, text, tokens, identifier, codes and attributes.NAME; of users id, text, tokens and
history; of events user, item, time, action, id and features.NAME. In --map a column may have a type after
it, which its cells are checked against: text, integer, number, time or ms (milliseconds since 1970). Events
without an id get one made of their content, so that importing them again changes nothing.

A query runs in a transaction that only reads. Its rows are copied to a temporary file, then imported. The
password is never part of the command line, which other users of the machine can see.

Before anything changes the items are checked against the models: those of the server, or of -c. Codes that
a model does not have are reported. An import that would leave a model with fewer than half of the items
that it can generate stops; --force lets it go on.

A server has its data_dir to itself: while it runs, import through it with --server.

Examples:

    grebe import items.ndjson users.ndjson -c grebe.yaml
    grebe import products.csv.gz --map id=sku,text=title,attributes.price=price:number -c grebe.yaml
    grebe import --kind items --on-error skip catalog.parquet --data-dir ./grebe-data
    grebe import --from mysql://shop@db/shop --query "SELECT sku, title FROM products" \
        --map id=sku,text=title --kind items
    zcat clicks.tsv.gz | grebe import - --format tsv --kind events --server http://127.0.0.1:8080`
}

func (c *importCmd) Run(w *cli.World) error {
	return (&ingest.Import{
		Files: c.Files, Server: c.Server, Config: c.Config, DataDir: c.DataDir, Kind: c.Kind, Format: c.Format,
		Separator: c.Separator,
		From:      c.From, Query: c.Query, PasswordFile: c.Password, Map: c.Map, Lists: c.Lists,
		LastWins: c.Duplicates == "last", Skip: c.OnError == "skip", Restart: c.Restart, Force: c.Force, DryRun: c.DryRun,
		Access: &c.AccessFlags, Codes: app.UsableCodes,
	}).Run(w)
}
