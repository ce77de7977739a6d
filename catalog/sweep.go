package catalog

import (
	"context"

	"grebe/internal/pebbleopen"
)

// startSweeper starts the catalog's sweeper. pending says that bytes were left when the catalog was last closed.
func (c *Catalog) startSweeper(pending bool) {
	var always [2][]byte
	if c.log != nil {
		always = [2][]byte{{recordKind}, {recordKind + 1}}
	}
	c.store.sweeper = c.store.db.NewSweeper(pebbleopen.Sweeping{
		Delay: c.opt.SweepDelay, From: []byte{deletionKind}, To: []byte("v"), Always: always, Pending: pending,
		Before: func() {
			c.dropDeleted()
			if c.deletions.anyDone() {
				c.write(context.Background(), &writer{muts: []mutation{{verb: clearDeletions}}})
			}
		},
		Done: func() error {
			c.write(context.Background(), &writer{muts: []mutation{{verb: sweepDone}}})
			return nil
		},
		Failed: func(err error) {
			c.opt.Logger.Error("the bytes of deleted entries could not be removed: it is tried again", "error", err)
		},
	})
	c.store.sweeper.Run() // its rounds look there
}
