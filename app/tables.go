package app

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"grebe/embed"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/durable"
)

// openTables opens the embedding tables that cfg names. It returns nil if there are none.
func (a *App) openTables(cfg *config.Config) (*embed.Tables, error) {
	if len(cfg.Tables) == 0 {
		return nil, nil
	}
	tables, err := embed.OpenTables(datadir.Tables(cfg.DataDir), TableSpecs(cfg))
	if errors.Is(err, syscall.EAGAIN) {
		return nil, inUse(cfg)
	}
	if err != nil {
		return nil, err
	}
	a.closers.add(tables.Close)
	if err := durable.RemoveParts(datadir.HotRows(cfg.DataDir, "")); err != nil {
		return nil, err
	}
	a.refillTables(tables, cfg)
	a.log.Info("tables of embeddings opened", "tables", tables.Names())
	for i := range cfg.Tables {
		warnOfSilence(&cfg.Tables[i], a.log)
	}
	return tables, nil
}

// warnOfSilence warns if a table's store cannot be reached. Requests do not fail then, so nothing else would show it.
func warnOfSilence(t *config.Table, log *slog.Logger) {
	var failed error
	for _, addr := range t.Addresses {
		conn, err := net.DialTimeout("tcp", addr, 500*time.Millisecond)
		if err == nil {
			conn.Close()
			return
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		log.Warn("the store of a table does not answer: lookups return the table's default row", "table", t.Name,
			"error", failed)
	}
}

// TableSpecs returns the tables that cfg names.
func TableSpecs(cfg *config.Config) []embed.Spec {
	var out []embed.Spec
	inModels := sharers(cfg)
	for i := range cfg.Tables {
		t := &cfg.Tables[i]
		spec := embed.Spec{
			Name: t.Name, Store: t.Store, File: t.File, Addresses: t.Addresses, Username: t.Username, Prefix: t.Prefix,
			Dim: t.Dim, Format: t.Format,
			Cache: t.Cache.Bytes, Policy: t.Policy, Timeout: time.Duration(t.TimeoutMillis) * time.Millisecond,
		}
		if t.Store == "file" || inModels[t.Name] != nil { // the file is mapped, or a model's memory holds the rows
			spec.Cache = 0
		}
		if t.PasswordEnv != "" {
			spec.Password = os.Getenv(t.PasswordEnv)
		}
		if len(t.Default) > 0 {
			spec.Default = t.Default
		}
		out = append(out, spec)
	}
	return out
}
