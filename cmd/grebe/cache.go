package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/readfile"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model/safetensors"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/schedule"
	"grebe/server/generate"
	"grebe/server/reuse"
)

// openStore makes the store in which a model's KV is kept; none when the configuration allows no memory for it. The pool
// is that of the memory in which the device computes.
func (s *memory) openStore(cfg *config.Config, mc *config.Model, shape compute.Shape, memory compute.Memory, log *slog.Logger) error {
	rows := sharedRows(cfg, mc)
	hostBytes := hostBytes(cfg, mc) + rows
	bytes := hostBytes
	if memory.Host() != memory {
		bytes = deviceBytes(memory, mc.DeviceMemory, int64(len(cfg.Models)))
	}
	p, err := s.openPool(memory, bytes, shape)
	if p == nil {
		return err
	}
	store := kv.New(shape, p)
	both := &shared{pool: p, rows: rows, store: store}
	if memory.Host() != memory {
		host, err := s.openPool(memory.Host(), hostBytes, shape)
		if err != nil {
			return err
		}
		if host != nil {
			if err := store.SetHost(host); err != nil {
				return err
			}
			store.LowerAhead(bytes / 16)
		}
		both.pool, both.above = host, bytes
	}
	if rows > 0 {
		s.shared = both
	}
	if err := store.SetPolicy(cfg.Cache.Policy); err != nil {
		return err
	}
	if err := store.Predict(); err != nil {
		return err
	}
	if err := s.openDisk(cfg, mc, store, log); err != nil {
		return err
	}
	if err := store.SetHotness(residency.HotnessConfig{}); err != nil {
		return err
	}
	store.Record(s.record.Room("kv"))
	s.onClose(func() error { store.Close(); return nil })
	s.onClose(func() error {
		return unlessHung(s.disk, "write KV to its disk and end what is read from there", func() error {
			ctx, cancel := s.loaded.closing()
			defer cancel()
			store.Stop(ctx)
			return nil
		})
	})
	s.store, s.pages, s.entries = store, p, reuse.Share(store)
	return nil
}

// hostBytes is what a model gets of the host's memory for KV.
func hostBytes(cfg *config.Config, mc *config.Model) int64 {
	if mc.HostMemory.IsZero() {
		return cfg.Cache.HostMemory.Of(totalMemory()) / int64(len(cfg.Models))
	}
	return mc.HostMemory.Of(totalMemory())
}

// deviceBytes is what one of so many models gets of a device's memory, of which weights have been taken:
// never all, for activations.
func deviceBytes(m compute.Memory, size config.Size, models int64) int64 {
	free, total := m.Sizes()
	bytes := size.Of(total)
	if size.Percent > 0 {
		bytes /= models
	}
	return min(bytes, free-free/10)
}

// openPool takes memory for KV; nil when bytes is 0.
func (s *stack) openPool(m compute.Memory, bytes int64, shape compute.Shape) (*pool.Pool, error) {
	token := int64(shape.ChunkBytes(1, false))
	if bytes == 0 {
		return nil, nil
	}
	if bytes < kv.ChainTokens*token {
		return nil, fmt.Errorf("cache of %s holds less than %d tokens of %s: give it more, or 0 for none", inBytes(bytes), kv.ChainTokens, inBytes(token))
	}
	page := s.page
	if page == 0 {
		page = pageFor(&shape)
	}
	p, err := pool.Over(m, bytes, page)
	if err != nil {
		return nil, err
	}
	s.onClose(p.Close)
	return p, nil
}

// openDisk keeps a store's entries in the data folder too, if the configuration gives them room.
func (s *memory) openDisk(cfg *config.Config, mc *config.Model, store *kv.Store, log *slog.Logger) error {
	bytes, dir := diskOf(cfg, mc)
	if bytes == 0 {
		return nil
	}
	d, err := disk.Open(dir, disk.Options{Budget: bytes, Version: s.version, Logger: log})
	if err != nil {
		return err
	}
	s.onClose(func() error { return unlessHung(d, "close the disk that KV is kept on", d.Close) })
	store.SetDisk(d)
	s.disk = d
	return nil
}

// checkpointVersion digests all of a model that its KV depends on, so that entries of another
// checkpoint, configuration, format or table of items are never used. Rows that change in the table itself
// are not seen.
func checkpointVersion(ctx context.Context, cfg *config.Config, mc *config.Model) (plan.Key, error) {
	described, err := readfile.Regular(filepath.Join(mc.Path, "config.json"), 16<<20)
	if err != nil {
		return plan.Key{}, err
	}
	weights, err := safetensors.Open(mc.Path)
	if err != nil {
		return plan.Key{}, err
	}
	defer weights.Close()
	digest, err := weights.DigestWithin(ctx)
	if err != nil {
		return plan.Key{}, err
	}
	return kv.KeyOf(digest, nil, fmt.Sprintf("%d %s %s\n%s%s", kv.ComputeVersion, mc.DType, mc.KVDType, described, describeTable(cfg, mc.ItemTable))), nil
}

// describeTable says where a table's rows are and what stands in for those it lacks; nothing for no table.
func describeTable(cfg *config.Config, name string) string {
	for i := range cfg.Tables {
		if t := &cfg.Tables[i]; name != "" && t.Name == name {
			return fmt.Sprintf("\nitem_table %q %q %q %q %q %d %v", t.Name, t.Store, t.File, t.Addresses, t.Prefix, t.Dim, t.Default)
		}
	}
	return ""
}

// prefixOf returns what prefix=auto means for a model, and the orders that it may choose.
func prefixOf(cfg *config.Config, mc *config.Model) (schedule.Policy, schedule.Orders, error) {
	name, listed := cfg.PrefixOf(mc)
	policy, err := schedule.ParsePolicy(name)
	var orders schedule.Orders
	for _, o := range listed {
		if o == "item" {
			orders |= schedule.Of(plan.ItemFirst)
		} else {
			orders |= schedule.Of(plan.UserFirst)
		}
	}
	return policy, orders, err
}

// pageFor is the largest page, up to 64 KiB, of which a token's KV takes a whole number, so that
// entries of any length waste nothing; at least 256 bytes. With scales there is none such, and an entry
// wastes half of 4 KiB.
func pageFor(shape *compute.Shape) int {
	if shape.ScaleBytes() > 0 {
		return 4 << 10
	}
	token := shape.ChunkBytes(1, false)
	return min(max(token&-token, 256), 64<<10)
}

// openCache makes the part that decides what to reuse, and starts what it does in the background.
func (s *stack) openCache(b *prompt.Builder, opt reuse.Options, do reuse.Do, log *slog.Logger) *reuse.Cache {
	opt.Record = s.record.Room("reuse")
	c := reuse.New(b, opt)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var settled error
	wg.Go(func() { settled = c.Run(ctx) })
	wg.Go(func() {
		c.Refresh(ctx, do, func(err error) { log.Warn("items were not computed ahead", "error", err) })
	})
	s.onClose(func() error {
		stop()
		wg.Wait()
		return settled
	})
	return c
}

// keepSnapshots lets the models that have codes generate the catalog's items, and follows its changes in
// the background.
func (s *stack) keepSnapshots(cfg *config.Config, log *slog.Logger) error {
	if len(s.targets) == 0 {
		return nil
	}
	k, err := generate.NewKeeper(s.catalog, generate.KeeperOptions{
		Dir: filepath.Join(cfg.DataDir, "versions"), Keep: cfg.Catalog.Versions, Logger: log,
	}, s.targets...)
	if err != nil {
		return err
	}
	s.keeper = k
	s.onClose(k.Close)
	for i := range s.targets {
		snap := s.targets[i].Generator.Snapshot()
		log.Info("items that can be generated", "model", s.targets[i].Name, "items", snap.Len(), "without_codes", snap.Skipped)
	}
	s.targets = nil // the keeper knows them; nothing shall hold one that is retired
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(ctx) })
	s.onClose(func() error {
		stop()
		wg.Wait()
		return nil
	})
	return nil
}

// totalMemory is the machine's memory; 0 when the system does not tell.
func totalMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
