package app

import (
	"context"
	"fmt"
	"io"
	"slices"

	"grebe/app/backup"
	"grebe/internal/config"
	"grebe/serve"
)

// backup returns what prepares backups of the App.
func (a *App) backup(cfg *config.Config) func(context.Context) (func(context.Context, io.Writer) error, error) {
	s := &backup.Contents{Program: a.version, Catalog: a.catalog, Tables: a.tables, DataDir: cfg.DataDir,
		Elsewhere: elsewhere(cfg)}
	if a.keeper != nil {
		s.Versions = a.keeper.Files
	}
	return func(ctx context.Context) (func(context.Context, io.Writer) error, error) {
		if err := a.current(ctx); err != nil {
			return nil, err
		}
		return s.Write, nil
	}
}

// current returns an error if this node of a cluster may lack writes that were acknowledged. Members that are in sync
// have all of them on disk.
func (a *App) current(ctx context.Context) error {
	if a.cluster == nil {
		return nil
	}
	if err := a.catalog.Cut(ctx); err != nil { // the leader answers
		return serve.Errorf(serve.Unavailable, "", "the cluster's catalog takes no writes, so this node may not have all "+
			"of it: %v", err)
	}
	if self, nodes := a.cluster.Status().Self, a.inSync(); !slices.Contains(nodes, self) {
		return serve.Errorf(serve.Unavailable, "", "node %s is not in sync with the catalog's leader: ask one of %q", self,
			nodes)
	}
	return nil
}

// elsewhere names stores that a backup does not have.
func elsewhere(cfg *config.Config) (out []string) {
	if cfg.Cluster.UserAddresses() != nil {
		out = append(out, "users (in Redis)")
	}
	for i := range cfg.Tables {
		if t := &cfg.Tables[i]; t.Store != "pebble" {
			out = append(out, fmt.Sprintf("table %s (in %s)", t.Name, t.Store))
		}
	}
	return out
}
