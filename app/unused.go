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

// diskOf returns how many bytes of KV a model may keep on disk, and where.
func diskOf(cfg *config.Config, mc *config.Model) (bytes int64, dir string) {
	bytes = mc.Disk.Bytes
	if mc.Disk.IsZero() {
		bytes = cfg.Cache.Disk.Bytes / int64(len(cfg.Models))
	}
	return bytes, datadir.KV(cfg.DataDir, mc.Name)
}

// removeUnused removes from the data folder KV and prototypes of models that are not served any more, or have no room on disk
// any more. Nothing can be taken out of them while nobody has them open, so that all of it goes with the first user who is deleted.
func removeUnused(cfg *config.Config) error {
	var used []string
	for i := range cfg.Models {
		m := &cfg.Models[i]
		used = append(used, reuse.PrototypesFile(cfg.DataDir, m.Name)) // the model removes those that it does not use
		if bytes, dir := diskOf(cfg, m); bytes > 0 {
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

// written reports whether a model may just be writing its prototypes to a file, which then gets their name. One that was left grows
// old; what a crash left is removed at the start, see removeLeftovers.
func written(e fs.DirEntry) bool {
	info, err := e.Info()
	return err == nil && strings.HasSuffix(e.Name(), durable.PartSuffix) && time.Since(info.ModTime()) < time.Minute
}

// removeLeftovers removes files that a crash left half-written: they may have what users who were deleted since had. The caller
// has the data folder to itself. Versions before wrote to files of the names that begin with a dot.
func removeLeftovers(cfg *config.Config) error {
	return errors.Join(
		durable.RemoveParts(cfg.DataDir),
		durable.RemoveParts(datadir.Imports(cfg.DataDir)),
		durable.RemoveParts(filepath.Dir(reuse.PrototypesFile(cfg.DataDir, "any")), ".proto-"),
		durable.RemoveParts(filepath.Dir(reuse.ImportanceFile(cfg.DataDir, "any")), ".new-"),
	)
}

// open reports whether somebody has a folder of KV open, such as a checkpoint that came with another configuration.
func open(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "LOCK"), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close() // gives the lock back
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
