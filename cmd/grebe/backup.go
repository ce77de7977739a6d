package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"grebe/app/backup"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/human"
)

type backupCmd struct {
	Dir    string `arg:"" type:"path" help:"Folder for the backup. It must not exist." placeholder:"DIR"`
	Server string `default:"http://127.0.0.1:8080" env:"GREBE_SERVER" placeholder:"URL"`
	cli.AccessFlags
}

func (backupCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"server": "Address of the server, or of any node of a cluster.",
	}
}

func (backupCmd) Help() string {
	return `Copies a running server's items and users, the versions of its catalog with the activated ones, and its tables
of embeddings, all as they are at one moment. Requests are answered meanwhile. KV is left out: it is computed again.

The folder's name ends in .part until the backup is complete. After an interruption run the command again: it starts
over. If the server has keys, the command needs one with the role admin, except at the admin listener.

Examples:

    grebe backup /backups/2026-11-18
    grebe backup /backups/2026-11-18 --server http://127.0.0.1:8081`
}

func (c *backupCmd) Run(w *cli.World) error {
	base, err := cli.ServerURL(c.Server)
	if err != nil {
		return err
	}
	if err := backup.Free(c.Dir); err != nil {
		return err
	}
	client, err := c.Client(w, 0) // a large catalog takes long
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(w.Ctx, http.MethodGet, base.JoinPath("/v1/backup").String(), nil)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	begun := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("backup: %w", cli.Unanswered(err))
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
		if err != nil {
			return err
		}
		return adminError(resp, body)
	default:
		return refused(resp)
	}
	m, err := backup.Receive(resp.Body, c.Dir)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.Stdout, "%s: %s at version %d of the catalog, %s in %.1f s\n",
		c.Dir, counted(m), m.Version, human.Bytes(m.Bytes()), time.Since(begun).Seconds())
	return tellElsewhere(w, m, err)
}

func refused(resp *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return err
	}
	return cli.ServerError(resp, body)
}

func counted(m *backup.Manifest) string {
	return human.Count(m.Items, "item") + " and " + human.Count(m.Users, "user")
}

func tellElsewhere(w *cli.World, m *backup.Manifest, err error) error {
	if err == nil && len(m.Elsewhere) > 0 {
		_, err = fmt.Fprintf(w.Stdout, "not in the backup: %s\n", strings.Join(m.Elsewhere, ", "))
	}
	return err
}

type restoreCmd struct {
	Dir     string `arg:"" type:"path" help:"Folder of the backup." placeholder:"DIR"`
	Config  string `short:"c" xor:"target" type:"path" placeholder:"FILE"`
	DataDir string `xor:"target" type:"path" placeholder:"DIR"`
	Force   bool   `help:"Replace what the data_dir has, its KV and an embedded coordinator included."`
}

func (restoreCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config":   "Restore into the data_dir of this configuration.",
		"data-dir": "Restore into this folder; default: GREBE_DATA_DIR or ./grebe-data.",
	}
}

func (restoreCmd) Help() string {
	return `Checks the backup, then makes a server's data_dir of it. The server must not be running. A damaged or
incomplete backup changes nothing. After an interruption run the command again; no server starts on the data_dir before
that.

For a cluster, restore the same backup into the data_dir of each node, however many there are, and give the cluster a
name that its coordinator does not know, or a new coordinator.

Examples:

    grebe restore /backups/2026-11-18 -c grebe.yaml
    grebe restore /backups/2026-11-18 --data-dir /var/lib/grebe --force`
}

func (c *restoreCmd) Run(w *cli.World) error {
	dir, err := ingest.DataDir(c.DataDir, c.Config, w.Env)
	if err != nil {
		return err
	}
	begun := time.Now()
	m, err := backup.Restore(c.Dir, dir, c.Force)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w.Stdout, "%s: %s at version %d of the catalog, from %s, in %.1f s\n",
		dir, counted(m), m.Version, m.Created.Format(time.RFC3339), time.Since(begun).Seconds())
	return tellElsewhere(w, m, err)
}
