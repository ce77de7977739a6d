package generate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"grebe/catalog"
	"grebe/catalog/history"
)

// importing is a running import. Its changes become one version when it ends. Until then models generate the same
// items as before.
type importing struct {
	pending *catalog.Changes
	last    time.Time // time of its last change
}

const (
	// maxImports bounds the imports that run at a time.
	maxImports = 64
	// importIdle is the time without changes after which an import ends by itself.
	importIdle = 10 * time.Minute
)

// ErrImports means that too many imports are running.
var ErrImports = errors.New("too many imports are running")

// BeginImport begins or continues an import. All changes that Catalog.ApplyImport makes for it become one version at
// its end. An import without changes for ten minutes ends by itself.
func (k *Keeper) BeginImport(id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	im := k.imports[id]
	if im == nil {
		if len(k.imports) >= maxImports {
			return fmt.Errorf("%w: %d", ErrImports, maxImports)
		}
		im = &importing{pending: catalog.NewChanges()}
		k.imports[id] = im
	}
	im.last = k.now()
	return nil
}

// EndImport ends an import. It returns when the models that follow the catalog generate its items. It does nothing if
// there is no such import.
func (k *Keeper) EndImport(ctx context.Context, id string) error {
	k.mu.Lock()
	im := k.imports[id]
	k.mu.Unlock()
	if im == nil {
		return nil
	}
	version, err := k.catalog.EndImport(id)
	if err != nil {
		return err
	}
	for {
		k.mu.Lock()
		heard, more := k.heard >= version, k.hearing
		k.mu.Unlock()
		if heard {
			break
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.Renew()
	return nil
}

// importEnded collects the changes of an import for the next version. Without an id it is a cut, which collects all
// other changes.
func (k *Keeper) importEnded(id string, version uint64) {
	k.mu.Lock()
	if id == "" && k.pending.Len() > 0 {
		k.ended = append(k.ended, history.Delta{Version: version, Changes: k.pending})
		k.pending = catalog.NewChanges()
	}
	if im := k.imports[id]; im != nil {
		delete(k.imports, id)
		if im.pending.Len() > 0 {
			k.ended = append(k.ended, history.Delta{Version: version, Changes: im.pending})
		}
	}
	k.heard = version
	close(k.hearing)
	k.hearing = make(chan struct{})
	k.mu.Unlock()
	k.wake()
}

// expire ends imports that were idle for too long.
func (k *Keeper) expire(ctx context.Context) {
	var gone []string
	k.mu.Lock()
	for id, im := range k.imports {
		if k.now().Sub(im.last) >= importIdle {
			gone = append(gone, id)
		}
	}
	k.mu.Unlock()
	for _, id := range gone {
		k.log.Warn("an import was not ended: its changes become a version", "idle", importIdle)
		if err := k.EndImport(ctx, id); err != nil {
			k.log.Error("an import cannot be ended", "error", err)
		}
	}
}

// Record makes a version of the catalog's present items, if there is none yet, in a process that serves no models. A
// catalog without codes and without versions gets none.
func Record(c *catalog.Catalog, opt KeeperOptions) error {
	if _, err := os.Stat(opt.Dir); missing(err) && !anyCodes(c) {
		return nil
	}
	k := &Keeper{log: opt.Logger, dir: opt.Dir, pins: map[string]Pin{}}
	version := c.Stats().Version
	hurt, err := k.readPins(version)
	if err != nil {
		return err
	}
	if hurt != nil && k.log != nil {
		k.log.Warn("a file of activated versions is damaged", "file", k.pinFile(), "error", hurt)
	}
	return history.Record(c.Scan(), version, history.Options{
		Dir: opt.Dir, Keep: opt.Keep, Logger: opt.Logger, InUse: func(number uint64) bool {
			for _, p := range k.pins {
				if p.Version == number {
					return true
				}
			}
			return false
		}})
}

func anyCodes(c *catalog.Catalog) bool {
	for e := range c.Scan() {
		if hasCodes(e.Item) {
			return true
		}
	}
	return false
}
