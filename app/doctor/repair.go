package doctor

import (
	"errors"
	"os"
	"path/filepath"

	"grebe/catalog"
	"grebe/embed"
	"grebe/internal/pebbleopen"
)

// part is a part of a data folder that can be examined and repaired while no server runs on it.
type part struct {
	name    string
	examine func(dir string) ([]string, error)
	repair  func(dir string) (*pebbleopen.Loss, error)
}

var parts = []part{
	{"catalog", catalog.Examine, catalog.Repair},
	{"tables", embed.ExamineFolder, embed.RepairFolder},
}

// busy reports whether the error says that another process has the part open.
func busy(err error) bool {
	return errors.Is(err, catalog.ErrLocked) || errors.Is(err, embed.ErrLocked)
}

// damage looks for damaged files in a data folder, and changes none.
func damage(r *Report, dir string) {
	for _, p := range parts {
		problems, err := p.examine(filepath.Join(dir, p.name))
		switch {
		case busy(err):
			r.add(p.name, Info, "", "in use by a running server: not examined")
		case err != nil:
			r.add(p.name, Fail, "data_dir must be a folder whose files can be read", "%v", err)
		}
		for _, problem := range problems {
			r.add(p.name, Fail, "restore "+filepath.Join(dir, p.name)+" from a backup, or run grebe doctor --repair",
				"%s", problem)
		}
	}
}

// Repair repairs a damaged data folder and reports losses. It does not touch what is in order, so it can be run again.
// No server may run on the folder.
func Repair(dir string) *Report {
	r := &Report{}
	if _, err := os.Stat(dir); err != nil {
		r.add("data_dir", Fail, "name the folder with -c FILE or --data-dir DIR", "%v", err)
		return r
	}
	for _, p := range parts {
		loss, err := p.repair(filepath.Join(dir, p.name))
		if loss != nil {
			report(r, p.name, loss)
		}
		switch {
		case busy(err):
			r.add(p.name, Fail, "stop the server that runs on "+dir, "%v", err)
		case err != nil:
			r.add(p.name, Fail, "restore "+filepath.Join(dir, p.name)+" from a backup", "%v", err)
		case loss == nil:
			r.add(p.name, OK, "", "in order")
		}
	}
	return r
}

// report adds what a repair found, lost and kept.
func report(r *Report, name string, loss *pebbleopen.Loss) {
	for _, problem := range loss.Problems {
		r.add(name, Fixed, "", "%s", problem)
	}
	for _, lost := range loss.Lost {
		r.add(name, Warn, "write it again", "lost: %s", lost)
	}
	if len(loss.Lost) == 0 {
		r.add(name, OK, "", "nothing was lost")
	}
	if loss.Kept != "" {
		r.add(name, Info, "remove the folder once it is not needed: it may hold entries that were deleted",
			"the damaged files are in %s", loss.Kept)
	}
}
