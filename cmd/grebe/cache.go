package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/kv"
	"grebe/meta"
	"grebe/pool"
	"grebe/prompt"
	"grebe/schedule"
	"grebe/server/reuse"
)

// openStore makes the memory in which a model's KV is kept; nil when the configuration allows none.
func (s *stack) openStore(cfg *config.Config, mc *config.Model, shape compute.Shape) (*kv.Store, *pool.Pool, error) {
	size := mc.HostMemory
	share := int64(1)
	if size.IsZero() {
		size, share = cfg.Cache.HostMemory, int64(len(cfg.Models))
	}
	bytes := size.Of(totalMemory()) / share
	token := int64(shape.ChunkBytes(1, false))
	if bytes == 0 {
		return nil, nil, nil
	}
	if bytes < kv.ChainTokens*token {
		return nil, nil, fmt.Errorf("cache of %s holds less than %d tokens of %s: give it more, or 0 for none", inBytes(bytes), kv.ChainTokens, inBytes(token))
	}
	p, err := pool.New(bytes, pageFor(token))
	if err != nil {
		return nil, nil, err
	}
	s.onClose(p.Close)
	store := kv.New(shape, p)
	s.onClose(func() error { store.Close(); return nil })
	return store, p, nil
}

// pageFor is the largest page, up to 64 KiB, of which a token's KV takes a whole number, so that
// entries of any length waste nothing; at least 256 bytes.
func pageFor(token int64) int {
	page := int(token & -token)
	return min(max(page, 256), 64<<10)
}

// openCache makes the part that decides what to reuse, and starts what it does in the background.
func (s *stack) openCache(b *prompt.Builder, opt reuse.Options, policy string) (*reuse.Cache, error) {
	var err error
	if opt.Policy, err = schedule.ParsePolicy(policy); err != nil {
		return nil, err
	}
	if opt.Index, err = meta.New(meta.Options{}); err != nil {
		return nil, err
	}
	c := reuse.New(b, opt)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	s.onClose(func() error {
		stop()
		wg.Wait()
		return nil
	})
	return c, nil
}

// totalMemory is the machine's memory; 0 when the system does not tell.
func totalMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
