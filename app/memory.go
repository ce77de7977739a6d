package app

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"grebe/app/budget"
	"grebe/app/divide"
	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/internal/readfile"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model/safetensors"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

// Memory holds the KV of a model. All checkpoints of one shape share it, each under its own keys.
type Memory struct {
	app     *App
	shape   compute.Shape
	version plan.Key // of the checkpoint that it was opened for
	store   *kv.Store
	pages   *pool.Pool
	disk    *disk.Store
	entries *reuse.Shared
	shared  *shared     // with rows of a table; nil: it holds only KV
	rows    *deviceRows // on pages of its device's memory; nil: none

	tables      map[string]*deviceRows // of other tables, by their names in the model
	deviceTotal int64                  // bytes of device_memory, of which these have their parts

	lowers  bool // KV that leaves the device's memory goes to the host's
	closers closers
	// deviceDivider divides the device's memory between KV and rows; nil: the boundary does not move.
	deviceDivider *divide.Divider
	tenant        *budget.Tenant // of the memory that models compete for; nil: it has its own host memory, or none
	users         int            // Models that use it, guarded by models.shares
}

func newMemory(a *App) *Memory { return &Memory{app: a, users: 1} }

// join adds a user. It returns false if the memory is being freed.
func (m *Memory) join() bool {
	m.app.loaded.shares.Lock()
	defer m.app.loaded.shares.Unlock()
	if m.users == 0 {
		return false
	}
	m.users++
	return true
}

// openStore opens the store for a model's KV, or none if the configuration gives it no memory. Its pool is in the
// memory in which the device computes.
func (m *Memory) openStore(cfg *config.Config, mc *config.Model, shape compute.Shape, memory compute.Memory) error {
	rows, bytes, above := sharedRows(cfg, mc), int64(0), int64(0)
	open := func() (*pool.Pool, error) { return m.openHost(cfg, mc, rows, memory.Host(), shape) }
	if memory.Host() != memory {
		var err error
		if bytes, err = m.deviceBytes(cfg, mc, memory); err != nil {
			return err
		}
		if above, err = besideRows(mc, bytes, shape); err != nil {
			return err
		}
		open = func() (*pool.Pool, error) { return m.openPool("device_memory", memory, bytes, shape) }
	}
	p, err := open()
	if p == nil {
		return err
	}
	if above < bytes {
		p.SetBoundary(float64(bytes-above) / float64(bytes))
	}
	store := kv.New(shape, p)
	both := &shared{pool: p, rows: rows, store: store}
	if memory.Host() != memory {
		host, err := m.openHost(cfg, mc, rows, memory.Host(), shape)
		if err != nil {
			return err
		}
		if host != nil {
			if err := store.SetHost(host); err != nil {
				return err
			}
			store.LowerAhead(above / 16)
			m.lowers = true
		}
		both.pool, both.above = host, above
	}
	if rows > 0 {
		m.shared = both
	}
	if err := store.SetPolicy(cfg.Cache.Policy); err != nil {
		return err
	}
	if err := store.Predict(); err != nil {
		return err
	}
	if err := m.openDisk(cfg, mc, store); err != nil {
		return err
	}
	if err := store.SetHotness(residency.HotnessConfig{}); err != nil {
		return err
	}
	store.Record(m.app.record.Room("kv"))
	if cfg.Cluster.Name != "" {
		store.Follow(newBoot(), feedEvents)
	}
	m.closers.add(func() error { store.Close(); return nil })
	m.closers.add(func() error {
		return unlessHung(m.disk, "write KV to its disk and end what is read from there", func() error {
			ctx, cancel := m.app.loaded.closing()
			defer cancel()
			store.Stop(ctx)
			return nil
		})
	})
	m.store, m.pages, m.entries = store, p, reuse.Share(store)
	if m.tenant != nil {
		store.Watch(m.tenant)
		m.tenant.Work(store)
		m.closers.add(func() error { m.tenant.Stop(); return nil })
	}
	return nil
}

// openHost takes host memory for KV and for rows of a table: the model's own, or a part of what models compete for.
// It returns nil if there is none.
func (m *Memory) openHost(cfg *config.Config, mc *config.Model, rows int64, at compute.Memory,
	shape compute.Shape) (*pool.Pool, error) {
	if !cfg.Holds() { // a router needs the keys of KV, which caches know, and no memory
		return m.openPool("cache", at, kv.ChainTokens*int64(shape.ChunkBytes(1, false)), shape)
	}
	bytes := hostBytes(cfg, mc) + rows
	key := "cache.host_memory"
	if !mc.HostMemory.IsZero() {
		key = "models[].host_memory"
	}
	if !sharesBudget(cfg, mc) {
		return m.openPool(key, at, bytes+hostBytes(cfg, mc)*(names(cfg, mc)-1), shape)
	}
	if err := checkSize(bytes, shape); bytes == 0 || err != nil {
		return nil, err
	}
	t, err := m.app.joinBudget(cfg, mc, at, shape)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	m.tenant = t
	m.closers.add(t.Leave)
	return t.Pool(), nil
}

// leave is called when a Model is gone. The last one frees the memory.
func (m *Memory) leave() error {
	m.app.loaded.shares.Lock()
	m.users--
	last := m.users == 0
	m.app.loaded.shares.Unlock()
	if !last {
		return nil
	}
	return m.closers.close()
}

// hostBytes returns a model's host memory for KV: its own, or an equal part of cache.host_memory. A model that shares
// the budget starts with that part.
func hostBytes(cfg *config.Config, mc *config.Model) int64 {
	if !mc.HostMemory.IsZero() {
		return mc.HostMemory.Of(totalMemory())
	}
	models := int64(0)
	for i := range cfg.Models {
		if cfg.Models[i].HostMemory.IsZero() {
			models++
		}
	}
	models = max(models, 1)
	return (cfg.Cache.HostMemory.Of(totalMemory()) + models - 1) / models // too little for all is an error, not 0
}

// names returns the number of models without their own host memory that share a model's memory. Each adds its part to
// it.
func names(cfg *config.Config, mc *config.Model) int64 {
	n := int64(0)
	for i := range cfg.Models {
		if o := &cfg.Models[i]; mc.HostMemory.IsZero() && o.HostMemory.IsZero() &&
			sharesWith(cfg, o).Name == sharesWith(cfg, mc).Name {
			n++
		}
	}
	return max(n, 1)
}

// deviceBytes returns the device memory for a model's KV, once all weights are loaded: the given bytes, or a share of
// what was free at the start, of which models get equal parts. A share leaves some of what is free for activations.
func (m *Memory) deviceBytes(cfg *config.Config, mc *config.Model, at compute.Memory) (int64, error) {
	free, total := at.Sizes()
	start := m.app.freeAtStart
	if start == 0 { // it was not asked for
		start = free
	}
	bytes, beside := mc.DeviceMemory.Bytes, len(m.app.loaded.of(mc.Name)) > 0
	switch most := free - free/10; {
	case mc.DeviceMemory.Percent > 0:
		bytes = min(mc.DeviceMemory.Of(start)/memories(cfg), most)
	case beside: // another checkpoint of the model has what was given
		bytes = min(bytes, most)
	case bytes > free:
		return 0, fmt.Errorf("device_memory: %s for KV, but %s of the device's %s are free once weights are loaded, "+
			"and %s were at the start: give less, or a share of what is free such as 80%%",
			human.Bytes(bytes), human.Bytes(free), human.Bytes(total), human.Bytes(start))
	}
	m.app.log.Info("memory of the device", "model", mc.Name, "kv", human.Bytes(bytes), "free", human.Bytes(free),
		"free_at_start", human.Bytes(start), "total", human.Bytes(total))
	m.deviceTotal = bytes
	return besideTables(mc, bytes)
}

// openPool allocates memory for KV, whose size a key of the configuration gives. It returns nil if bytes is 0.
func (m *Memory) openPool(key string, at compute.Memory, bytes int64, shape compute.Shape) (*pool.Pool, error) {
	if err := checkSize(bytes, shape); bytes == 0 || err != nil {
		return nil, err
	}
	page := m.app.page
	if page == 0 {
		page = pageFor(&shape)
	}
	p, err := pool.Over(at, bytes, page)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	m.closers.add(p.Close)
	return p, nil
}

// checkSize refuses a cache that is too small to be of use.
func checkSize(bytes int64, shape compute.Shape) error {
	token := int64(shape.ChunkBytes(1, false))
	if bytes > 0 && bytes < kv.ChainTokens*token {
		return fmt.Errorf("a cache of %s holds less than %d tokens of %s: give host_memory or device_memory more, or 0 for "+
			"none",
			human.Bytes(bytes), kv.ChainTokens, human.Bytes(token))
	}
	return nil
}

// openDisk adds a disk store in the data folder, if the configuration gives it room.
func (m *Memory) openDisk(cfg *config.Config, mc *config.Model, store *kv.Store) error {
	bytes, dir := diskOf(cfg, mc)
	if bytes == 0 || !cfg.Holds() {
		return nil
	}
	below := &classed{class: m.app.classOf(cfg)}
	d, err := disk.Open(dir, disk.Options{Budget: bytes, Version: below.versionOf(m.version), Logger: m.app.log})
	if err != nil {
		return err
	}
	below.Store = d
	m.closers.add(func() error { return unlessHung(d, "close the disk that KV is kept on", d.Close) })
	store.SetDisk(below)
	m.disk = d
	return nil
}

// checkpointVersion hashes everything that a model's KV depends on, so that KV of another checkpoint, configuration,
// format or tables is never used, nor that of a device that computes in other numbers of 8 bits. It does not notice
// changes of rows within the table.
func checkpointVersion(ctx context.Context, cfg *config.Config, mc *config.Model, d compute.Device) (plan.Key, error) {
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
	text := fmt.Sprintf("%d %s %s\n%s%s", kv.ComputeVersion, mc.DType, mc.KVDType, described, describeTable(cfg,
		"item_table", mc.ItemTable))
	for _, t := range mc.Tables {
		text += describeTable(cfg, fmt.Sprintf("table %q", t.Name), t.Table)
	}
	if mc.Weights != "auto" && mc.Weights != "" { // so that KV from before there was a choice stays in use
		text += "\nweights " + mc.Weights
	}
	if len(mc.WeightsKeep) > 0 {
		text += "\nkeep " + strings.Join(mc.WeightsKeep, "\n")
	}
	if mc.Weights != "bf16" && mc.Weights != "int8" {
		text += describeEight(described, d)
	}
	return kv.KeyOf(digest, nil, text), nil
}

// describeEight says which numbers of 8 bits a device computes in, where a model's config.json has weights of such. It
// returns "" for none.
func describeEight(config []byte, d compute.Device) string {
	var c struct {
		Quantisation json.RawMessage `json:"quantization_config"`
	}
	q, ok := d.(compute.Quantiser)
	if err := json.Unmarshal(config, &c); err != nil || !ok { // opening the model returns the error
		return ""
	}
	if s := string(c.Quantisation); s == "" || s == "null" {
		return ""
	}
	text := ""
	for _, dt := range []compute.DType{compute.INT8, compute.FP8} {
		if q.Quantises(dt) {
			text += "\ncomputes in " + dt.String()
		}
	}
	return text
}

// describeTable describes where the rows of a table that a model uses as something are, and what replaces missing ones.
// It returns "" for no table.
func describeTable(cfg *config.Config, as, name string) string {
	for i := range cfg.Tables {
		if t := &cfg.Tables[i]; name != "" && t.Name == name {
			if t.Format == "bf16" { // others as before there was a choice, so that their KV stays in use
				as = t.Format + " " + as
			}
			return fmt.Sprintf("\n%s %q %q %q %q %q %d %v", as, t.Name, t.Store, t.File, t.Addresses, t.Prefix, t.Dim,
				t.Default)
		}
	}
	return ""
}

// prefixOf returns a model's policy for prefix=auto, and the orders that it may choose from.
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

// pageFor returns the largest page size, from 256 bytes to 64 KiB, that divides a token's KV, so that entries of any
// length waste nothing. With scales there is no such size; pages are then 4 KiB and an entry wastes half a page on
// average.
func pageFor(shape *compute.Shape) int {
	if shape.ScaleBytes() > 0 {
		return 4 << 10
	}
	token := shape.ChunkBytes(1, false)
	return min(max(token&-token, 256), 64<<10)
}
