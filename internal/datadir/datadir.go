// Package datadir names what lies where in a data_dir.
package datadir

import "path/filepath"

// Catalog is the folder of items and users.
func Catalog(dir string) string { return filepath.Join(dir, "catalog") }

// Versions is the folder of the catalog's versions.
func Versions(dir string) string { return filepath.Join(dir, "versions") }

// Imports is the folder in which imports keep how far they are.
func Imports(dir string) string { return filepath.Join(dir, "imports") }

// Tables is the folder of tables of embeddings in Pebble.
func Tables(dir string) string { return filepath.Join(dir, "tables") }

// KV is the folder of a model's keys and values; without a model the folder of all of them.
func KV(dir, model string) string { return filepath.Join(dir, "kv", model) }
