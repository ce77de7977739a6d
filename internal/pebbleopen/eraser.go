package pebbleopen

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Eraser returns a cleaner that removes files which a database no longer needs. Pebble would rather write the next log
// over an old one, whose bytes would then stay. It does not when its cleaner wants files as they are, as the embedded
// one does.
func Eraser() pebble.Cleaner { return eraserOf(pebble.ArchiveCleaner{}.Clean) }

type eraser[FileType any] struct{ pebble.ArchiveCleaner }

func (eraser[FileType]) Clean(fs vfs.FS, _ FileType, path string) error { return fs.Remove(path) }

func (eraser[FileType]) String() string { return "erase" }

// eraserOf finds the name of FileType, which Pebble does not export, from a method that takes one.
func eraserOf[FileType any](func(vfs.FS, FileType, string) error) eraser[FileType] {
	return eraser[FileType]{}
}
