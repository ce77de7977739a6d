package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/durable"
	"grebe/reuse"
)

// diskOf returns how many bytes of KV a model may keep on disk, and in which folder.
func diskOf(cfg *config.Config, mc *config.Model) (bytes int64, dir string) {
	bytes = mc.Disk.Bytes
	if mc.Disk.IsZero() {
		bytes = cfg.Cache.Disk.Bytes / memories(cfg)
	}
	return bytes, datadir.KV(cfg.DataDir, mc.Name)
}

// removeUnused removes KV and prototypes of models that are no longer served, or no longer have room on disk. A single
// user cannot be removed from files that no model has open. So the first deletion of any user removes all of them.
func removeUnused(cfg *config.Config) error {
	var used []string
	for i := range cfg.Models {
		m := &cfg.Models[i]
		used = append(used, reuse.PrototypesFile(cfg.DataDir, m.Name)) // a model removes its own unused prototypes
		if bytes, dir := diskOf(cfg, m); bytes > 0 && sharesWith(cfg, m).Name == m.Name {
			used = append(used, dir)
		}
	}
	var errs []error
	for _, folder := range []string{datadir.KV(cfg.DataDir, ""), filepath.Dir(reuse.PrototypesFile(cfg.DataDir, "any"))} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("look for KV that is not used: %w", err))
		}
		for _, e := range entries {
			if name := filepath.Join(folder, e.Name()); !slices.Contains(used, name) && !open(name) && !written(e) {
				errs = append(errs, durable.RemoveAll(name))
			}
		}
	}
	return errors.Join(errs...)
}

// written reports whether a model may be writing its prototypes to this temporary file. An abandoned file is older.
// removeLeftovers removes those that a crash left at the next start.
func written(e fs.DirEntry) bool {
	info, err := e.Info()
	return err == nil && strings.HasSuffix(e.Name(), durable.PartSuffix) && time.Since(info.ModTime()) < time.Minute
}

// removeLeftovers removes files that a crash left half-written: they may contain data of users deleted since. The
// caller MUST have the data folder to itself. Earlier versions wrote to the files whose names begin with a dot.
func removeLeftovers(cfg *config.Config) error {
	return errors.Join(
		durable.RemoveParts(cfg.DataDir),
		durable.RemoveParts(datadir.Imports(cfg.DataDir)),
		durable.RemoveParts(filepath.Dir(reuse.PrototypesFile(cfg.DataDir, "any")), ".proto-"),
		durable.RemoveParts(filepath.Dir(reuse.ImportanceFile(cfg.DataDir, "any")), ".new-"),
	)
}

// open reports whether a folder of KV is open, for example by a checkpoint of another configuration.
func open(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close() // releases the lock
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
