// Package datadir names what lies where in a data_dir.
package datadir

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// Catalog is the folder of items and users.
func Catalog(dir string) string { return filepath.Join(dir, "catalog") }

// Versions is the folder of the catalog's versions.
func Versions(dir string) string { return filepath.Join(dir, "versions") }

// Imports is the folder in which imports keep how far they are.
func Imports(dir string) string { return filepath.Join(dir, "imports") }

// Tables is the folder of tables of embeddings in Pebble.
func Tables(dir string) string { return filepath.Join(dir, "tables") }

// HotRows is the file that lists the rows of a table that are fetched first after a start; without a table the folder
// of all of them.
func HotRows(dir, table string) string {
	if table == "" {
		return filepath.Join(dir, "hot")
	}
	return filepath.Join(dir, "hot", fmt.Sprintf("%x.rows", sha256.Sum256([]byte(table))))
}

// KV is the folder of a model's keys and values; without a model the folder of all of them.
func KV(dir, model string) string { return filepath.Join(dir, "kv", model) }

// Calibrations is the folder of which matrices calibrations keep.
func Calibrations(dir string) string { return filepath.Join(dir, "calibrations") }

// Batches is the folder of batches of requests.
func Batches(dir string) string { return filepath.Join(dir, "batches") }

// Restoring is a file that is there while a backup is being restored.
func Restoring(dir string) string { return filepath.Join(dir, "restoring") }

// Check returns an error if a restore of a backup was interrupted: the data is a mixture then.
func Check(dir string) error {
	if _, err := os.Lstat(Restoring(dir)); err != nil {
		return nil // there is no such file, or opening the data reports the same error
	}
	return fmt.Errorf("%s: a backup is being restored, or that was interrupted: run `grebe restore` again", dir)
}

// Names returns patterns of the files and folders of a server in a data_dir.
func Names() []string {
	return []string{"catalog", "versions", "imports", "tables", "hot", "kv", "prototypes", "importance", "calibrations",
		"etcd", "batches", "catalog.loaded*", "deleted-users"}
}
